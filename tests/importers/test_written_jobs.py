"""What is imported is a job that loads, whatever the files ask for together."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from command import Workspace
from sample_manifest import done

from anima_batch.errors import JobError
from anima_batch.importers import import_files
from anima_batch.job import expand_job, load_job, request_id
from anima_batch.store import PngInfo, encode_png, to_bytes

SIZES = [(128, 128)]


def count_images(workspace: Path, text: str, dialect: str = "sd-scripts") -> int:
    """Images of the job that the text becomes, read as `plan` reads it."""
    (workspace / "prompts.txt").write_text(text, encoding="utf-8")
    imported = import_files([workspace / "prompts.txt"], dialect, workspace)
    (workspace / "job.toml").write_text(imported.text, encoding="utf-8")
    images = expand_job(load_job(workspace / "job.toml", workspace), SIZES).images
    assert len(images) == imported.images
    return len(images)


def write_own(path: Path, *, model_set_digest: str) -> Path:
    request = dataclasses.replace(done().request, width=16, height=16)
    info = PngInfo(
        request=request,
        request_id=request_id(request, model_set_digest),
        policy_name="full",
        model_set_name="mine",
        model_set_digest=model_set_digest,
        source_sha256="e" * 64,
        manifest="manifests/a/b.json",
        version="1",
    )
    path.write_bytes(encode_png(np.zeros((16, 16, 3), np.uint8), info))
    return path


def test_a_value_that_is_the_default_anyway_does_not_make_another_image(tmp_path: Path):
    assert count_images(tmp_path, "a cat --d 1 --s 20\na cat --d 1\nb --d 2 --w 128 --h 128\nb --d 2\n") == 2


def test_more_images_than_a_job_has_unasked_are_asked_for(tmp_path: Path):
    assert count_images(tmp_path, "".join(f"cat --d {seed}\n" for seed in range(10_001))) == 10_001


def test_a_job_too_long_to_be_read_is_not_written(tmp_path: Path):
    lines = "".join(f"{seed} {'word ' * 400}--d {seed}\n" for seed in range(4500))
    with pytest.raises(JobError, match="must make a job file of at most 8388608 bytes"):
        count_images(tmp_path, lines)


def test_the_same_images_over_and_over_are_counted_before_they_are_compared(tmp_path: Path):
    line = "--prompt a --seed 1 --n_iter 90000\n"
    with pytest.raises(JobError, match="line 2: must be at most 100000 images in all"):
        count_images(tmp_path, line * 5000, "a1111")


def test_what_a_terminal_obeys_is_escaped_in_a_job(tmp_path: Path):
    (tmp_path / "prompts.txt").write_text("red \x9b31m \u202e \U000e0041 \u3000 \N{OWL} --d 1\n", encoding="utf-8")
    text = import_files([tmp_path / "prompts.txt"], "anima", tmp_path).text
    assert 'prompt = "red \\u009b31m \\u202e \\U000e0041 \u3000 \N{OWL}"' in text
    (tmp_path / "job.toml").write_text(text, encoding="utf-8")
    job = load_job(tmp_path / "job.toml", tmp_path)
    assert job.defaults["prompt"].text == "red \x9b31m \u202e \U000e0041 \u3000 \N{OWL}"


def test_a_policy_named_as_no_job_may_name_it_gets_another_name(tmp_path: Path):
    """A manifest is another's word: its name for a policy must not become lines of the job."""
    manifest = done()
    policy = {**manifest.sampling.policy, "name": 'x]\nkind = "full"\n[run]\nthreads = 1\n[policy.y'}
    sampling = manifest.sampling.model_copy(update={"policy": policy})
    (tmp_path / "a.json").write_bytes(to_bytes(manifest.model_copy(update={"sampling": sampling})))
    text = import_files([tmp_path / "a.json"], "anima-batch", tmp_path, "picture-book").text
    assert "[run]" not in text
    (tmp_path / "job.toml").write_text(text, encoding="utf-8")
    load_job(tmp_path / "job.toml", tmp_path)


def test_pictures_of_two_model_sets_are_no_one_job(tmp_path: Path):
    paths = [write_own(tmp_path / f"{digit}.png", model_set_digest=digit * 64) for digit in "12"]
    with pytest.raises(JobError, match=r"2\.png: must be of the model set of 1\.png, mine \(111111111111\)"):
        import_files(paths, "anima-batch", tmp_path)
    assert 'model_set = "other"' in import_files(paths, "anima-batch", tmp_path, "other").text
    ignored = import_files(paths[:1], "anima-batch", tmp_path).ignored
    assert any("model set mine (111111111111) is not in" in line for line in ignored), ignored


def test_a_link_that_leads_nowhere_is_not_replaced(workspace: Workspace):
    (workspace.folder / "prompts.txt").write_text("a cat --s 2\n")
    (workspace.folder / "job.toml").symlink_to("elsewhere.toml")
    told = workspace.run("import", "prompts.txt", "--dialect", "anima", "--out", "job.toml", check=2).stderr
    assert "it is never overwritten" in told
    assert (workspace.folder / "job.toml").is_symlink()
