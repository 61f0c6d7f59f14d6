"""The guest's root disk: this interpreter, the package and what it needs at the same paths, and a model set."""

from __future__ import annotations

import compileall
import importlib.metadata
import os
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

import anima_batch

TESTS = Path(__file__).parents[1]
FOLDERS = ("dev", "proc", "sys", "run", "disk")  # mounted in the guest, so that no other files may lie there
MODEL_SET = "/model-set"  # where the model set lies in the guest
_CRASH_MODULES = ("__init__", "report", "oracle", "broken_writers", "late_writer", "guest_agent", "mounts")
_LEFT_OUT = ("test", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "site-packages", "config-*")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_LIBRARY = re.compile(r"(/\S+) \(0x")
ROOM_BYTES = 64 << 20  # beyond the files: inodes and bitmaps


def write_root_disk(path: Path, staging: Path, model_set: Path) -> None:
    """Make the disk as an ext4 image; everything is compiled, since nothing can be kept in the guest."""
    for source in _list_sources():
        _copy(source, staging)
    shutil.copytree(model_set, staging / MODEL_SET.lstrip("/"))
    for library in list(_find_libraries(staging)):
        _copy(library, staging)
    for folder in FOLDERS:
        if (staging / folder).exists():
            raise FileExistsError(f"/{folder}: is hidden in the guest: keep Python, packages and repository elsewhere")
        (staging / folder).mkdir()
    _link_library_folders(staging)
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(staging, stripdir=staging, quiet=2, workers=0, invalidation_mode=mode)
    size = sum(file.lstat().st_size + 4096 for file in staging.rglob("*")) + ROOM_BYTES
    path.write_bytes(b"")
    os.truncate(path, size)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-d", str(staging), str(path)], check=True)
    shutil.rmtree(staging)


def guest_environment() -> dict[str, str]:
    """The environment of the guest's processes."""
    return {
        "HOME": "/run",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "PATH": str(Path(sys.executable).parent),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": "/run",
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(Path(anima_batch.__file__).parents[1])]),
    }


def _list_sources() -> Iterator[Path]:
    """Files and folders as they lie here."""
    standard = Path(sysconfig.get_path("stdlib"))
    yield from (entry for entry in standard.iterdir() if not any(entry.match(name) for name in _LEFT_OUT))
    yield from _follow(Path(sys.executable))
    if (settings := Path(sys.prefix) / "pyvenv.cfg").exists():
        yield settings
    yield from Path(sysconfig.get_config_var("LIBDIR")).glob("libpython3*.so*")
    for package in sorted(_find_needed("anima-batch")):
        yield from _list_package(package)
    yield Path(anima_batch.__file__).parent
    yield from (TESTS / f"crash/{name}.py" for name in _CRASH_MODULES)


def _follow(link: Path) -> Iterator[Path]:
    """A chain of links and the file at its end."""
    while link.is_symlink():
        yield link
        link = link.parent / link.readlink()
    yield link


def _find_needed(name: str) -> set[str]:
    """The installed packages that a package needs, extras left out."""
    needed: set[str] = set()
    waiting = [name]
    while waiting:
        for line in _read_requirements(waiting.pop()):
            requirement = _NAME.match(line)
            if (
                requirement
                and "extra ==" not in line
                and requirement[0] not in needed
                and _is_installed(requirement[0])
            ):
                needed.add(requirement[0])
                waiting.append(requirement[0])
    return needed


def _read_requirements(name: str) -> Iterable[str]:
    if _is_installed(name):
        return importlib.metadata.requires(name) or ()
    # The package's own folder may be imported without being installed.
    text = (Path(anima_batch.__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r"^dependencies = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    return re.findall(r'"([^"]+)"', found[1]) if found else ()


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _list_package(name: str) -> Iterator[Path]:
    package = importlib.metadata.distribution(name)
    for file in package.files or ():
        path = Path(str(package.locate_file(file)))
        if path.is_file() and not {"..", "tests", "__pycache__"} & set(file.parts):
            yield path


def _copy(source: Path, staging: Path) -> None:
    """Copy to the same path below the staging folder, links as links."""
    target = staging / source.absolute().relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir() and not source.is_symlink():
        ignore = shutil.ignore_patterns("__pycache__", "tests", "*.a")
        shutil.copytree(source, target, symlinks=True, ignore=ignore, dirs_exist_ok=True)
    elif not target.is_symlink() and not target.exists():
        shutil.copy2(source, target, follow_symlinks=False)


def _find_libraries(staging: Path) -> Iterator[Path]:
    """The system's shared libraries that the copied programs and modules load, in their real folders."""
    programs = [path for path in staging.rglob("*") if path.is_file() and not path.is_symlink() and _is_program(path)]
    listed = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False).stdout
    for library in sorted({Path(path) for path in _LIBRARY.findall(listed)}):
        if not library.is_relative_to(staging):
            yield from _follow(library.parent.resolve() / library.name)


def _is_program(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _link_library_folders(staging: Path) -> None:
    """/lib and the like are links into /usr where they are so on this machine."""
    for name in ("lib", "lib64", "bin", "sbin"):
        if (link := Path("/") / name).is_symlink() and not (staging / name).exists():
            (staging / name).symlink_to(link.readlink())
