"""Which sessions are open when, and that it is no matter to the result."""

import contextlib
import itertools
import os
import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import anima_batch
from anima_batch.anima.conditioning import Conditioning
from anima_batch.anima.config import subgraph_keys
from anima_batch.anima.pipeline import open_pipeline
from anima_batch.backends.onnx import OnnxBackend
from anima_batch.backends.staging import Staging
from anima_batch.errors import BackendError
from anima_batch.job import RunSpec
from anima_batch.model_set import built_in_folder, load_model_set
from anima_batch.sampling import make_sigmas

PICTURE_BOOK = load_model_set(built_in_folder() / "picture-book")
ROLES = ("transformer.00.self_attn", "transformer.00.mlp", "transformer.01.mlp")
ALL = [key.role for key in subgraph_keys(2)]


class Opener:
    """Opens real sessions and remembers them in order."""

    def __init__(self):
        self.opened = []
        self._backend = OnnxBackend(1)

    def __call__(self, role):
        session = self._backend.open(PICTURE_BOOK.path(role))
        self.opened.append((role, session))
        return session

    @property
    def roles(self):
        return [role for role, _ in self.opened]


def is_open(session):
    feeds = {spec.name: np.zeros([2 if size == "tokens" else size for size in spec.shape]) for spec in session.inputs}
    try:
        session.run(feeds)
    except BackendError as error:
        if "run after close" not in str(error):
            raise
        return False
    return True


def walk(staging, rounds=2):
    """Use every role in order, as passes do."""
    for _ in range(rounds):
        for role in ROLES:
            with staging.session(role) as session:
                assert is_open(session)


def test_on_demand_each_use_opens_a_session_and_closes_it():
    opener = Opener()
    walk(Staging(opener))
    assert opener.roles == [*ROLES, *ROLES]
    assert not any(is_open(session) for _, session in opener.opened)


def test_pinned_sessions_and_no_others_stay_open_after_their_first_use():
    opener = Opener()
    walk(Staging(opener, ROLES[:1]))
    assert opener.roles == [*ROLES, *ROLES[1:]]
    assert [is_open(session) for _, session in opener.opened] == [True, False, False, False, False]


def test_resident_each_session_is_opened_once_and_only_when_it_is_needed():
    opener = Opener()
    staging = Staging(opener, ROLES)
    assert opener.roles == []
    walk(staging)
    assert opener.roles == list(ROLES)
    assert all(is_open(session) for _, session in opener.opened)


def test_close_closes_what_was_kept_and_a_second_close_does_nothing():
    opener = Opener()
    staging = Staging(opener, ROLES)
    walk(staging)
    staging.close()
    staging.close()
    assert not any(is_open(session) for _, session in opener.opened)


def test_after_close_the_next_use_opens_again():
    opener = Opener()
    staging = Staging(opener, ROLES)
    walk(staging, rounds=1)
    staging.close()
    walk(staging)
    assert opener.roles == [*ROLES, *ROLES]


def test_an_exception_in_the_block_closes_a_session_that_is_not_kept():
    opener = Opener()
    with pytest.raises(ZeroDivisionError), Staging(opener).session(ROLES[0]):
        raise ZeroDivisionError
    assert not is_open(opener.opened[0][1])


def test_an_exception_in_the_block_leaves_a_kept_session_to_close():
    opener = Opener()
    staging = Staging(opener, ROLES)
    with pytest.raises(ZeroDivisionError), staging.session(ROLES[0]):
        raise ZeroDivisionError
    assert is_open(opener.opened[0][1])
    staging.close()
    assert not is_open(opener.opened[0][1])


def test_a_session_that_does_not_open_is_tried_again_at_the_next_use():
    backend, paths = OnnxBackend(1), [PICTURE_BOOK.path(ROLES[0]), PICTURE_BOOK.folder / "gone.onnx"]
    staging = Staging(lambda role: backend.open(paths.pop()), ROLES)
    with pytest.raises(BackendError, match="gone"), staging.session(ROLES[0]):
        pass
    with staging.session(ROLES[0]) as session:
        assert is_open(session)


