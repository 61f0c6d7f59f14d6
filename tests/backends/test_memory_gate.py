"""What the gate finds short, on this machine as it is."""

import re
import subprocess
import sys

from memory_group import memory_group

from anima_batch.backends.memory_gate import MemoryGate
from anima_batch.environment import available_bytes

LOOK = """
from anima_batch.backends.memory_gate import MemoryGate
from anima_batch.environment import available_bytes
print(available_bytes())
print(MemoryGate(300 << 20, 1 << 40).find_shortage())
held = bytearray(b"." * (150 << 20))
print(MemoryGate(300 << 20, 1 << 40).find_shortage())
"""


def test_a_machine_with_the_memory_that_is_wanted_is_short_of_nothing():
    assert MemoryGate(1 << 20, 1 << 40).find_shortage() is None


def test_less_than_is_wanted_is_told_in_mebibytes():
    told = MemoryGate(1 << 60, 1 << 40).find_shortage()
    match = re.fullmatch(rf"(\d+) MiB of memory were available, wanted are {1 << 40}", told)
    assert abs(int(match[1]) - available_bytes() / 2**20) < 4096


def test_swap_may_grow_by_so_much_and_no_more():
    gate = MemoryGate(0, -1)  # no growth at all is more than that
    assert re.fullmatch(r"swap grew by -?\d+ MiB, allowed are -0", gate.find_shortage())


def test_a_control_groups_limit_counts_like_the_machines(tmp_path):
    with memory_group(400 << 20) as inside:
        ended = subprocess.run([*inside, sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    available, before, after = ended.stdout.splitlines()
    assert (300 << 20) < int(available) < (400 << 20)
    assert before == "None"
    assert int(after.split()[0]) < 250
