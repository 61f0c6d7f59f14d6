"""What changed under our feet: each is said in one line, nothing is deleted, what cannot be used is set aside."""

import json
import re
import shutil
import signal
from pathlib import Path

import pytest
from command import Workspace, wait_for
from fuzz.seals import read_chunks, seal_manifest, wrap_tensors, write_chunks
from PIL import Image

from anima_batch.environment import DECISIVE
from anima_batch.files import sha256_bytes
from anima_batch.model_set import built_in_folder
from anima_batch.store import Checkpoint, CheckpointFolder

STEPS = 10
LONG = f"""model_set = "mine"
[defaults]
prompt = "a boat"
seed = 1
steps = {STEPS}
policy = "features"
[policy.features]
kind = "spectrum"
forecast = "features"
"""
SHORT = '[defaults]\nprompt = "a boat"\nsteps = 4\n[matrix]\nseed = [1, 2]\n'


def make_workspace(folder):
    workspace = Workspace(folder)
    shutil.copytree(built_in_folder() / "picture-book", folder / "models/mine")
    return workspace


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    """The results of the long job without any interruption."""
    workspace = make_workspace(tmp_path_factory.mktemp("golden") / "workspace")
    workspace.run("run", workspace.write_job(LONG))
    return workspace.results()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The long job, stopped in the middle of its image."""
    workspace = make_workspace(tmp_path_factory.mktemp("stopped") / "workspace")
    workspace.write_job(LONG)
    process = start_until_step_five(workspace)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 143
    return workspace.folder


@pytest.fixture
def begun(stopped, tmp_path):
    """A copy of it, to be changed."""
    shutil.copytree(stopped, tmp_path / "begun")
    return Workspace(tmp_path / "begun")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished job of two images."""
    workspace = Workspace(tmp_path_factory.mktemp("finished") / "workspace")
    workspace.run("run", workspace.write_job(SHORT))
    return workspace.folder


@pytest.fixture
def done(finished, tmp_path):
    """A copy of it, to be changed."""
    shutil.copytree(finished, tmp_path / "done")
    return Workspace(tmp_path / "done")


def start_until_step_five(workspace):
    """The running job, after its fifth step and early in the sixth, which takes two seconds."""
    workspace.make_faults({"kind": "slow", "step": 6, "amount": 2})
    process = workspace.start("run", "jobs/job.toml")
    workspace.environment.pop("ANIMA_BATCH_FAULTS")
    wait_for(process, f"step 5/{STEPS}")
    return process


def checkpoint_of(workspace):
    (folder,) = [path for path in (workspace.folder / "outputs/job/.checkpoints").iterdir() if "aside" not in path.name]
    return folder


def rewrite(folder, **changes):
    """Save the newest checkpoint again, twice so that no generation is as before, with other metadata."""
    for _ in range(2):
        checkpoints = CheckpointFolder(folder)
        loaded = checkpoints.load()
        found = loaded.checkpoint
        meta = {**found.meta, **changes}
        checkpoints.save(Checkpoint(loaded.next_generation, found.step, found.tensors, meta))


def contents(folder):
    """The digest of every file, by its path."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): sha256_bytes(path.read_bytes()) for path in files}


def one_line(ended, text):
    """The only line of stderr that holds the text."""
    (line,) = [line for line in ended.stderr.splitlines() if text in line]
    return line


def without_aside(results):
    return {stem: value for stem, value in results.items() if "aside" not in stem}


# A model file


@pytest.fixture
def replaced(tmp_path):
    """The long job, during which one model file took another's place: how it ended, and what undoes that."""
    workspace = make_workspace(tmp_path / "replaced")
    workspace.write_job(LONG)
    path = workspace.folder / "models/mine/transformer/01.mlp.onnx"
    kept = path.read_bytes()
    process = start_until_step_five(workspace)
    shutil.copy(path.with_name("02.mlp.onnx"), path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)
    _, errors = process.communicate()
    return workspace, process.returncode, errors, lambda: path.write_bytes(kept)


