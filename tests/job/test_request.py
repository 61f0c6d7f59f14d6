"""The request, its policies and its identity."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from anima_batch.files import canonical_json, sha256_bytes
from anima_batch.job import (
    MAX_SEED,
    FullPolicy,
    GuidanceReusePolicy,
    ImageRequest,
    SpectrumPolicy,
    request_id,
    request_ids,
    request_json,
)
from anima_batch.job.request import REQUEST_FIELDS, build_request

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
policies = st.one_of(
    st.just(FullPolicy()),
    st.builds(GuidanceReusePolicy, uncond_every=st.integers(1, 200), warmup_steps=st.integers(0, 200)),
    st.builds(
        SpectrumPolicy,
        forecast=st.sampled_from(["denoised", "features"]),
        blend=st.floats(0, 1),
        degree=st.integers(0, 16),
        tail_steps=st.none() | st.integers(0, 200),
    ),
)
requests = st.builds(
    ImageRequest,
    prompt=texts,
    negative_prompt=texts,
    seed=st.integers(0, MAX_SEED),
    width=st.integers(1, 512).map(lambda n: 16 * n),
    height=st.integers(1, 512).map(lambda n: 16 * n),
    steps=st.integers(1, 200),
    guidance_scale=st.floats(0, 100),
    shift=st.floats(1e-300, 100),
    schedule=st.sampled_from(["simple", "discrete", "sgm_uniform", "normal", "beta"]),
    sampler=st.sampled_from(["euler", "ab2", "dpmpp_2m"]),
    noise=st.sampled_from(["torch", "philox", "numpy"]),
    policy=policies,
)


def small_request(**changes: object) -> ImageRequest:
    return ImageRequest(**({"prompt": "a red house", "seed": 7, "width": 128, "height": 128} | changes))


@given(requests)
def test_a_request_survives_json(request: ImageRequest):
    text = json.dumps(request_json(request))
    assert ImageRequest(**json.loads(text)) == request


@given(requests, st.randoms())
def test_the_id_does_not_depend_on_the_order_of_keys(request: ImageRequest, random):
    items = list(request_json(request).items())
    random.shuffle(items)
    assert request_id(ImageRequest(**dict(items)), "ab") == request_id(request, "ab")


@given(st.lists(requests, max_size=4), texts)
def test_the_fast_ids_are_the_sha256_of_the_canonical_json(some: list[ImageRequest], digest: str):
    slow = [
        sha256_bytes(canonical_json({"model_set": digest, "request": request_json(request)}).encode())
        for request in some
    ]
    assert request_ids(some, digest) == slow
    assert [request_id(request, digest) for request in some] == slow


@given(requests)
def test_a_request_built_without_checks_equals_the_checked_one(request: ImageRequest):
    assert build_request({name: getattr(request, name) for name in REQUEST_FIELDS}) == request


def test_equal_numbers_give_equal_ids():
    assert request_id(small_request(guidance_scale=4), "ab") == request_id(small_request(guidance_scale=4.0), "ab")
    assert request_id(small_request(guidance_scale=-0.0), "ab") == request_id(small_request(guidance_scale=0), "ab")


def test_the_id_changes_with_the_model_set_and_with_each_field():
    changes = {
        "prompt": "b",
        "negative_prompt": "b",
        "seed": 8,
        "width": 144,
        "height": 144,
        "steps": 21,
        "noise": "numpy",
    }
    changes |= {"guidance_scale": 4.1, "shift": 3.1, "schedule": "beta", "sampler": "ab2", "policy": SpectrumPolicy()}
    assert set(changes) == set(REQUEST_FIELDS)
    ids = {request_id(small_request(**{name: value}), "ab") for name, value in changes.items()}
    ids |= {request_id(small_request(), "ab"), request_id(small_request(), "ac")}
    assert len(ids) == len(changes) + 2


def test_a_spectrum_policy_makes_its_dependent_defaults_explicit():
    assert (SpectrumPolicy().stop_fraction, SpectrumPolicy().tail_steps, SpectrumPolicy().history) == (0.9, None, 6)
    assert (SpectrumPolicy(tail_steps=3).stop_fraction, SpectrumPolicy(degree=8).history) == (None, 9)


@pytest.mark.parametrize(
    "wrong",
    [
        {"seed": True},
        {"seed": 1.0},
        {"seed": -1},
        {"seed": MAX_SEED + 1},
        {"steps": 20.0},
        {"steps": 201},
        {"width": 500},
        {"guidance_scale": math.nan},
        {"guidance_scale": math.inf},
        {"guidance_scale": True},
        {"guidance_scale": "4"},
        {"shift": 0},
        {"prompt": "a\0b"},
        {"prompt": "\ud800"},
        {"sampler": "heun"},
        {"colour": "red"},
        {"policy": {"kind": "spectrum", "stop_fraction": 0.5, "tail_steps": 3}},
        {"policy": {"kind": "spectrum", "speed": 2}},
        {"policy": {"kind": "faster"}},
    ],
    ids=str,
)
def test_a_wrong_value_is_refused(wrong: dict[str, object]):
    with pytest.raises(ValidationError):
        small_request(**wrong)
