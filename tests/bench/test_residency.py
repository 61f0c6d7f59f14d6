"""What open graphs hold, measured for real on the built-in set, and the line through it."""

import subprocess
import sys

import numpy as np
import pytest
from command import ENVIRONMENT, Workspace
from PIL import Image
from scipy import stats

from anima_batch.bench.memory import parse_smaps
from anima_batch.bench.residency import count_lru_hits, fit_line

SMAPS = """\
55d0c8a00000-55d0c8a21000 rw-p 00000000 00:00 0                          [heap]
Size:                132 kB
Pss:                  100 kB
Pss_Dirty:             40 kB
7f1200000000-7f1200400000 rw-s 10340000 00:05 420                        /dev/dri/renderD129
Pss:                 4096 kB
7f1300000000-7f1300001000 rw-s 00000000 00:1a 7                          /dev/shm/plain memory
Pss:                    4 kB
7f1400000000-7f1400001000 r--p 00000000 08:01 9
Pss:                   10 kB
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    workspace = Workspace(tmp_path_factory.mktemp("bench"))
    words = [word for pool in (3, 6, 18) for word in ("--pool", str(pool))]
    found = workspace.json("bench", "residency", *words, "--dwell", "1.5", "--figure", "residency.png")
    with Image.open(workspace.folder / "residency.png") as image:
        assert image.height > 900  # two charts
    return found


def test_each_pool_piles_up_one_graph_after_the_other_and_stays_open(measured):
    assert [entry["pool"] for entry in measured["pools"]] == [3, 6, 18]
    for entry in measured["pools"]:
        assert [sample["graphs"] for sample in entry["piling"]] == list(range(1, entry["pool"] + 1))
        times = [sample["seconds"] for sample in (*entry["piling"], *entry["dwelling"])]
        assert times == sorted(times)
        assert times[-1] - entry["dwelling"][0]["seconds"] >= 1.5
        assert {sample["graphs"] for sample in entry["dwelling"]} == {entry["pool"]}


def test_more_graphs_hold_more_and_each_pool_begins_in_a_fresh_process(measured):
    growth = [entry["pss_growth_bytes"] for entry in measured["pools"]]
    assert growth == sorted(growth)
    # All 18 graphs are 6.5 MB on disk; their weights at the least are in memory.
    assert growth[-1] - growth[0] > measured["pools"][-1]["piling"][-1]["file_bytes"] / 2
    before = [entry["before"]["pss_bytes"] for entry in measured["pools"]]
    assert max(before) - min(before) < 8e6  # what a process that had the last pool open would have more


def test_nothing_is_found_open_again_unless_all_graphs_fit(measured):
    assert [entry["lru_hits"] for entry in measured["pools"]] == [0, 0, 18]


def test_the_extrapolation_to_all_graphs_agrees_with_all_of_them_open(measured):
    found, last = measured["extrapolation"], measured["pools"][-1]
    assert found["graphs"] == 18
    assert found["file_bytes"] == last["piling"][-1]["file_bytes"]
    assert found["pss"]["bytes"] == pytest.approx(last["pss_growth_bytes"], abs=6 * found["pss"]["error"] + 1e6)


def test_with_too_little_memory_it_breaks_off_and_says_why(workspace):
    words = ("bench", "residency", "--pool", "4", "--pool", "8", "--dwell", "60", "--min-available-mib", "1048576")
    (entry,) = workspace.json(*words)["pools"]
    assert "MiB of memory were available, wanted are 1048576" in entry["shortage"]
    assert entry["piling"] == []
    shown = workspace.run(*words).stdout
    assert "pool of 4: broke off: " in shown
    assert "no extrapolation" in shown


def test_a_pool_larger_than_the_set_is_a_usage_error(workspace):
    ended = workspace.run("bench", "residency", "--pool", "19", check=2)
    assert "--pool: must be 1 to 18, the graphs of picture-book, got 19" in ended.stderr


@pytest.mark.parametrize(("capacity", "hits"), [(1, 0), (16, 0), (83, 0), (84, 84), (100, 84)])
def test_a_cache_of_the_last_used_graphs_serves_a_cyclic_order_whole_or_not_at_all(capacity, hits):
    """Published for the board: 0 hits of 1,092 calls at any capacity under 84."""
    assert count_lru_hits(84, capacity) == hits


def test_the_line_and_its_error_are_those_of_linear_regression():
    """Second implementation: SciPy's slope and its standard error, which is s / sqrt(Sxx)."""
    x, y = [4.0, 8.0, 12.0, 16.0], [555.1, 1052.1, 1612.8, 2101.0]
    fit = stats.linregress(x, y)
    spread = np.square(np.array(x) - 10).sum()
    error = fit.stderr * np.sqrt(spread) * np.sqrt(1 + 1 / 4 + (84 - 10) ** 2 / spread)
    line = fit_line(x, y, 84)
    assert line.bytes == pytest.approx(fit.intercept + 84 * fit.slope)
    assert line.slope == pytest.approx(fit.slope)
    assert line.error == pytest.approx(error)


def test_what_devices_mapped_is_told_apart_from_all_else():
    assert parse_smaps(SMAPS) == ((100 + 4096 + 4 + 10) << 10, 4096 << 10)


def test_a_sampler_sees_what_was_held_for_a_moment_only():
    """In a process of its own: what a test run holds changes with what ran before."""
    script = """
import time
import numpy as np
from anima_batch.bench.memory import Sampler, read_held
with Sampler():
    pass
before = read_held().pss_bytes
with Sampler() as peak:
    held, until = np.ones(40 << 20, np.uint8), time.monotonic() + 60
    while peak.pss_bytes < before + (30 << 20) and time.monotonic() < until:  # a busy machine looks seldom
        time.sleep(0.01)
    del held
print(peak.pss_bytes - before, read_held().pss_bytes - before)
"""
    ended = subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    peak, after = map(int, ended.stdout.split())
    assert peak >= 30 << 20
    assert after < 10 << 20
