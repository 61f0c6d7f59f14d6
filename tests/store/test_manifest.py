from __future__ import annotations

import hashlib
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from sample_manifest import done

from anima_batch.errors import DifferenceFoundError, StorageError
from anima_batch.job import GuidanceReusePolicy, ImageRequest, SpectrumPolicy
from anima_batch.store.integrity import CorruptError, NewerFormatError
from anima_batch.store.manifest import (
    describe_latents,
    parse_manifest,
    read_manifest,
    record_policy,
    to_bytes,
    write_manifest,
)
from anima_batch.store.records import ErrorRecord, Manifest, SamplingRecord

CONTRACT_KEYS = (
    "request_id status request job image model_set environment sampling steps timings latents runs checks warnings"
)
NESTED_KEYS = {
    "job": "name digest",
    "image": "path sha256 pixel_sha256 bytes width height",
    "model_set": "name digest license source components",
    "environment": "anima_batch python numpy onnxruntime rknn_toolkit_lite2 librknnrt rknpu_driver soc kernel machine"
    " core_mask npu_canary",
    "sampling": "sigmas computed_steps forecast_steps policy noise noise_sha256",
    "timings": "encode denoise decode load init run release host total",
    "latents": "sha256 dtype shape min max mean std nan inf",
    "checks": "finite not_flat",
}

FINITE = st.floats(allow_nan=False, allow_infinity=False)
POLICIES = st.sampled_from([SpectrumPolicy(), SpectrumPolicy(tail_steps=3), GuidanceReusePolicy()])


def failed() -> Manifest:
    return done(status="failed", image=None, error=ErrorRecord(kind="nan", step=3, message="1024 NaN after step 3"))


def resign(data: bytes, old: bytes, new: bytes) -> bytes:
    """The file with a change made and its self digest made right again, by the rule as published."""
    assert data.count(old) == 1
    changed = data.replace(old, new)
    recorded = re.search(rb'"self_sha256": "([0-9a-f]{64})"', changed)[1]
    return changed.replace(recorded, hashlib.sha256(changed.replace(recorded, b"0" * 64)).hexdigest().encode())


@pytest.mark.parametrize("manifest", [done(), failed()], ids=["done", "failed"])
def test_a_manifest_comes_back_from_its_file(tmp_path: Path, manifest: Manifest):
    path = tmp_path / "manifests" / "sweep" / "owl.json"
    write_manifest(path, manifest)
    found = read_manifest(path)
    assert found.model_copy(update={"self_sha256": "0" * 64}) == manifest
    assert to_bytes(found) == path.read_bytes()


def test_the_keys_are_those_that_scripts_rely_on_in_their_order():
    content = json.loads(to_bytes(done()))
    assert list(content) == [
        "schema_version",
        "request_id",
        "status",
        "error",
        *CONTRACT_KEYS.split()[2:],
        "self_sha256",
    ]
    assert {key: " ".join(content[key]) for key in NESTED_KEYS} == NESTED_KEYS
    assert " ".join(content["steps"][0]) == "index sigma computed passes seconds nan inf abs_max latents_xxh3"
    assert " ".join(content["runs"][0]) == "boot_id started_at first_step last_step resumed board"
    assert " ".join(content["model_set"]["components"][0]) == "role path bytes sha256 xxh3_128 built_with"
    assert " ".join(content["model_set"]["source"][0]) == "role file bytes sha256"


def test_the_policy_is_its_name_and_then_every_parameter():
    policy = json.loads(to_bytes(done()))["sampling"]["policy"]
    assert list(policy)[:2] == ["name", "kind"]
    assert policy == {"name": "spectrum", **SpectrumPolicy().model_dump()}


def test_a_failed_image_has_an_error_and_no_image():
    content = json.loads(to_bytes(failed()))
    assert content["image"] is None
    assert content["error"] == {"kind": "nan", "step": 3, "message": "1024 NaN after step 3"}
    assert json.loads(to_bytes(done()))["error"] is None


@pytest.mark.parametrize(
    "changes",
    [
        {"image": None},
        {"status": "failed"},
        {"error": ErrorRecord(kind="nan", step=None, message="m")},
        {"latents": None},
    ],
    ids=["done without image", "failed without error", "done with error", "done without latents"],
)
def test_status_image_and_error_must_fit(changes: dict[str, Any]):
    with pytest.raises(ValidationError, match="status"):
        done(**changes)


def test_the_self_digest_is_that_of_the_file_with_zeros_in_its_place():
    data = to_bytes(done())
    recorded = json.loads(data)["self_sha256"]
    assert recorded == hashlib.sha256(data.replace(recorded.encode(), b"0" * 64)).hexdigest()


def test_the_file_is_indented_and_its_text_is_readable():
    text = to_bytes(done()).decode()
    assert '\n    "prompt": "an owl, 夜の森 🦉",\n' in text
    assert text.endswith('"\n}\n')


def test_nothing_is_rounded():
    text = to_bytes(done()).decode()
    assert "0.30000000000000004" in text
    assert "18446744073709551615" in text


def test_a_prompt_may_hold_the_text_of_a_self_digest():
    prompt = f'"self_sha256": "{"0" * 64}"\n}}\n'
    manifest = done(request=ImageRequest(prompt=prompt, seed=1, width=16, height=16))
    assert parse_manifest(to_bytes(manifest), "m").request.prompt == prompt


