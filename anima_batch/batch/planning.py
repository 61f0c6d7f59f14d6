"""The plan of a batch: passes, checkpoint sizes and speeds for what the survey found."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from anima_batch.batch.embeds import EmbedsFolder
from anima_batch.batch.opening import Batch, sampling_key, without_collector
from anima_batch.batch.outlook import find_table, simulated_estimate
from anima_batch.batch.survey import Found, measure
from anima_batch.board import load_table
from anima_batch.environment import read_environment
from anima_batch.errors import AnimaBatchError
from anima_batch.job import ImageRequest, JobImage
from anima_batch.model_set import ModelSet
from anima_batch.plan import MEASURED_IMAGES, Plan, Rates, Sizes, make_plan
from anima_batch.sampling import planned_passes
from anima_batch.store import Manifest, read_manifest

LEARN_FROM = 20  # manifests of other jobs that are read for their speed while this job has none


def plan_batch(
    batch: Batch,
    found: Mapping[str, Found],
    *,
    retry_failed: bool = False,
    board: str | None = None,
    keep_latents: bool | None = None,
) -> Plan:
    """The plan for what was found. Raises UsageError for a board that is not known.

    Its ETA comes from finished images of the job, else of others of the same set, else from a simulation; for a board
    that is named, always from that. `keep_latents` goes over the job's own.
    """
    known: dict[tuple[Any, ...], tuple[int, ...]] = {}

    def passes(request: ImageRequest) -> tuple[int, ...]:
        key = sampling_key(request)
        if key not in known:
            known[key] = planned_passes(request)
        return known[key]

    triples = ((image, request_id, passes(image.request)) for image, request_id in batch.identified_images())
    progress = {request_id: entry.progress for request_id, entry in found.items()}
    largest = max((checkpoint_bytes(image.request, batch.model_set) for image in _one_a_kind(batch.images)), default=0)
    rates, warnings = _learn_rates(batch, found, board)
    keeps_latents = batch.spec.run.keep_latents if keep_latents is None else keep_latents
    sizes = Sizes(largest, _embeds_bytes(batch.model_set), keeps_latents=keeps_latents)
    embeds = EmbedsFolder(batch.conditioning, batch.model_set, read_environment({}, None))
    kept = embeds.find_kept(itertools.chain.from_iterable(image.request.prompts for image in batch.images))
    with without_collector():
        plan = make_plan(triples, progress, rates, kept=kept, sizes=sizes, retry_failed=retry_failed)
    return replace(plan, warnings=warnings)


def _one_a_kind(images: Sequence[JobImage]) -> list[JobImage]:
    return list({(image.request.width, image.request.height, image.policy_name): image for image in images}.values())


def checkpoint_bytes(request: ImageRequest, model_set: ModelSet) -> int:
    """The most that lies there at once: three generations while one is written, and the history that two of them name.

    A generation has the latents three times over at the most. Two name one history entry more than a forecast keeps,
    and the next one's is written before the oldest goes.
    """
    latents = 4 * model_set.description.transformer.latent_channels * (request.width // 8) * (request.height // 8)
    policy = request.policy
    if policy.kind != "spectrum":
        return 3 * 3 * latents
    features = 4 * model_set.description.transformer.hidden * (request.width // 16) * (request.height // 16)
    return 3 * 3 * latents + (policy.history + 2) * (latents if policy.forecast == "denoised" else 2 * features)


def _embeds_bytes(model_set: ModelSet) -> int:
    """Of one prompt's file."""
    return 4 * model_set.description.text.context_rows * model_set.description.transformer.context_dim


def _learn_rates(batch: Batch, found: Mapping[str, Found], board: str | None) -> tuple[Rates, tuple[str, ...]]:
    """The rates, and a warning of a table that cannot be used: no run stops for want of an ETA."""
    if board is not None:
        return Rates(simulated=simulated_estimate(batch, load_table(board))), ()
    own = tuple(entry.measurement for entry in found.values() if entry.measurement)
    if len(own) < MEASURED_IMAGES:
        own = own or tuple(map(measure, _other_manifests(batch)))
    if len(own) >= MEASURED_IMAGES:
        return Rates(own), ()
    try:
        table = find_table(batch)
    except AnimaBatchError as error:
        return Rates(own), error.lines
    return Rates(own, None if table is None else simulated_estimate(batch, table)), ()


def _other_manifests(batch: Batch) -> list[Manifest]:
    """Finished ones of other jobs with the same model set."""
    paths = (batch.workspace / "manifests").glob("*/*.json")
    manifests = []
    for path in itertools.islice(paths, LEARN_FROM):
        try:
            manifest = read_manifest(path)
        except AnimaBatchError:
            continue  # only its speed was of interest; `verify` of its own job reports it
        if manifest.status == "done" and manifest.model_set.digest == batch.model_set.digest:
            manifests.append(manifest)
    return manifests