class Watched:
    """Opens and closes real sessions, and tells in which order and how many were open at a time."""

    def __init__(self, *, fail_at=None, fail_to_close=None, wait_for=None):
        self.told, self.most_open, self._now_open = [], 0, 0
        self._backend, self._lock = OnnxBackend(1), threading.Lock()
        self._fail_at, self._fail_to_close, self._wait_for = fail_at, fail_to_close, wait_for or {}

    def __call__(self, role):
        if event := self._wait_for.get(role):
            assert event.wait(60)
        if role == self._fail_at:
            raise BackendError(f"{role}: no room")
        session = self._backend.open(PICTURE_BOOK.path(role))
        with self._lock:
            self.told.append(("open", role))
            self._now_open += 1
            self.most_open = max(self.most_open, self._now_open)
        really_close, session.close = session.close, lambda: self._close(role, really_close)
        return session

    def _close(self, role, really_close):
        really_close()
        with self._lock:
            self.told.append(("close", role))
            self._now_open -= 1
        if role == self._fail_to_close:
            raise BackendError(f"{role}: release failed")

    @property
    def is_all_closed(self):
        return self._now_open == 0


def staging_ahead(opener, roles=ALL, ahead_bytes=1 << 30):
    return Staging(opener, ahead_bytes=ahead_bytes, files={role: PICTURE_BOOK.path(role) for role in roles})


def pass_over(staging, roles=ALL):
    with staging.walk(roles) as walk:
        for role in roles:
            walk.run(role, zeros_for(walk.take(role)))


def zeros_for(session):
    return {
        spec.name: np.zeros([size if isinstance(size, int) else 2 for size in spec.shape]) for spec in session.inputs
    }


def test_ahead_every_session_is_opened_in_order_and_closed_with_never_more_than_two_beside_the_one_in_use():
    opener = Watched()
    pass_over(staging_ahead(opener))
    assert [role for what, role in opener.told if what == "open"] == ALL
    assert [role for what, role in opener.told if what == "close"] == ALL
    assert opener.most_open <= 3
    assert opener.is_all_closed


def test_ahead_the_next_sessions_are_open_while_the_one_before_is_in_use():
    opened = {role: threading.Event() for role in ALL}

    def open_session(role):
        opened[role].set()
        return OnnxBackend(1).open(PICTURE_BOOK.path(role))

    with staging_ahead(open_session).walk(ALL) as walk:
        walk.take(ALL[0])
        assert opened[ALL[1]].wait(60)
        assert opened[ALL[2]].wait(60)
        assert not opened[ALL[3]].wait(0.2)


def test_ahead_no_more_than_its_bytes_are_opened_but_always_the_next_one():
    opened = {role: threading.Event() for role in ALL}

    def open_session(role):
        opened[role].set()
        return OnnxBackend(1).open(PICTURE_BOOK.path(role))

    with staging_ahead(open_session, ahead_bytes=1).walk(ALL) as walk:
        walk.take(ALL[0])
        assert opened[ALL[1]].wait(60)
        assert not opened[ALL[2]].wait(0.2)


def test_ahead_a_session_that_does_not_open_is_an_error_when_it_is_needed_and_nothing_stays_behind():
    opener, before = Watched(fail_at=ALL[2]), threading.active_count()
    with pytest.raises(BackendError, match=f"{ALL[2]}: no room"):
        pass_over(staging_ahead(opener))
    assert ("close", ALL[1]) in opener.told
    assert opener.is_all_closed
    assert threading.active_count() == before


def test_ahead_a_session_that_does_not_close_is_an_error_of_the_pass():
    opener, before = Watched(fail_to_close=ALL[1]), threading.active_count()
    with pytest.raises(BackendError, match=f"{ALL[1]}: release failed"):
        pass_over(staging_ahead(opener))
    assert opener.is_all_closed
    assert threading.active_count() == before


def test_ahead_a_pass_that_is_broken_off_closes_what_was_opened_for_it():
    opener, before = Watched(), threading.active_count()
    with contextlib.suppress(ZeroDivisionError), staging_ahead(opener).walk(ALL) as walk:
        walk.take(ALL[0])
        raise ZeroDivisionError
    assert opener.is_all_closed
    assert threading.active_count() == before


