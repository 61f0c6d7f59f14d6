"""A board at work: what Dask calls in the worker's process."""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distributed import Worker, WorkerPlugin, get_worker

from anima_batch import __version__
from anima_batch.environment import changed_environment, read_environment
from anima_batch.errors import AnimaBatchError, ModelSetNotFoundError
from anima_batch.files import make_folder
from anima_batch.fleet.hooks import Collector, Forecast, Heartbeat, ImageStop
from anima_batch.fleet.messages import (
    Assignment,
    Began,
    Busy,
    Examined,
    Idle,
    Need,
    Refused,
    Result,
    Stopped,
    Told,
)
from anima_batch.model_set import find_by_digest
from anima_batch.runner import Event, Notice
from anima_batch.runner.guard import ModelSetGuard
from anima_batch.runner.image import make_image
from anima_batch.runner.record import ImagePaths, Provenance
from anima_batch.runner.space import check_space
from anima_batch.runner.task import Setting
from anima_batch.store import CheckpointFolder, find_folder, image_of, list_folders, take_folder
from anima_batch.worker import Deadlines, ModelWorker, Opening

TOPIC = "anima-batch"


def examine_board(need: Need) -> Examined | Refused:
    """The task that a board gets first."""
    return _board().examine(need)


def make_assigned(assignment: Assignment) -> Result:
    """The task that makes an image."""
    return _board().make(assignment)


def forget_images(images: list[str]) -> None:
    """The task that removes what the board keeps for itself of images, by their short ids."""
    _board().forget(images)


def _board() -> Board:
    return next(plugin for plugin in get_worker().plugins.values() if isinstance(plugin, Board))


@dataclass(frozen=True)
class _Model:
    """What a job needs, opened."""

    key: tuple[Any, ...]
    worker: ModelWorker
    guard: ModelSetGuard
    provenance: Provenance


def _describe(error: Exception) -> tuple[str, ...]:
    if isinstance(error, AnimaBatchError):
        return error.lines
    return (f"{type(error).__name__}: {error}".replace("\n", " "),)


