"""What the command line says to a user: results, mistakes and exit codes."""

import subprocess
import sys

import pytest
from command import COMMAND, ENVIRONMENT

BAD_JOBS = {
    "unknown key": ("[defaults]\nprompt = 'a'\nseed = 1\nstep = 4\n", "defaults.step: unknown key, did you mean"),
    "misspelt policy": (
        "[defaults]\nprompt = 'a'\nseed = 1\npolicy = 'spectrm'\n",
        'defaults.policy: must be one of "full", "spectrum"',
    ),
    "empty axis": ("[matrix]\nprompt = ['a']\nseed = []\n", "matrix.seed: must"),
    "size 500": ("[defaults]\nprompt = 'a'\nseed = 1\nwidth = 500\n", "defaults.width: must be a multiple of 16"),
    "size not in the model set": (
        "[defaults]\nprompt = 'a'\nseed = 1\nwidth = 512\nheight = 512\n",
        "defaults.width: must be a width of the model set (128, 192), got 512",
    ),
    "steps 0": ("[defaults]\nprompt = 'a'\nseed = 1\nsteps = 0\n", "defaults.steps: must be 1-200, got 0"),
    "seed 1.5": ("[defaults]\nprompt = 'a'\n[matrix]\nseed = [1, 1.5]\n", "matrix.seed[1]: must be"),
    "two images the same": ("[defaults]\nprompt = 'a'\n[matrix]\nseed = [1, 1]\n", "matrix.seed[1]:"),
    "missing prompt file": (
        "[defaults]\nseed = 1\n[matrix]\nprompt = { file = 'none.txt' }\n",
        "matrix.prompt.file: must be a file in the workspace",
    ),
    "bad TOML": ("[defaults\n", "must be valid TOML"),
    "wrong schema_version": ("schema_version = 7\n", "schema_version"),
    "model set missing": (
        "model_set = 'none'\n[defaults]\nprompt = 'a'\nseed = 1\n",
        "model_set: must be one of picture-book",
    ),
    "spectrum with another sampler": (
        "[defaults]\nprompt = 'a'\nseed = 1\nsampler = 'ab2'\npolicy = 'spectrum'\n",
        "goes with sampler euler only, got ab2: change it, or add: [[exclude]]",
    ),
    "a policy that saves nothing": (
        "[defaults]\nprompt = 'a'\nseed = 1\nsteps = 4\npolicy = 'spectrum'\n",
        "equals `full`: warmup_steps 4 must be below steps 4",
    ),
}


@pytest.mark.parametrize("name", BAD_JOBS)
def test_a_bad_job_gives_file_and_key_and_exit_code_2(name, workspace):
    text, expected = BAD_JOBS[name]
    job = workspace.write_job(text)
    for command in ("plan", "run", "status"):
        ended = workspace.run(command, job, check=2)
        assert ended.stdout == ""
        assert f"error: {job}: " in ended.stderr
        assert expected in ended.stderr
    assert not (workspace.folder / "outputs").exists()


def test_all_problems_of_a_file_are_listed_at_once(workspace):
    job = workspace.write_job("model_set = 'none'\n[defaults]\nsteps = 0\nsampler = 'eular'\n[matrix]\nseed = [-1]\n")
    lines = workspace.run("plan", job, check=2).stderr.splitlines()
    for key in ("model_set:", "defaults.steps:", "defaults.sampler:", "matrix.seed[0]:", "matrix.prompt:"):
        assert sum(f"{job}: {key}" in line for line in lines) == 1
    assert len(lines) == 5


def test_an_exclude_that_matches_nothing_is_a_warning(workspace):
    job = workspace.write_job("[defaults]\nprompt = 'a'\n[matrix]\nseed = [1]\n[[exclude]]\nseed = 2\n")
    ended = workspace.run("plan", job)
    assert f"warning: {job}: exclude[0]: matches no combination" in ended.stderr


def test_a_missing_job_file_is_a_mistake(workspace):
    assert "error: jobs/none.toml: " in workspace.run("run", "jobs/none.toml", check=2).stderr


def test_more_than_fifty_steps_under_spectrum_is_a_warning(workspace):
    job = workspace.write_job("[defaults]\nprompt = 'a'\nseed = 1\nsteps = 60\npolicy = 'spectrum'\n")
    assert "forecasts past it extrapolate" in workspace.run("plan", job).stderr


def test_a_matrix_of_13_to_the_8_is_refused_with_its_count(workspace):
    texts = ", ".join(f"'{letter}'" for letter in "abcdefghijklm")
    numbers = ", ".join(f"{number}.0" for number in range(1, 14))
    widths = ", ".join(str(16 * number) for number in range(1, 14))
    names = ", ".join(f"'p{degree}'" for degree in range(13))
    policies = "".join(f"[policy.p{degree}]\nkind = 'spectrum'\ndegree = {degree}\n" for degree in range(13))
    job = workspace.write_job(
        f"[matrix]\nprompt = [{texts}]\nnegative_prompt = [{texts}]\nseed = ['1..13']\nsteps = ['8..20']\n"
        f"guidance_scale = [{numbers}]\nshift = [{numbers}]\nwidth = [{widths}]\npolicy = [{names}]\n{policies}"
    )
    refused = workspace.run("plan", job, check=2)
    assert f"{13**8}" in refused.stderr
    assert "max_images" in refused.stderr


