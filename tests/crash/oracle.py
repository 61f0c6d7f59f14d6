"""What must be found after a cut: what was said to be durable, with the bits of the run that was left alone."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anima_batch.batch import Batch, Found, open_batch, plan_batch, survey
from anima_batch.files import canonical_json, xxh3_128_bytes
from anima_batch.plan import PlannedImage
from anima_batch.store import Checkpoint, CheckpointFolder, pixel_sha256, read_manifest, read_png
from crash.report import Fault


@dataclass(frozen=True)
class Picture:
    """Digests of a finished picture's pixels and of its last latents."""

    pixels: str
    latents: str


@dataclass(frozen=True)
class Begun:
    """A begun image: steps done, the digest of the latents after them and that of the whole sampler state."""

    step: int
    latents: str
    state: str


@dataclass(frozen=True)
class Golden:
    """The results of a run that was left alone, by stem; `steps` has the latents' digest after each step.

    `states` has the whole state's digest by stem and step, as far as it is known.
    """

    pictures: Mapping[str, Picture]
    steps: Mapping[str, tuple[str, ...]]
    states: Mapping[tuple[str, int], str] = field(default_factory=dict)

    @classmethod
    def read(cls, manifests: Path) -> Golden:
        """From a finished job's folder of manifests."""
        contents = {
            path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(manifests.glob("*.json"))
        }
        return cls(
            {stem: Picture(c["image"]["pixel_sha256"], c["latents"]["sha256"]) for stem, c in contents.items()},
            {stem: tuple(step["latents_xxh3"] for step in c["steps"]) for stem, c in contents.items()},
        )


@dataclass(frozen=True)
class Acknowledged:
    """What a run said to be durable: the last step of each begun image, and the finished ones; all by stem."""

    steps: Mapping[str, int] = field(default_factory=dict)
    done: frozenset[str] = frozenset()

    def after(self, event: Mapping[str, Any]) -> Acknowledged:
        """With one more line of `--events`."""
        match event["event"]:
            case "StepDone":
                return Acknowledged({**self.steps, event["stem"]: event["durable_step"]}, self.done)
            case "ImageDone":
                return Acknowledged(self.steps, self.done | {event["stem"]})
        return self

    @classmethod
    def read(cls, lines: Iterable[str]) -> Acknowledged:
        """From the lines of `--events`; the last one may be cut short."""
        found = cls()
        for line in lines:
            with contextlib.suppress(ValueError):
                found = found.after(json.loads(line))
        return found


@dataclass(frozen=True)
class Recovered:
    """What the same command would find and go on with, by stem.

    `torn`: files under their final names that are not whole. `stuck`: the error with which the command would end.
    """

    done: Mapping[str, Picture] = field(default_factory=dict)
    begun: Mapping[str, Begun] = field(default_factory=dict)
    torn: tuple[str, ...] = ()
    stuck: str = ""


def recover(job: Path, workspace: Path) -> Recovered:
    """Decide as `run` does after a reboot; reads only."""
    try:
        batch = open_batch(job, workspace, draw=False)
        found = survey(batch)
        return _look(batch, found)
    except Exception as error:  # whatever it is: the command would end with it
        return Recovered(stuck=f"{type(error).__name__}: {error}")


def _look(batch: Batch, found: Mapping[str, Found]) -> Recovered:
    done: dict[str, Picture] = {}
    begun: dict[str, Begun] = {}
    torn: list[str] = []
    for planned in plan_batch(batch, found).images:
        torn += [f"{planned.stem}: {planned.reason}"] if planned.reason else []
        if entry := found.get(planned.request_id):
            torn += entry.checkpoint_problems or ()
        if planned.status == "done":
            done[planned.stem] = _look_at_picture(batch, planned)
        elif planned.status == "begun":
            loaded = CheckpointFolder(batch.checkpoint(planned.request_id)).load()
            assert loaded.checkpoint is not None
            begun[planned.stem] = describe(loaded.checkpoint)
        elif planned.status == "failed":
            return Recovered(stuck=f"{planned.stem} counts as failed: {planned.reason}")
    return Recovered(done, begun, tuple(torn))


def _look_at_picture(batch: Batch, planned: PlannedImage) -> Picture:
    manifest = read_manifest(batch.manifests / f"{planned.stem}.json")
    assert manifest.latents is not None
    pixels = read_png((batch.outputs / f"{planned.stem}.png").read_bytes()).pixels
    return Picture(pixel_sha256(pixels), manifest.latents.sha256)


def describe(checkpoint: Checkpoint) -> Begun:
    """A checkpoint in digests; the log, which holds times, is left out."""
    parts = [xxh3_128_bytes(checkpoint.tensors[name].tobytes()) for name in sorted(checkpoint.tensors)]
    state = canonical_json([sorted(checkpoint.tensors), parts, checkpoint.meta["sampler"]])
    latents = xxh3_128_bytes(checkpoint.tensors["latents"].tobytes())
    return Begun(checkpoint.step, latents, xxh3_128_bytes(state.encode()))


def judge(golden: Golden, acknowledged: Acknowledged, recovered: Recovered) -> tuple[Fault, ...]:
    """The promises that a state breaks; none for a good one.

    A step that was said to be durable is there, so that at most the one at hand is repeated; a picture that was said
    to be finished is finished; and whatever is taken as good has the bits of the run that was left alone.
    """
    if recovered.stuck:
        return (Fault("stuck", recovered.stuck),)
    faults = [Fault("torn", text) for text in recovered.torn]
    for stem, picture in recovered.done.items():
        if picture != golden.pictures.get(stem):
            faults.append(Fault("accepted", f"{stem}: a picture with other bits"))
    for stem, begun in recovered.begun.items():
        if not _is_golden(golden, stem, begun):
            faults.append(Fault("accepted", f"{stem}: a checkpoint of step {begun.step} with other bits"))
    faults += [Fault("lost", f"{stem}: was finished") for stem in sorted(acknowledged.done - recovered.done.keys())]
    for stem, step in acknowledged.steps.items():
        if stem in recovered.done or stem in acknowledged.done:
            continue
        found = recovered.begun[stem].step if stem in recovered.begun else 0
        if found < step:
            faults.append(Fault("repeated", f"{stem}: {step} steps were durable, it goes on after {found}"))
    return tuple(faults)


def _is_golden(golden: Golden, stem: str, begun: Begun) -> bool:
    steps = golden.steps.get(stem, ())
    if begun.step > len(steps) or begun.latents != steps[begun.step - 1]:
        return False
    return golden.states.get((stem, begun.step), begun.state) == begun.state
