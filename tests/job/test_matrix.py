"""The expansion of a job: order, excludes, includes, sizes, random seeds, and its cost."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tomli
from hypothesis import given
from hypothesis import strategies as st

from anima_batch.errors import JobError
from anima_batch.job import JobSpec, expand_job, image_ids, load_job
from anima_batch.job.axes import Axis, AxisValue
from anima_batch.job.combinations import combine

Load = Callable[..., JobSpec]

SIZES = [(128, 128), (192, 128)]
GIVEN = '[defaults]\nprompt = "a red house"\nseed = 7\n'

numbers = st.integers(0, 3)
axis_fields = ("seed", "steps", "width", "height")
matrices = st.dictionaries(st.sampled_from(axis_fields), st.lists(numbers, min_size=1, max_size=4, unique=True))
exclude_lists = st.lists(st.dictionaries(st.sampled_from((*axis_fields, "shift")), numbers, min_size=1), max_size=5)


@given(matrices, exclude_lists)
def test_combinations_equal_those_of_brute_force(matrix: dict[str, list[int]], excludes: list[dict[str, int]]):
    axes = [Axis((name,), tuple(AxisValue({name: v}, name) for v in values)) for name, values in matrix.items()]
    combinations = combine(axes, {"shift": 1}, excludes)
    everything = [
        {"shift": 1, **dict(zip(matrix, values, strict=True))} for values in itertools.product(*matrix.values())
    ]
    kept = [
        fields
        for fields in everything
        if not any(all(fields.get(name) == value for name, value in exclude.items()) for exclude in excludes)
    ]
    assert list(combinations.product()) == kept
    assert combinations.count() == len(kept)
    assert combinations.unmet(len(excludes)) == [
        index
        for index, exclude in enumerate(excludes)
        if not any(all(fields.get(name) == value for name, value in exclude.items()) for fields in everything)
    ]


def test_the_last_axis_in_the_file_is_the_fastest(job_spec: Load):
    images = expand_job(job_spec(f"{GIVEN}[matrix]\nsteps = [9, 8]\nseed = [5, '1..2']\n"), SIZES).images
    assert [(i.request.steps, i.request.seed) for i in images] == [(9, 5), (9, 1), (9, 2), (8, 5), (8, 1), (8, 2)]


def test_zipped_axes_advance_together_at_the_place_of_their_first(job_spec: Load):
    text = f"{GIVEN}[matrix]\nsteps = [9, 8]\nseed = [1, 2]\nshift = [3, 4.0]\nzip = [['shift', 'steps']]\n"
    images = expand_job(job_spec(text), SIZES).images
    got = [(i.request.steps, i.request.seed, i.request.shift) for i in images]
    assert got == [(9, 1, 3.0), (9, 2, 3.0), (8, 1, 4.0), (8, 2, 4.0)]


def test_an_axis_may_be_given_as_one_value(job_spec: Load):
    images = expand_job(
        job_spec(f"{GIVEN}[matrix]\nprompt = {{ name = 'owl', text = 'an owl' }}\nsteps = 9\n"), SIZES
    ).images
    assert [(i.prompt_name, i.request.prompt, i.request.steps) for i in images] == [("owl", "an owl", 9)]


@pytest.mark.parametrize("prompt", ["owl", "an owl at night"])
def test_an_exclude_names_a_prompt_by_name_or_text(job_spec: Load, prompt: str):
    prompts = "['a', { name = 'owl', text = 'an owl at night' }]"
    text = f"{GIVEN}[matrix]\nprompt = {prompts}\npolicy = ['full', 'spectrum']\n"
    images = expand_job(job_spec(f"{text}[[exclude]]\nprompt = '{prompt}'\npolicy = 'spectrum'\n"), SIZES).images
    assert [(i.request.prompt[:2], i.policy_name) for i in images] == [("a", "full"), ("a", "spectrum"), ("an", "full")]


def test_an_exclude_reaches_presets_zips_and_defaults_by_their_fields(job_spec: Load):
    text = (
        f"{GIVEN}[matrix]\npreset = 'balanced'\nwidth = [128, 192]\nheight = [128, 128]\nzip = [['width', 'height']]\n"
    )
    exclude = "[[exclude]]\nsteps = 11\nwidth = 192\nguidance_scale = 4\n"
    assert [image.request.width for image in expand_job(job_spec(text + exclude), SIZES).images] == [128]


def test_an_exclude_that_matches_nothing_is_a_warning(job_spec: Load, tmp_path: Path):
    excludes = "[[exclude]]\nsteps = 9\n[[exclude]]\nsteps = 9\nsampler = 'ab2'\n[[exclude]]\nseed = 1\n"
    expansion = expand_job(job_spec(f"{GIVEN}[matrix]\nsteps = [8, 9]\n{excludes}"), SIZES)
    path = tmp_path / "jobs" / "sweep.toml"
    assert expansion.warnings == tuple(f"{path}: exclude[{n}]: matches no combination of [matrix]" for n in (1, 2))
    assert len(expansion.images) == 1


def test_includes_come_last_and_no_exclude_drops_them(job_spec: Load):
    text = f"{GIVEN}[matrix]\nsteps = [8, 9]\n[[exclude]]\nsteps = 9\n[[include]]\nsteps = 9\npolicy = 'spectrum'\n"
    images = expand_job(job_spec(text), SIZES).images
    assert [(i.request.steps, i.policy_name, i.include) for i in images] == [(8, "full", None), (9, "spectrum", 0)]


def test_an_include_may_bring_back_what_an_exclude_dropped(job_spec: Load):
    text = f"{GIVEN}[matrix]\nsteps = [8, 9]\n[[exclude]]\nsteps = 9\n[[include]]\nsteps = 9\n"
    assert [image.request.steps for image in expand_job(job_spec(text), SIZES).images] == [8, 9]


def test_includes_without_a_matrix_are_all_the_images(job_spec: Load):
    assert [image.request.seed for image in expand_job(job_spec(f"{GIVEN}[[include]]\nseed = 3\n"), SIZES).images] == [
        3
    ]


def test_a_duplicate_by_the_default_size_is_found_once_the_size_is_known(job_spec: Load):
    spec = job_spec(f"{GIVEN}[matrix]\nsteps = [8, 9]\n[[include]]\nsteps = 9\nwidth = 128\n")
    with pytest.raises(JobError, match=r"include\[0\]: must differ from every combination of \[matrix\]"):
        expand_job(spec, SIZES)


def test_a_size_that_the_model_set_has_not_is_refused_with_its_path(job_spec: Load):
    spec = job_spec(f"{GIVEN}[matrix]\nwidth = [128, 256]\nheight = [128, 128]\nzip = [['width', 'height']]\n")
    with pytest.raises(JobError, match=r"matrix.width\[1\]: must be a width of the model set \(128, 192\), got 256"):
        expand_job(spec, SIZES)


def test_a_pair_of_sizes_is_refused_with_the_exclude_that_mends_it(job_spec: Load):
    text = f"{GIVEN}[matrix]\nwidth = [128, 192]\nheight = [128, 192]\n"
    with pytest.raises(JobError) as caught:
        expand_job(job_spec(text), [(128, 128), (192, 192)])
    assert len(caught.value.problems) == 2
    remedies = (problem.split("leave it out with: ")[1] for problem in caught.value.problems)
    advice = "\n".join(re.sub(r" (?=width|height)", "\n", remedy) for remedy in remedies)
    assert tomli.loads(advice) == {"exclude": [{"width": 128, "height": 192}, {"width": 192, "height": 128}]}
    images = expand_job(job_spec(f"{text}{advice}\n"), [(128, 128), (192, 192)]).images
    assert [image.request.width for image in images] == [128, 192]


def test_random_seeds_are_open_until_they_are_drawn(job_spec: Load):
    spec = job_spec(f"{GIVEN}[matrix]\nseed = [5, {{ random = 2 }}]\n")
    plan = expand_job(spec, SIZES)
    assert ([image.seed for image in plan.images], plan.drawn) == ([5, None, None], ())
    assert [known is None for known in image_ids(plan.images, "ab")] == [False, True, True]
    run = expand_job(spec, SIZES, draw=iter([100, 101]).__next__)
    assert ([image.seed for image in run.images], run.drawn) == ([5, 100, 101], (100, 101))


def test_drawn_seeds_are_kept_by_position_after_an_edit(job_spec: Load):
    more = job_spec(f"{GIVEN}[matrix]\nsteps = [8, 9]\nseed = [{{ random = 3 }}, 5]\n")
    expansion = expand_job(more, SIZES, drawn=(100, 101), draw=iter([102]).__next__)
    assert ([image.seed for image in expansion.images[:4]], expansion.drawn) == ([100, 101, 102, 5], (100, 101, 102))
    fewer = expand_job(job_spec(f"{GIVEN}[matrix]\nseed = {{ random = 1 }}\n"), SIZES, drawn=(100, 101))
    assert ([image.seed for image in fewer.images], fewer.drawn) == ([100], (100, 101))


def test_a_random_seed_is_never_one_that_is_there_already(job_spec: Load):
    spec = job_spec(f"{GIVEN}[matrix]\nseed = [5, {{ random = 2 }}]\n")
    assert expand_job(spec, SIZES, draw=iter([5, 6, 6, 5, 7]).__next__).drawn == (6, 7)


def test_a_huge_matrix_is_refused_at_once_with_its_count(tmp_path: Path):
    texts = [f"p{n}" for n in range(13)]
    sizes = [128 + 16 * n for n in range(13)]
    axes = {"seed": "0..12", "steps": "1..13", "shift": [*range(1, 14)], "guidance_scale": [*range(1, 14)]}
    axes |= {"prompt": texts, "negative_prompt": texts, "width": sizes, "height": sizes}
    matrix = "".join(f"{name} = {values!r}\n" for name, values in axes.items())
    excludes = "[[exclude]]\nseed = 3\nsteps = 4\n[[exclude]]\nsteps = 4\nprompt = 'p1'\n"
    path = tmp_path / "huge.toml"
    path.write_text(f"schema_version = 1\n[matrix]\n{matrix}{excludes}")
    started = time.perf_counter()
    # Each exclude drops 13**6 combinations, 13**5 of them both.
    count = 13**8 - 2 * 13**6 + 13**5
    with pytest.raises(JobError, match=f"max_images: must be at least the {count} images asked for, got 10000"):
        load_job(path, tmp_path)
    assert time.perf_counter() - started < 1.0


def test_a_hundred_thousand_images_are_expanded_and_named_quickly(job_spec: Load):
    prompts = [f"prompt {n}" for n in range(100)]
    text = f"max_images = 100000\n[matrix]\nprompt = {prompts}\nseed = '1..500'\npolicy = ['full', 'spectrum']\n"
    started = time.perf_counter()
    images = expand_job(job_spec(text), SIZES).images
    ids = image_ids(images, "ab" * 32)
    # About 1 s on a laptop; the limit only tells a linear cost from a worse one on a busy machine.
    assert time.perf_counter() - started < 10.0
    assert len(set(ids)) == len(images) == 100000
