"""Pictures made again from their records, by the real runner, with the real model set and with changed ones."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Workspace
from PIL import Image

from anima_batch.errors import DifferenceFoundError, ModelSetError, ModelSetNotFoundError, UsageError
from anima_batch.job import load_job, request_id
from anima_batch.measures import measure_psnr
from anima_batch.model_set import find_model_set
from anima_batch.reproduce import Reproduction, compare_made, prepare_run, read_original
from anima_batch.runner import RunOptions, StopRequest, run_job
from anima_batch.store import decode_pixels

JOB = """
model_set = "mine"
[defaults]
prompt = 'a "red" house, on\\grass'
seed = 18446744073709551615
steps = 2
[[include]]
seed = 1
[[include]]
sampler = "ab2"
steps = 3
[[include]]
sampler = "dpmpp_2m"
guidance_scale = 1.0
[[include]]
policy = "spectrum"
steps = 8
[[include]]
policy = "gentle"
steps = 8
[[include]]
policy = "thrifty"
steps = 7
[[include]]
width = 192
height = 128
shift = 1.7
[[include]]
noise = "philox"
schedule = "discrete"
[[include]]
noise = "numpy"
negative_prompt = "blurry\\n夜"
[[include]]
schedule = "beta"
guidance_scale = 0.1
[policy.gentle]
kind = "spectrum"
forecast = "features"
coordinate = "sigma"
tail_steps = 2
ridge_lambda = 1e-7
[policy.thrifty]
kind = "guidance_reuse"
uncond_every = 3
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Ten pictures, with a model set of their own."""
    workspace = Workspace(tmp_path_factory.mktemp("finished"))
    workspace.make_own_set("mine")
    workspace.run("run", workspace.write_job(JOB))
    return workspace


@pytest.fixture
def moved(finished, tmp_path):
    """Another folder with the model set alone, renamed."""
    shutil.copytree(finished.folder / "models/mine", tmp_path / "moved/models/renamed")
    return tmp_path / "moved"


def reproduce(path: Path, workspace: Path, folder: Path, *, allow_different: bool = False) -> Reproduction:
    """As the command does it."""
    original = read_original(path, workspace)
    undertaking = prepare_run(original, workspace, folder, allow_different=allow_different)
    options = RunOptions(run_flags=undertaking.flags)
    *_, ended = run_job(undertaking.job, undertaking.workspace, options, StopRequest())
    assert ended.exit_code == 0
    return compare_made(original, undertaking)


def change_weights(folder: Path, role: str) -> None:
    """Flip the lowest bit of each byte in a stretch of weights of a graph."""
    path = find_model_set(str(folder), Path()).path(role)
    data = bytearray(path.read_bytes())
    for offset in range(len(data) // 4, len(data) // 4 + 2000):  # an MLP has the seam of its two matrices in the middle
        data[offset] ^= 1
    path.write_bytes(data)


def resign(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The manifest after `change` edited its JSON, its own digest made right again."""
    content = json.loads(path.read_text())
    change(content)
    content["self_sha256"] = "0" * 64
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    head, _, tail = text.rpartition("0" * 64)
    path.write_text(head + hashlib.sha256(text.encode()).hexdigest() + tail)
    return path


def change_steps(content: dict[str, Any]) -> None:
    content["steps"][1]["latents_xxh3"] = "a" * 32
    content["steps"][2]["latents_xxh3"] = "b" * 32
    content["environment"]["onnxruntime"] = "1.0.0"


def test_ten_pictures_are_identical_in_another_folder_with_the_model_set_renamed(finished, moved, tmp_path):
    manifests = sorted((finished.folder / "manifests/job").glob("*.json"))
    assert len(manifests) == 10
    for number, manifest in enumerate(manifests):
        found = reproduce(manifest, moved, tmp_path / str(number))
        assert found.identical
        assert (found.same_pixels, found.noise, found.first_different_step) == (True, True, None)
        assert found.steps == found.original.request.steps
        assert found.psnr_db == math.inf
        assert found.environment == {}
        assert found.made.request_id == manifest.read_text().split('"request_id": "')[1][:64]


