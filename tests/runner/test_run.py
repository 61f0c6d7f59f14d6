"""Whole jobs through the real command line on the built-in model set."""

import json
import os
import shutil
import subprocess

import numpy as np
import pytest
from command import Workspace
from golden_set import make_golden_set
from PIL import Image
from safetensors.numpy import load_file, save_file

from anima_batch.job import ImageRequest, request_id
from anima_batch.model_set import find_model_set
from anima_batch.store import Checkpoint, CheckpointFolder, read_png

TWO_BY_TWO = """
[defaults]
seed = 7
steps = 6
[matrix]
prompt = ["a red house", { name = "night", text = "an owl, at night" }]
policy = ["full", "quick"]
[policy.quick]
kind = "spectrum"
warmup_steps = 2
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished job of two prompts and two policies; tests only read it."""
    workspace = Workspace(tmp_path_factory.mktemp("finished"))
    job = workspace.write_job(TWO_BY_TWO)
    workspace.run("run", job, "--events", "events.jsonl")
    return workspace


def test_a_job_leaves_a_picture_and_a_manifest_for_each_image(finished):
    manifests = finished.manifests()
    assert sorted(manifests) == [path.stem for path in finished.pictures()]
    assert {stem.rsplit("-", 1)[0] for stem in manifests} == {
        "a-red-house-7-full", "a-red-house-7-quick", "night-7-full", "night-7-quick",
    }  # fmt: skip
    assert all(manifest["status"] == "done" for manifest in manifests.values())
    with Image.open(finished.pictures()[0]) as picture:
        assert picture.size == (128, 128)


def test_a_manifest_says_what_made_the_picture_and_how_long_it_took(finished):
    model_set = find_model_set("picture-book", finished.folder)
    for manifest in finished.manifests().values():
        assert manifest["model_set"]["digest"] == model_set.digest
        assert len(manifest["model_set"]["components"]) == len(model_set.description.components)
        request = ImageRequest(**manifest["request"])
        assert manifest["request_id"] == request_id(request, model_set.digest)
        assert [step["index"] for step in manifest["steps"]] == [1, 2, 3, 4, 5, 6]
        timings = manifest["timings"]
        assert all(0 <= timings[phase] <= timings["denoise"] for phase in ("load", "init", "run", "release", "host"))
        assert timings["denoise"] <= timings["total"]
        assert timings["run"] > 0 < timings["host"]
        assert manifest["runs"][0]["first_step"] == 1
        assert manifest["runs"][0]["last_step"] == 6


def test_spectrum_runs_fewer_passes_and_gives_another_picture(finished):
    by_policy = {manifest["sampling"]["policy"]["name"]: manifest for manifest in finished.manifests().values()}
    full, quick = (sum(step["passes"] for step in by_policy[name]["steps"]) for name in ("full", "quick"))
    assert full == 12
    assert 0 < quick < full
    assert by_policy["quick"]["sampling"]["forecast_steps"]
    assert by_policy["full"]["image"]["pixel_sha256"] != by_policy["quick"]["image"]["pixel_sha256"]


def test_no_checkpoint_is_left_of_finished_images(finished):
    assert list((finished.folder / "outputs/job/.checkpoints").iterdir()) == []


def test_every_event_is_a_json_line(finished):
    events = [json.loads(line) for line in (finished.folder / "events.jsonl").read_text().splitlines()]
    names = [event["event"] for event in events]
    assert names[0] == "BatchStarted"
    assert names[-1] == "BatchEnded"
    assert names.count("StepDone") == 24
    assert names.count("ImageDone") == 4
    assert events[-1]["done"] == 4
    steps = [event for event in events if event["event"] == "StepDone"]
    assert all(event["batch_seconds_left"] >= event["image_seconds_left"] >= 0 for event in steps)


def test_running_a_finished_job_again_changes_nothing(finished):
    before = {path: path.stat().st_mtime_ns for path in finished.folder.rglob("*") if path.is_file()}
    ended = finished.run("run", "jobs/job.toml")
    assert "0 done, 4 done before, 0 failed, 0 waiting" in ended.stdout
    assert {path: path.stat().st_mtime_ns for path in finished.folder.rglob("*") if path.is_file()} == before


