"""Audits of finished pictures through the real command line, on a workspace whose model set is its own copy."""

import hashlib
import io
import json
import os
import shutil
import tracemalloc

import numpy as np
import pytest
from command import Workspace
from PIL import Image, PngImagePlugin

from anima_batch.audit import audit_paths
from anima_batch.errors import StorageError, UsageError
from anima_batch.files import file_digests
from anima_batch.model_set import find_model_set, verify_model_set


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    workspace = Workspace(tmp_path_factory.mktemp("finished"))
    workspace.make_own_set()
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


def first_manifest(workspace):
    return min((workspace.folder / "manifests/job").glob("*.json"))


def resign(path, change):
    """Rewrite a manifest after `change` edited its JSON, its own digest made right again."""
    content = json.loads(path.read_text())
    change(content)
    content["self_sha256"] = "0" * 64
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    head, _, tail = text.rpartition("0" * 64)
    path.write_text(head + hashlib.sha256(text.encode()).hexdigest() + tail)


def audit_one(workspace, path):
    (entry,) = audit_paths([path], workspace.folder)
    return entry


def edit_text(picture, edit):
    """Save the picture again, its pixels as they are, its text chunks as `edit` gives them."""
    with Image.open(picture) as image:
        image.load()
        info, stream = PngImagePlugin.PngInfo(), io.BytesIO()
        for key, value in edit(dict(image.text)).items():
            info.add_itxt(key, value)
        image.save(stream, format="PNG", pnginfo=info)
    picture.write_bytes(stream.getvalue())


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


def test_what_an_npu_picture_was_compiled_and_run_with_is_told(copied):
    """Toolkit and compiler of the files, runtime, driver and core mask of the run, all from the manifest."""
    compiled = {"rknn_toolkit2": "2.3.2", "rknn_compiler": "2.3.2 (abc@2025-04-09)", "target_platform": "rk3588"}
    runtime = {"rknn_toolkit_lite2": "2.3.1", "librknnrt": "2.3.0", "rknpu_driver": "0.9.8", "core_mask": "0+1"}

    def make_npu_picture(content):
        content["environment"] |= runtime
        parts = [part for part in content["model_set"]["components"] if part["role"].startswith("transformer.0")]
        assert len(parts) == 18
        for part in parts:
            of_its_own = {"source_onnx": part["sha256"]}
            record = part | {"path": part["path"].replace(".onnx", ".rknn"), "built_with": compiled | of_its_own}
            content["model_set"]["components"].append(record)

    manifest = first_manifest(copied)
    resign(manifest, make_npu_picture)
    (entry,) = copied.json("audit", str(manifest), check=3)  # the set here has no such files
    built = entry["built_with"]
    assert {kind: built[kind]["files"] for kind in built} == {"json": 2, "safetensors": 3, "onnx": 21, "rknn": 18}
    assert built["onnx"]["opset"] == ["19"]
    assert built["rknn"] == {"files": 18, **{name: [text] for name, text in compiled.items()}}
    assert runtime.items() <= entry["environment"].items()
    lines = copied.run("audit", str(manifest), check=3).stdout.splitlines()
    tools = "rknn_toolkit2 2.3.2, rknn_compiler 2.3.2 (abc@2025-04-09), target_platform rk3588"
    assert f"  built_with.rknn: files 18, {tools}" in lines
    assert not any(line.startswith("  built_with:") for line in lines)
    (environment,) = [line for line in lines if line.startswith("  environment: ")]
    for name, text in runtime.items():
        assert f"{name} {text}" in environment


def test_a_renamed_model_set_is_found_by_its_digest(copied):
    (copied.folder / "models/mine").rename(copied.folder / "models/other")
    assert all(entry["ok"] and not entry["notes"] for entry in copied.json("audit", "outputs/job"))


