"""Audits of finished pictures through the real command line, on a workspace whose model set is its own copy."""

import io
import json
import shutil

import pytest
from command import Workspace
from PIL import Image, PngImagePlugin

from anima_batch.model_set import find_model_set


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    workspace = Workspace(tmp_path_factory.mktemp("finished"))
    folder = workspace.folder / "models/mine"
    shutil.copytree(find_model_set("picture-book", workspace.folder).folder, folder)
    description = (folder / "model_set.json").read_text()
    (folder / "model_set.json").write_text(description.replace("-0.7571", "-0.75"))  # not the built-in one any more
    defaults = '[defaults]\nprompt = "a boat"\nsteps = 2\n[matrix]\nseed = ["1..2"]\n'
    job = workspace.write_job(f'model_set = "mine"\n{defaults}')
    workspace.run("run", job)
    return workspace


@pytest.fixture
def copied(finished, tmp_path):
    """The finished workspace, to be changed."""
    shutil.copytree(finished.folder, tmp_path / "copied")
    return Workspace(tmp_path / "copied")


def flip(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_a_renamed_and_moved_picture_is_still_known(copied):
    moved = copied.folder / "elsewhere/holiday.png"
    moved.parent.mkdir()
    copied.pictures()[0].rename(moved)
    (entry,) = copied.json("audit", str(moved))
    assert entry["ok"]
    assert entry["model_set"]["name"] == "picture-book"
    assert entry["model_set"]["digest"] == find_model_set("mine", copied.folder).digest
    assert {source["role"] for source in entry["weights"]} == {"transformer", "text_encoder", "vae"}
    assert all(len(source["sha256"]) == 64 for source in entry["weights"])
    assert entry["environment"]["onnxruntime"]
    assert entry["request"]["seed"] == 1
    assert entry["policy_name"] == "full"
    text = copied.run("audit", "elsewhere/holiday.png").stdout
    for word in ("picture-book", "transformer.safetensors", "numpy", "seed 1", "policy_name: full"):
        assert word in text


def test_a_renamed_model_set_is_found_by_its_digest(copied):
    (copied.folder / "models/mine").rename(copied.folder / "models/other")
    assert all(entry["ok"] and not entry["notes"] for entry in copied.json("audit", "outputs/job"))


def test_one_flipped_byte_in_any_model_file_is_named(copied):
    model_set = find_model_set("mine", copied.folder)
    picture = str(copied.pictures()[0])
    for part in model_set.description.components[::7]:
        path = model_set.folder / part.path
        flip(path, part.bytes // 2)
        (entry,) = copied.json("audit", picture, check=3)
        assert len(entry["differences"]) == 1
        assert f"{part.path}: {part.role}: xxh3_128 must be {part.xxh3_128}" in entry["differences"][0]
        flip(path, part.bytes // 2)
    assert copied.json("audit", picture)[0]["ok"]


def test_a_model_set_that_was_sealed_anew_is_told_apart_by_component(copied):
    flip(copied.folder / "models/mine/vae/decoder.onnx", -5)
    copied.run("models", "seal", "mine")
    (entry,) = copied.json("audit", str(copied.pictures()[0]), check=3)
    assert any("vae.decoder" in difference for difference in entry["differences"])


def test_a_byte_flipped_anywhere_in_a_picture_is_found(copied):
    picture = copied.pictures()[0]
    size = picture.stat().st_size
    for offset in (0, 20, size // 3, size // 2, size - 20, size - 1):
        flip(picture, offset)
        (entry,) = copied.json("audit", str(picture), check=3)
        assert any(str(picture) in difference for difference in entry["differences"])
        flip(picture, offset)


def test_changed_metadata_is_told_from_changed_pixels(copied):
    picture = copied.pictures()[0]
    with Image.open(picture) as image:
        image.load()
        text = dict(image.text)
        stream = io.BytesIO()
        info = PngImagePlugin.PngInfo()
        for key, value in text.items():
            info.add_itxt(key, value + (" " if key == "parameters" else ""))
        image.save(stream, format="PNG", pnginfo=info)
    picture.write_bytes(stream.getvalue())
    (entry,) = copied.json("audit", str(picture), check=3)
    assert "only metadata changed" in entry["differences"][0]


def test_a_byte_flipped_anywhere_in_a_manifest_is_found(copied):
    manifest = next((copied.folder / "manifests/job").glob("*.json"))
    for offset in range(0, manifest.stat().st_size, 1999):
        flip(manifest, offset)
        (entry,) = copied.json("audit", str(manifest), check=3)
        assert str(manifest) in entry["differences"][0]
        flip(manifest, offset)


def test_a_folder_is_audited_whole_and_each_image_once(copied):
    entries = copied.json("audit", ".")
    assert len(entries) == 2
    assert all(entry["ok"] for entry in entries)


def test_a_picture_without_its_manifest_still_says_what_it_knows(copied):
    shutil.rmtree(copied.folder / "manifests")
    (entry, _) = copied.json("audit", "outputs/job")
    assert entry["request"]["prompt"] == "a boat"
    assert "no manifest" in entry["notes"][0]


def test_a_path_that_is_no_picture_is_a_mistake(copied):
    assert "must be a PNG, a manifest or a folder" in copied.run("audit", "jobs/job.toml", check=2).stderr
    assert "must be a PNG, a manifest or a folder" in copied.run("audit", "missing.png", check=2).stderr


def test_verify_finds_what_changed_in_a_job(copied):
    assert len(copied.json("verify", "jobs/job.toml")) == 2
    flip(copied.pictures()[1], -30)
    entries = copied.json("verify", "jobs/job.toml", check=3)
    assert [entry["ok"] for entry in entries] == [True, False]


def test_verify_reads_checkpoints_too(copied):
    job = copied.write_job('model_set = "mine"\n[defaults]\nprompt = "a cat"\nseed = 3\nsteps = 200\n', "long")
    process = copied.start("run", job)
    assert process.stderr is not None
    next(line for line in process.stderr if "step 3/" in line)
    process.kill()
    process.communicate()
    (entry,) = copied.json("verify", job)
    assert entry["status"] == "begun"
    assert entry["step"] >= 3
    checkpoint = next((copied.folder / "outputs/long/.checkpoints").glob("*/ckpt.0"))
    flip(checkpoint, 200)
    (entry,) = copied.json("verify", job, check=3)
    assert "ckpt.0" in entry["differences"][0]


def test_audits_are_one_json_document(copied):
    assert isinstance(json.loads(copied.run("audit", "outputs/job", "--json").stdout), list)
