"""What a process holds and what the machine has left, as the kernel counts it."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from anima_batch.environment import available_bytes, swapped_bytes

SAMPLE_SECONDS = 0.005  # between two looks of a sampler: a graph is open for some milliseconds at the least

_NO_DEVICES = ("shm", "zero")  # plain memory under /dev
_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ *(.*)$")


@dataclass(frozen=True)
class Held:
    """Bytes at a moment: the process's proportional set size, the part of it that devices mapped; the machine's."""

    pss_bytes: int
    device_pss_bytes: int
    available_bytes: int
    swapped_bytes: int


def read_held() -> Held:
    """As it is now, of this process; some milliseconds."""
    smaps = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace")
    pss, device = parse_smaps(smaps)
    return Held(pss, device, available_bytes(), swapped_bytes())


def parse_smaps(smaps: str) -> tuple[int, int]:
    """PSS in bytes of all mappings of a /proc/PID/smaps, and of those under /dev, as an NPU's contexts are."""
    total = device = 0
    is_device = False
    for line in smaps.splitlines():
        if line.startswith("Pss:"):
            size = int(line.split()[1]) << 10
            total += size
            device += size if is_device else 0
        elif mapping := _MAPPING.match(line):
            is_device = mapping[1].startswith("/dev/") and mapping[1].split("/")[2] not in _NO_DEVICES
    return total, device


class Sampler:
    """The most that this process held during a `with` block, looked at by a thread all the time: it slows all else."""

    def __init__(self) -> None:
        self.pss_bytes = 0
        self.device_pss_bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            held = read_held()
            self.pss_bytes = max(self.pss_bytes, held.pss_bytes)
            self.device_pss_bytes = max(self.device_pss_bytes, held.device_pss_bytes)
            if self._ended.wait(SAMPLE_SECONDS):
                return