def test_a_model_file_replaced_during_a_run_stops_it_and_once_restored_the_picture_is_the_same(replaced, golden):
    workspace, code, errors, restore = replaced
    assert code == 4
    assert "models/mine/transformer/01.mlp.onnx: transformer.01.mlp: xxh3_128 must be" in errors
    assert "changed while the job ran: restore it, then run the same command again" in errors
    assert "transformer.01.mlp" in workspace.run("run", "jobs/job.toml", check=4).stderr  # until it is restored
    restore()
    assert workspace.json("status", "jobs/job.toml")["images"][0]["from_step"] == 5  # the sixth was not kept
    workspace.run("run", "jobs/job.toml")
    assert workspace.results() == golden
    (manifest,) = workspace.manifests().values()
    assert [run["last_step"] for run in manifest["runs"]] == [5, STEPS]


def test_a_model_set_sealed_anew_is_another_one_and_takes_nothing_from_the_old(replaced):
    workspace = replaced[0]
    old, kept = checkpoint_of(workspace), contents(checkpoint_of(workspace))
    workspace.run("models", "seal", "mine")
    assert workspace.json("status", "jobs/job.toml")["waiting"] == 1
    workspace.run("run", "jobs/job.toml")
    (manifest,) = workspace.manifests().values()
    assert [run["resumed"] for run in manifest["runs"]] == [False]
    assert contents(old) == kept  # for whoever restores the old set


# A checkpoint that is not this image's


def test_a_checkpoint_of_another_model_set_is_set_aside_with_its_steps_told(begun, golden, tmp_path):
    folder = checkpoint_of(begun)
    rewrite(folder, identity={**CheckpointFolder(folder).load().checkpoint.meta["identity"], "request_id": "0" * 64})
    before = contents(folder)
    ended = begun.run("run", "jobs/job.toml")
    line = one_line(ended, "set aside as")
    assert re.search(rf"\d+ steps set aside as {re.escape(str(folder.relative_to(begun.folder)))}\.aside-1", line)
    assert "other request_id: starts again" in line
    assert before.items() <= contents(folder.with_name(f"{folder.name}.aside-1")).items()
    assert begun.results() == golden


@pytest.mark.parametrize("key", ["conditioning", "sigmas", "noise"])
def test_a_checkpoint_made_from_other_inputs_is_set_aside(begun, golden, key):
    folder = checkpoint_of(begun)
    identity = CheckpointFolder(folder).load().checkpoint.meta["identity"]
    rewrite(folder, identity={**identity, key: "0" * 64})
    assert f"other {key}: starts again" in one_line(begun.run("run", "jobs/job.toml"), "set aside as")
    assert begun.results() == golden


# Another environment


@pytest.mark.parametrize("key", DECISIVE)
def test_a_checkpoint_of_another_version_waits_for_it_or_for_a_word(begun, golden, key):
    folder = checkpoint_of(begun)
    environment = CheckpointFolder(folder).load().checkpoint.meta["environment"]
    rewrite(folder, environment={**environment, key: "0.0.1-other"})
    before = contents(folder)
    refused = begun.run("run", "jobs/job.toml", check=4)
    assert f"{key}: 0.0.1-other -> {environment[key]}" in one_line(refused, "error: ")
    assert "--accept-environment" in refused.stderr
    after = contents(folder)
    assert {name: digest for name, digest in after.items() if name != "attempts"} == before
    if key == DECISIVE[0]:
        rewrite(folder, environment=environment)  # whoever goes back to the old version
        begun.run("run", "jobs/job.toml")
        (manifest,) = begun.manifests().values()
        assert manifest["runs"][-1]["resumed"]
    else:
        ended = begun.run("run", "jobs/job.toml", "--accept-environment")
        assert "starts again" in one_line(ended, "set aside as")
        kept = contents(folder.with_name(f"{folder.name}.aside-1"))
        assert before.items() <= kept.items()
    assert begun.results() == golden


@pytest.mark.parametrize("key", ["python", "kernel"])
def test_a_checkpoint_of_another_kernel_or_python_is_continued(begun, golden, key):
    folder = checkpoint_of(begun)
    environment = CheckpointFolder(folder).load().checkpoint.meta["environment"]
    rewrite(folder, environment={**environment, key: "0.0.1"})
    begun.run("run", "jobs/job.toml")
    (manifest,) = begun.manifests().values()
    assert manifest["runs"][-1]["resumed"]
    assert begun.results() == golden


# A newer schema


def newer_containers(folder):
    """Every container of the folder in the next version of the format, its digest right."""
    for path in folder.iterdir():
        line, _, body = path.read_bytes().partition(b"\n")
        path.write_bytes(wrap_tensors(line.partition(b" sha256:")[0].replace(b" v1", b" v2"), body))