def test_two_prompts_share_one_encoding_of_the_negative_prompt(finished):
    assert len(list((finished.folder / "outputs/.conditioning").iterdir())) == 3


def test_the_same_job_elsewhere_gives_the_same_bits(finished, workspace):
    workspace.write_job(TWO_BY_TWO)
    workspace.run("run", "jobs/job.toml", "--staging", "on-demand")
    assert workspace.results() == finished.results()


def test_on_demand_staging_times_every_phase(workspace):
    job = workspace.write_job('[defaults]\nprompt = "a boat"\nseed = 1\nsteps = 2\n')
    workspace.run("run", job, "--staging", "on-demand")
    (manifest,) = workspace.manifests().values()
    timings = manifest["timings"]
    assert all(timings[phase] > 0 for phase in ("load", "init", "run", "release", "host"))


def test_limit_stops_after_that_many_images_and_the_next_run_does_the_rest(workspace):
    job = workspace.write_job('[defaults]\nprompt = "a boat"\nsteps = 1\n[matrix]\nseed = ["1..3"]\n')
    assert workspace.json("run", job, "--limit", "2")["waiting"] == 1
    assert len(workspace.pictures()) == 2
    assert workspace.json("run", job) | {"seconds": 0, "manifests": ""} == {
        "event": "BatchEnded", "done": 1, "skipped": 2, "failed": 0, "waiting": 0, "seconds": 0, "signal": None,
        "manifests": "",
    }  # fmt: skip


def test_random_seeds_are_drawn_once_and_stay(workspace):
    text = '[defaults]\nprompt = "a boat"\nsteps = 1\n[matrix]\nseed = { random = 2 }\n'
    job = workspace.write_job(text)
    planned = workspace.json("plan", job)
    assert [image["request_id"] for image in planned["images"]] == [None, None]
    workspace.run("run", job)
    first = sorted(workspace.manifests())
    assert len(first) == 2
    workspace.write_job(text.replace("random = 2", "random = 3"))
    workspace.run("run", job)
    assert set(first) < set(workspace.manifests())
    assert len(workspace.manifests()) == 3


def test_an_edited_job_keeps_what_it_still_asks_for_and_names_what_it_does_not(workspace):
    text = '[defaults]\nseed = 1\nsteps = 1\n[matrix]\nprompt = ["a boat", "a cat"]\n'
    job = workspace.write_job(text)
    workspace.run("run", job)
    kept = {path.name: path.stat().st_mtime_ns for path in workspace.pictures()}
    workspace.write_job(text.replace('"a boat"', '"a dog"'))
    ended = workspace.run("run", job)
    assert "no longer asked for, left as they are: a-boat-1-full-" in ended.stderr
    assert "1 done, 1 done before" in ended.stdout
    assert kept.items() <= {path.name: path.stat().st_mtime_ns for path in workspace.pictures()}.items()


def test_guidance_scale_one_runs_one_pass_and_encodes_one_prompt(workspace):
    job = workspace.write_job('[defaults]\nprompt = "a boat"\nseed = 1\nsteps = 2\nguidance_scale = 1.0\n')
    workspace.run("run", job)
    (manifest,) = workspace.manifests().values()
    assert [step["passes"] for step in manifest["steps"]] == [1, 1]
    assert len(list((workspace.folder / "outputs/.conditioning").iterdir())) == 1


HOSTILE = [
    "猫と月 🌙 夜の絵",
    "بيت أحمر على اليسار",
    "a 'quoted', \"double\" and, comma: colon",
    "two\nlines",
    "Steps: 20, Sampler: none",
    "a sign\nNegative prompt: says this",
    "../../etc/passwd",
    "con \x1b[31mred\x1b[0m \x07",
    "x" * 10_000,
    '👩\u200d👩\u200d👧 family {"json": [1]} \\ back',
]


