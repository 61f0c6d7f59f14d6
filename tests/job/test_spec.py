"""Job files, good and bad."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from anima_batch.errors import JobError
from anima_batch.job import FullPolicy, GuidanceReusePolicy, JobSpec, RunSpec, SpectrumPolicy, expand_job, load_job

Problems = Callable[..., list[str]]
Load = Callable[..., JobSpec]

GIVEN = 'prompt = "a red house"\nseed = 7\n'


def test_a_short_file_takes_every_default(job_spec: Load):
    spec = job_spec(f"[defaults]\n{GIVEN}", "night one.toml")
    assert (spec.name, spec.model_set, spec.backend, spec.max_images) == ("night one", "picture-book", "auto", 10000)
    assert spec.run == RunSpec(
        staging="auto",
        pinned=16,
        ahead_mib=128,
        min_available_mib=1536,
        max_swap_growth_mib=16,
        interleave=True,
        core_mask="0",
        threads=0,
        recycle=8,
        deadline_seconds=30.0,
    )
    request = expand_job(spec, [(128, 192)]).images[0].request
    assert (request.width, request.height, request.steps, request.guidance_scale) == (128, 192, 20, 4.0)
    assert (request.shift, request.schedule, request.sampler, request.noise) == (3.0, "simple", "euler", "torch")
    assert (request.negative_prompt, request.policy.kind) == ("", "full")


def test_policies_of_the_file_are_known_by_name(job_spec: Load):
    text = f'[defaults]\n{GIVEN}[matrix]\npolicy = ["gentle", "thrifty", "spectrum"]\n'
    text += '[policy.gentle]\nkind = "spectrum"\ndegree = 8\n[policy.thrifty]\nkind = "guidance_reuse"\n'
    images = expand_job(job_spec(text), [(128, 128)]).images
    assert [image.request.policy for image in images] == [
        SpectrumPolicy(degree=8),
        GuidanceReusePolicy(),
        SpectrumPolicy(),
    ]
    assert [image.policy_name for image in images] == ["gentle", "thrifty", "spectrum"]


def test_a_preset_sets_sampler_steps_and_policy(job_spec: Load):
    spec = job_spec(f'[defaults]\n{GIVEN}preset = "balanced"\n')
    image = expand_job(spec, [(128, 128)]).images[0]
    assert (image.request.sampler, image.request.steps, image.policy_name) == ("ab2", 11, "full")
    assert image.request.policy == FullPolicy()


def test_a_prompt_file_gives_one_prompt_a_line(job_spec: Load, tmp_path: Path):
    (tmp_path / "prompts.txt").write_bytes("\ufeffa cat\r\n\n# a comment\n  \nсова # ночью\n".encode())
    spec = job_spec('[defaults]\nseed = 1\n[matrix]\nprompt = { file = "prompts.txt" }\n')
    assert [image.request.prompt for image in expand_job(spec, [(128, 128)]).images] == ["a cat", "сова # ночью"]


# One fault each: the text under [defaults] with a prompt and a seed, and the one line that it must give.
BAD_FILES = {
    "unknown key": ("stepz = 20", 'defaults.stepz: unknown key, did you mean "steps"? allowed: prompt, .*'),
    "unknown top-level key": (
        "[policies.a]\nkind = 'full'",
        'policies: unknown key, did you mean "policy"? allowed: .*',
    ),
    "misspelt policy": (
        'policy = "spektrum"',
        'defaults.policy: must be one of "full", "spectrum", .*, did you mean "spectrum"?',
    ),
    "empty axis": ("[matrix]\nsteps = []", "matrix.steps: must have at least one value, got an empty list"),
    "size 500": ("width = 500", "defaults.width: must be a multiple of 16, 16-8192, got 500"),
    "steps 0": ("steps = 0", "defaults.steps: must be 1-200, got 0"),
    "steps 1.0": ("steps = 1.0", "defaults.steps: must be an integer 1-200, got 1.0"),
    "steps true": ("steps = true", "defaults.steps: must be an integer 1-200, got true"),
    "seed 1.5": ("[matrix]\nseed = [1, 2, 1.5]", "matrix.seed[2]: must be an integer 0-18446744073709551615, got 1.5"),
    "seed -1": ("[matrix]\nseed = -1", "matrix.seed: must be 0-18446744073709551615, got -1"),
    "seed 2**64": (
        "[matrix]\nseed = ['9..18446744073709551616']",
        "matrix.seed[0]: must be .*, got 18446744073709551616 in .*",
    ),
    "backward range": (
        "[matrix]\nsteps = '9..3'",
        'matrix.steps: must be an integer or a range "a..b" with a <= b, got "9..3"',
    ),
    "range of all seeds": (
        "[matrix]\nseed = '1..18446744073709551615'",
        "matrix.seed: must be at most max_images = 10000 .*",
    ),
    "not a number": ("guidance_scale = nan", "defaults.guidance_scale: must be a finite number 0-100, got nan"),
    "infinite": ("shift = inf", "defaults.shift: must be a finite number, above 0, at most 100, got inf"),
    "same seed twice": (
        "[matrix]\nseed = [3, '1..4']",
        "matrix.seed[1]: must differ from matrix.seed[0], got 3 again: .*",
    ),
    "same policy twice": (
        "[matrix]\npolicy = ['spectrum', 'twin']\n[policy.twin]\nkind = 'spectrum'",
        'matrix.policy[1]: must differ from matrix.policy[0], got "twin" again: two images would be the same',
    ),
    "include of a combination": (
        "[matrix]\nsteps = [10, 20]\n[[include]]\nseed = 8\n[[include]]\nseed = 7",
        "include[1]: must differ from every combination of [matrix], or two images are the same",
    ),
    "same include twice": (
        "[[include]]\nseed = 8\n[[include]]\nseed = 8",
        "include[1]: must differ from include[0], .*",
    ),
    "unknown key in include": ("[[include]]\nsede = 8", 'include[0].sede: unknown key, did you mean "seed"? .*'),
    "prompt file missing": (
        "[matrix]\nprompt = ['a', { file = 'no.txt' }]",
        "matrix.prompt[1].file: must be a file .* no such file.*",
    ),
    "prompt without text": ("[matrix]\nprompt = { name = 'owl' }", "matrix.prompt.text: missing, must be text"),
    "unequal zip": (
        "[matrix]\nwidth = [128, 192]\nheight = 128\nzip = [['width', 'height']]",
        "matrix.zip[0]: zipped axes must be equally long, got width 2, height 1",
    ),
    "zip of no axis": (
        "[matrix]\nsteps = 3\nseed = 4\nzip = [['steps', 'sede']]",
        'matrix.zip[0][1]: must be an axis .*, did you mean "seed"?',
    ),
    "flat zip": (
        "[matrix]\nsteps = 3\nseed = 4\nzip = ['steps', 'seed']",
        "matrix.zip: must be a list of lists such as .*",
    ),
    "steps beside a preset": ("preset = 'balanced'\nsteps = 20", "defaults.steps: must not be given beside preset, .*"),
    "axis beside a preset": (
        "[matrix]\npreset = 'balanced'\nsampler = 'ab2'",
        "matrix.sampler: must not be given beside preset, .*",
    ),
    "unknown preset": (
        "preset = 'balancd'",
        'defaults.preset: must be one of "balanced", got "balancd", did you mean "balanced"?',
    ),
    "random nothing": (
        "[matrix]\nseed = { random = 0 }",
        "matrix.seed.random: must be an integer of at least 1, got 0",
    ),
    "built-in policy": ("[policy.full]\nkind = 'full'", "policy.full: must not redefine a built-in policy, .*"),
    "policy name": ("[policy.'A b']\nkind = 'full'", 'policy."A b": must be named by 1-40 of a-z 0-9 _ -, got "A b"'),
    "policy without kind": (
        "[policy.a]\ndegree = 3",
        'policy.a.kind: missing, must be one of "full", "spectrum", "guidance_reuse"',
    ),
    "both ends": (
        "[policy.a]\nkind = 'spectrum'\nstop_fraction = 0.9\ntail_steps = 3",
        "policy.a.stop_fraction: must not be given beside tail_steps: keep one of the two",
    ),
    "unknown key in a policy": (
        "[policy.a]\nkind = 'spectrum'\ndegre = 3",
        'policy.a.degre: unknown key, did you mean "degree"? .*',
    ),
    "empty exclude": ("[[exclude]]", "exclude[0]: must give at least one key, got an empty table"),
    "exclude of all": ("[[exclude]]\nseed = 7", "exclude: must leave at least one image, got 0: .*"),
    "recycle": ("[run]\nrecycle = -1", "run.recycle: must be 0-10000, got -1"),
    "deadline": ("[run]\ndeadline_seconds = 0.5", "run.deadline_seconds: must be 1-86400 seconds, got 0.5"),
    "run": ("[run]\ncore_mask = '3'", 'run.core_mask: must be one of "0", "1", "2", "0+1", got "3"'),
    "defaults no table": ("[[matrix]]\nseed = 3", "matrix: must be a table, got a list"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_fault_is_one_line_with_its_key_path(job_problems: Problems, case: str):
    text, expected = BAD_FILES[case]
    problems = job_problems(f"[defaults]\n{GIVEN}{text}\n")
    pattern = re.escape(expected).replace(r"\.\*", ".*")
    assert len(problems) == 1
    assert re.fullmatch(pattern, problems[0]), problems[0]


def test_bad_toml_names_its_line(job_problems: Problems):
    assert job_problems("[defaults\n") == [
        "must be valid TOML, got: expected ']' at the end of a table declaration (at line 2, column 10)"
    ]


@pytest.mark.parametrize(("version", "got"), [("2", "2"), ("true", "true"), ("1.0", "1.0"), ('"1"', '"1"')])
def test_another_schema_version_is_refused(job_problems: Problems, version: str, got: str):
    problems = job_problems(f"schema_version = {version}\n[defaults]\n{GIVEN}")
    assert len(problems) == 1
    assert problems[0].startswith("schema_version: must be ")
    assert problems[0].endswith(f"1, the only version there is, got {got}")


def test_a_missing_schema_version_is_refused(tmp_path: Path):
    path = tmp_path / "a.toml"
    path.write_text(f"[defaults]\n{GIVEN}")
    with pytest.raises(JobError, match=r"a\.toml: schema_version: missing, must be 1, the only version there is"):
        load_job(path, tmp_path)


def test_a_missing_job_file_is_a_job_error(tmp_path: Path):
    with pytest.raises(
        JobError, match=r"no\.toml: must be a job file that can be read, got: no such file or directory"
    ):
        load_job(tmp_path / "no.toml", tmp_path)


def test_a_file_that_is_not_utf8_is_a_job_error(tmp_path: Path):
    (tmp_path / "a.toml").write_bytes(b'name = "\xff"')
    with pytest.raises(JobError, match="must be UTF-8, got byte 0xff at 8"):
        load_job(tmp_path / "a.toml", tmp_path)


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "-rf", "a ", "a\tb", "é" * 51, "a:b"])
def test_a_name_that_is_no_safe_folder_is_refused(job_problems: Problems, name: str):
    (problem,) = job_problems(f"name = '{name}'\n[defaults]\n{GIVEN}")
    assert problem.startswith("name: must be a folder name")


def test_prompt_and_seed_have_no_default(job_problems: Problems):
    assert job_problems("[matrix]\nsteps = 3\n[[include]]\nseed = 3\n") == [
        "matrix.prompt: missing, must be given in [matrix] or [defaults]: prompt has no default",
        "include[0].prompt: missing, must be given here or in [defaults]: prompt has no default",
        "matrix.seed: missing, must be given in [matrix] or [defaults]: seed has no default",
    ]


def test_every_problem_of_a_file_is_told_at_once(job_problems: Problems):
    problems = job_problems("""