def test_a_picture_alone_is_enough(finished, moved, tmp_path):
    """Without its manifest the pixels decide, and nothing is said of steps."""
    shutil.copy(finished.pictures()[0], tmp_path / "holiday.png")
    found = reproduce(tmp_path / "holiday.png", moved, tmp_path / "new")
    assert found.identical
    assert (found.noise, found.steps) == (None, 0)


def test_changed_weights_are_refused_by_name_and_step_one_is_named_when_they_are_allowed(finished, moved, tmp_path):
    change_weights(moved / "models/renamed", "transformer.02.mlp")
    manifest = min((finished.folder / "manifests/job").glob("*.json"))
    original = read_original(manifest, moved)
    with pytest.raises(ModelSetError) as caught:
        prepare_run(original, moved, tmp_path / "refused", allow_different=False)
    assert caught.value.exit_code == 4
    assert "transformer.02.mlp: xxh3_128 must be" in caught.value.lines[0]
    assert "--allow-different" in caught.value.lines[-1]
    found = reproduce(manifest, moved, tmp_path / "new", allow_different=True)
    assert not found.identical
    assert (found.noise, found.first_different_step) == (True, 1)
    assert "transformer.02.mlp" in found.model_set_differences[0]
    pictures = [
        decode_pixels((folder / manifest["image"]["path"]).read_bytes())
        for folder, manifest in (
            (finished.folder, json.loads(found.original.path.read_text())),
            (tmp_path / "new", found.made.model_dump(mode="json")),
        )
    ]
    assert found.psnr_db == pytest.approx(measure_psnr(*pictures))
    # The user's set stays as it is.
    assert json.loads((moved / "models/renamed/model_set.json").read_text())["name"] == "mine"


def test_a_decoder_that_changed_is_told_from_steps_that_did(finished, moved, tmp_path):
    change_weights(moved / "models/renamed", "vae.decoder")
    manifest = min((finished.folder / "manifests/job").glob("*.json"))
    found = reproduce(manifest, moved, tmp_path / "new", allow_different=True)
    assert (found.same_pixels, found.first_different_step) == (False, None)
    assert not found.identical


def test_the_first_step_that_differs_is_named_and_the_environment_with_it(finished, moved, tmp_path):
    """The command, on a manifest that says something else of steps 2 and 3."""
    source = next(path for path in (finished.folder / "manifests/job").glob("*.json") if "spectrum" in path.name)
    manifest = resign(Path(shutil.copy(source, tmp_path / "other.json")), change_steps)
    other = Workspace(moved)
    told = other.run("reproduce", str(manifest), "--out", "again", check=3).stdout.splitlines()
    assert told[0] == f"{manifest}: DIFFERENT"
    assert told[1:3] == ["  pixels: the same", "  steps: 2 of 8 is the first whose latents differ"]
    now = version("onnxruntime")
    assert told[3] == f"  environment: onnxruntime: 1.0.0 -> {now}"
    (picture,) = (moved / "again/outputs/reproduction").glob("*.png")
    assert told[-1] == f"  kept: {picture.relative_to(moved)}"
    entry = other.json("reproduce", str(manifest), "--out", "again", check=3)  # nothing is made again
    assert (entry["identical"], entry["same_pixels"], entry["psnr_db"]) == (False, True, None)
    assert (entry["first_different_step"], entry["steps"], entry["environment"]) == (
        2,
        8,
        {"onnxruntime": {"before": "1.0.0", "now": now}},
    )


def test_a_set_that_is_not_here_is_said_before_anything_runs(finished, tmp_path):
    original = read_original(finished.pictures()[0], finished.folder)
    with pytest.raises(ModelSetNotFoundError, match=r"which is not in .* under any name: put it there"):
        prepare_run(original, tmp_path, tmp_path / "new", allow_different=True)
    assert not (tmp_path / "new").exists()


def test_a_namesake_with_another_digest_is_refused_with_what_differs(finished, moved, tmp_path):
    description = json.loads((moved / "models/renamed/model_set.json").read_text())
    description["sources"][0]["sha256"] = "0" * 64
    description["vae"]["latent_mean"][0] += 0.01
    (moved / "models/renamed/model_set.json").write_text(json.dumps(description))
    original = read_original(finished.pictures()[0], finished.folder)
    with pytest.raises(ModelSetError) as caught:
        prepare_run(original, moved, tmp_path / "new", allow_different=False)
    assert "digest must be" in caught.value.lines[0]
    assert "transformer: sha256 is" in caught.value.lines[1]


