"""Every state that a power cut may leave, by a model of the file system fed with recorded storage calls."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from crash.broken_writers import BROKEN
from crash.oracle import Acknowledged, judge
from crash.recorder import Said
from crash.report import Fault, Result, Scale, Tally
from crash.scenes import Scene, Studio, record_scenes
from crash.site import tree_key
from crash.storage import Order, Storage, Tree

STATES_A_CALL = 240  # at most, of the whole run
STATES_A_CALL_OF_CONTROLS = 24
FINISHED = 60  # states of each order from which the job is run to its end


@dataclass(frozen=True)
class State:
    """A power cut after `number` calls of a scene."""

    scene: Scene
    number: int
    acknowledged: Acknowledged
    tree: Tree

    @property
    def where(self) -> str:
        """The state in words."""
        call = str(self.scene.calls[self.number - 1])[:160] if self.number else "the start"
        return f"{self.scene.name}, after call {self.number} ({call})"


def measure(scale: Scale) -> Iterator[Result]:
    """A result for file systems whose journal keeps the order of changes, and one for those that promise no order."""
    studio = Studio(scale)
    scenes = record_scenes(studio, scale)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        controls = list(pool.map(studio.record_broken, BROKEN))
    for order in ("ordered", "weak"):
        started = time.monotonic()
        tally = Tally()
        sample = _Sample(scale.of(FINISHED), scale.draw(f"sample {order}"))
        for state in possible_states(scenes, order, max(4, scale.of(STATES_A_CALL)), scale.draw(order)):
            tally.add(look_at(state), state.where)
            sample.add(state)
        finished = finish_all(sample.kept)
        found = {scene.name: _count_bad(scene, order, scale) for scene in controls}
        yield Result(
            "model of crash states",
            f"{order} metadata",
            tally.states,
            tally.bad + finished.bad,
            {name: control.bad for name, control in found.items()},
            time.monotonic() - started,
            (*tally.examples, *finished.examples),
            {
                "calls": sum(len(scene.calls) for scene in scenes),
                "kinds": {**tally.kinds, **finished.kinds},
                "run_to_the_end": finished.states,
                "controls": {name: {"states": c.states, "kinds": c.kinds} for name, c in found.items()},
            },
        )


def possible_states(scenes: list[Scene], order: Order, limit: int, draw: random.Random) -> Iterator[State]:
    """Each scene's states, call by call, without those that are the same files after the same call."""
    for scene in scenes:
        storage, acknowledged = Storage(scene.start), scene.acknowledged
        for number in range(len(scene.calls) + 1):
            if number:
                call = scene.calls[number - 1]
                storage.apply(call)
                if isinstance(call, Said):
                    acknowledged = acknowledged.after(call.event)
            seen: set[bytes] = set()
            for tree in storage.possible_trees(order, limit, draw):
                if (key := tree_key(tree)) not in seen:
                    seen.add(key)
                    yield State(scene, number, acknowledged, tree)


def look_at(state: State) -> tuple[Fault, ...]:
    """The promises that a state breaks."""
    return judge(state.scene.golden, state.acknowledged, state.scene.site.recover(state.tree))


def finish_all(states: Sequence[State]) -> Tally:
    """Run the job from each state to its end; a scene's site takes one at a time."""
    of_scene: dict[str, list[State]] = {}
    for state in states:
        of_scene.setdefault(state.scene.name, []).append(state)

    def finish_some(some: Sequence[State]) -> list[tuple[list[Fault], str]]:
        return [(s.scene.site.finish(s.tree, s.scene.golden, s.acknowledged), s.where) for s in some]

    tally = Tally()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for faults, where in itertools.chain.from_iterable(pool.map(finish_some, of_scene.values())):
            tally.add(faults, f"{where}, run to the end")
    return tally


def _count_bad(scene: Scene, order: Order, scale: Scale) -> Tally:
    tally = Tally()
    limit = max(4, scale.of(STATES_A_CALL_OF_CONTROLS))
    for state in possible_states([scene], order, limit, scale.draw(f"{order} {scene.name}")):
        tally.add(look_at(state), state.where)
    return tally


class _Sample:
    """So many of the states that are added, each as likely as any other."""

    def __init__(self, size: int, draw: random.Random) -> None:
        self.kept: list[State] = []
        self._size = size
        self._draw = draw
        self._added = 0

    def add(self, state: State) -> None:
        self._added += 1
        if len(self.kept) < self._size:
            self.kept.append(state)
        elif (place := self._draw.randrange(self._added)) < self._size:
            self.kept[place] = state