def newer_history(folder):
    """The same of history files alone, their new digests in the checkpoints."""
    kept = CheckpointFolder(folder).load().checkpoint
    digests = {}
    for path in folder.glob("history.*"):
        line, _, body = path.read_bytes().partition(b"\n")
        path.write_bytes(wrap_tensors(line.partition(b" sha256:")[0].replace(b" v1", b" v2"), body))
        digests[path.name] = sha256_bytes(path.read_bytes())
    assert digests
    for path in folder.glob("ckpt.*"):
        line, _, body = path.read_bytes().partition(b"\n")
        header = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
        content = json.loads(header["__metadata__"]["meta"])
        content["history"] = {step: digests[f"history.{step}"] for step in content["history"]}
        header["__metadata__"]["meta"] = json.dumps(content)
        text = json.dumps(header).encode()
        arrays = body[8 + int.from_bytes(body[:8], "little") :]
        path.write_bytes(wrap_tensors(line.partition(b" sha256:")[0], len(text).to_bytes(8, "little") + text + arrays))
    assert kept.step


@pytest.mark.parametrize("make_newer", [newer_containers, newer_history])
def test_a_newer_checkpoint_is_left_to_the_program_that_wrote_it(begun, make_newer):
    make_newer(checkpoint_of(begun))
    before = contents(begun.folder / "outputs")
    for command in ("status", "run", "plan", "verify"):
        refused = begun.run(command, "jobs/job.toml", check=2)
        assert "format must be at most v1, got v2: use the anima-batch that wrote it" in one_line(refused, "error: ")
    after = contents(begun.folder / "outputs")
    assert {name: digest for name, digest in after.items() if not name.endswith("/attempts")} == before


def newer_manifest(workspace):
    path = min((workspace.folder / "manifests/job").glob("*.json"))
    path.write_bytes(seal_manifest(path.read_bytes().replace(b'"schema_version": 1', b'"schema_version": 2', 1)))
    return 2, str(path.relative_to(workspace.folder))


def newer_job(workspace):
    path = workspace.folder / "jobs/job.toml"
    path.write_text(path.read_text().replace("schema_version = 1", "schema_version = 2"))
    return 2, "jobs/job.toml"


def newer_pin(workspace):
    path = workspace.folder / "outputs/job/job.json"
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 2'))
    return 2, "outputs/job/job.json"


def newer_model_set(workspace):
    folder = workspace.folder / "models/picture-book"  # goes before the built-in one
    shutil.copytree(built_in_folder() / "picture-book", folder)
    path = folder / "model_set.json"
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 2'))
    return 4, "models/picture-book/model_set.json"


@pytest.mark.parametrize("make_newer", [newer_manifest, newer_job, newer_pin, newer_model_set])
def test_a_newer_file_is_refused_in_one_line_and_stays_as_it_is(done, make_newer):
    code, path = make_newer(done)
    before = contents(done.folder)
    for command in ("status", "run", "plan", "verify"):
        line = one_line(done.run(command, "jobs/job.toml", check=code), "error: ")
        assert line.startswith(f"error: {path}: ")
        assert "schema_version: must be" in line
    assert contents(done.folder) == before


def test_a_newer_record_in_a_picture_is_told_by_an_audit(done):
    path = done.pictures()[0]
    old, new = b'"schema_version":1', b'"schema_version":2'
    chunks = [(kind, content.replace(old, new)) for kind, content in read_chunks(path.read_bytes())]
    path.write_bytes(write_chunks(chunks))
    (audited,) = done.json("audit", str(path.relative_to(done.folder)), check=3)
    assert "schema_version: must be at most 1, got 2: use the anima-batch that wrote it" in audited["differences"][0]
    assert done.run("run", "jobs/job.toml").stdout.startswith("0 done, 2 done before")  # the picture itself is whole


# A bad picture under a good manifest


def zero_tail(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))


def swap_with_the_other(path):
    other = next(entry for entry in path.parent.glob("*.png") if entry != path)
    shutil.copy(other, path)


def flip_a_pixel(path):
    """Another picture, whole and with right checksums."""
    with Image.open(path) as image:
        image.load()
        image.putpixel((3, 4), (1, 2, 3))
        image.save(path)


