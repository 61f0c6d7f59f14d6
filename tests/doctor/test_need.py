"""What a job asks of a machine, from real job files and model sets."""

import shutil
import time

import pytest

from anima_batch.doctor.need import need_of_job, need_of_workspace
from anima_batch.errors import JobError
from anima_batch.model_set import built_in_folder, describe_component, load_model_set, write_description

TEXT = "{}[defaults]\nprompt = 'a'\nsteps = 4\n[matrix]\nseed = [1, 2, 3]\n"


@pytest.fixture
def make_set(workspace):
    """Makes `models/board`: the built-in set with small files for .rknn graphs, beside or instead of its own."""

    def make(*built_with, only_npu=False):
        folder = workspace.folder / "models" / "board"
        shutil.copytree(built_in_folder() / "picture-book", folder)
        description = load_model_set(folder).description
        parts = description.components
        graphs = [part for part in parts if part.role.startswith("transformer.") and part.key[1] == ".onnx"]
        made = []
        for number, part in enumerate(graphs):
            path = part.path.replace(".onnx", ".rknn")
            (folder / path).write_bytes(f"graph {number}".encode())
            made.append(describe_component(folder, part.role, path, built_with[number % len(built_with)]))
        kept = [part for part in parts if not (only_npu and part in graphs)]
        write_description(folder, description.model_copy(update={"components": (*kept, *made)}))
        return 'model_set = "board"\n'

    return make


def need(workspace, text, *, lite2=True):
    job = workspace.write_job(TEXT.format(text))
    return need_of_job(workspace.folder / job, workspace.folder, lite2=lite2)


def test_a_job_for_the_cpu_asks_for_room_alone(workspace):
    found = need(workspace, "")
    assert (found.npu, found.severity, found.graphs, found.images) == ("unused", "ok", 0, 3)
    assert found.disk_bytes == workspace.json("plan", "jobs/job.toml")["disk_bytes"]
    assert found.outputs == str(workspace.folder / "outputs/job")


def test_the_graphs_name_their_toolkits_and_chips(workspace, make_set):
    text = make_set({"rknn_toolkit2": "2.3.2", "target_platform": "rk3588"}, {"toolkit": "2.3.0", "target": "rk3588"})
    found = need(workspace, text)
    assert found.graphs == 18
    assert found.toolkits == ("2.3.2", "2.3.0")
    assert found.targets == ("rk3588",)


@pytest.mark.parametrize(
    ("backend", "only_npu", "lite2", "npu"),
    [
        ("auto", False, True, "required"),  # it is taken where it can be
        ("auto", False, False, "wanted"),  # the CPU steps in
        ("auto", True, False, "required"),
        ("rknn", False, False, "required"),
        ("onnx", False, True, "unused"),
    ],
)
def test_the_npu_is_as_needed_as_the_run_will_need_it(backend, only_npu, lite2, npu, workspace, make_set):
    text = make_set({"toolkit": "2.3.2"}, only_npu=only_npu) + f'backend = "{backend}"\n'
    assert need(workspace, text, lite2=lite2).npu == npu


def test_what_a_begun_image_holds_counts_as_room(workspace):
    job = workspace.write_job("[defaults]\nprompt = 'a'\nseed = 1\nsteps = 200\n")
    process = workspace.start("run", job)
    checkpoints = workspace.folder / "outputs/job/.checkpoints"
    while not list(checkpoints.glob("*/ckpt.1")):
        assert process.poll() is None
        time.sleep(0.01)
    process.terminate()
    process.communicate()
    found = need_of_job(workspace.folder / job, workspace.folder, lite2=False)
    (folder,) = checkpoints.iterdir()
    assert found.held_bytes == sum(path.stat().st_size for path in folder.iterdir()) > 0


def test_a_bad_job_is_the_jobs_fault(workspace):
    job = workspace.write_job("[defaults]\nsteps = 0\n")
    with pytest.raises(JobError):
        need_of_job(workspace.folder / job, workspace.folder, lite2=False)


def test_a_workspace_alone_asks_for_nothing(tmp_path):
    found = need_of_workspace(tmp_path)
    assert (found.npu, found.images, found.disk_bytes) == (None, None, None)
    assert found.outputs == str(tmp_path / "outputs")
