"""A Debian kernel and the first file system of the guest, which loads what the kernel keeps in modules."""

from __future__ import annotations

import lzma
import re
import shlex
import shutil
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# .ci/run unpacks one there; else the machine's own.
PLACES = (Path(__file__).parents[2] / ".guest-kernel", Path("/"))
ROOT_DEVICE = "/dev/vda"

_MODULES = ("crc32c_generic", "crc32_generic", "virtio_pci", "virtio_blk", "virtio_console", "ext4", "f2fs")
_DEPENDS = re.compile(rb"\0depends=([^\0]*)")
_INIT = """#!/bin/busybox sh
busybox() {{ /bin/busybox "$@"; }}
busybox mount -t devtmpfs dev /dev
for module in {modules}; do busybox insmod "/modules/$module"; done
until [ -b {root} ]; do busybox sleep 0.1; done
busybox mount -t ext4 -o ro {root} /root
busybox mount -t tmpfs tmpfs /root/run
busybox mount -t proc proc /root/proc
busybox mount -t sysfs sys /root/sys
busybox mount -o move /dev /root/dev
{exports}
exec /bin/busybox switch_root /root {command}
"""


@dataclass(frozen=True)
class Kernel:
    """A kernel image and its modules by name."""

    image: Path
    modules: Mapping[str, Path]


def find_kernel() -> Kernel:
    """The newest kernel at hand that has f2fs; raises FileNotFoundError with what to do."""
    for place in PLACES:
        for image in sorted(place.glob("boot/vmlinuz-*"), reverse=True):
            folder = place / "lib/modules" / image.name.removeprefix("vmlinuz-")
            modules = {_module_name(path): path for path in folder.rglob("*.ko*")}
            if all(name in modules for name in _MODULES):
                return Kernel(image, modules)
    wanted = ", ".join(_MODULES)
    raise FileNotFoundError(
        f"{PLACES[0]}: a Debian kernel with the modules {wanted} is needed: "
        "unpack a linux-image package there, as .ci/run does"
    )


def write_first_files(kernel: Kernel, path: Path, command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Write the initramfs: busybox, the modules, and a script that starts the command on the root disk."""
    busybox = shutil.which("busybox")
    if busybox is None:
        raise FileNotFoundError("the tool busybox is needed: install busybox-static (.ci/run does)")
    modules = _order_modules(kernel)
    exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment.items())
    script = _INIT.format(root=ROOT_DEVICE, modules=" ".join(modules), exports=exports, command=shlex.join(command))
    files = {"bin/busybox": Path(busybox).read_bytes(), "init": script.encode()}
    files |= {f"modules/{name}": data for name, data in modules.items()}
    path.write_bytes(_pack(["bin", "dev", "modules", "root"], files))


def _module_name(path: Path) -> str:
    return path.name.partition(".")[0].replace("-", "_")


def _order_modules(kernel: Kernel) -> dict[str, bytes]:
    """The modules that are needed, each after those that it depends on."""
    ordered: dict[str, bytes] = {}

    def add(name: str) -> None:
        if name in ordered:
            return
        path = kernel.modules[name]
        data = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        found = _DEPENDS.search(data)
        for other in filter(None, found[1].decode().split(",") if found else ()):
            add(other.replace("-", "_"))
        ordered[name] = data

    for name in _MODULES:
        add(name)
    return ordered


def _pack(folders: Iterable[str], files: Mapping[str, bytes]) -> bytes:
    """A cpio archive of the kind that the kernel unpacks ("newc"), with a console to write errors to."""
    archive, number = bytearray(), 0

    def add(name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        nonlocal number
        number += 1
        path = name.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
        archive.extend(b"070701" + b"".join(b"%08X" % field for field in fields) + path)
        archive.extend(bytes(-len(archive) % 4) + data)
        archive.extend(bytes(-len(archive) % 4))

    for folder in folders:
        add(folder, stat.S_IFDIR | 0o755)
    add("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
    for name, data in files.items():
        add(name, stat.S_IFREG | 0o755, data)
    add("TRAILER!!!", 0)
    return bytes(archive)