def put_a_folder(path):
    path.unlink()
    path.mkdir()
    (path / "mine.txt").write_text("a user's")


BAD_PICTURES = {
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[:500]),
    "zero tail": zero_tail,
    "another image's": swap_with_the_other,
    "one pixel": flip_a_pixel,
    "a folder": put_a_folder,
    "a link to nowhere": lambda path: (path.unlink(), path.symlink_to("nowhere")),
    "missing": Path.unlink,
}


@pytest.mark.parametrize("name", BAD_PICTURES)
def test_a_bad_picture_under_a_good_manifest_is_set_aside_and_made_again(done, name):
    results = done.results()
    path, other = done.pictures()
    manifest, _ = sorted((done.folder / "manifests/job").glob("*.json"))
    BAD_PICTURES[name](path)
    before = {**contents(done.folder / "outputs"), **contents(done.folder / "manifests")}
    untouched = other.stat().st_mtime_ns
    ended = done.run("run", "jobs/job.toml")
    assert ended.stdout.startswith("1 done, 1 done before")
    assert one_line(ended, f"{manifest.relative_to(done.folder)}.aside-1")
    assert without_aside(done.results()) == results
    assert other.stat().st_mtime_ns == untouched
    after = {**contents(done.folder / "outputs"), **contents(done.folder / "manifests")}
    assert set(before.values()) <= set(after.values()), "a file is gone"
    if name != "missing":
        assert (path.parent / f"{path.name}.aside-1").exists() or (path.parent / f"{path.name}.aside-1").is_symlink()
    assert done.run("run", "jobs/job.toml").stdout.startswith("0 done, 2 done before")
    done.run("verify", "jobs/job.toml")


def test_a_picture_with_more_after_its_end_is_told_and_not_made_again(done):
    """Its pixels are the recorded ones: only what verify says of it changes."""
    path = done.pictures()[0]
    longer = path.read_bytes() * 2
    path.write_bytes(longer)
    assert done.run("run", "jobs/job.toml").stdout.startswith("0 done, 2 done before")
    assert path.read_bytes() == longer
    assert "only metadata changed" in done.run("verify", "jobs/job.toml", check=3).stdout


# A good picture under a torn manifest

TORN = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "zero tail": lambda data: data[:300] + bytes(len(data) - 300),
    "zeros": lambda data: bytes(len(data)),
    "last byte": lambda data: data[:-1],
    "not UTF-8": lambda data: data.replace(b"a boat", b"\xff\xfe\xfd\xfc\xfb\xfa"),
    "brackets": lambda data: b"[" * 1_000_000,
}


@pytest.mark.parametrize("name", TORN)
def test_a_torn_manifest_over_a_good_picture_is_set_aside_and_the_image_made_again(done, name):
    results, pictures = done.results(), {path.name: path.read_bytes() for path in done.pictures()}
    path, other = sorted((done.folder / "manifests/job").glob("*.json"))
    torn = TORN[name](path.read_bytes())
    path.write_bytes(torn)
    untouched = other.stat().st_mtime_ns
    ended = done.run("run", "jobs/job.toml")
    assert ended.stdout.startswith("1 done, 1 done before")
    assert one_line(ended, f"set aside as {path.relative_to(done.folder)}.aside-1")
    assert path.with_name(f"{path.name}.aside-1").read_bytes() == torn
    assert done.results() == results
    assert {path.name: path.read_bytes() for path in done.pictures()} == pictures
    assert other.stat().st_mtime_ns == untouched


def test_what_is_set_aside_a_second_time_gets_another_name(done):
    path = min((done.folder / "manifests/job").glob("*.json"))
    for number in (1, 2, 3):
        path.write_bytes(b"torn %d" % number)
        done.run("run", "jobs/job.toml")
        assert path.with_name(f"{path.name}.aside-{number}").read_bytes() == b"torn %d" % number


# Prompt embeddings


def test_damaged_embeddings_are_set_aside_and_made_again(begun, golden):
    for path in (begun.folder / "outputs/.conditioning").glob("*.embeds"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    ended = begun.run("run", "jobs/job.toml")
    assert len(list((begun.folder / "outputs/.conditioning").glob("*.aside-1"))) == 2
    assert ended.stderr.count("set aside as") == 2
    assert begun.results() == golden
