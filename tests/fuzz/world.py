"""A small workspace in which every file is valid, made without running a model: what is fuzzed are changes of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anima_batch.backends.base import Timings
from anima_batch.batch import Batch, open_batch
from anima_batch.files import sha256_bytes
from anima_batch.job import ImageRequest
from anima_batch.model_set import ModelSet, built_in_folder, describe_component, load_model_set, write_description
from anima_batch.runner.image_log import ImageLog
from anima_batch.sampling import initial_state, pack_state, sample
from anima_batch.store import (
    Checkpoint,
    CheckpointFolder,
    ChecksRecord,
    ComponentRecord,
    EnvironmentRecord,
    ErrorRecord,
    ImageFile,
    JobRecord,
    Manifest,
    ModelSetRecord,
    PngInfo,
    RunRecord,
    SamplingRecord,
    SourceRecord,
    StepRecord,
    TimingsRecord,
    describe_latents,
    encode_png,
    pixel_sha256,
    record_policy,
    write_manifest,
)

JOB = """schema_version = 1
name = "job"
model_set = "mine"
max_images = 50
[run]
threads = 1
[defaults]
steps = 6
policy = "gentle"
[matrix]
prompt = ["a boat", { name = "owl", text = "an owl, \\u5915 \\"quoted\\"" }, { file = "prompts.txt" }]
seed = [3, "5..6"]
[[exclude]]
prompt = "owl"
seed = 3
[[include]]
prompt = "a cat"
seed = 7
[policy.gentle]
kind = "spectrum"
forecast = "features"
warmup_steps = 2
"""


@dataclass(frozen=True)
class World:
    """The workspace `folder` with its job; the first image is done, the second failed, the third begun."""

    folder: Path
    batch: Batch

    @property
    def job(self) -> Path:
        return self.folder / "jobs/job.toml"

    def stem(self, number: int) -> str:
        return self.batch.images[number].stem(self.batch.request_ids[number])

    def manifest(self, number: int) -> Path:
        return self.batch.manifests / f"{self.stem(number)}.json"

    @property
    def picture(self) -> Path:
        return self.batch.outputs / f"{self.stem(0)}.png"

    @property
    def begun(self) -> Path:
        return self.batch.checkpoint(self.batch.request_ids[2])

    @property
    def model_set(self) -> Path:
        return self.batch.model_set.folder / "model_set.json"


def make_world(folder: Path) -> World:
    """The workspace, made in the folder."""
    for name in ("jobs", "models", "manifests/job", "outputs/job/.checkpoints"):
        (folder / name).mkdir(parents=True)
    _make_model_set(folder / "models/mine")
    (folder / "jobs/job.toml").write_text(JOB)
    (folder / "prompts.txt").write_text("# a comment\na red house\n\na fox \U0001f98a\n")
    batch = open_batch(folder / "jobs/job.toml", folder, draw=True)
    world = World(folder, batch)
    _make_done(world)
    write_manifest(world.manifest(1), make_manifest(world, 1, None))
    save_checkpoints(CheckpointFolder(world.begun), batch.images[2].request)
    return world


def _make_model_set(folder: Path) -> None:
    """The built-in set's description over files of a few bytes."""
    description = load_model_set(built_in_folder() / "picture-book").description
    parts = []
    for part in description.components:
        path = folder / part.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(part.role)
        parts.append(describe_component(folder, part.role, part.path, part.built_with, part.inputs, part.outputs))
    write_description(folder, description.model_copy(update={"components": tuple(parts), "name": "mine"}))


def make_pixels() -> np.ndarray:
    """(8, 16, 3) uint8."""
    return np.arange(8 * 16 * 3, dtype=np.uint8).reshape(8, 16, 3)


def make_png(world: World, number: int) -> bytes:
    """A picture of the image, smaller than it was asked for."""
    image, model_set = world.batch.images[number], world.batch.model_set
    info = PngInfo(
        request_id=world.batch.request_ids[number],
        request=image.request,
        policy_name=image.policy_name,
        model_set_name=model_set.name,
        model_set_digest=model_set.digest,
        source_sha256="ab" * 32,
        manifest=world.manifest(number).relative_to(world.folder).as_posix(),
        version="0.1.0",
    )
    return encode_png(make_pixels(), info)


