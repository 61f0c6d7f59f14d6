"""A small event simulation: activities that wait for each other and for resources which one of them holds at a time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["load", "init", "release", "take", "run", "prepare", "finish", "begin", "end", "forecast"]


@dataclass(frozen=True, slots=True)
class Activity:
    """A piece of work that begins when those named in `after` have ended and all its resources are free.

    `after` are places in the list of activities, each before its own; `cpus` is how many processors it would keep busy.
    `step` counts from 1; `subgraph` and `stream` from 0, None where it is not of one.
    """

    kind: Kind
    seconds: float
    resources: tuple[str, ...]
    after: tuple[int, ...] = ()
    cpus: float = 0.0
    step: int = 0
    subgraph: int | None = None
    stream: int | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """An activity and when it was under way, in seconds from the beginning."""

    activity: Activity
    start: float
    end: float


def run_activities(activities: Sequence[Activity], cpus: float, overlap_slowdown: float) -> list[Event]:
    """When each activity was under way, in their order; the same every time.

    Of those that may begin, the first in the list does. Where more processors are asked for than there are, all that
    need one slow down alike; where two or more activities overlap, all of them take `overlap_slowdown` times as long.
    """
    waits = [len(set(activity.after)) for activity in activities]
    followers: list[list[int]] = [[] for _ in activities]
    for place, activity in enumerate(activities):
        for earlier in set(activity.after):
            followers[earlier].append(place)
    ready = [place for place, count in enumerate(waits) if not count]
    held: set[str] = set()
    left: dict[int, float] = {}  # place -> seconds of work
    starts, ends = [0.0] * len(activities), [0.0] * len(activities)
    now = 0.0
    while ready or left:
        for place in _start(ready, activities, held):
            starts[place], left[place] = now, activities[place].seconds
        speeds = _speeds([activities[place].cpus for place in left], cpus, overlap_slowdown)
        needs = {place: work / speed for (place, work), speed in zip(left.items(), speeds, strict=True)}
        passed = min(needs.values())
        now += passed
        for (place, need), speed in zip(needs.items(), speeds, strict=True):
            if need > passed:
                left[place] -= passed * speed
                continue
            del left[place]
            ends[place] = now
            held.difference_update(activities[place].resources)
            for follower in followers[place]:
                waits[follower] -= 1
                if not waits[follower]:
                    heapq.heappush(ready, follower)
    return [Event(*event) for event in zip(activities, starts, ends, strict=True)]


def _start(ready: list[int], activities: Sequence[Activity], held: set[str]) -> list[int]:
    """Take what can begin from the heap of those that are ready, and hold its resources."""
    started, blocked = [], []
    while ready:
        place = heapq.heappop(ready)
        resources = activities[place].resources
        if held.isdisjoint(resources):
            held.update(resources)
            started.append(place)
        else:
            blocked.append(place)
    ready.extend(blocked)  # in order, which is a heap
    return started


def _speeds(demands: Sequence[float], cpus: float, overlap_slowdown: float) -> list[float]:
    """How fast each of the activities under way goes, 1 where it is alone."""
    share = min(1.0, cpus / total) if (total := sum(demands)) else 1.0
    slowdown = overlap_slowdown if len(demands) > 1 else 1.0
    return [(share if demand else 1.0) / slowdown for demand in demands]