def test_a_plan_of_100000_images_stays_within_300_megabytes(workspace):
    seeds = "max_images = 100000\n[defaults]\nsteps = 8\n[matrix]\nprompt = ['a', 'b']\nseed = ['1..25000']\n"
    job = workspace.write_job(f"{seeds}guidance_scale = [3.0, 4.0]\n")
    script = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
    script += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    measured = subprocess.run(
        [sys.executable, "-c", script, *COMMAND, "plan", job],
        cwd=workspace.folder, env=ENVIRONMENT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert int(measured.stdout) < 300_000  # KiB
    assert workspace.run("plan", job).stdout.splitlines()[-1].startswith("100000 images: 100000 to make")


def test_a_plan_writes_nothing(workspace):
    job = workspace.write_job("[defaults]\nprompt = 'a'\nseed = 1\n")
    workspace.run("plan", job)
    assert [path.name for path in workspace.folder.iterdir()] == ["jobs"]


def test_a_plan_counts_passes_and_disk(workspace):
    job = workspace.write_job("[defaults]\nprompt = 'a'\nseed = 1\n[matrix]\npolicy = ['full', 'spectrum']\n")
    plan = workspace.json("plan", job)
    assert [image["passes"] for image in plan["images"]] == [40, 22]
    assert plan["passes"] == 62
    assert plan["estimated_seconds"] is None
    assert plan["disk_bytes"] > 0


def test_after_a_finished_image_a_plan_knows_how_long_the_rest_takes(workspace):
    text = "[defaults]\nprompt = 'a'\nsteps = 4\n[matrix]\nseed = [1, 2]\n"
    job = workspace.write_job(text)
    workspace.run("run", job, "--limit", "1")
    assert workspace.json("plan", job)["estimated_seconds"] > 0


def test_the_workspace_can_be_named(workspace, tmp_path):
    job = workspace.write_job("[defaults]\nprompt = 'a'\nseed = 1\nsteps = 1\n")
    ended = subprocess.run(
        [*COMMAND, "run", job, "--workspace", str(workspace.folder)],
        cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert len(workspace.pictures()) == 1


@pytest.mark.parametrize("words", ["", "run", "models", "bench checkpoint"])
def test_every_command_has_help(words, workspace):
    assert "Usage:" in workspace.run(*words.split(), "--help").stdout


def test_help_loads_nothing_heavy():
    heavy = "'numpy', 'pydantic', 'onnxruntime', 'rich'"
    script = f"import sys; from anima_batch import cli; print([m for m in ({heavy}) if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert loaded.stdout == "[]\n"


def test_an_unknown_option_is_a_usage_mistake(workspace):
    assert workspace.run("run", "--nonsense", check=2).stdout == ""


def test_the_rknn_backend_is_refused_where_its_runtime_is_missing(workspace):
    job = workspace.write_job("[defaults]\nprompt = 'a'\nseed = 1\nsteps = 1\n")
    assert "rknn-toolkit-lite2 is not installed" in workspace.run("run", job, "--backend", "rknn", check=4).stderr


def test_model_sets_are_listed_shown_and_verified(workspace):
    (entry,) = workspace.json("models", "list")
    assert entry["name"] == "picture-book"
    assert workspace.json("models", "show", "picture-book")["digest"] == entry["digest"]
    assert workspace.json("models", "verify", "picture-book")["ok"]
    assert "picture-book" in workspace.run("models", "list").stdout
    assert "transformer.00.self_attn" in workspace.run("models", "show", "picture-book").stdout
    assert "ok, digest" in workspace.run("models", "verify", "picture-book").stdout


def test_bench_checkpoint_measures_each_kind_of_history(workspace):
    costs = workspace.json("bench", "checkpoint", "--width", "128", "--height", "128", "--steps", "6")
    assert [cost["policy"] for cost in costs] == ["full", "spectrum, denoised history", "spectrum, feature history"]
    assert all(cost["save_ms_median"] > 0 for cost in costs)
    assert "save ms" in workspace.run("bench", "checkpoint", "--width", "128", "--height", "128", "--steps", "6").stdout


def test_a_broken_model_set_hides_none_of_the_others(workspace):
    broken = workspace.folder / "models/broken/model_set.json"
    broken.parent.mkdir(parents=True)
    broken.write_text("{")
    ended = workspace.run("models", "list", check=4)
    assert "picture-book" in ended.stdout
    assert "error: models/broken/model_set.json: " in ended.stderr
