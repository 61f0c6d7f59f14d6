"""A changed byte at any offset of any file that is kept is found, and what is whole beside it serves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sample_manifest import done

from anima_batch.batch import check_image
from anima_batch.files import sha256_bytes
from anima_batch.job import ImageRequest
from anima_batch.store import (
    Checkpoint,
    CheckpointFolder,
    CorruptError,
    ImageFile,
    Manifest,
    PngInfo,
    begin_attempt,
    encode_png,
    pack_tensors,
    parse_manifest,
    pixel_sha256,
    read_attempts,
    to_bytes,
    unpack_tensors,
)


def changed_bytes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The data with one byte changed, at each offset; which other value it gets differs from offset to offset."""
    for offset, byte in enumerate(data):
        other = byte ^ (1 + (offset * 37 + byte) % 255)
        yield offset, data[:offset] + bytes([other]) + data[offset + 1 :]


def state(generation: int, history: tuple[int, ...]) -> Checkpoint:
    tensors = {"latents": np.full((1, 2, 2), generation, np.float32)}
    tensors |= {f"history.{step}.0": np.full((2, 2), step, np.float32) for step in history}
    return Checkpoint(generation, generation + 1, tensors, {"log": ["a line", generation]})


@pytest.mark.parametrize("name", ["ckpt.1", "history.1"])
def test_the_older_generation_serves_for_a_change_anywhere_in_the_newer(tmp_path: Path, name: str):
    checkpoints = CheckpointFolder(tmp_path)
    checkpoints.save(state(0, (0,)))
    checkpoints.save(state(1, (0, 1)))
    assert_loads(checkpoints, 1)
    for offset, data in changed_bytes((tmp_path / name).read_bytes()):
        (tmp_path / name).write_bytes(data)
        loaded = checkpoints.load()
        assert loaded.checkpoint is not None, f"offset {offset}"
        assert loaded.checkpoint.generation == 0, f"the change at {offset} was not found"
        assert len(loaded.problems) == 1
        assert loaded.problems[0].startswith(f"{tmp_path}/{name}: ")


@pytest.mark.parametrize("name", ["ckpt.0", "history.0"])
def test_a_change_anywhere_in_what_only_the_older_needs_leaves_the_newer_as_it_is(tmp_path: Path, name: str):
    checkpoints = CheckpointFolder(tmp_path)
    checkpoints.save(state(0, (0,)))
    checkpoints.save(state(1, (1,)))
    for offset, data in changed_bytes((tmp_path / name).read_bytes()):
        (tmp_path / name).write_bytes(data)
        loaded = checkpoints.load()
        assert loaded.checkpoint is not None, f"offset {offset}"
        assert loaded.checkpoint.generation == 1
        assert loaded.checkpoint.tensors["history.1.0"][0, 0] == 1


def assert_loads(checkpoints: CheckpointFolder, generation: int) -> None:
    loaded = checkpoints.load()
    assert loaded.checkpoint is not None
    assert (loaded.checkpoint.generation, loaded.problems) == (generation, ())


def test_every_other_value_of_every_byte_of_a_header_line_is_found():
    data = pack_tensors("checkpoint", {"x": np.ones(1, np.float32)}, {"step": 1})
    for offset in range(data.index(b"\n") + 1):
        for other in set(range(256)) - {data[offset]}:
            with pytest.raises(CorruptError):
                unpack_tensors(data[:offset] + bytes([other]) + data[offset + 1 :], "checkpoint")


def test_a_change_anywhere_in_the_attempts_is_found(tmp_path: Path):
    begin_attempt(tmp_path, 3, "boot")
    for offset, data in changed_bytes((tmp_path / "attempts").read_bytes()):
        (tmp_path / "attempts").write_bytes(data)
        assert read_attempts(tmp_path).problem, f"the change at {offset} was not found"


def test_a_change_anywhere_in_a_manifest_is_found(workspace_files: tuple[Path, Manifest]):
    data = to_bytes(workspace_files[1])
    assert parse_manifest(data, "m").image is not None
    for offset, changed in changed_bytes(data):
        with pytest.raises(CorruptError):
            parse_manifest(changed, f"change at {offset}")


def test_a_change_anywhere_in_a_picture_is_found_by_its_manifest(workspace_files: tuple[Path, Manifest]):
    workspace, manifest = workspace_files
    assert manifest.image is not None
    path = workspace / manifest.image.path
    assert check_image(workspace, manifest).fault == ""
    for offset, data in changed_bytes(path.read_bytes()):
        path.write_bytes(data)
        fault = check_image(workspace, manifest).fault
        assert "sha256 must be" in fault, f"the change at {offset} was not found"


@pytest.fixture
def workspace_files(tmp_path: Path) -> tuple[Path, Manifest]:
    """A workspace with a PNG of 16x16 pixels in it, and the manifest of a done image."""
    request = ImageRequest(prompt="a boat", seed=1, width=16, height=16)
    pixels = np.random.default_rng(1).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    info = PngInfo(
        request_id="a" * 64,
        request=request,
        policy_name="full",
        model_set_name="set",
        model_set_digest="b" * 64,
        source_sha256=None,
        manifest="manifests/m.json",
        version="1",
    )
    data = encode_png(pixels, info)
    (tmp_path / "a.png").write_bytes(data)
    image = ImageFile(
        path="a.png",
        sha256=sha256_bytes(data),
        pixel_sha256=pixel_sha256(pixels),
        bytes=len(data),
        width=16,
        height=16,
    )
    return tmp_path, done(request=request, image=image)
