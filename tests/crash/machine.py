"""A virtual machine in software emulation: started, kept while it runs, restored as often as one likes, killed."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

MEMORY_MEGABYTES = 640
DISK_BYTES = 64 << 20
WRITES_A_SECOND = 15  # of a slow card: saving takes a good part of the time, so that a cut often falls into it
BOOT_SECONDS, ANSWER_SECONDS = 600, 900
_POLL_SECONDS = 0.005


@dataclass(frozen=True)
class Guest:
    """What a machine starts with: its kernel, the first files and the disk of its programs."""

    kernel: Path
    first_files: Path
    root: Path


@dataclass(frozen=True)
class Kept:
    """A machine that was stopped: its memory, its disk, and what it had told by then."""

    memory: Path
    disk: Path
    events: str

    def remove(self) -> None:
        """Give the space back."""
        self.memory.unlink()
        self.disk.unlink()


class Machine:
    """A running machine with its own folder; open it by `with`, at whose end it is killed."""

    def __init__(self, guest: Guest, folder: Path, disk: Path, kept: Kept | None = None, *, slow: bool = False) -> None:
        self.disk = disk
        self._guest, self._folder, self._kept, self._slow = guest, folder, kept, slow
        self._answers = b""
        self._monitor_lines: TextIO | None = None

    def __enter__(self) -> Machine:
        self._folder.mkdir(parents=True)
        (self._folder / "events").touch()
        self._monitor = socket.socket(socket.AF_UNIX)
        with (self._folder / "stderr").open("wb") as errors:
            self._process = subprocess.Popen(
                self._arguments(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        try:
            self._connect()
            if self._kept is None:
                self._read_answer(BOOT_SECONDS)
            else:
                self._wait(lambda: self._order("query-status")["status"] == "paused", "to be restored")
                self._order("cont")
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._folder)

    def kill(self) -> None:
        """Cut the power."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._monitor_lines, self._monitor):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()

    def freeze(self, disk: Path) -> None:
        """Stop all of the machine's threads and copy its disk; a call that is under way is finished, as by a kill."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)  # until the last of them stands
        copy_sparsely(self.disk, disk)

    def thaw(self) -> None:
        """Let a frozen machine go on."""
        self._process.send_signal(signal.SIGCONT)

    def ask(self, do: str, **arguments: Any) -> Any:
        """The answer of the agent in the guest; raises RuntimeError with the guest's traceback."""
        self.tell(do, **arguments)
        return self._read_answer(ANSWER_SECONDS)

    def tell(self, do: str, **arguments: Any) -> None:
        """Send a command without waiting for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        self._process.stdin.flush()

    @property
    def events(self) -> str:
        """What the job has told by now, before the machine was kept and since."""
        before = "" if self._kept is None else self._kept.events
        return before + (self._folder / "events").read_text(encoding="utf-8", errors="replace")

    def wait_for(self, is_wanted: Callable[[str], bool]) -> None:
        """Wait until what the job has told is what is wanted."""
        self._wait(lambda: is_wanted(self.events), "for an event")

    def keep(self, memory: Path, disk: Path) -> Kept:
        """Stop the machine and write down all of it; `go_on` lets it go on."""
        self._order("stop")
        self._order("migrate", uri=f"exec:cat > '{memory}'")
        self._wait(lambda: self._order("query-migrate").get("status") in ("completed", "failed"), "to be kept")
        if (state := self._order("query-migrate"))["status"] == "failed":
            raise RuntimeError(f"the machine could not be kept: {state}")
        copy_sparsely(self.disk, disk)
        return Kept(memory, disk, self.events)

    def go_on(self) -> None:
        """Let a machine that was kept run again."""
        self._order("cont")

    def _arguments(self) -> list[str]:
        guest, folder = self._guest, self._folder
        drives = "if=none,format=raw,cache=unsafe,file.locking=off"
        speed = f",throttling.iops-write={WRITES_A_SECOND}" if self._slow else ""
        arguments = [
            *("qemu-system-x86_64", "-accel", "tcg", "-cpu", "max,la57=off", "-m", str(MEMORY_MEGABYTES)),
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", f"file:{folder}/console"),
            *("-kernel", str(guest.kernel), "-initrd", str(guest.first_files)),
            *("-append", "console=ttyS0 panic=-1 mitigations=off nokaslr"),
            *("-drive", f"{drives},id=root,file={guest.root},readonly=on", "-device", "virtio-blk-pci,drive=root"),
            *("-drive", f"{drives},id=disk,file={self.disk}{speed}", "-device", "virtio-blk-pci,drive=disk"),
            *("-device", "virtio-serial-pci", "-chardev", "stdio,id=agent,signal=off"),
            *("-device", "virtserialport,chardev=agent,name=agent", "-chardev", f"file,id=events,path={folder}/events"),
            *("-device", "virtserialport,chardev=events,name=events"),
            *("-qmp", f"unix:{folder}/qmp,server=on,wait=off"),
        ]
        return arguments if self._kept is None else [*arguments, "-incoming", f"exec:cat '{self._kept.memory}'"]

    def _connect(self) -> None:
        self._wait(self._reach_monitor, "for its monitor")
        self._monitor_lines = self._monitor.makefile("rw", encoding="utf-8")
        self._order("qmp_capabilities")
        self._order("migrate-set-parameters", **{"max-bandwidth": 1 << 40})

    def _reach_monitor(self) -> bool:
        """Whether the monitor answers by now: its socket is there some time before anyone listens on it."""
        return self._monitor.connect_ex(str(self._folder / "qmp")) == 0

    def _order(self, command: str, **arguments: Any) -> Any:
        """What QEMU itself answers to a command."""
        try:
            return self._exchange(command, arguments)
        except OSError as error:
            raise RuntimeError(f"{command}: {error}: {self._describe()}") from error

    def _exchange(self, command: str, arguments: Mapping[str, Any]) -> Any:
        assert self._monitor_lines is not None
        self._monitor_lines.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self._monitor_lines.flush()
        while line := self._monitor_lines.readline():
            answer = json.loads(line)  # or a greeting, or an event
            if "return" in answer:
                return answer["return"]
            if "error" in answer:
                raise RuntimeError(f"{command}: {answer['error']}")
        raise RuntimeError(f"{command}: {self._describe()}")

    def _read_answer(self, seconds: float) -> Any:
        assert self._process.stdout is not None
        descriptor, end = self._process.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self._answers:
            if not select.select([descriptor], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError(f"no answer in {seconds} seconds: {self._describe()}")
            if not (data := os.read(descriptor, 1 << 16)):
                raise RuntimeError(f"the machine ended: {self._describe()}")
            self._answers += data
        line, _, self._answers = self._answers.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"in the guest: {answer['error']}")
        return answer["answer"]

    def _wait(self, is_so: Callable[[], bool], what: str, seconds: float = ANSWER_SECONDS) -> None:
        end = time.monotonic() + seconds
        while not is_so():
            if self._process.poll() is not None:
                raise RuntimeError(f"the machine ended, waiting {what}: {self._describe()}")
            if time.monotonic() > end:
                raise TimeoutError(f"waited {seconds} seconds {what}: {self._describe()}")
            time.sleep(_POLL_SECONDS)

    def _describe(self) -> str:
        """The last that the machine said."""
        files = (self._folder / name for name in ("stderr", "console"))
        return " | ".join(path.read_text(encoding="utf-8", errors="replace")[-1500:] for path in files if path.exists())


def copy_sparsely(source: Path, target: Path) -> None:
    """Copy a disk without its holes."""
    size = source.stat().st_size
    with source.open("rb", buffering=0) as old, target.open("wb", buffering=0) as new:  # a buffer knows of no seeking
        os.ftruncate(new.fileno(), size)
        end = 0
        while end < size:
            try:
                start = os.lseek(old.fileno(), end, os.SEEK_DATA)
            except OSError:  # nothing but a hole is left
                return
            end = os.lseek(old.fileno(), start, os.SEEK_HOLE)
            while start < end:
                start += os.pwrite(new.fileno(), os.pread(old.fileno(), end - start, start), start)