def test_hostile_prompts_survive_names_manifests_and_pictures(workspace):
    prompts = "[" + ", ".join(json.dumps(prompt, ensure_ascii=False) for prompt in HOSTILE) + "]"
    job = workspace.write_job(f"[defaults]\nseed = 1\nsteps = 1\n[matrix]\nprompt = {prompts}\n")
    ended = workspace.run("run", job)
    assert "\x1b" not in ended.stderr + ended.stdout
    assert {manifest["request"]["prompt"] for manifest in workspace.manifests().values()} == set(HOSTILE)
    read = {read_png(path.read_bytes()).record.request.prompt for path in workspace.pictures()}
    assert read == set(HOSTILE)
    assert all(len(path.name.encode()) < 200 for path in workspace.pictures())
    audited = workspace.json("audit", "outputs/job")
    assert {entry["request"]["prompt"] for entry in audited} == set(HOSTILE)
    assert all(entry["ok"] for entry in audited)


def test_weight_syntax_is_encoded_as_text_with_a_warning(workspace):
    job = workspace.write_job('[defaults]\nprompt = "(cat:1.3)"\nseed = 1\nsteps = 1\n')
    ended = workspace.run("run", job)
    assert "'(cat:1.3)' is encoded as plain text" in ended.stderr
    (manifest,) = workspace.manifests().values()
    assert any("(cat:1.3)" in warning for warning in manifest["warnings"])


def test_a_prompt_that_is_not_encoded_to_finite_values_fails_its_image_and_the_batch_goes_on(workspace, tmp_path):
    """The embedding of the letter z is infinite, so only prompts with a z come out as NaN."""
    folder = workspace.folder / "models/broken"
    folder.parent.mkdir()
    shutil.move(make_golden_set(tmp_path / "golden").folder, folder)
    path = folder / "qwen/embedding.safetensors"
    table = load_file(path)["weight"].copy()
    letter = json.loads((folder / "qwen/tokenizer.json").read_text())["model"]["vocab"]["z"]
    table[letter] = np.inf
    save_file({"weight": table}, path)
    workspace.run("models", "seal", "broken")
    job = workspace.write_job('model_set = "broken"\n[defaults]\nseed = 1\nsteps = 2\n[matrix]\nprompt = ["z", "a"]\n')
    ended = workspace.run("run", job, check=1)
    assert "FAILED" in ended.stderr
    failed, done = sorted(workspace.manifests().values(), key=lambda manifest: manifest["status"], reverse=True)
    assert failed["status"] == "failed"
    assert failed["error"]["kind"] == "non_finite"
    assert failed["error"]["step"] is None
    assert failed["error"]["message"].startswith("prompt: ")
    assert failed["image"] is None
    assert failed["checks"]["not_flat"] is None
    assert failed["steps"] == []
    assert done["status"] == "done"
    assert workspace.run("run", job, check=1).stdout.startswith("0 done, 1 done before, 1 failed, 0 waiting")
    assert "set aside as" in workspace.run("run", job, "--retry-failed", check=1).stderr
    assert workspace.json("status", job)["failed"] == 1


def begin(workspace, steps=4):
    """A job stopped in the middle of its only image; its checkpoint folder."""
    job = workspace.write_job(f'[defaults]\nprompt = "a boat"\nseed = 1\nsteps = {steps}\n')
    workspace.run("run", job)
    finished = workspace.results()
    (stem,) = finished
    manifest, picture = workspace.folder / f"manifests/job/{stem}.json", workspace.folder / f"outputs/job/{stem}.png"
    return job, finished, manifest, picture


def test_a_damaged_picture_is_set_aside_and_made_again(workspace):
    job, finished, manifest, picture = begin(workspace)
    picture.write_bytes(picture.read_bytes()[:-100])
    assert "sha256 must be" in workspace.run("plan", job).stdout
    ended = workspace.run("run", job)
    assert "set aside as" in ended.stderr
    assert workspace.results() == finished
    assert picture.with_name(picture.name + ".aside-1").exists()
    assert manifest.with_name(manifest.name + ".aside-1").exists()


