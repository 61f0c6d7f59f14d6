"""A workspace in a temporary folder, with job files written from their text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from anima_batch.errors import JobError
from anima_batch.job import JobSpec, load_job

SIZES = [(128, 128), (192, 128)]


@pytest.fixture
def job_spec(tmp_path: Path) -> Callable[..., JobSpec]:
    """Loads a job from its text, put under the line of the schema version."""

    def load(text: str, name: str = "sweep.toml") -> JobSpec:
        path = tmp_path / "jobs" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text if "schema_version" in text else f"schema_version = 1\n{text}", encoding="utf-8")
        return load_job(path, tmp_path)

    return load


@pytest.fixture
def job_problems(job_spec: Callable[..., JobSpec], tmp_path: Path) -> Callable[..., list[str]]:
    """The problems of a job's text, without the file's name that each must start with."""

    def load(text: str, name: str = "sweep.toml") -> list[str]:
        with pytest.raises(JobError) as caught:
            job_spec(text, name)
        prefix = f"{tmp_path / 'jobs' / name}: "
        assert all(problem.startswith(prefix) for problem in caught.value.problems)
        assert "pydantic" not in str(caught.value)
        assert caught.value.exit_code == 2
        return [problem.removeprefix(prefix) for problem in caught.value.problems]

    return load
