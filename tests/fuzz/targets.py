"""Every file that is read, with its hostile variants and all that reads it."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fuzz.changes import change_bytes, change_container, change_json, change_png
from fuzz.jobs import JOB_TEXTS, PROMPT_FILES
from fuzz.seals import seal_manifest, seal_tensors
from fuzz.world import World, make_manifest, make_png
from hypothesis import strategies as st

from anima_batch.audit import audit_paths, verify_job
from anima_batch.batch import find_dropped, open_batch, plan_batch, survey
from anima_batch.console import results
from anima_batch.errors import AnimaBatchError
from anima_batch.model_set import find_model_set, scan_model_sets, verify_model_set
from anima_batch.runner.resume import open_state
from anima_batch.sampling import initial_state
from anima_batch.store import CheckpointFolder, pack_tensors, read_png, to_bytes, unpack_tensors
from anima_batch.store.attempts import begin_attempt, read_attempts

Inputs = st.SearchStrategy[bytes]
EXIT_CODES = {2, 3, 4, 5}


@dataclass(frozen=True)
class Target:
    """A kind of file: where it lies in the world, what to put there, and what reads it."""

    name: str
    path: Callable[[World], Path]
    inputs: Callable[[World], Inputs]
    read: Callable[[World], None]


def feed(target: Target, world: World, data: bytes) -> bool:
    """Whether everything that reads the file took it.

    Fails for an exception that is no AnimaBatchError, for a line that a terminal should not see, and where a file
    changed. The file is as before afterwards.
    """
    path = target.path(world)
    kept = path.read_bytes() if path.exists() else None
    path.write_bytes(data)
    before = take_stock(world.folder)
    try:
        accepted = _read(target, world)
        assert take_stock(world.folder) == before, "reading changed a file"
    finally:
        if kept is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(kept)
    return accepted


def _read(target: Target, world: World) -> bool:
    shown = io.StringIO()
    refused = None
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        try:
            target.read(world)
        except AnimaBatchError as error:
            refused = error
            results.show_errors(error.lines)
    assert refused is None or (refused.lines and refused.exit_code in EXIT_CODES)
    assert all(line.isprintable() for line in shown.getvalue().split("\n")), shown.getvalue()
    return refused is None


def take_stock(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Inode, size and time of the last change of everything below the folder."""
    return {entry.path: (status.st_ino, status.st_size, status.st_mtime_ns) for entry, status in _walk(folder)}


def _walk(folder: str | Path) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    for entry in os.scandir(folder):
        yield entry, entry.stat(follow_symlinks=False)
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path)


def _read_job(world: World) -> None:
    batch = open_batch(world.job, world.folder, draw=False)
    for image, request_id in batch.identified_images():
        name = f"{image.stem(request_id)}.png"
        assert (batch.outputs / name).parent == batch.outputs
        assert len(name.encode()) <= 255
    assert batch.outputs.parent == world.folder / "outputs"
    results.show_warnings(batch.warnings)
    plan = plan_batch(batch, survey(batch))
    results.show_plan(replace(plan, images=plan.images[:3]))
    results.show_json(results.plan_json(plan))


def _read_records(world: World) -> None:
    """All that reads manifests, pictures and checkpoints without writing."""
    batch = world.batch
    found = survey(batch)
    for entry in found.values():
        for path in entry.damaged:
            assert path.parent in (batch.outputs, batch.manifests), path
    plan = plan_batch(batch, found)
    results.show_status(plan)
    results.show_json(results.plan_json(plan))
    find_dropped(batch)
    for audit in verify_job(batch):
        results.show_audit(audit)


def _audit(world: World, path: Path) -> None:
    (audit,) = audit_paths([path], world.folder)
    results.show_audit(audit)
    results.show_json(results.audit_json(audit))


def _read_manifest(world: World) -> None:
    _read_records(world)
    _audit(world, world.manifest(0))


def _read_picture(world: World) -> None:
    _read_records(world)
    _audit(world, world.picture)
    read_png(world.picture.read_bytes(), str(world.picture))