class Board(WorkerPlugin):
    """A machine of a fleet; `tell` gets lines for its own log.

    What it keeps for itself lies in `outputs/.fleet/<name>` of its workspace: prompt embeddings, and the checkpoints of
    images whose driver does not share its storage.
    """

    def __init__(self, name: str, workspace: Path, tell: Callable[[str], None]) -> None:
        self.name = name
        self.workspace = workspace
        self.tell = tell
        self.scratch = workspace / "outputs" / ".fleet" / name
        self.stopping = False
        self._unwanted: set[str] = set()
        self._model: _Model | None = None
        self._dask: Worker | None = None
        self._lock = threading.Lock()  # one image at a time, whatever Dask thinks

    # What Dask calls in its own thread.

    def setup(self, worker: Worker) -> None:
        """The worker is about to join."""
        self._dask = worker
        self._unwanted.clear()

    def teardown(self, worker: Worker) -> None:
        """It leaves, or was left: the image at hand stops after its step."""
        self._unwanted.update(map(str, worker.active_keys))

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:  # noqa: ANN401 - Dask's types
        """A task that is under way and not wanted any more stops after its step: cancelled, or its driver is gone."""
        if start == "executing" and finish == "released":
            self._unwanted.add(str(key))

    # What runs in the one thread of its executor.

    def examine(self, need: Need) -> Examined | Refused:
        """Whether the board can make the job's images; opens the model for it."""
        try:
            with self._lock:
                model = self._open(need)
                return self._look_at_own(model.provenance.environment, shares=self._shares(need))
        except Exception as error:  # whatever it is, the driver must not wait for this board
            return Refused(self.name, _describe(error))

    def make(self, assignment: Assignment) -> Result:
        """An image from where it stands to its pixels."""
        key = get_worker().get_current_task()
        try:
            with self._lock:
                return self._make(assignment, str(key))
        except Exception as error:  # whatever it is, the image must not come back to this board
            return Refused(self.name, _describe(error))
        finally:
            self._send(Told(assignment.need.run_id, str(key), self.name, Idle()))
            self._unwanted.discard(str(key))

    def close(self) -> None:
        """End the model's process; to be called in the thread that opened it."""
        model, self._model = self._model, None
        if model is not None:
            model.worker.close()

    def abandon(self) -> None:
        """Forget a model whose thread has ended, and its process with it."""
        model, self._model = self._model, None
        if model is not None:
            model.worker.discard()

    def _open(self, need: Need) -> _Model:
        key = (need.model_set_digest, need.backend, need.run)
        if self._model is not None and self._model.key == key:
            self._model.guard.check()
            return self._model
        self.close()
        if need.version != __version__:
            raise ModelSetNotFoundError(f"anima-batch: must be {need.version} as the job's driver, got {__version__}")
        found = find_by_digest(need.model_set_digest, self.workspace)
        if not found:
            raise ModelSetNotFoundError(
                f"{self.workspace / 'models'}: must hold the model set {need.model_set_name} with digest "
                f"{need.model_set_digest[:12]}, got none of that digest: copy it there"
            )
        worker = ModelWorker(
            Opening(found[0], need.backend, need.run), Deadlines(need.run.deadline_seconds), recycle=need.run.recycle
        )
        try:
            worker.__enter__()
            guard = ModelSetGuard(found[0])  # reads every file while the worker starts
            opened = worker.open()
        except Exception:
            worker.close()
            raise
        environment = read_environment(opened.versions, need.run.core_mask if opened.backend == "rknn" else None)
        self._model = _Model(key, worker, guard, Provenance(self.workspace, need.job, found[0], environment))
        return self._model

    def _shares(self, need: Need) -> bool:
        """Whether the driver's storage is ours, too."""
        try:
            return (self.workspace / "outputs" / need.job.name / ".fleet").read_text(encoding="ascii") == need.mark
        except (OSError, UnicodeDecodeError):
            return False

    def _look_at_own(self, environment: dict[str, str | None], *, shares: bool) -> Examined:
        """What lies on this board's own storage, too."""
        begun, foreign = {}, {}
        for short in {image_of(path) for path in self.scratch.glob("checkpoints/*")} - {None}:
            loaded = CheckpointFolder(find_folder(self.scratch / "checkpoints" / str(short))).load()
            if loaded.checkpoint is None:
                continue
            if changed := changed_environment(loaded.checkpoint.meta.get("environment", {}), environment):
                foreign[str(short)] = "; ".join(changed)
            else:
                begun[str(short)] = loaded.checkpoint.step
        return Examined(self.name, environment, shares, begun, foreign)

    def _make(self, assignment: Assignment, key: str) -> Result:
        model, planned = self._open(assignment.need), assignment.planned
        base = self._checkpoints(assignment.need) / planned.request_id[:12]
        make_folder(base.parent)
        check_space(base.parent, assignment.needed_bytes, find_folder(base))
        folder = take_folder(base)
        loaded = CheckpointFolder(folder).load().checkpoint
        planned = replace(planned, from_step=loaded.step if loaded else 0)
        recorder = Collector(self.name, model.provenance.environment)
        setting = Setting(
            worker=model.worker,
            provenance=model.provenance,
            conditioning_folder=self.scratch / "conditioning",
            forecast=Forecast(assignment.rates, planned),
            stop=ImageStop(lambda: not self.is_unwanted(key)),
            guard=model.guard,
            recorder=recorder,
            accept_environment=assignment.accept_environment,
            board=self.name,
        )

        def send(content: Began | Busy | Event) -> None:
            self._send(Told(assignment.need.run_id, key, self.name, content))

        send(Began(planned.from_step))
        self.tell(f"{self.name}: {planned.stem} after step {planned.from_step}")
        model.worker.on_ask = Heartbeat(send)
        nothing = self.scratch / planned.stem  # pictures and manifests are the driver's
        for event in make_image(setting, planned, ImagePaths(nothing, nothing, folder)):
            send(event)
        if notice := model.worker.end_image():
            send(Notice(f"{self.name}: {notice}"))
        self.tell(f"{self.name}: {planned.stem} {recorder.verdict}")
        return recorder.made or Stopped(self.name)

    def _checkpoints(self, need: Need) -> Path:
        if self._shares(need):
            return self.workspace / "outputs" / need.job.name / ".checkpoints"
        return self.scratch / "checkpoints"

    def forget(self, images: Iterable[str]) -> None:
        """Remove the checkpoints that lie on this board alone; raises StorageError."""
        for short in images:
            for folder in list_folders(self.scratch / "checkpoints" / short):
                CheckpointFolder(folder).drop()

    def _send(self, told: Told) -> None:
        """To the driver; nobody may be there to hear it."""
        assert self._dask is not None
        # Where the connection is gone: a step is worth more than a word of it.
        with contextlib.suppress(OSError, RuntimeError):
            self._dask.log_event(TOPIC, pickle.dumps(told))

    def is_unwanted(self, key: str) -> bool:
        """Whether the image of a task is to stop after its step."""
        return self.stopping or key in self._unwanted
