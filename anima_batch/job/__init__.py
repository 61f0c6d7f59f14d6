"""What was asked: job files, their expansion and the identity of each image."""

from anima_batch.job.fields import Draw, FieldTable, Preset, Prompt, built_in_policies, check_fields, presets
from anima_batch.job.image import JobImage, exclude_for, image_ids, make_slug
from anima_batch.job.matrix import Expansion, draw_seed, expand_job, load_job
from anima_batch.job.request import (
    MAX_SEED,
    FullPolicy,
    GuidanceReusePolicy,
    ImageRequest,
    NoiseKind,
    Policy,
    Sampler,
    Schedule,
    SpectrumPolicy,
    request_id,
    request_ids,
    request_json,
)
from anima_batch.job.spec import JOB_BYTES, MAX_IMAGES, POLICY_NAME, JobSpec, RunSpec
from anima_batch.job.writing import render_job

__all__ = [
    "JOB_BYTES",
    "MAX_IMAGES",
    "MAX_SEED",
    "POLICY_NAME",
    "Draw",
    "Expansion",
    "FieldTable",
    "FullPolicy",
    "GuidanceReusePolicy",
    "ImageRequest",
    "JobImage",
    "JobSpec",
    "NoiseKind",
    "Policy",
    "Preset",
    "Prompt",
    "RunSpec",
    "Sampler",
    "Schedule",
    "SpectrumPolicy",
    "built_in_policies",
    "check_fields",
    "draw_seed",
    "exclude_for",
    "expand_job",
    "image_ids",
    "load_job",
    "make_slug",
    "presets",
    "render_job",
    "request_id",
    "request_ids",
    "request_json",
]
