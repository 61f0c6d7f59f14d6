"""A job of many images, made of the manifests and pictures of a small one that was really run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import count, cycle, islice
from pathlib import Path

import numpy as np
from PIL import Image

from anima_batch.files import sha256_bytes
from anima_batch.job import JobImage, request_id
from anima_batch.store import Manifest, Pixels, PngInfo, encode_png, pixel_sha256, read_manifest, to_bytes
from anima_batch.store.records import ImageFile


def multiply(source: Path, workspace: Path, job: str, number: int, *, side: int | None = None) -> None:
    """Write so many images of a job: each has a seed of its own, a request id, a PNG and a manifest that agree.

    With `side` the pictures are enlarged to so many pixels and get some grain, as a real one of that size has.
    """
    manifests = [read_manifest(path) for path in sorted(source.glob("manifests/*/*.json"))]
    # One seed of each request: the others become the same picture when the seed is another.
    done = list(
        {dataclasses.replace(each.request, seed=0): each for each in manifests if each.status == "done"}.values()
    )
    for folder in (workspace / "outputs" / job, workspace / "manifests" / job):
        folder.mkdir(parents=True)
    for manifest, pixels in islice(_vary(source, done, side), number):
        _write(workspace, job, manifest, pixels)


def _vary(source: Path, done: list[Manifest], side: int | None) -> Iterator[tuple[Manifest, Pixels]]:
    # All settings of a prompt share a seed, as in a matrix.
    seeds = (seed for seed in count(1) for _ in done)
    for seed, manifest in zip(seeds, cycle(done), strict=False):
        assert manifest.image is not None
        picture = Image.open(source / manifest.image.path)
        request = dataclasses.replace(manifest.request, seed=seed)
        if side is not None:
            picture = picture.resize((side, side), Image.Resampling.BICUBIC)
            request = dataclasses.replace(request, width=side, height=side)
        pixels = np.asarray(picture).astype(np.int16)
        grain = np.random.default_rng([seed, manifest.request.steps]).integers(-3, 4, pixels.shape)
        yield manifest.model_copy(update={"request": request}), np.clip(pixels + grain, 0, 255).astype(np.uint8)


def _write(workspace: Path, job: str, manifest: Manifest, pixels: Pixels) -> None:
    request, model_set = manifest.request, manifest.model_set
    identity = request_id(request, model_set.digest)
    policy = str(manifest.sampling.policy["name"])
    stem = JobImage(request, None, policy).stem(identity)
    info = PngInfo(
        request_id=identity,
        request=request,
        policy_name=policy,
        model_set_name=model_set.name,
        model_set_digest=model_set.digest,
        source_sha256=None,
        manifest=f"manifests/{job}/{stem}.json",
        version="0",
    )
    data = encode_png(pixels, info)
    path = f"outputs/{job}/{stem}.png"
    image = ImageFile(
        path=path,
        sha256=sha256_bytes(data),
        pixel_sha256=pixel_sha256(pixels),
        bytes=len(data),
        width=request.width,
        height=request.height,
    )
    (workspace / path).write_bytes(data)
    record = manifest.model_copy(update={"request_id": identity, "image": image})
    (workspace / "manifests" / job / f"{stem}.json").write_bytes(to_bytes(record))
