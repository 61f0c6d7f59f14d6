"""Small jobs of two pictures, and a model set so small that starting the program takes most of the time."""

from __future__ import annotations

from pathlib import Path

from command import Workspace
from golden_set import make_golden_set

JOB = "jobs/job.toml"

_HEAD = """
schema_version = 1
model_set = "tiny"
[run]
threads = 1
[defaults]
prompt = "a boat"
"""
# Between them: every kind of state that a checkpoint holds, small and large histories, seeds that only job.json keeps.
JOBS = {
    "full": f"{_HEAD}steps = 6\n[matrix]\nseed = {{ random = 2 }}\n",
    "forecasts": f"""{_HEAD}steps = 9
seed = 1
[matrix]
policy = ["latents", "features"]
[policy.latents]
kind = "spectrum"
[policy.features]
kind = "spectrum"
forecast = "features"
history = 4
""",
    "solvers": f"""{_HEAD}steps = 6
seed = 1
[matrix]
policy = ["thrifty"]
sampler = ["ab2", "dpmpp_2m"]
[policy.thrifty]
kind = "guidance_reuse"
warmup_steps = 2
""",
    "short": f"{_HEAD}steps = 3\n[matrix]\nseed = [1, 2]\n",
    "shortest": f"{_HEAD}steps = 2\n[matrix]\nseed = [1, 2]\n",
}


def make_tiny_set(folder: Path) -> Path:
    """A model set of 2 MB for pictures of 64x64, 32x32 and 128x128, whose files lie in the folder that is returned."""
    return make_golden_set(folder, sizes=((64, 64), (32, 32), (128, 128)), name="tiny").folder


def make_workspace(folder: Path, model_set: Path, job: str) -> Workspace:
    """A workspace with the set linked into it and the job as jobs/job.toml."""
    workspace = Workspace(folder)
    (folder / "models").mkdir()
    (folder / "models/tiny").symlink_to(model_set)
    workspace.write_job(job)
    return workspace
