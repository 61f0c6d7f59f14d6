"""What an audit of many pictures costs, at two numbers of them, and how fast one core reads model files."""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from anima_batch.files import file_digests
from anima_batch.job import request_id
from anima_batch.model_set import find_by_digest
from anima_batch.store import (
    Manifest,
    PngInfo,
    encode_png,
    pixel_sha256,
    read_manifest,
    read_png,
    write_manifest,
)

COMMAND = (sys.executable, "-m", "anima_batch")
JOB = 'schema_version = 1\n[defaults]\nprompt = "a red house"\nseed = 1\nsteps = 2\n'


@dataclass(frozen=True)
class Cost:
    """Of one audit command; seconds of the processor and by the clock, the peak in bytes."""

    pictures: int
    cpu_seconds: float
    seconds: float
    peak_bytes: int


def main() -> None:
    """A line for each way of auditing and each number of pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=5000, help="of the larger folder; the other has a tenth")
    wanted: int = parser.parse_args().pictures
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder)
        measure_hashing(workspace / "gigabyte")
        source = make_source(workspace)
        for count in (wanted // 10, wanted):
            make_pictures(workspace, source, count)
            for name, options in (("as they are", ()), ("by model set", ("--by", "model_set")), ("JSON", ("--json",))):
                show(name, measure(workspace, count, options))
        strip_names(workspace)
        show("names lost", measure(workspace, wanted, ()))


def measure_hashing(path: Path) -> None:
    """A line for XXH3 alone and one for both digests: seconds of the processor, the file being in the page cache."""
    with path.open("wb") as file:
        file.truncate(10**9)
    for name, sha256 in (("XXH3", False), ("XXH3 + SHA-256", True)):
        seconds = []
        for _ in range(3):
            started = time.process_time()
            file_digests(path, sha256=sha256)
            seconds.append(time.process_time() - started)
        print(f"{name:<14} {1 / min(seconds):.2f} GB/s", flush=True)
    path.unlink()


def make_source(workspace: Path) -> Manifest:
    """The manifest of a real picture in two steps, taken out of its job's folder."""
    (workspace / "jobs").mkdir()
    (workspace / "jobs/source.toml").write_text(JOB)
    subprocess.run([*COMMAND, "run", "jobs/source.toml"], cwd=workspace, check=True, capture_output=True)  # noqa: S603
    (path,) = (workspace / "manifests/source").glob("*.json")
    return read_manifest(path)


def make_pictures(workspace: Path, source: Manifest, count: int) -> None:
    """As many pictures and manifests, each of a seed of its own, in the formats of the store."""
    assert source.image is not None
    pixels = read_png((workspace / source.image.path).read_bytes()).pixels
    model_set = find_by_digest(source.model_set.digest, workspace)[0]
    outputs, manifests = workspace / "outputs/many", workspace / "manifests/many"
    outputs.mkdir(exist_ok=True)
    for seed in range(count):
        request = replace(source.request, seed=seed)
        identity = request_id(request, model_set.digest)
        stem = f"a-red-house-{seed}-full-{identity[:12]}"
        if (manifests / f"{stem}.json").exists():
            continue
        info = PngInfo(
            request_id=identity,
            request=request,
            policy_name="full",
            model_set_name=model_set.name,
            model_set_digest=model_set.digest,
            source_sha256=None,
            manifest=f"manifests/many/{stem}.json",
            version="0",
        )
        own = pixels.copy()
        own[0, 0] = (seed >> 16 & 255, seed >> 8 & 255, seed & 255)  # no two have the same pixels
        data = encode_png(own, info)
        (outputs / f"{stem}.png").write_bytes(data)
        image = source.image.model_copy(
            update={
                "path": f"outputs/many/{stem}.png",
                "bytes": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
                "pixel_sha256": pixel_sha256(own),
            }
        )
        made = source.model_copy(update={"request_id": identity, "request": request, "image": image})
        write_manifest(manifests / f"{stem}.json", made)


def strip_names(workspace: Path) -> None:
    """Pictures and manifests under numbers, the path in each picture wrong."""
    for folder, suffix in (("outputs/many", ".png"), ("manifests/many", ".json")):
        for number, path in enumerate(sorted((workspace / folder).iterdir(), key=lambda path: path.name[::-1])):
            path.rename(path.with_name(f"{number}{suffix}"))


def measure(workspace: Path, count: int, options: tuple[str, ...]) -> Cost:
    """The cost of one `audit` of the folder, which must find no difference."""
    started = time.perf_counter()
    command = [*COMMAND, "audit", "outputs/many", *options]
    process = subprocess.Popen(command, cwd=workspace, stdout=subprocess.DEVNULL)  # noqa: S603
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, status
    return Cost(count, usage.ru_utime + usage.ru_stime, time.perf_counter() - started, usage.ru_maxrss << 10)


def show(name: str, cost: Cost) -> None:
    """One line."""
    print(
        f"{name:<14} {cost.pictures:6} pictures: {cost.cpu_seconds:7.2f} s CPU, {cost.seconds:7.2f} s, "
        f"{cost.pictures / cost.cpu_seconds:6.0f} pictures a second, peak {cost.peak_bytes / 1e6:6.1f} MB",
        flush=True,
    )


if __name__ == "__main__":
    main()
