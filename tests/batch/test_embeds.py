"""Which prompts are encoded already, by the files of an earlier run."""

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from anima_batch.batch import EmbedsFolder
from anima_batch.environment import read_environment
from anima_batch.files import canonical_json, sha256_bytes
from anima_batch.model_set import find_model_set

JOB = """
[defaults]
seed = 1
[matrix]
prompt = [{prompts}]
"""


@pytest.fixture(scope="module")
def model_set(tmp_path_factory):
    return find_model_set("picture-book", tmp_path_factory.mktemp("workspace"))


@given(prompt=st.text())
def test_a_files_name_is_the_digest_of_all_that_its_embeddings_depend_on(model_set, tmp_path_factory, prompt):
    folder, environment = tmp_path_factory.getbasetemp(), read_environment({"onnxruntime": "1.2.3"}, None)
    path = EmbedsFolder(folder, model_set, environment).path(prompt)
    runtime = {key: environment[key] for key in ("anima_batch", "numpy", "onnxruntime", "machine")}
    content = {
        "prompt": prompt,
        "runtime": {**runtime, "tokenizers": tokenizers.__version__},
        "text": model_set.description.text.model_dump(),
        "components": model_set.part_digest("qwen.", "t5.", "adapter."),
    }
    assert path == folder / f"{sha256_bytes(canonical_json(content).encode())}.embeds"


def test_prompts_of_a_run_are_kept_for_the_same_versions_only(workspace, model_set):
    job = JOB.format(prompts='"an owl", "a \\"boat\\" \u00e4"')
    workspace.run("run", workspace.write_job(job + "steps = [1]\n"))
    folder, asked = workspace.folder / "outputs/.conditioning", ["an owl", 'a "boat" \u00e4', "", "a fish"]
    environment = read_environment({}, None)
    assert EmbedsFolder(folder, model_set, environment).find_kept(asked) == set(asked[:3])
    other = EmbedsFolder(folder, model_set, {**environment, "onnxruntime": "0.1"})
    assert other.find_kept(asked) == set()
    assert EmbedsFolder(folder / "missing", model_set, environment).find_kept(asked) == set()


def test_the_first_image_of_a_new_prompt_is_planned_with_what_encoding_took_and_no_other(workspace):
    job = workspace.write_job(JOB.format(prompts='"an owl", "a boat"') + "steps = [2, 3, 4]\n")
    workspace.run("run", job, "--limit", "2")
    encoding, none = (manifest["timings"]["encode"] for manifest in in_order(workspace))
    assert encoding > 0
    assert none == 0
    *_, owl, boat_2, boat_3, boat_4 = [image["estimated_seconds"] for image in workspace.json("plan", job)["images"]]
    assert boat_4 == owl
    assert boat_2 == pytest.approx(boat_3 - (boat_4 - boat_3) + encoding)


def in_order(workspace):
    """The job's manifests by their steps."""
    return sorted(workspace.manifests().values(), key=lambda manifest: len(manifest["steps"]))