def _make_done(world: World) -> None:
    data = make_png(world, 0)
    world.picture.write_bytes(data)
    image = ImageFile(
        path=world.picture.relative_to(world.folder).as_posix(),
        sha256=sha256_bytes(data),
        pixel_sha256=pixel_sha256(make_pixels()),
        bytes=len(data),
        width=16,
        height=8,
    )
    write_manifest(world.manifest(0), make_manifest(world, 0, image))


def make_manifest(world: World, number: int, image: ImageFile | None) -> Manifest:
    """The manifest of a done image, or of a failed one without `image`."""
    batch = world.batch
    request = batch.images[number].request
    step = StepRecord(
        index=1, sigma=1.0, computed=True, passes=2, seconds=0.5, nan=0, inf=0, abs_max=4.0, latents_xxh3="a" * 32
    )
    versions = dict.fromkeys(EnvironmentRecord.model_fields) | dict.fromkeys(("anima_batch", "python", "numpy"), "1.0")
    return Manifest(
        request_id=batch.request_ids[number],
        status="done" if image else "failed",
        error=None if image else ErrorRecord(kind="non_finite", step=3, message="step 3: 5 NaN"),
        request=request,
        job=JobRecord(name="job", digest=batch.spec.digest),
        image=image,
        model_set=record_model_set(batch.model_set),
        environment=EnvironmentRecord.model_validate(versions),
        sampling=SamplingRecord(
            sigmas=(1.0, 0.5, 0.0),
            computed_steps=(1,),
            forecast_steps=(2,),
            policy=record_policy(request, "gentle"),
            noise="torch",
            noise_sha256="ab" * 32,
        ),
        steps=(step,),
        timings=TimingsRecord(
            encode=0.1, denoise=1.5, decode=0.25, load=0.0, init=0.0, run=1.0, release=0.0, host=0.5, total=1.85
        ),
        latents=describe_latents(np.linspace(-1, 1, 32, dtype=np.float32).reshape(16, 1, 2)),
        runs=(RunRecord(boot_id="b", started_at="2026-08-12T22:00:00Z", first_step=1, last_step=2, resumed=False),),
        checks=ChecksRecord(finite=True, not_flat=True if image else None),
        warnings=("prompt: a warning",),
    )


def record_model_set(model_set: ModelSet) -> ModelSetRecord:
    description = model_set.description
    return ModelSetRecord(
        name=model_set.name,
        digest=model_set.digest,
        license=description.license,
        source=tuple(SourceRecord(**source.model_dump()) for source in description.sources),
        components=tuple(
            ComponentRecord(**part.model_dump(exclude={"inputs", "outputs"})) for part in description.components[:3]
        ),
    )


class FlatModel:
    """A velocity of 128x128 pixels that depends on the latents, without any weights."""

    def features(self, latents: np.ndarray, step: int, streams: tuple[str, ...]) -> list[np.ndarray]:
        return [np.tanh(latents.reshape(64, 64) + np.float32(len(stream) + step)) for stream in streams]  # (L, D)

    def velocity(self, features: np.ndarray, step: int) -> np.ndarray:
        return features.reshape(16, 16, 16).copy()


def save_checkpoints(folder: CheckpointFolder, request: ImageRequest) -> None:
    """Two generations, of steps 3 and 4, the newer with one more computed step in its history."""
    log = ImageLog().begin_run(["prompt: a warning"], 0.5)
    for state, report in sample(request, FlatModel(), initial_state(request)):
        log = log.add_step(report, Timings(), 1.0)
        if state.step in (3, 4):
            tensors, sampler = pack_state(state)
            meta = {
                "identity": dict.fromkeys(("request_id", "conditioning", "noise"), "ab" * 32) | {"sigmas": "0000803f"},
                "environment": {"numpy": "2.0.0", "machine": "x86_64", "core_mask": None},
                "sampler": sampler,
                "log": log.to_json(),
            }
            folder.save(Checkpoint(state.step - 3, state.step, tensors, meta))
