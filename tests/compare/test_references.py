"""Whom an image is compared with."""

from dataclasses import replace
from pathlib import Path

import sample_manifest

from anima_batch.compare.records import Record
from anima_batch.compare.references import find_controls, find_converged, find_twin, subject
from anima_batch.job import FullPolicy, GuidanceReusePolicy, ImageRequest, SpectrumPolicy
from anima_batch.sampling import planned_passes
from anima_batch.store import StepRecord, record_policy

POLICIES = {"full": FullPolicy(), "spectrum": SpectrumPolicy(), "thrifty": GuidanceReusePolicy()}


def record(setting, **changes):
    sampler, steps, policy = [*setting.split(), "full"][:3]
    request = ImageRequest(
        **{"prompt": "an owl", "seed": 1, "width": 128, "height": 128, **changes},
        sampler=sampler, steps=int(steps), policy=POLICIES[policy],
    )  # fmt: skip
    step = sample_manifest.done().steps[0]
    steps = [
        StepRecord(**{**step.model_dump(), "index": index, "passes": passes})
        for index, passes in enumerate(planned_passes(request), start=1)
    ]
    sampling = sample_manifest.done().sampling.model_copy(update={"policy": record_policy(request, policy)})
    manifest = sample_manifest.done(request=request, steps=tuple(steps), sampling=sampling)
    return Record(manifest, Path(f"manifests/job/{setting}.json"), Path())


def names(found):
    return None if found is None else found.setting


JOB = [
    record(setting) for setting in ("euler 20", "ab2 20", "euler 11", "ab2 11", "euler 20 spectrum", "ab2 14 thrifty")
]
FINEST = [record("euler 200"), record("ab2 200"), record("ab2 150")]


def test_the_twin_of_a_policy_has_as_many_steps_and_its_sampler_before_euler():
    assert names(find_twin(record("ab2 20 thrifty"), JOB)) == "ab2 20"
    assert names(find_twin(record("dpmpp_2m 20 thrifty"), JOB)) == "euler 20"
    assert names(find_twin(record("euler 20 spectrum"), JOB)) == "euler 20"


def test_without_a_twin_of_as_many_steps_the_finest_plain_image_stands_in():
    assert names(find_twin(record("ab2 14 thrifty"), JOB)) == "euler 20"
    assert names(find_twin(record("ab2 14 thrifty"), [*JOB, record("dpmpp_2m 28")])) == "dpmpp_2m 28"


def test_plain_images_are_held_against_the_one_with_the_most_steps_which_has_none():
    assert names(find_twin(record("ab2 11"), JOB)) == "euler 20"
    assert names(find_twin(record("ab2 20"), JOB)) == "euler 20"
    assert find_twin(JOB[0], JOB) is None


def test_a_converged_image_is_no_twin_and_has_none():
    assert names(find_twin(record("ab2 11"), [*JOB, *FINEST])) == "euler 20"
    assert find_twin(FINEST[0], [*JOB, *FINEST]) is None


def test_the_converged_reference_has_the_most_steps_and_ab2_goes_first():
    assert names(find_converged(record("euler 20 spectrum"), [*JOB, *FINEST])) == "ab2 200"
    assert find_converged(record("euler 20 spectrum"), JOB) is None
    assert find_converged(FINEST[0], FINEST) is None


def test_controls_are_plain_and_take_as_many_passes():
    assert [names(found) for found in find_controls(record("euler 20 spectrum"), JOB)] == ["euler 11", "ab2 11"]
    assert find_controls(record("euler 11"), JOB) == []


def test_a_control_of_an_odd_number_of_passes_takes_one_more():
    thrifty = record("euler 20 thrifty")
    assert thrifty.passes == 33
    others = [record(f"euler {steps}") for steps in (16, 17, 18)]
    assert [names(found) for found in find_controls(thrifty, others)] == ["euler 17"]


def test_without_guidance_a_step_is_one_pass():
    spectrum = record("euler 20 spectrum", guidance_scale=1.0)
    others = [record("euler 11", guidance_scale=1.0), record("euler 22", guidance_scale=1.0)]
    assert [names(found) for found in find_controls(spectrum, others)] == ["euler 11"]


def test_images_are_of_one_subject_whatever_sampler_steps_and_policy():
    assert len({subject(entry) for entry in [*JOB, *FINEST]}) == 1
    other = replace(JOB[0].manifest.request, shift=2.0)
    assert subject(replace(JOB[0], manifest=sample_manifest.done(request=other))) != subject(JOB[0])