def test_what_is_no_finished_picture_of_ours_is_refused(finished, tmp_path):
    with pytest.raises(UsageError, match="must be a manifest or a PNG of anima-batch"):
        read_original(tmp_path / "missing.png", tmp_path)
    stripped = tmp_path / "stripped.png"

    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(stripped)
    with pytest.raises(DifferenceFoundError, match=r"no manifest in .* is of these pixels"):
        read_original(stripped, finished.folder)


def test_a_stripped_picture_is_made_again_by_its_pixels(finished, tmp_path):

    with Image.open(finished.pictures()[0]) as image:
        Image.fromarray(np.asarray(image)).save(tmp_path / "stripped.png")
    original = read_original(tmp_path / "stripped.png", finished.folder)
    assert original.manifest is not None
    assert request_id(original.request, original.model_set_digest) == original.request_id


def test_the_request_must_be_the_one_of_its_id(finished, tmp_path):
    source = min((finished.folder / "manifests/job").glob("*.json"))
    changed = resign(
        Path(shutil.copy(source, tmp_path / "changed.json")), lambda content: content["request"].update(seed=3)
    )
    with pytest.raises(DifferenceFoundError, match="request_id is not of this request and model set"):
        read_original(changed, finished.folder)


def test_a_failed_image_is_refused_with_what_to_run(finished, tmp_path):
    def fail(content):
        content |= {"status": "failed", "image": None, "error": {"kind": "memory", "step": 1, "message": "none left"}}

    source = min((finished.folder / "manifests/job").glob("*.json"))
    failed = resign(Path(shutil.copy(source, tmp_path / "failed.json")), fail)
    with pytest.raises(UsageError, match=r"it failed \(none left\): `run --retry-failed` of its job tries it again"):
        read_original(failed, finished.folder)


def test_a_folder_that_has_something_else_is_left_alone(finished, moved, tmp_path):
    first, second = sorted((finished.folder / "manifests/job").glob("*.json"))[:2]
    original = read_original(first, moved)
    (tmp_path / "mine/jobs").mkdir(parents=True)
    (tmp_path / "mine/jobs/reproduction.toml").write_text("mine")
    (tmp_path / "sets/models/reproduction").mkdir(parents=True)
    for folder in ("mine", "sets"):
        with pytest.raises(UsageError, match="must be a new folder, or one begun for this picture"):
            prepare_run(original, moved, tmp_path / folder, allow_different=False)
    assert (tmp_path / "mine/jobs/reproduction.toml").read_text() == "mine"
    with pytest.raises(UsageError, match="--out: must be a folder, got"):
        prepare_run(original, moved, tmp_path / "mine/jobs/reproduction.toml", allow_different=False)
    prepare_run(original, moved, tmp_path / "new", allow_different=False)
    prepare_run(original, moved, tmp_path / "new", allow_different=False)
    with pytest.raises(UsageError, match=r"begun for this picture, got .*/new: it has .*reproduction\.toml"):
        prepare_run(read_original(second, moved), moved, tmp_path / "new", allow_different=False)


def test_a_picture_is_not_compared_with_itself(finished):
    manifest = min((finished.folder / "manifests/job").glob("*.json"))
    with pytest.raises(UsageError, match="must be another folder than the one that"):
        prepare_run(read_original(manifest, finished.folder), finished.folder, finished.folder, allow_different=False)


def test_a_policy_named_as_no_job_may_name_it_is_used_all_the_same(finished, moved, tmp_path):
    """A manifest is another's word: its name for a policy must not become lines of the job."""
    sources = [path for path in (finished.folder / "manifests/job").glob("*.json") if "-gentle-" in path.name]
    for number, name in enumerate(('x]\nkind = "full"\n[run]\nthreads = 1\n[policy.y', "spectrum")):
        manifest = resign(
            Path(shutil.copy(sources[0], tmp_path / f"{number}.json")),
            lambda content, name=name: content["sampling"]["policy"].update(name=name),
        )
        undertaking = prepare_run(read_original(manifest, moved), moved, tmp_path / str(number), allow_different=False)
        job = load_job(undertaking.job, undertaking.workspace)
        assert job.policies["original"].kind == "spectrum"
        assert job.run.threads == 0