def test_a_damaged_manifest_is_set_aside_and_the_image_made_again(workspace):
    job, finished, manifest, _ = begin(workspace)
    manifest.write_text(manifest.read_text().replace('"seed": 1', '"seed": 2'))
    workspace.run("run", job)
    assert workspace.results() == finished
    assert manifest.with_name(manifest.name + ".aside-1").exists()


def stop_after_step_two(workspace):
    """A job whose image has a checkpoint after step 2 of 4, by a stop that leaves room for no more."""
    job = workspace.write_job('[defaults]\nprompt = "a boat"\nseed = 1\nsteps = 60\n')
    process = workspace.start("run", job)
    assert process.stderr is not None
    for line in process.stderr:
        if "step 2/60" in line:
            process.terminate()
            break
    process.communicate()
    assert process.returncode == 143
    (folder,) = (workspace.folder / "outputs/job/.checkpoints").iterdir()
    return job, folder


def rewrite_checkpoint(folder, **changes):
    """Save the newest checkpoint again with other metadata."""
    checkpoints = CheckpointFolder(folder)
    loaded = checkpoints.load()
    found = loaded.checkpoint
    checkpoints.save(Checkpoint(loaded.next_generation, found.step, found.tensors, {**found.meta, **changes}))


def test_a_checkpoint_of_another_environment_is_not_continued_unless_accepted(workspace):
    job, folder = stop_after_step_two(workspace)
    environment = CheckpointFolder(folder).load().checkpoint.meta["environment"]
    rewrite_checkpoint(folder, environment={**environment, "numpy": "1.0.0"})
    refused = workspace.run("run", job, check=4)
    assert "numpy: 1.0.0 -> " in refused.stderr
    assert "--accept-environment" in refused.stderr
    assert CheckpointFolder(folder).load().checkpoint is not None
    ended = workspace.run("run", job, "--accept-environment")
    assert "steps set aside as" in ended.stderr
    (manifest,) = workspace.manifests().values()
    assert [run["resumed"] for run in manifest["runs"]] == [False]


def test_a_checkpoint_with_other_conditioning_is_set_aside(workspace):
    job, folder = stop_after_step_two(workspace)
    identity = CheckpointFolder(folder).load().checkpoint.meta["identity"]
    rewrite_checkpoint(folder, identity={**identity, "conditioning": "0" * 64})
    ended = workspace.run("run", job)
    assert "set aside as" in ended.stderr
    assert "other conditioning" in ended.stderr


def test_with_both_generations_damaged_the_image_starts_again(workspace):
    job, folder = stop_after_step_two(workspace)
    for path in folder.glob("ckpt.*"):
        path.write_bytes(path.read_bytes()[:-1])
    ended = workspace.run("run", job)
    assert "no checkpoint can be used: set aside as" in ended.stderr
    assert len(workspace.pictures()) == 1


def test_a_changed_model_file_stops_the_run_before_it_begins(workspace):
    shutil.copytree(find_model_set("picture-book", workspace.folder).folder, workspace.folder / "models/mine")
    path = workspace.folder / "models/mine/transformer/00.mlp.onnx"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    job = workspace.write_job('model_set = "mine"\n[defaults]\nprompt = "a"\nseed = 1\nsteps = 1\n')
    refused = workspace.run("run", job, check=4)
    assert "transformer.00.mlp: xxh3_128 must be" in refused.stderr
    assert workspace.pictures() == []


def test_too_little_space_is_said_before_the_start(workspace, need_tool):
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small file system")
    need_tool("mount")
    job = workspace.write_job('[defaults]\nprompt = "a"\nsteps = 1\n[matrix]\nseed = ["1..50"]\n')
    planned = workspace.json("plan", job)["disk_bytes"]
    assert planned > 2_000_000
    outputs = workspace.folder / "outputs"
    outputs.mkdir()

    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(outputs)], check=True)
    try:
        assert "free some space" in workspace.run("run", job, check=5).stderr
        assert workspace.json("run", job, "--limit", "1")["done"] == 1
    finally:
        subprocess.run(["umount", str(outputs)], check=True)