@pytest.mark.parametrize("change", ["cut", "longer", "upper case", "reformatted", "zeros"])
def test_a_changed_file_is_a_difference(change: str):
    data = to_bytes(done())
    digest = json.loads(data)["self_sha256"].encode()
    changed = {
        "cut": data[:-1],
        "longer": data + b"\n",
        "upper case": data.replace(digest, digest.upper()),
        "reformatted": json.dumps(json.loads(data)).encode(),
        "zeros": data.replace(digest, b"0" * 64),
    }[change]
    with pytest.raises(DifferenceFoundError, match=r"^manifests/a\.json: self_sha256: "):
        parse_manifest(changed, "manifests/a.json")


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "not valid JSON"),
        (bytes(100), "not valid JSON"),
        (b"\xff{}", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "must be a JSON object, got list"),
        (b"{}", "self_sha256: must be 64 lower-case hex digits, got None"),
    ],
    ids=["empty", "zeros", "not UTF-8", "too deep", "a list", "no digest"],
)
def test_a_file_that_is_no_manifest_is_refused_in_one_line(data: bytes, fault: str):
    with pytest.raises(CorruptError, match=f"^m: {fault}") as caught:
        parse_manifest(data, "m")
    assert "\n" not in str(caught.value)


def test_a_later_schema_is_told_apart_from_a_changed_file():
    later = resign(to_bytes(done()), b'"schema_version": 1', b'"schema_version": 2')
    with pytest.raises(
        NewerFormatError, match=r"^m: schema_version: must be at most 1, got 2: use the anima-batch that"
    ):
        parse_manifest(later, "m")


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (b'"warnings"', b'"remarks"', "warnings: Field required"),
        (b'"steps": 20', b'"steps": 0', "request.steps: "),
        (b'"passes": 2', b'"passes": "2"', "steps.0.passes: "),
        (b'"abs_max": 4.25', b'"abs_max": NaN', "steps.0.abs_max: |.*JSON"),
        (b'"schema_version": 1', b'"schema_version": 0', "schema_version: "),
        (b'"path": "outputs/sweep/owl.png"', b'"path": "/dev/zero"', "image.path: must be a path below the folder"),
        (b'"path": "vae.onnx"', b'"path": "../vae.onnx"', "model_set.components.0.path: must be a path below"),
        (b'"path": "vae.onnx"', b'"path": "vae\\u0000"', "model_set.components.0.path: must be a path below"),
        (b'"path": "vae.onnx"', b'"path": "' + b"x" * 5000 + b'"', "model_set.components.0.path: must be a path below"),
        (b'"name": "spectrum"', b'"title": "spectrum"', "sampling.policy: .*name: must be a string, got None"),
        (b'"name": "spectrum"', b'"name": 3', "sampling.policy: .*name: must be a string, got 3"),
    ],
)
def test_a_wrong_field_under_a_right_digest_is_named(old: bytes, new: bytes, fault: str):
    with pytest.raises(CorruptError, match=f"^m: {fault}"):
        parse_manifest(resign(to_bytes(done()), old, new), "m")


def test_a_manifest_that_cannot_be_read_is_a_storage_error(tmp_path: Path):
    with pytest.raises(StorageError, match=r"/gone\.json: No such file or directory"):
        read_manifest(tmp_path / "gone.json")


def test_only_a_regular_file_of_a_manifests_size_is_read(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(1 << 40)
    for name, fault in (
        ("pipe", "a regular file"),
        ("zero", "a regular file"),
        ("huge", "at most 16777216 bytes, got"),
    ):
        with pytest.raises(CorruptError, match=rf"/{name}\.json: must (be|have) {fault}"):
            read_manifest(tmp_path / f"{name}.json")


def test_latents_are_described_over_their_finite_values():
    latents = np.array([[1, 2, 3], [np.nan, np.inf, -np.inf]], dtype=np.float32)
    found = describe_latents(latents)
    assert (found.min, found.max, found.mean, found.nan, found.inf) == (1.0, 3.0, 2.0, 1, 2)
    assert found.std == pytest.approx(math.sqrt(2 / 3), abs=1e-15)  # closed form, float64
    assert (found.dtype, found.shape) == ("float32", (2, 3))
    assert found.sha256 == hashlib.sha256(latents.tobytes()).hexdigest()


def test_latents_without_a_finite_value_have_null_statistics():
    found = describe_latents(np.full((2, 2), np.nan, np.float32))
    assert (found.min, found.max, found.mean, found.std, found.nan) == (None, None, None, None, 4)
    assert json.loads(to_bytes(done(latents=found)))["latents"]["min"] is None


@settings(max_examples=150, deadline=None)
@given(
    text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    message=st.text(st.characters(exclude_categories=["Cs"])),
    sigmas=st.lists(FINITE, max_size=5),
    policy=POLICIES,
    seed=st.integers(0, 2**64 - 1),
)
def test_any_manifest_comes_back_exactly(text, message, sigmas, policy, seed):
    request = ImageRequest(prompt=text, negative_prompt=text, seed=seed, width=16, height=16, policy=policy)
    sampling = SamplingRecord(
        sigmas=tuple(sigmas),
        computed_steps=(),
        forecast_steps=(),
        policy=record_policy(request, text),
        noise="philox",
        noise_sha256=None,
    )
    error = ErrorRecord(kind="k", step=None, message=message)
    manifest = done(status="failed", image=None, error=error, request=request, sampling=sampling, warnings=(message,))
    data = to_bytes(manifest)
    found = parse_manifest(data, "m")
    assert found.model_copy(update={"self_sha256": "0" * 64}) == manifest
    assert to_bytes(found) == data
