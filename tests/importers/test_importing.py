"""Prompt files in the styles that people have, each with the job that comes of it or the errors it deserves."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Workspace
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin
from sample_manifest import done

from anima_batch.batch import open_batch
from anima_batch.errors import JobError
from anima_batch.importers import import_files
from anima_batch.importers.importing import FILE_BYTES
from anima_batch.job import ImageRequest, SpectrumPolicy, expand_job, load_job, request_id
from anima_batch.model_set import find_model_set
from anima_batch.store import PngInfo, encode_png, to_bytes

FILES = Path(__file__).parent / "files"
JOBS = {
    "sd-scripts.txt": "sd-scripts",
    "anima.txt": "anima",
    "a1111.txt": "a1111",
    "infotext.txt": "infotext",
    "sdcpp.txt": "sdcpp",
    "comfyui.json": "comfyui",
    "invokeai-batch.json": "invokeai",
}
SIZES = [(128, 128), (192, 128), (128, 192), (512, 512), (512, 768)]
OWL = (FILES / "a1111.txt").read_text().splitlines()[-1][:60]
SD_SCRIPTS = "--n, --w, --h, --d, --s, --l, --fs, --ss"
A1111 = (
    "--prompt, --negative_prompt, --seed, --steps, --cfg_scale, --width, --height, --sampler_name, --batch_size, "
    "--n_iter"
)
ERRORS = {
    ("sd-scripts-dashes.txt", "sd-scripts"): [
        "line 1: after ' --' must be an option of sd-scripts, got ' straight, to the horizon': take the dashes out",
        "line 3: after ' --' must be an option of sd-scripts, got '- dashed': take the dashes out",
        "line 4: must begin with the prompt, got '--prompt \"a boat\" --seed 4': see --dialect a1111 for --prompt",
    ],
    ("sd-scripts-wrong.txt", "sd-scripts"): [
        f"line 1: --cfg_scale is an option of a1111, not of sd-scripts, which has {SD_SCRIPTS}",
        f"line 2: --steps is an option of a1111, not of sd-scripts, which has {SD_SCRIPTS}",
        "line 3: --w: must be an integer, got 'wide'",
        "line 4: --d: must be an integer, got '1.5'",
        "line 7: --l: must be a number, got 'much'",
        "line 5: steps: must be 1-200, got 0",
        "line 6: width: must be a multiple of 16, 16-8192, got 500",
    ],
    ("a1111-broken.txt", "a1111"): [
        "line 1: must be options as a shell reads them, got: no closing quotation",
        "line 2: must be options such as --prompt \"...\", got 'a': quote what belongs together",
        "line 3: --seed: its value is missing",
        "line 4: must have --prompt",
        f"line 5: --w is an option of sd-scripts and anima, not of a1111, which has {A1111}",
        "line 6: --seed: must be an integer, got 'seven'",
        "line 7: width: must be a multiple of 16, 16-8192, got 0",
    ],
    ("infotext-broken.txt", "infotext"): ["line 2: Size: must be such as 512x768, got '512'"],
    ("comfyui-img2img.json", "comfyui"): [
        "node 1 (KSampler): denoise must be 1, got 0.6: it starts from a picture",
    ],
    ("a1111.txt", "infotext"): [
        f"line 5: the last line must begin with 'Steps: ', got {OWL!r}",
    ],
    ("comfyui.json", "invokeai"): ["must be a batch with data and graph, or metadata with positive_prompt"],
    ("invokeai-batch.json", "comfyui"): ["must be API JSON: an object of nodes with class_type and inputs"],
}


def import_text(tmp_path: Path, text: str, dialect: str, name: str = "prompts.txt") -> list[ImageRequest]:
    """The requests of the images of a job that is imported and read again."""
    (tmp_path / name).write_text(text, encoding="utf-8")
    return expand([tmp_path / name], dialect, tmp_path)


def expand(paths: list[Path], dialect: str, workspace: Path) -> list[ImageRequest]:
    imported = import_files(paths, dialect, workspace)
    job = workspace / "job.toml"
    job.write_text(imported.text, encoding="utf-8")
    images = expand_job(load_job(job, workspace), SIZES, draw=iter(range(10**6, 10**7)).__next__).images
    assert len(images) == imported.images
    return [image.request for image in images]


def write_png(path: Path, texts: dict[str, str]) -> Path:
    """A PNG with these texts and an alpha channel, as other programs' may have."""
    info = PngImagePlugin.PngInfo()
    for keyword, text in texts.items():
        info.add_itxt(keyword, text)
    Image.fromarray(np.zeros((4, 4, 4), np.uint8)).save(path, pnginfo=info)
    return path