schema_version = 1
backend = "cuda"
[run]
thread = 2
[defaults]
steps = 0
width = 500
seed = 1.5
[matrix]
prompt = [{ file = "none.txt" }, "a", "a"]
shift = []
sampler = ["euler", "heun"]
[[exclude]]
policy = "spektrum"
[[include]]
prompt = 3
[policy.full]
kind = "full"
[policy.b]
kind = "spectrum"
blend = 2
""")
    paths = [problem.split(": ")[0] for problem in problems]
    assert sorted(paths) == [
        *("backend", "defaults.seed", "defaults.steps", "defaults.width", "exclude[0].policy", "include[0].prompt"),
        *("matrix.prompt[0].file", "matrix.prompt[2]", "matrix.sampler[1]", "matrix.shift"),
        *("policy.b.blend", "policy.full", "run.thread"),
    ]


def test_too_many_images_are_told_beside_a_wrong_default(job_problems: Problems):
    axes = "seed = '0..999'\nsteps = '1..100'\n"
    problems = job_problems(f"[defaults]\nprompt = 'a'\nshift = 0\n[matrix]\n{axes}")
    assert [problem.split(": ")[0] for problem in problems] == ["defaults.shift", "max_images"]


def test_sizes_are_checked_with_the_rest_where_they_are_known(tmp_path: Path):
    path = tmp_path / "a.toml"
    path.write_text(f"schema_version = 1\n[defaults]\n{GIVEN}steps = 0\n[matrix]\nwidth = [128, 256]\n")
    with pytest.raises(JobError) as caught:
        load_job(path, tmp_path, sizes_of=lambda name: [(128, 128)] if name == "picture-book" else [])
    assert [problem.split(": ")[1] for problem in caught.value.problems] == ["defaults.steps", "matrix.width[1]"]
