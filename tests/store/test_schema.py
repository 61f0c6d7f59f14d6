"""The published schema of manifests, on manifests of today, of earlier versions and on wrong ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from sample_manifest import done

from anima_batch.job import GuidanceReusePolicy, ImageRequest
from anima_batch.store import ErrorRecord, parse_manifest, read_manifest, to_bytes
from anima_batch.store.schema import schema_text

PUBLISHED = Path(__file__).parents[2] / "docs/manifest.schema.json"
KEPT = sorted((Path(__file__).parent / "manifests").glob("*.json"))
ERROR = ErrorRecord(kind="nan", step=3, message="m")


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_published_schema_is_what_the_model_gives():
    """After a change of the model: python docs/write_schema.py."""
    assert PUBLISHED.read_text(encoding="utf-8") == schema_text()


@pytest.mark.parametrize(
    "manifest",
    [
        done(),
        done(status="failed", image=None, error=ERROR),
        done(status="failed", image=None, error=ERROR, latents=None),
        done(request=ImageRequest(prompt="", seed=0, width=16, height=16, policy=GuidanceReusePolicy())),
    ],
    ids=["done", "failed", "failed early", "guidance_reuse"],
)
def test_what_is_written_fits(validator: jsonschema.Draft202012Validator, manifest: Any):
    validator.validate(json.loads(to_bytes(manifest)))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_manifest_of_an_earlier_version_fits_and_is_read(validator: jsonschema.Draft202012Validator, path: Path):
    """Real files, kept as they were written: only one has environment.npu_canary."""
    content = json.loads(path.read_text(encoding="utf-8"))
    validator.validate(content)
    found = read_manifest(path)
    assert found.request_id == content["request_id"]
    assert ("npu_canary" in content["environment"]) == (path.stem == "with-canary")
    assert parse_manifest(to_bytes(found), "m").model_dump(exclude={"self_sha256"}) == found.model_dump(
        exclude={"self_sha256"}
    )


def test_all_three_earlier_manifests_are_here():
    assert [path.stem for path in KEPT] == ["before-canary", "failed", "with-canary"]


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 2},
        {"status": "begun"},
        {"image": None},
        {"error": {"kind": "nan", "step": 3, "message": "m"}},
        {"latents": None},
        {"request_id": "A" * 64},
        {"more": 1},
        {"steps": [{"index": 0}]},
        {"request": {"prompt": "p", "seed": -1, "width": 16, "height": 16}},
        {"request": {"prompt": "p", "seed": 1, "width": 100, "height": 16}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_the_model_refuses_does_not_fit_either(validator: jsonschema.Draft202012Validator, change: dict[str, Any]):
    content = json.loads(to_bytes(done())) | change
    assert not validator.is_valid(content)
