"""A model set of ONNX graphs to one with compiled cores for the NPU: the rest stays, and goes on running on the CPU."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from anima_batch.anima.config import PATCH, VAE_FACTOR, subgraph_keys
from anima_batch.convert.partial import check_out, partial_folder
from anima_batch.convert.rknn.calibration import Pictures, calibrate, digest_files
from anima_batch.convert.rknn.core import BuiltCore, Core, build_core, find_core, list_cores, records_folder
from anima_batch.convert.rknn.toolkit import Toolkit
from anima_batch.errors import ModelSetError, UsageError
from anima_batch.files import make_folder, storage_errors
from anima_batch.model_set import FILE_NAME, Component, ModelSet, load_model_set, verify_model_set, write_description

BUILD_BYTES = 2_500_000_000  # the most that a core's build takes: 2.1 GB were measured at 512 x 512 pixels
SPARE_BYTES = 1_000_000_000  # left to everything else

Size = tuple[int, int]  # width, height in pixels


@dataclass(frozen=True)
class RknnOptions:
    """What to convert; `size` is one of the source's sizes, its first where it is None.

    With `calibration` the MLPs get int8 products, by what they are given in these pictures.
    """

    source: ModelSet
    out: Path
    toolkit: Toolkit
    size: Size | None = None
    calibration: Pictures | None = None


@dataclass(frozen=True)
class RknnConversion:
    """The set that was made, and what it cost; `kept` graphs were there from an interrupted conversion."""

    model_set: ModelSet
    built: int
    kept: int
    seconds: float
    peak_rss_bytes: int
    graph_bytes: int


def convert_to_rknn(options: RknnOptions, on_progress: Callable[[str], None]) -> RknnConversion:
    """The set written to `options.out`; on_progress is told a line for each graph.

    Raises UsageError, ModelSetError for a source that is not as described, ToolkitError and StorageError. Graphs that
    are finished stay in `<out>.partial`, and the next conversion to the same name goes on with them.
    """
    started = time.perf_counter()
    sizes = check_options(options.source, options.out, options.size)
    if problems := verify_model_set(options.source):
        raise ModelSetError(*problems)
    description = options.source.description
    cores = list_cores(options.source, subgraph_keys(description.transformer.blocks), count_tokens(sizes[0]))
    with partial_folder(options.out, resume=True) as folder:
        if options.calibration is not None:
            cores = _calibrate(cores, options.source, options.calibration, folder, on_progress)
        found = {core: find_core(core, options.toolkit, folder) for core in cores}
        missing = [core for core, built in found.items() if built is None]
        on_progress(f"{len(cores) - len(missing)} of {len(cores)} graphs kept, {len(missing)} to build")
        built = _build_all(missing, options.toolkit, folder, on_progress)
        graphs = {core.key.role: (found[core] or built[core]).component for core in cores}
        components = _link_others(options.source, graphs, folder)
        changes = {"name": options.out.name, "sizes": sizes, "components": components}
        write_description(folder, description.model_copy(update=changes))
        _remove_others(folder, {FILE_NAME, *(part.path for part in components)})
    return RknnConversion(
        load_model_set(options.out),
        built=len(built),
        kept=len(cores) - len(built),
        seconds=time.perf_counter() - started,
        peak_rss_bytes=max((core.peak_rss_bytes for core in built.values()), default=0),
        graph_bytes=sum(part.bytes for part in graphs.values()),
    )


def check_options(source: ModelSet, out: Path, size: Size | None) -> tuple[Size, ...]:
    """The sizes of the set to be; raises UsageError for what can be told to be wrong at once, ModelSetError too."""
    check_out(out)
    source.component("transformer.00.mlp")
    return choose_sizes(source.description.sizes, size)


def conversion_json(made: RknnConversion) -> dict[str, Any]:
    """What it cost."""
    return {field: value for field, value in vars(made).items() if field != "model_set"}


def summarise(made: RknnConversion) -> str:
    """The same in one line."""
    return (
        f"{made.model_set.folder}: digest {made.model_set.digest}; {made.built} graphs built, {made.kept} kept, "
        f"{made.graph_bytes / 1e6:.1f} MB in {made.seconds:.0f} s, peak {made.peak_rss_bytes / 1e9:.2f} GB a graph"
    )


def choose_sizes(sizes: Sequence[Size], wanted: Size | None) -> tuple[Size, ...]:
    """The sizes with as many tokens as the one wanted, which comes first; raises UsageError for one not in `sizes`."""
    first = wanted or sizes[0]
    if first not in sizes:
        allowed = ", ".join(f"{width}x{height}" for width, height in sizes)
        raise UsageError(f"--size: must be one of the model set's sizes, {allowed}, got {first[0]}x{first[1]}")
    others = (size for size in sizes if size != first and count_tokens(size) == count_tokens(first))
    return (first, *others)


def count_tokens(size: Size) -> int:
    """Rows of the residual stream for a picture."""
    side = PATCH * VAE_FACTOR
    return (size[0] // side) * (size[1] // side)


def _calibrate(
    cores: Sequence[Core], source: ModelSet, pictures: Pictures, folder: Path, on_progress: Callable[[str], None]
) -> tuple[Core, ...]:
    """The cores, those of MLPs with the inputs that they have in the pictures."""
    on_progress(f"calibration: {len(pictures.prompts)} pictures of {pictures.steps} steps by ONNX Runtime")
    captured = calibrate(source, pictures, records_folder(folder) / "calibration", on_progress)
    return tuple(
        replace(core, calibration=files, calibration_sha256=digest_files(files))
        if (files := captured.get(core.key.role, ()))
        else core
        for core in cores
    )


def _build_all(
    cores: Sequence[Core], toolkit: Toolkit, folder: Path, on_progress: Callable[[str], None]
) -> dict[Core, BuiltCore]:
    """All of them compiled; after a failure those under way are finished and kept, and no more are begun."""
    started = time.perf_counter()
    built: dict[Core, BuiltCore] = {}
    workers = count_workers(psutil.virtual_memory().available, os.cpu_count() or 1)
    scratches: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for number in range(workers):
        scratches.put(records_folder(folder) / f"scratch-{number}")

    def build(core: Core) -> BuiltCore:
        scratch = scratches.get()
        try:
            return build_core(core, toolkit, folder, scratch)
        finally:
            scratches.put(scratch)

    with ThreadPoolExecutor(workers) as executor:
        futures = {executor.submit(build, core): core for core in cores}
        try:
            for future in as_completed(futures):
                core, done = futures[future], future.result()
                built[core] = done
                left = (len(cores) - len(built)) * (time.perf_counter() - started) / len(built)
                on_progress(
                    f"{core.key.role}: {done.seconds:.1f} s, {done.component.bytes / 1e6:.1f} MB, "
                    f"peak {done.peak_rss_bytes / 1e9:.2f} GB; {len(built)} of {len(cores)}, about {left:.0f} s left"
                )
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            raise
    return built


def count_workers(available_bytes: int, processors: int) -> int:
    """How many graphs to build at a time: two where there is memory and a processor for each."""
    fits = available_bytes >= 2 * BUILD_BYTES + SPARE_BYTES
    return 2 if fits and processors >= 2 else 1


def _link_others(source: ModelSet, graphs: dict[str, Component], folder: Path) -> tuple[Component, ...]:
    """All components of the set to be, in the source's order; what is not compiled is linked, or copied."""
    components = []
    for part in source.description.components:
        if part.role in graphs:
            if part.key[1] == ".onnx":
                components.append(graphs[part.role])
            continue
        _link(source.folder / part.path, folder / part.path)
        components.append(part)
    return tuple(components)


def _link(source: Path, target: Path) -> None:
    """The same file under another name where the file system allows it."""
    make_folder(target.parent)
    with storage_errors(target):
        target.unlink(missing_ok=True)
        try:
            os.link(source.resolve(), target)
        except OSError:  # another file system, or one without links
            shutil.copyfile(source, target)
            with target.open("rb") as stream:
                os.fsync(stream.fileno())


def _remove_others(folder: Path, keep: set[str]) -> None:
    """Whatever earlier conversions left that is not in the set."""
    shutil.rmtree(records_folder(folder), ignore_errors=True)
    with storage_errors(folder):
        for path in _files(folder):
            if str(path.relative_to(folder)) not in keep:
                path.unlink()
        for path in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
            with contextlib.suppress(OSError):  # it is not empty
                path.rmdir()


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in list(folder.rglob("*")) if not path.is_dir())