READ_AHEAD = """
from anima_batch.anima.config import subgraph_keys
from anima_batch.backends.onnx import OnnxBackend
from anima_batch.backends.staging import Staging
from anima_batch.model_set import built_in_folder, load_model_set
model_set, backend = load_model_set(built_in_folder() / "picture-book"), OnnxBackend(1)
files = {key.role: model_set.path(key.role) for key in subgraph_keys(1)}
with Staging(lambda role: backend.open(files[role]), files=files).walk(list(files)) as walk:
    for role in files:
        walk.take(role)
"""


def test_while_a_graph_is_opened_the_system_reads_the_file_after_it_and_at_the_end_the_first_again(need_tool):
    words = [need_tool("strace"), "-f", "-y", "-e", "trace=fadvise64", sys.executable, "-c", READ_AHEAD]
    environment = {**os.environ, "PYTHONPATH": str(Path(anima_batch.__file__).parents[1])}
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    advised = re.findall(r"/transformer/(\S+)>, 0, 0, POSIX_FADV_WILLNEED\) += 0", ended.stderr)
    assert advised == ["00.cross_attn.onnx", "00.mlp.onnx", "00.self_attn.onnx"]


class ShortFrom:
    """A gate that finds memory short from the n-th look on."""

    def __init__(self, looks):
        self._left = looks

    def find_shortage(self):
        self._left -= 1
        return "no memory" if self._left < 0 else None


@pytest.mark.parametrize("looks", [0, 1, 4])
def test_resident_sessions_are_closed_when_memory_gets_short_and_stay_so(looks):
    opener = Watched()
    staging = Staging(opener, ALL, gate=ShortFrom(looks))
    for _ in range(2):
        pass_over(staging)
        assert opener.is_all_closed
    assert staging.fallback == "staging fell back to on-demand: no memory"
    assert opener.most_open == max(1, looks - 1)  # one look is at the beginning of the pass


def test_memory_that_gets_short_between_passes_closes_what_was_kept_before_the_next():
    opener = Watched()
    staging = Staging(opener, ALL, gate=ShortFrom(1 + len(ALL)))
    pass_over(staging)
    assert not opener.is_all_closed
    opener.told.clear()
    pass_over(staging)
    assert opener.told[: len(ALL)] == [("close", role) for role in ALL]
    assert opener.is_all_closed


def test_ahead_nothing_is_opened_before_its_time_once_memory_is_short():
    opener = Watched()
    staging = staging_ahead(opener)
    staging._gate = ShortFrom(0)
    pass_over(staging)
    assert opener.told == [(what, role) for role in ALL for what in ("open", "close")]
    assert staging.fallback


def test_on_demand_memory_is_no_matter():
    staging = Staging(Watched(), gate=ShortFrom(0))
    pass_over(staging)
    assert staging.fallback is None


CHOICES = [
    *itertools.product(("on-demand", "ahead", "pinned", "resident"), (False, True), (1,)),
    ("ahead", True, 2), ("resident", True, 2), ("on-demand", True, 2), ("ahead", False, 2),
]  # fmt: skip


def test_every_staging_interleaving_and_number_of_cores_gives_the_same_velocity_bit_by_bit():
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((2, 32, 64), np.float32)
    latents = rng.standard_normal((16, 16, 24), np.float32)
    sigmas = make_sigmas("simple", 4, 3.0)
    results, before = {}, (threading.active_count(), len(os.listdir("/proc/self/fd")))
    for staging, interleave, cores in CHOICES:
        pipeline = open_pipeline(PICTURE_BOOK, "onnx", RunSpec(staging=staging, pinned=5, threads=1))
        pipeline._engine = replace(pipeline._engine, interleave=interleave, cores=cores)
        transformer = pipeline.make_transformer(sigmas, Conditioning(*rows), 192, 128)
        features = transformer.features(latents, 1, ["cond", "uncond"])
        features = transformer.features(latents, 2, ["cond", "uncond"])  # from sessions that ran before
        results[staging, interleave, cores] = np.stack([transformer.velocity(each, 2) for each in features]).tobytes()
        pipeline.close()
    assert not np.array_equal(*features)
    assert len(set(results.values())) == 1
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before