def test_one_flipped_byte_in_any_model_file_is_named(copied):
    model_set = find_model_set("mine", copied.folder)
    picture = copied.pictures()[0]
    for part in model_set.description.components:
        path = model_set.folder / part.path
        flip(path, part.bytes // 2)
        (difference,) = audit_one(copied, picture).differences
        assert f"{part.path}: {part.role}: xxh3_128 must be {part.xxh3_128}" in difference
        flip(path, part.bytes // 2)
    assert audit_one(copied, picture).differences == ()


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
        assert any(str(picture) in difference for difference in audit_one(copied, picture).differences)
        flip(picture, offset)


def test_changed_metadata_is_told_from_changed_pixels(copied):
    picture = copied.pictures()[0]
    edit_text(picture, lambda text: {**text, "parameters": f"{text['parameters']} "})
    for path in (picture, first_manifest(copied)):
        assert "only metadata changed" in audit_one(copied, path).differences[0]


def test_a_stripped_picture_under_its_own_name_still_shows_that_its_pixels_are_the_recorded_ones(copied):
    picture = copied.pictures()[0]
    edit_text(picture, lambda text: {})
    entry = audit_one(copied, picture)
    assert "no anima_batch chunk" in entry.differences[0]
    assert "only metadata changed" in entry.differences[1]
    assert entry.facts["request"]["prompt"] == "a boat"


HOSTILE_PATHS = ["/dev/zero", "../../../../etc/passwd", "a\0b", "x" * 5000, "x/" * 2500, "", "."]


@pytest.mark.parametrize("path", HOSTILE_PATHS, ids=range(len(HOSTILE_PATHS)))
@pytest.mark.parametrize("place", ["image", "component", "chunk"])
def test_a_hostile_path_is_refused_in_one_line_and_never_followed(place, path, copied):
    picture, manifest = copied.pictures()[0], first_manifest(copied)
    if place == "image":
        resign(manifest, lambda content: content["image"].update(path=path))
    elif place == "component":
        resign(manifest, lambda content: content["model_set"]["components"][0].update(path=path))
    else:
        edit_text(
            picture, lambda text: {"anima_batch": json.dumps({**json.loads(text["anima_batch"]), "manifest": path})}
        )
    for file in (picture, manifest):
        entry = audit_one(copied, file)
        assert "must be a path below the folder" in entry.differences[0]
        assert "\n" not in entry.differences[0]
        assert len(entry.differences[0]) < 600


def test_a_manifest_without_the_policys_name_is_a_difference(copied):
    manifest = first_manifest(copied)
    resign(manifest, lambda content: content["sampling"]["policy"].pop("name"))
    (difference,) = audit_one(copied, manifest).differences
    assert difference.startswith(f"{manifest}: sampling.policy: ")
    assert "name: must be a string, got None" in difference


def test_a_folder_has_one_result_for_each_file_whatever_it_is(copied):
    outputs, manifests = copied.folder / "outputs/job", copied.folder / "manifests/job"
    whole = copied.pictures()
    picture = whole[0].read_bytes()
    os.mkfifo(outputs / "pipe.png")
    (outputs / "device.png").symlink_to("/dev/zero")
    (outputs / "nowhere.PNG").symlink_to("missing")
    (outputs / "circle.png").symlink_to("circle.png")
    (outputs / "empty.png").write_bytes(b"")
    (outputs / "noise.png").write_bytes(picture[:400] + picture[500:])
    with (outputs / "huge.png").open("wb") as file:
        file.truncate(1 << 40)
    os.mkfifo(manifests / "pipe-0123456789ab.json")
    (manifests / "list-0123456789ac.json").write_text("[]")
    with (manifests / "huge-0123456789ad.json").open("wb") as file:
        file.truncate(1 << 40)
    entries = list(audit_paths([copied.folder], copied.folder))
    assert len(entries) == 12
    assert [entry.path for entry in entries if not entry.differences] == whole
    reasons = {entry.path.name: entry.differences[0] for entry in entries if entry.differences}
    assert "must be a regular file" in reasons["pipe.png"]
    assert "must be a regular file" in reasons["device.png"]
    assert "must be a regular file" in reasons["pipe-0123456789ab.json"]
    assert "No such file or directory" in reasons["nowhere.PNG"]
    assert "must have at most" in reasons["huge.png"]


@pytest.mark.parametrize(
    ("key", "value"), [("pixel_sha256", "0" * 64), ("sha256", "0" * 64), ("bytes", 7), ("width", 16), ("height", 64)]
)
def test_each_thing_that_a_manifest_says_of_its_picture_is_checked(key, value, copied):
    resign(first_manifest(copied), lambda content: content["image"].update({key: value}))
    for path in (copied.pictures()[0], first_manifest(copied)):
        (difference,) = audit_one(copied, path).differences
        assert f"{copied.pictures()[0]}: {key} must be {value}, got " in difference


def test_a_chunk_of_another_request_or_set_than_the_manifests_is_told(copied):
    picture, manifest = copied.pictures()[0], first_manifest(copied)

    def edit(text):
        own = json.loads(text["anima_batch"])
        own["request"]["steps"] = 9
        own["model_set"]["digest"] = "0" * 64
        return {**text, "anima_batch": json.dumps(own)}

    edit_text(picture, edit)
    for path in (picture, manifest):
        told = " ".join(audit_one(copied, path).differences)
        assert "holds another request than its manifest" in told
        assert "holds another model set than its manifest" in told


def without_components(content):
    content["model_set"]["components"] = []


def with_a_shorter_list(content):
    del content["model_set"]["components"][3]


def with_a_part_twice(content):
    content["model_set"]["components"].append(content["model_set"]["components"][0])


def with_another_part(content):
    content["model_set"]["components"].append({**content["model_set"]["components"][0], "role": "qwen.more"})


def with_another_component_digest(content):
    content["model_set"]["components"][2]["sha256"] = "0" * 64


def with_other_weights(content):
    content["model_set"]["source"][0]["sha256"] = "0" * 64


def without_weights(content):
    content["model_set"]["source"] = []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without_components, "model_set.components: vae.decoder .onnx is missing, unlike in"),
        (with_a_shorter_list, "model_set.components: t5.tokenizer .json is missing"),
        (with_a_part_twice, "model_set.components: a part is there twice"),
        (with_another_part, "model_set.components: qwen.more .json is there, unlike in"),
        (with_another_component_digest, f"model_set.components: qwen.model .onnx: sha256 is {'0' * 64}, in "),
        (with_other_weights, f"model_set.source: transformer: sha256 is {'0' * 64}, in "),
        (without_weights, "model_set.source: vae is missing"),
    ],
)
def test_what_a_manifest_says_of_its_model_set_is_compared_with_the_sets_description(change, words, copied):
    resign(first_manifest(copied), change)
    entry = audit_one(copied, first_manifest(copied))
    assert any(words in difference for difference in entry.differences)


