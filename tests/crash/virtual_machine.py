"""A machine killed while a job runs in it, on real ext4 and f2fs: what another machine finds on its disk."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from crash.broken_writers import BROKEN
from crash.laboratory import MAKE, STEPS, Cut, Laboratory, open_laboratory
from crash.machine import Kept, Machine
from crash.report import Fault, Result, Scale, Tally, tell

CUTS = 200  # of each file system
SHARE_OF_RECOVERY = 0.25  # of the cuts: while an interrupted job goes on
SHARE_INTERRUPTED = 0.25  # of all cuts: the power goes once more while the disk is mounted and surveyed
FINISHED = 6  # of the cuts, run to their end
EVENTS_BETWEEN = 2  # a machine is kept at every second event, and runs to the next one at most
CUTS_OF_A_TAKE = 4
MOUNT_SECONDS = 1.5  # about as long as a recovery takes until the program knows where it stands
LOST_SECONDS = 1.0  # after which the kernel itself has not yet written what nobody synced
ENOUGH, TRIALS = 1, 40  # bad states of a broken writer after which it counts as caught, cuts after which it does not

REAL, LATE = ["-m", "anima_batch"], ["-m", "crash.late_writer"]
REPLACED = 2  # steps after which the next one's checkpoint replaces an older one, whose blocks can be torn
# Broken only while a finished picture is recorded; the others are whenever something is saved.
IN_WRONG_ORDER = ("manifest before picture", "checkpoint removed first")  # bad until the picture is done, never after
BROKEN_AT_THE_END = ("picture not synced", *IN_WRONG_ORDER)
RECORDED_AFTER = 0.6  # of the time from the last step to the word that the picture is done: before, it is decoded

# f2fs writes a file's blocks elsewhere and its node last: a small file overwritten in place and synced is old or
# new there (0 of 40 cuts were bad).
NOT_BROKEN = {"f2fs": {"in place, synced"}}

_In = TypeVar("_In")
_Out = TypeVar("_Out")


@dataclass(frozen=True)
class Moment:
    """A machine kept while a job ran in it, and the seconds until the next one was kept."""

    kept: Kept
    seconds: float
    name: str
    is_recovery: bool


@dataclass(frozen=True)
class Trial:
    """The power goes `seconds` after the moment, and once more `interrupted` seconds after recovery has begun."""

    seconds: float
    interrupted: float | None
    to_the_end: bool


@dataclass(frozen=True)
class Take:
    """A moment, and the trials that begin with it in the order of their times."""

    moment: Moment
    trials: tuple[Trial, ...]


def measure(scale: Scale) -> Iterator[Result]:
    """Random cuts on each file system, some of them during the recovery from another."""
    pool = ThreadPoolExecutor(len(MAKE))  # while one waits for its slow disk the other may not
    with open_laboratory(scale.scratch) as laboratory, pool:
        yield from pool.map(lambda kind: _measure_kind(laboratory, kind, scale), MAKE)


def _measure_kind(laboratory: Laboratory, kind: str, scale: Scale) -> Result:
    started, draw = time.monotonic(), scale.draw(f"cuts on {kind}")
    with ThreadPoolExecutor(_workers()) as pool:
        film = pool.submit(film_both, laboratory, kind, draw)
        late = pool.submit(keep_late, laboratory, kind)
    (job, recovery), tally = film.result(), Tally()
    tell(f"{kind}: {len(job)} moments of a job and {len(recovery)} of a recovery kept, {_since(started)}")
    takes = plan_takes(job, recovery, scale, draw)
    for faults, where in itertools.chain.from_iterable(
        _side_by_side(lambda take: try_take(laboratory, kind, take), takes)
    ):
        tally.add(faults, where)
        if faults:
            tell(f"{kind}: {where}: {'; '.join(f'{fault.kind}: {fault.text}' for fault in faults)}")
    tell(f"{kind}: {tally.states} cuts, {tally.bad} bad, {_since(started)}")
    controls = {}
    for name in (name for name in BROKEN if name not in NOT_BROKEN.get(kind, ())):
        controls[name] = count_bad(laboratory, kind, late.result(), name, scale.draw(f"{name} on {kind}"))
        tell(f"{kind}: {name}: {controls[name]} bad, {_since(started)}")
    for kept in (late.result(), *(moment.kept for moment in (*job, *recovery))):
        kept.remove()
    return Result(
        method="virtual machine",
        variant=kind,
        states=tally.states,
        bad=tally.bad,
        controls=controls,
        seconds=time.monotonic() - started,
        examples=tuple(tally.examples),
        details={
            "kinds": tally.kinds,
            "during a recovery": sum(len(take.trials) for take in takes if take.moment.is_recovery),
            "cut again while mounted": sum(trial.interrupted is not None for take in takes for trial in take.trials),
            "finished": sum(trial.to_the_end for take in takes for trial in take.trials),
        },
    )


def _since(started: float) -> str:
    return f"{time.monotonic() - started:.0f} s"


def plan_takes(job: Sequence[Moment], recovery: Sequence[Moment], scale: Scale, draw: random.Random) -> list[Take]:
    """Cuts at random times after each moment in its turn; some are cut again or run to their end."""
    count = scale.of(CUTS)
    of_recovery = max(1, round(count * SHARE_OF_RECOVERY))
    to_finish = set(draw.sample(range(count), min(count, scale.of(FINISHED))))
    numbers = [list(range(of_recovery)), list(range(of_recovery, count))]
    takes = []
    for moments, wanted in zip((recovery, job), numbers, strict=True):
        for turn, first in enumerate(range(0, len(wanted), CUTS_OF_A_TAKE)):
            moment = moments[turn % len(moments)]
            trials = [_draw_trial(moment, draw, to_the_end=n in to_finish) for n in wanted[first:][:CUTS_OF_A_TAKE]]
            takes.append(Take(moment, tuple(sorted(trials, key=lambda trial: trial.seconds))))
    return takes


def _draw_trial(moment: Moment, draw: random.Random, *, to_the_end: bool) -> Trial:
    seconds = draw.uniform(0, 1.1 * moment.seconds)  # reaches into the next one
    interrupted = draw.uniform(0, MOUNT_SECONDS) if draw.random() < SHARE_INTERRUPTED else None
    return Trial(seconds, interrupted, to_the_end)


def try_take(laboratory: Laboratory, kind: str, take: Take) -> list[tuple[tuple[Fault, ...], str]]:
    """For each cut the promises that it broke, and when it was."""
    found = []
    cuts = make_cuts(laboratory, take.moment, [trial.seconds for trial in take.trials])
    for cut, trial in zip(cuts, take.trials, strict=True):
        faults = laboratory.examine(kind, cut, interrupted=trial.interrupted)
        if trial.to_the_end:
            faults = (*faults, *laboratory.finish(kind, cut))
        cut.disk.unlink()
        again = "" if trial.interrupted is None else f", and {trial.interrupted:.3f} s after recovery began"
        found.append((faults, cut.where + again))
    return found


def film_both(laboratory: Laboratory, kind: str, draw: random.Random) -> tuple[list[Moment], list[Moment]]:
    """Moments of a job, and of the same job after it was cut in its middle."""
    job = film_job(laboratory, kind)
    return job, film_recovery(laboratory, kind, job, draw)


def film_job(laboratory: Laboratory, kind: str) -> list[Moment]:
    """Moments of a job from its first image to its end."""
    with laboratory.running_job(kind, REAL) as machine:
        return _film(laboratory, machine, "the job", is_recovery=False)


def film_recovery(laboratory: Laboratory, kind: str, moments: Sequence[Moment], draw: random.Random) -> list[Moment]:
    """Moments of the same job after it was cut in its middle."""
    middle = moments[len(moments) // 3]
    (cut,) = make_cuts(laboratory, middle, [draw.uniform(0, middle.seconds)])
    with laboratory.resumed_job(kind, REAL, cut) as machine:
        return _film(laboratory, machine, f"recovery from ({cut.where})", is_recovery=True)


def _film(laboratory: Laboratory, machine: Machine, name: str, *, is_recovery: bool) -> list[Moment]:
    """Keep the machine at every so many events until the job ends."""
    moments: list[Moment] = []
    _wait_for_more(machine, 1)
    while not _has_ended(machine):
        kept = machine.keep(laboratory.new_path("memory"), laboratory.new_path("disk"))
        started = time.monotonic()
        machine.go_on()
        _wait_for_more(machine, EVENTS_BETWEEN)
        seconds = time.monotonic() - started
        moments.append(Moment(kept, seconds, f"{name}, moment {len(moments) + 1}", is_recovery))
    return moments


def _wait_for_more(machine: Machine, count: int) -> None:
    """Wait until the job has begun or finished so many more steps and images, or has ended."""
    wanted = _count_events(machine.events) + count
    machine.wait_for(lambda events: _count_events(events) >= wanted or '"BatchEnded"' in events)


def _count_events(events: str) -> int:
    return sum(events.count(f'"{name}"') for name in ("ImageStarted", "StepDone", "ImageDone"))


def _has_ended(machine: Machine) -> bool:
    return '"BatchEnded"' in machine.events


def make_cuts(laboratory: Laboratory, moment: Moment, times: Sequence[float]) -> list[Cut]:
    """Let the job go on from the moment; its machine is killed at the last of the times, in seconds.

    At the others all its threads are stopped while the disk is copied: it has what a kill would have left there.
    """
    cuts = []
    with laboratory.restore(moment.kept, slow=True) as machine:
        started, frozen = time.monotonic(), 0.0
        for seconds in times:
            time.sleep(max(0.0, started + frozen + seconds - time.monotonic()))
            stopped = time.monotonic()
            if seconds == times[-1]:
                machine.kill()
                disk = machine.disk
            else:
                machine.freeze(disk := laboratory.new_path("disk"))
            cuts.append(Cut(disk, _read_whole_lines(machine), f"{moment.name}, {seconds:.3f} s later"))
            machine.thaw()
            frozen += time.monotonic() - stopped
    return cuts


def _kill(machine: Machine, where: str) -> Cut:
    machine.kill()
    return Cut(machine.disk, _read_whole_lines(machine), where)


def _read_whole_lines(machine: Machine) -> str:
    told = machine.events
    return told[: told.rfind("\n") + 1]


def keep_late(laboratory: Laboratory, kind: str) -> Kept:
    """A machine whose job waits, before its first checkpoint, to be told which broken writer to be."""
    with laboratory.running_job(kind, LATE, late=True) as machine:
        return machine.keep(laboratory.new_path("memory"), laboratory.new_path("disk"))


def count_bad(laboratory: Laboratory, kind: str, late: Kept, name: str, draw: random.Random) -> int:
    """Bad states of a broken writer, up to enough."""

    def try_one(moment: tuple[bool, float]) -> bool:
        is_told, seconds = moment
        with laboratory.restore(late, slow=True) as machine:
            machine.ask("choose", name=name)
            machine.wait_for(_is_after(step))
            if is_told:
                _wait_for_more(machine, 1)
            time.sleep(seconds)
            cut = _kill(machine, f"{name}, {seconds:.3f} s after {'what followed ' * is_told}step {step}")
        faults = laboratory.examine(kind, cut)
        cut.disk.unlink()
        return bool(faults)

    step = STEPS if name in BROKEN_AT_THE_END else REPLACED
    span = _measure_span(laboratory, late, name, step)
    if name in IN_WRONG_ORDER:
        moments = [(False, draw.uniform(RECORDED_AFTER * span, span)) for _ in range(TRIALS)]
    else:
        # In turn before and after it is told that more is done: what was not synced is lost behind it only; how long
        # the way there is differs with what else the processors do.
        moments = [(bool(turn % 2), draw.uniform(0, LOST_SECONDS if turn % 2 else span)) for turn in range(TRIALS)]
    bad = 0
    for is_bad in _side_by_side(try_one, moments, together=_workers()):
        bad += is_bad
        if bad >= ENOUGH:
            break
    return bad


def _measure_span(laboratory: Laboratory, late: Kept, name: str, step: int) -> float:
    """Seconds from a step to what comes next: another step, or the image's end, for which it is decoded."""
    with laboratory.restore(late, slow=True) as machine:
        machine.ask("choose", name=name)
        machine.wait_for(_is_after(step))
        started = time.monotonic()
        _wait_for_more(machine, 1)
        return time.monotonic() - started


def _is_after(step: int) -> Callable[[str], bool]:
    return lambda events: events.count('"StepDone"') >= step


def _side_by_side(work: Callable[[_In], _Out], items: Sequence[_In], *, together: int = 0) -> Iterator[_Out]:
    """The results in order, made on all processors; `together`: after so many, no more are begun until asked for."""
    together = together or len(items)
    pool = ThreadPoolExecutor(_workers())
    try:
        for first in range(0, len(items), together):
            yield from pool.map(work, items[first : first + together])
    finally:
        pool.shutdown(cancel_futures=True)


def _workers() -> int:
    """Of each kind of file system: twice as many in all as there are processors, since a slow disk is waited for."""
    return os.cpu_count() or 1
