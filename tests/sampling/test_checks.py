from __future__ import annotations

import pytest
from sampling_model import POLICIES, make_request

from anima_batch.job.request import GuidanceReusePolicy, SpectrumPolicy
from anima_batch.sampling import check_request


def problems(severity, **fields):
    return [(p.keys, p.message) for p in check_request(make_request(**fields)) if p.severity == severity]


@pytest.mark.parametrize("policy", POLICIES.values())
def test_a_usual_request_has_no_problem(policy):
    assert check_request(make_request(steps=20, policy=policy)) == []


@pytest.mark.parametrize("sampler", ["ab2", "dpmpp_2m"])
def test_spectrum_with_another_sampler_than_euler_is_an_error(sampler):
    ((keys, message),) = problems("error", steps=20, sampler=sampler, policy=SpectrumPolicy())
    assert keys == ("sampler", "policy")
    assert f"euler only, got {sampler}" in message


@pytest.mark.parametrize(
    ("steps", "policy", "cause"),
    [
        (5, SpectrumPolicy(), "at 5 steps it computes everything"),
        (20, SpectrumPolicy(window_size=1, flex_window=0.0), "at 20 steps it computes everything"),
        (20, SpectrumPolicy(start_sigma=0.0), "at 20 steps it computes everything"),
        (4, SpectrumPolicy(), "warmup_steps 4 must be below steps 4"),
        (6, SpectrumPolicy(tail_steps=6), "tail_steps 6 must be below steps 6"),
        (4, GuidanceReusePolicy(), "warmup_steps 4 must be below steps 4"),
        (6, GuidanceReusePolicy(), "at 6 steps it computes everything"),
        (20, GuidanceReusePolicy(uncond_every=1), "at 20 steps it computes everything"),
    ],
)
def test_a_policy_that_saves_nothing_is_an_error(steps, policy, cause):
    ((keys, message),) = problems("error", steps=steps, policy=policy)
    assert keys == ("steps", "policy")
    assert message == f"policy of kind {policy.kind} equals `full`: {cause}"


def test_guidance_reuse_without_guidance_is_an_error():
    ((keys, message),) = problems("error", steps=20, guidance_scale=1.0, policy=GuidanceReusePolicy())
    assert keys == ("guidance_scale", "policy")
    assert "nothing to reuse" in message


def test_a_schedule_that_repeats_a_sigma_is_an_error():
    ((keys, message),) = problems("error", steps=139, schedule="beta")
    assert keys == ("steps", "schedule")
    assert "138 of 139" in message


def test_a_history_shorter_than_the_fit_is_legal():
    assert check_request(make_request(steps=20, policy=SpectrumPolicy(history=2, degree=5))) == []


def test_the_step_coordinate_past_50_steps_is_a_warning():
    ((keys, message),) = problems("warning", steps=60, policy=SpectrumPolicy())
    assert keys == ("steps", "policy")
    assert "[-1, 1]" in message
    assert problems("warning", steps=50, policy=SpectrumPolicy()) == []
    assert problems("warning", steps=60, policy=SpectrumPolicy(coordinate="sigma")) == []


def test_ab2_under_10_steps_is_a_warning():
    ((keys, _),) = problems("warning", steps=9, sampler="ab2")
    assert keys == ("steps", "sampler")
    assert problems("warning", steps=10, sampler="ab2") == []


def test_a_torch_seed_over_32_bits_is_a_warning_that_names_its_twin():
    ((keys, message),) = problems("warning", seed=2**32 + 5)
    assert keys == ("seed", "noise")
    assert message.endswith("gives the noise of 5")
    assert problems("warning", seed=2**32 - 1) == []
    assert problems("warning", seed=2**32 + 5, noise="philox") == []