def test_a_component_whose_sha256_alone_is_not_as_described_is_found(copied):
    """XXH3 alone, which is all that a run and a plain audit check, can be fooled; an audit with --sha256 cannot."""
    folder = copied.folder / "models/mine"
    flip(folder / "vae/decoder.onnx", -5)
    description = json.loads((folder / "model_set.json").read_text())
    description["components"][-1]["xxh3_128"] = file_digests(folder / "vae/decoder.onnx")[1]
    (folder / "model_set.json").write_text(json.dumps(description))
    assert verify_model_set(find_model_set("mine", copied.folder)) == []
    picture = str(copied.pictures()[0])
    (entry,) = copied.json("audit", picture, "--sha256", check=3)
    assert any("vae.decoder: sha256 must be" in difference for difference in entry["differences"])


def test_a_broken_neighbour_set_does_not_get_in_the_way(copied):
    (copied.folder / "models/broken").mkdir()
    (copied.folder / "models/broken/model_set.json").write_text("{")
    entry = audit_one(copied, copied.pictures()[0])
    assert (entry.differences, entry.notes) == ((), ())
    shutil.rmtree(copied.folder / "models/mine")
    resign(first_manifest(copied), lambda content: content["model_set"].update(name="elsewhere"))
    entry = audit_one(copied, first_manifest(copied))
    assert "model set elsewhere" in entry.notes[0]
    assert "models/broken/model_set.json: the model set is not valid JSON" in entry.notes[1]


