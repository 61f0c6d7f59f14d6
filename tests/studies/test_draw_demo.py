from pathlib import Path

import pytest

from anima_batch.job import JobImage, expand_job, load_job
from anima_batch.sampling import planned_passes
from studies.settings import Setting, find_preset

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def images() -> tuple[JobImage, ...]:
    return expand_job(load_job(ROOT / "jobs/demo.toml", ROOT), [(128, 128)]).images


def test_the_demo_ends_with_the_preset(images: tuple[JobImage, ...]):
    request = images[-1].request
    assert Setting(request.sampler, request.steps, images[-1].policy_name) == find_preset("balanced")


def test_the_demo_spends_as_many_passes_in_three_ways(images: tuple[JobImage, ...]):
    assert [sum(planned_passes(image.request)) for image in images[:4]] == [40, 22, 22, 22]
