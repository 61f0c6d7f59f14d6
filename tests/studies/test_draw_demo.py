from pathlib import Path

from anima_batch.job import expand_job, load_job, presets
from anima_batch.sampling import planned_passes

ROOT = Path(__file__).parents[2]


def test_the_demo_ends_with_the_preset():
    images = expand_job(load_job(ROOT / "jobs/demo.toml", ROOT), [(128, 128)]).images
    request, balanced = images[-1].request, presets()["balanced"]
    assert (request.sampler, request.steps, request.policy) == (balanced.sampler, balanced.steps, balanced.policy)


def test_the_demo_has_plain_sampling_of_as_many_passes_as_spectrum():
    images = expand_job(load_job(ROOT / "jobs/demo.toml", ROOT), [(128, 128)]).images
    by_policy = {image.policy_name: sum(planned_passes(image.request)) for image in images[1:4]}
    assert by_policy["full"] == by_policy["spectrum"]