def test_of_two_sets_with_the_digest_one_whole_copy_is_enough(copied):
    shutil.copytree(copied.folder / "models/mine", copied.folder / "models/zweite")
    flip(copied.folder / "models/mine/vae/decoder.onnx", -5)
    assert audit_one(copied, copied.pictures()[0]).differences == ()
    flip(copied.folder / "models/zweite/qwen/model.onnx", -5)
    (difference,) = audit_one(copied, copied.pictures()[0]).differences
    assert "models/mine/vae/decoder.onnx" in difference


def rename_all(workspace):
    """Pictures and manifests with names that say nothing, in folders that say nothing."""
    outputs, manifests = workspace.folder / "outputs/job", workspace.folder / "manifests/job"
    for number, path in enumerate(sorted(outputs.glob("*.png"))):
        path.rename(outputs / f"{number}.png")
    for number, path in enumerate(sorted(manifests.glob("*.json"), reverse=True)):
        path.rename(manifests / f"m{number}.json")
    manifests.rename(workspace.folder / "manifests/zzz")


def strip_metadata(picture):
    """Save it again as any program does: other compression, no text."""
    with Image.open(picture) as image:
        image.load()
    stream = io.BytesIO()
    Image.fromarray(np.asarray(image)).save(stream, format="PNG", compress_level=1)
    picture.write_bytes(stream.getvalue())


def test_a_picture_whose_manifest_was_renamed_is_found_by_its_digest(copied):
    rename_all(copied)
    entries = copied.json("audit", "outputs")
    assert [entry["found_by"] for entry in entries] == ["sha256"] * 2
    assert [entry["request"]["seed"] for entry in entries] == [1, 2]
    assert all(entry["ok"] for entry in entries)


def test_a_stripped_and_renamed_picture_is_found_by_its_pixels(copied):
    rename_all(copied)
    for picture in copied.pictures():
        strip_metadata(picture)
    shutil.copy(copied.pictures()[0], copied.folder / "copy.png")
    entries = copied.json("audit", "outputs", "copy.png", check=3)
    assert [entry["found_by"] for entry in entries] == ["pixel_sha256"] * 3
    assert [entry["request"]["seed"] for entry in entries] == [1, 2, 1]
    for entry in entries:
        assert "the pixels are the recorded ones, so only metadata changed" in entry["differences"][1]


def test_a_stripped_picture_under_the_name_of_another_is_known_by_its_pixels(copied):
    first, second = copied.pictures()
    strip_metadata(first)
    second.unlink()
    first.rename(second)
    (entry, _) = copied.json("audit", str(second), "manifests", check=3)
    assert (entry["found_by"], entry["request"]["seed"]) == ("pixel_sha256", 1)


def test_of_two_manifests_of_one_request_the_one_of_the_picture_is_found(copied):
    """As where a picture was made twice under other versions, each time with other pixels."""
    manifest = first_manifest(copied)
    kept = copied.folder / "manifests/kept" / manifest.name
    kept.parent.mkdir()
    manifest.rename(kept)
    shutil.copy(kept, manifest)
    resign(manifest, lambda content: content["image"].update(sha256="1" * 64, pixel_sha256="2" * 64))
    entry = audit_one(copied, copied.pictures()[0])
    assert (entry.facts["manifest"], entry.differences) == (str(kept), ())


def test_manifests_beside_the_pictures_are_found_in_a_folder_that_is_no_workspace(copied, tmp_path):
    rename_all(copied)
    kept = tmp_path / "usb"
    shutil.copytree(copied.folder / "outputs/job", kept / "pictures")
    shutil.copytree(copied.folder / "manifests/zzz", kept / "records")
    shutil.rmtree(copied.folder / "manifests")
    entries = copied.json("audit", str(kept))
    assert [entry["request"]["seed"] for entry in entries] == [1, 2]


def test_pictures_are_summed_up_by_model_set(copied):
    model_set = find_model_set("mine", copied.folder)
    flip(copied.pictures()[1], -30)
    (group,) = copied.json("audit", "outputs", "--by", "model_set", check=3)
    assert (group["name"], group["digest"]) == ("picture-book", model_set.digest)
    assert (group["images"], group["failed"], group["changed"]) == (2, 0, 1)
    assert group["weights"] == {source.role: source.sha256 for source in model_set.description.sources}
    lines = copied.run("audit", "outputs", "--by", "model_set", check=3).stdout.splitlines()
    assert lines[0].startswith("DIFFERS: outputs/job/")
    assert model_set.digest[:12] in lines[-1]