def _read_checkpoint(world: World) -> None:
    _read_records(world)
    loaded = CheckpointFolder(world.begun).load()
    results.show_errors(loaded.problems)
    assert loaded.checkpoint is not None  # the older generation serves, whatever became of the newer one
    request = world.batch.images[2].request
    open_state(loaded.checkpoint, request, initial_state(request))


def _read_attempts(world: World) -> None:
    found = read_attempts(world.begun)
    assert found.count >= 0
    results.show_errors([found.problem])


def _read_model_set(world: World) -> None:
    scan = scan_model_sets(world.folder)
    results.show_errors(scan.problems)
    results.show_model_sets(scan.sets)
    found = find_model_set("mine", world.folder)
    for part in found.description.components:
        assert os.path.normpath(found.folder / part.path).startswith(f"{found.folder}{os.sep}")
    results.show_errors(verify_model_set(found, sha256=True))
    results.show_model_set(found)
    results.show_json(results.model_set_json(found))
    _read_job(world)
    _audit(world, world.manifest(0))


def _read_pin(world: World) -> None:
    open_batch(world.job, world.folder, draw=True)


def _read_embeds(world: World) -> None:
    unpack_tensors((world.folder / "x.embeds").read_bytes(), "conditioning", where="x.embeds")


def _of_files(
    path: Callable[[World], list[Path]], change: Callable[[list[bytes]], Inputs]
) -> Callable[[World], Inputs]:
    return lambda world: change([file.read_bytes() for file in path(world)])


def _job_inputs(world: World) -> Inputs:
    return JOB_TEXTS | change_bytes([world.job.read_bytes()])


def _manifest_inputs(world: World) -> Inputs:
    files = [world.manifest(0).read_bytes(), to_bytes(make_manifest(world, 0, None))]
    return change_json(files).map(seal_manifest) | change_bytes(files).map(seal_manifest) | change_bytes(files)


def _picture_inputs(world: World) -> Inputs:
    files = [world.picture.read_bytes(), make_png(world, 1)]
    return change_png(files) | change_bytes(files)


def _container_inputs(files: list[bytes]) -> Inputs:
    return change_container(files) | change_bytes(files).map(seal_tensors) | change_bytes(files)


def _attempts_inputs(world: World) -> Inputs:
    folder = world.folder / "outputs/attempts"
    begin_attempt(folder, 2, "boot")
    return _container_inputs([(folder / "attempts").read_bytes()])


def _json_inputs(files: list[bytes]) -> Inputs:
    return change_json(files) | change_bytes(files)


def _embeds_inputs(world: World) -> Inputs:
    latents = world.begun / "ckpt.1"
    tensors, _ = unpack_tensors(latents.read_bytes(), "checkpoint")
    return _container_inputs([pack_tensors("conditioning", tensors, {"prompt": "a boat"})])


TARGETS = {
    target.name: target
    for target in [
        Target("job", lambda world: world.job, _job_inputs, _read_job),
        Target("prompts", lambda world: world.folder / "prompts.txt", lambda world: PROMPT_FILES, _read_job),
        Target("pin", lambda world: world.batch.outputs / "job.json", lambda world: _json_inputs([_PIN]), _read_pin),
        Target("manifest", lambda world: world.manifest(0), _manifest_inputs, _read_manifest),
        Target("picture", lambda world: world.picture, _picture_inputs, _read_picture),
        Target(
            "checkpoint",
            lambda world: world.begun / "ckpt.1",
            _of_files(lambda world: [world.begun / "ckpt.1", world.begun / "ckpt.0"], _container_inputs),
            _read_checkpoint,
        ),
        Target(
            "history",
            lambda world: world.begun / "history.3",
            _of_files(lambda world: [world.begun / "history.3", world.begun / "history.1"], _container_inputs),
            _read_checkpoint,
        ),
        Target("attempts", lambda world: world.begun / "attempts", _attempts_inputs, _read_attempts),
        Target(
            "model_set",
            lambda world: world.model_set,
            _of_files(lambda world: [world.model_set], _json_inputs),
            _read_model_set,
        ),
        Target("embeds", lambda world: world.folder / "x.embeds", _embeds_inputs, _read_embeds),
    ]
}
_PIN = b'{"schema_version": 1, "job_sha256": "ab", "drawn": [1, 2], "images": {"ab": "cd"}}'