@pytest.mark.parametrize("name", JOBS)
def test_a_file_becomes_the_expected_job(name: str, tmp_path: Path):
    """The job as it was written down, and it is one: the loader takes it and expands it."""
    imported = import_files([FILES / name], JOBS[name], tmp_path)
    assert imported.text == (FILES / name).with_suffix(".toml").read_text(encoding="utf-8")
    assert len(expand([FILES / name], JOBS[name], tmp_path)) == imported.images


@pytest.mark.parametrize(("name", "dialect"), ERRORS, ids=lambda value: value)
def test_a_file_that_cannot_be_taken_has_each_error_with_its_place(name: str, dialect: str, tmp_path: Path):
    with pytest.raises(JobError) as caught:
        import_files([FILES / name], dialect, tmp_path)
    separator = " " if name.endswith(".txt") else ": "
    assert list(caught.value.problems) == [f"{name}{separator}{problem}" for problem in ERRORS[name, dialect]]
    assert caught.value.exit_code == 2


def test_several_files_are_one_job_and_all_their_errors_are_told_at_once(tmp_path: Path):
    requests = expand([FILES / "anima.txt", FILES / "anima.txt"], "anima", tmp_path)
    assert [request.seed for request in requests] == [7, 10**6, 9, 10**6 + 1]  # a drawn one is drawn for each
    with pytest.raises(JobError) as caught:
        import_files([FILES / "sd-scripts-dashes.txt", tmp_path / "missing.txt"], "sd-scripts", tmp_path)
    assert len(caught.value.problems) == 4
    assert caught.value.problems[-1].endswith("missing.txt: cannot be read: No such file or directory")


@pytest.mark.parametrize(
    ("dialect", "chunk", "source"),
    [
        ("infotext", "parameters", "infotext.txt"),
        ("sdcpp", "parameters", "sdcpp.txt"),
        ("comfyui", "prompt", "comfyui.json"),
    ],
)
def test_a_picture_holds_the_same_as_a_file(dialect: str, chunk: str, source: str, tmp_path: Path):
    text = (FILES / source).read_text(encoding="utf-8").rstrip("\n")
    picture = write_png(tmp_path / "dropped.png", {chunk: text, "workflow": "{}"})
    assert expand([picture], dialect, tmp_path) == expand([FILES / source], dialect, tmp_path)


def test_a_picture_of_invokeai(tmp_path: Path):
    metadata = {
        "generation_mode": "txt2img", "positive_prompt": "a fox", "negative_prompt": None, "seed": 3, "steps": 12,
        "cfg_scale": 4.5, "width": 512, "height": 512, "scheduler": "dpmpp_2m_k", "model": {"name": "Anima"},
    }  # fmt: skip
    picture = write_png(tmp_path / "a.png", {"invokeai_metadata": json.dumps(metadata)})
    assert import_files([picture], "invokeai", tmp_path).ignored == (
        "a.png: scheduler: dpmpp_2m_k ignored: not a sampler here, the default is taken",
        "a.png: model: Anima ignored",
    )
    (request,) = expand([picture], "invokeai", tmp_path)
    assert (request.prompt, request.seed, request.steps, request.guidance_scale) == ("a fox", 3, 12, 4.5)
    metadata["generation_mode"] = "img2img"
    with pytest.raises(JobError, match="generation_mode must be txt2img, got 'img2img'"):
        import_files([write_png(picture, {"invokeai_metadata": json.dumps(metadata)})], "invokeai", tmp_path)


def test_a_picture_without_the_dialects_chunk_says_what_it_has(tmp_path: Path):
    picture = write_png(tmp_path / "a.png", {"parameters": "p\nSteps: 20"})
    with pytest.raises(JobError, match=r"must be a picture with a prompt chunk for comfyui, got one with parameters"):
        import_files([picture], "comfyui", tmp_path)
    with pytest.raises(JobError, match=r"must be a text file for anima, got one with parameters"):
        import_files([picture], "anima", tmp_path)


def test_our_own_picture_is_never_taken_for_one_of_comfyui(tmp_path: Path):
    """It has neither of ComfyUI's chunks, and as an infotext it says what it is."""
    (tmp_path / "own.png").write_bytes(encode_own(ImageRequest(prompt="p", seed=1, width=128, height=128), "a" * 64))
    with pytest.raises(JobError, match=r"got one with parameters, anima_batch, XML:com\.adobe\.xmp"):
        import_files([tmp_path / "own.png"], "comfyui", tmp_path)
    (request,) = expand([tmp_path / "own.png"], "infotext", tmp_path)
    assert request == ImageRequest(prompt="p", seed=1, width=128, height=128)


def encode_own(request: ImageRequest, digest: str) -> bytes:
    info = PngInfo(
        request_id=request_id(request, digest),
        request=request,
        policy_name="gentle",
        model_set_name="anima",
        model_set_digest=digest,
        source_sha256=None,
        manifest="manifests/a/b.json",
        version="0",
    )
    return encode_png(np.zeros((16, 16, 3), np.uint8), info)


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