def test_a_picture_of_no_known_set_is_a_group_of_its_own(copied):
    strip_metadata(copied.pictures()[0])
    shutil.rmtree(copied.folder / "manifests")
    groups = copied.json("audit", "outputs", "--by", "model_set", check=3)
    assert [(group["name"], group["images"]) for group in groups] == [(None, 1), ("picture-book", 1)]


def test_which_pictures_a_weights_file_made(copied):
    """Asked with a file of the model set, with the digits that model sites show, and with a file that made none."""
    model_set = find_model_set("mine", copied.folder)
    for question, roles in (
        (str(model_set.path("vae.decoder")), ["vae.decoder"]),
        (model_set.description.sources[0].sha256[:10], ["transformer"]),
        ("jobs/job.toml", None),
    ):
        entries = copied.json("audit", ".", "--weights", question)
        assert [entry["made_with"] for entry in entries] == ([roles] * 2 if roles else [])
    told = copied.run("audit", ".", "--weights", "nothing.safetensors", check=2).stderr
    assert told == (
        "error: --weights: must be a file, or 10 to 64 hex digits of its SHA-256, got 'nothing.safetensors'\n"
    )


def test_a_picture_without_its_manifest_is_known_by_its_set_as_far_as_that_is_here(copied):
    shutil.rmtree(copied.folder / "manifests")
    digits = find_model_set("mine", copied.folder).description.sources[0].sha256
    assert len(copied.json("audit", "outputs", "--weights", digits)) == 2
    shutil.rmtree(copied.folder / "models")
    assert copied.json("audit", "outputs", "--weights", digits) == []


def test_a_thousand_pictures_take_no_more_memory_than_one(copied):
    """Beside what is kept to know each file again: less than a kilobyte a picture, whose audit alone has sixty."""
    picture, manifest = copied.pictures()[0], first_manifest(copied)

    def measure(count):
        for number in range(count):
            shutil.copy(picture, copied.folder / f"outputs/job/copy-{number}.png")
            shutil.copy(manifest, copied.folder / f"manifests/job/copy-{number:012x}.json")
        tracemalloc.start()
        audited = sum(not audit.differences for audit in audit_paths([copied.folder / "outputs"], copied.folder))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return audited, peak

    few, small = measure(20)
    many, large = measure(220)
    assert (few, many) == (22, 222)
    assert (large - small) / 200 < 1000


def test_an_empty_folder_and_a_workspace_that_is_none_are_mistakes(copied):
    (copied.folder / "empty").mkdir()
    assert "empty: must be a PNG, a manifest or a folder with some" in copied.run("audit", "empty", check=2).stderr
    for workspace in (copied.pictures()[0], copied.folder / "missing"):
        with pytest.raises(UsageError, match="the workspace must be a folder"):
            list(audit_paths([copied.folder], workspace))


def test_nothing_is_audited_when_one_of_the_paths_is_a_mistake(copied):
    with pytest.raises(UsageError):
        next(audit_paths([copied.folder, copied.folder / "missing.png"], copied.folder))


def test_a_byte_flipped_anywhere_in_a_manifest_is_found(copied):
    manifest = next((copied.folder / "manifests/job").glob("*.json"))
    for offset in range(0, manifest.stat().st_size, 1999):
        flip(manifest, offset)
        assert str(manifest) in audit_one(copied, manifest).differences[0]
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


def test_a_folder_that_cannot_be_listed_is_not_passed_over(tmp_path):
    """Its path is longer than the system takes, which holds for root too."""
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=here)
        inner = os.open("d" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("a.png", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    Image.new("RGB", (16, 16)).save(tmp_path / "b.png")
    with pytest.raises(StorageError, match="File name too long"):
        list(audit_paths([tmp_path], tmp_path))
    shutil.rmtree(tmp_path / ("d" * 250))
