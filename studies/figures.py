"""Each picture's distance to the reference pictures of its prompt, measured once and kept by request id."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

from anima_batch.files import write_atomic
from anima_batch.job import request_id
from anima_batch.measures import measure_contrast, measure_psnr, measure_ssim
from anima_batch.model_set import ModelSet, load_model_set
from studies.settings import REFERENCES, Setting
from studies.studio import Shot, open_studio
from training.scenes import describe_scene, draw_lot

_FIRST_LOT = 30_000_000  # of the held-out scenes that become prompts
_SHARE = 2  # subjects that a process takes at once


@dataclass(frozen=True)
class Subject:
    """A prompt and the seed of its noise."""

    prompt: str
    seed: int


@dataclass(frozen=True)
class Figure:
    """What was measured of one picture; psnr (dB) and ssim are by the label of the reference."""

    passes: int
    contrast: float
    latent_std: float
    psnr: dict[str, float]
    ssim: dict[str, float]


def list_subjects(count: int) -> list[Subject]:
    """The first held-out prompts, no two alike, each with a seed of its own."""
    prompts: dict[str, None] = {}
    lot = _FIRST_LOT
    while len(prompts) < count:
        prompts[describe_scene(draw_lot(lot, held_out=True))] = None
        lot += 1
    return [Subject(prompt, seed) for seed, prompt in enumerate(prompts)]


@dataclass(frozen=True)
class Figures:
    """The figures that are known by request id, and the file that keeps them; without one they end with the process."""

    model_set: ModelSet
    known: dict[str, Figure]
    file: Path | None

    def of(self, setting: Setting, subjects: Sequence[Subject]) -> list[Figure]:
        """The figures of a setting that was measured, one a subject."""
        return [self.known[self._key(setting, subject)] for subject in subjects]

    def measure(self, settings: Iterable[Setting], subjects: Sequence[Subject], processes: int) -> None:
        """Makes and measures what is not known yet, a few subjects at a time, each process with one thread."""
        wanted = dict.fromkeys([*REFERENCES, *settings])
        missing = {subject: [s for s in wanted if self._key(s, subject) not in self.known] for subject in subjects}
        concerned = [subject for subject, left in missing.items() if left]
        shares = [concerned[start : start + _SHARE] for start in range(0, len(concerned), _SHARE)]
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            tasks = [
                pool.submit(_measure_share, self.model_set.folder, {s: missing[s] for s in share}) for share in shares
            ]
            for number, task in enumerate(as_completed(tasks), start=1):
                for (setting, subject), figure in task.result().items():
                    self.known[self._key(setting, subject)] = figure
                self._save()
                print(f"{number} of {len(tasks)} shares of the prompts measured", file=sys.stderr, flush=True)

    def _key(self, setting: Setting, subject: Subject) -> str:
        return request_id(setting.request(subject.prompt, subject.seed), self.model_set.digest)

    def _save(self) -> None:
        if self.file is not None:
            text = json.dumps({key: asdict(figure) for key, figure in self.known.items()})
            write_atomic(self.file, text.encode("utf-8"))


def load_figures(model_set: Path, file: Path | None) -> Figures:
    """The figures that the file has, of this and of other model sets."""
    kept = json.loads(file.read_text(encoding="utf-8")) if file is not None and file.exists() else {}
    known = {key: Figure(**figure) for key, figure in kept.items()}
    return Figures(load_model_set(model_set), known, file)


def _measure_share(
    model_set: Path, wanted: Mapping[Subject, Sequence[Setting]]
) -> dict[tuple[Setting, Subject], Figure]:
    """The figures of some subjects under the settings that each wants; the references are made anew."""
    figures = {}
    with open_studio(model_set, [subject.prompt for subject in wanted]) as studio:

        def shoot(setting: Setting, subject: Subject) -> Shot:
            return studio.shoot(setting.request(subject.prompt, subject.seed))

        references = {(r, subject): shoot(r, subject) for r in REFERENCES for subject in wanted}
        settings = dict.fromkeys(setting for left in wanted.values() for setting in left)
        # One setting after the other: pictures of one schedule share its modulation.
        for setting in settings:
            for subject in (subject for subject, left in wanted.items() if setting in left):
                shot = references.get((setting, subject)) or shoot(setting, subject)
                figures[setting, subject] = _examine(shot, {r.label: references[r, subject] for r in REFERENCES})
    return figures


def _examine(shot: Shot, references: Mapping[str, Shot]) -> Figure:
    pictures = {label: reference.picture for label, reference in references.items()}
    return Figure(
        passes=shot.passes,
        contrast=measure_contrast(shot.picture),
        latent_std=shot.latent_std,
        psnr={label: measure_psnr(shot.picture, picture) for label, picture in pictures.items()},
        ssim={label: measure_ssim(shot.picture, picture) for label, picture in pictures.items()},
    )