@settings(max_examples=60, deadline=None)
@given(
    prompt=TEXTS,
    negative=TEXTS,
    seed=st.integers(0, 2**64 - 1),
    scale=st.floats(0, 100),
    policy=st.builds(SpectrumPolicy, blend=st.floats(0, 1), tail_steps=st.none() | st.integers(1, 3)),
)
def test_our_own_picture_comes_back_with_its_request_id(tmp_path_factory, prompt, negative, seed, scale, policy):
    """Any request, through the PNG and the job file, opened as `run` opens it."""
    workspace = tmp_path_factory.mktemp("own")
    digest = find_model_set("picture-book", workspace).digest
    request = ImageRequest(
        prompt=prompt, negative_prompt=negative, seed=seed, width=192, height=128, guidance_scale=scale, policy=policy
    )
    (workspace / "own.png").write_bytes(encode_own(request, digest))
    (workspace / "job.toml").write_text(
        import_files([workspace / "own.png"], "anima-batch", workspace).text, encoding="utf-8"
    )
    batch = open_batch(workspace / "job.toml", workspace, draw=True)
    assert batch.request_ids == (request_id(request, digest),)


def test_pictures_and_manifests_of_one_set_make_a_job_with_their_policies(tmp_path: Path):
    request = ImageRequest(prompt="p", seed=1, width=128, height=192, policy=SpectrumPolicy(blend=0.25))
    (tmp_path / "a.png").write_bytes(encode_own(request, done().model_set.digest))
    (tmp_path / "b.json").write_bytes(to_bytes(done()))
    imported = import_files([tmp_path / "a.png", tmp_path / "b.json"], "anima-batch", tmp_path, "picture-book")
    assert [
        request.policy for request in expand([tmp_path / "a.png", tmp_path / "b.json"], "anima-batch", tmp_path)
    ] == [
        SpectrumPolicy(blend=0.25),
        SpectrumPolicy(),
    ]
    assert "[policy.spectrum-1]" in imported.text


def test_comfyuis_mistakes_are_named_by_node(tmp_path: Path):
    graph = json.loads((FILES / "comfyui.json").read_text())
    for change, fault in (
        (
            {"3": {"class_type": "KSamplerAdvanced", "inputs": {}}},
            "must have one KSampler and no other sampler, got node 3",
        ),
        ({"5": {"class_type": "VAEEncode", "inputs": {}}}, "latent_image must come from EmptyLatentImage, got node 5"),
        ({"6": {"class_type": "ControlNetApply", "inputs": {}}}, "positive must come from CLIPTextEncode, got Control"),
        ({"12": {"class_type": "A", "inputs": {"model": ["12", 0]}}}, "its model leads back to itself"),
        ({"21": {"class_type": "A", "inputs": {"a": "1", "b": "2"}}}, "text must be a value, got a link to node 21"),
    ):
        with pytest.raises(JobError, match=fault):
            import_text(tmp_path, json.dumps(graph | change), "comfyui")
    with pytest.raises(JobError, match=r"workflow of the editor: save it with Workflow > Export \(API\)"):
        import_text(tmp_path, '{"nodes": [], "links": []}', "comfyui")
    with pytest.raises(JobError, match="must be JSON, got: Expecting value: line 1 column 1"):
        import_text(tmp_path, "a cat", "comfyui")


def test_a_batch_of_invokeai_must_hold_together(tmp_path: Path):
    content = json.loads((FILES / "invokeai-batch.json").read_text())
    for change, fault in (
        ({"items": ["one"]}, r"data\[0\]: its entries must be equally long, got prompt|data\[0\]: its entries"),
        ({"field_name": "colour"}, r"data\[0\]\[1\]: must set one of positive_prompt, .*, got colour of node"),
        ({"items": []}, r"data\[0\]\[1\]\.items: must be a list with values, got \[\]"),
    ):
        batch = json.loads(json.dumps(content))
        batch["batch"]["data"][0][1].update(change)
        with pytest.raises(JobError, match=fault):
            import_text(tmp_path, json.dumps(batch), "invokeai")


@pytest.mark.parametrize("dialect", ["anima", "sd-scripts", "a1111", "infotext", "comfyui", "invokeai", "sdcpp"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_file_is_taken_or_refused_with_its_place(tmp_path_factory, dialect, data):
    """What is taken is a job that loads; what is not has a line for each problem."""
    words = [
        "a cat",
        " --",
        "--w ",
        "--prompt ",
        '"',
        "512",
        "\n",
        "Steps: ",
        "20",
        ", ",
        ": ",
        "{",
        "}",
        "#",
        "\\",
        "-1",
    ]
    graphs = ['{"1": {"class_type": "KSampler", "inputs": {}}}', '{"batch": {"data": [], "graph": {"nodes": {}}}}']
    pieces = st.sampled_from([*words, *graphs])
    text = data.draw(st.lists(pieces | st.text(max_size=3), max_size=12).map("".join))
    folder = tmp_path_factory.mktemp("any")
    (folder / "any.txt").write_bytes(text.encode("utf-8", "replace"))
    problems: tuple[str, ...] = ()
    try:
        expand([folder / "any.txt"], dialect, folder)
    except JobError as error:
        problems = error.problems
    assert all(problem.startswith("any.txt") or "at least one image" in problem for problem in problems), problems


def replace_somewhere(value: Any, draw: st.DrawFn) -> Any:
    """The JSON value with another one in the place of some part of it."""
    if not isinstance(value, dict | list) or not value or draw(st.integers(0, 5)) == 0:
        return draw(WRONG)
    key = draw(st.sampled_from(list(value) if isinstance(value, dict) else range(len(value))))
    changed = value.copy()
    if draw(st.booleans()) or isinstance(value[key], dict | list):
        changed[key] = replace_somewhere(value[key], draw)
    else:
        del changed[key]
    return changed


WRONG = st.sampled_from(
    [None, True, -1, 0, 10**400, 1e300, "", "\ud800", "a\0b", "{||", [], [[]], ["3", 0], {}, {"a": []}]
)


@pytest.mark.parametrize(("name", "dialect"), [("comfyui.json", "comfyui"), ("invokeai-batch.json", "invokeai")])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_change_of_a_graph_is_taken_or_refused_with_its_place(tmp_path_factory, name, dialect, data):
    content = replace_somewhere(json.loads((FILES / name).read_text()), data.draw)
    folder = tmp_path_factory.mktemp("any")
    (folder / "any.txt").write_text(json.dumps(content))
    problems: tuple[str, ...] = ()
    try:
        import_files([folder / "any.txt"], dialect, folder)
    except JobError as error:
        problems = error.problems
    assert all(problem.startswith("any.txt") or "at least one image" in problem for problem in problems), problems


def test_far_too_much_is_refused_before_it_is_made(tmp_path: Path):
    batch = json.loads((FILES / "invokeai-batch.json").read_text())
    axis = batch["batch"]["data"][1][0]
    batch["batch"]["data"] = [[{**axis, "items": list(range(1000))}] for _ in range(4)]
    for text, dialect, fault in (
        (json.dumps(batch), "invokeai", "must be at most 100000 images, got 1000000000000"),
        ("--prompt a --seed 1 --n_iter 100001", "a1111", "must be at most 100000 images in all"),
        (f"--prompt a --seed {2**64 - 1} --n_iter 2", "a1111", "seed: the last of 2 must be at most"),
        (f"{'a' * 300_001}", "anima", "must have at most 300000 characters, got 300001"),
    ):
        with pytest.raises(JobError, match=fault):
            import_text(tmp_path, text, dialect)


def test_the_command_writes_a_job_that_can_be_planned_and_never_overwrites(workspace: Workspace):
    (workspace.folder / "prompts.txt").write_text("a cat --w 128 --h 128 --s 2 --am 1\na dog --w 128 --h 128 --s 2\n")
    command = ("import", "prompts.txt", "--dialect", "sd-scripts")
    ended = workspace.run(*command, "--out", "jobs/cats.toml")
    assert ended.stdout == "jobs/cats.toml: 2 images; see `anima-batch plan jobs/cats.toml`\n"
    assert ended.stderr == "warning: prompts.txt line 1: --am 1 ignored: no meaning here\n"
    plan = workspace.json("plan", "jobs/cats.toml")
    assert plan["waiting"] == 2
    told = workspace.run(*command, "--out", "jobs/cats.toml", check=2).stderr
    assert "must be a file that does not exist yet, got jobs/cats.toml: it is never overwritten" in told
    assert workspace.run(*command).stdout == (workspace.folder / "jobs/cats.toml").read_text()
    assert "--dialect" in workspace.run("import", "prompts.txt", check=2).stderr  # never guessed


def test_a_file_far_too_large_or_not_utf8_is_refused(tmp_path: Path):
    with (tmp_path / "huge.txt").open("wb") as file:
        file.truncate(FILE_BYTES + 1)
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    with pytest.raises(JobError, match="cannot be read: larger than"):
        import_files([tmp_path / "huge.txt"], "anima", tmp_path)
    with pytest.raises(JobError, match="must be UTF-8, got byte 0xe9 at 3"):
        import_files([tmp_path / "latin.txt"], "anima", tmp_path)
    stream = io.BytesIO(b"\x89PNG broken")
    (tmp_path / "broken.png").write_bytes(stream.getvalue())
    with pytest.raises(JobError, match="is not a whole PNG"):
        import_files([tmp_path / "broken.png"], "infotext", tmp_path)
