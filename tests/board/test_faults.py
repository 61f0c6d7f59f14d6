"""A runtime that fails in the middle of a job, with the real rknn-toolkit-lite2 wheel, under emulation."""

import pytest

QUICK = """
model_set = "board-book"
[defaults]
steps = {steps}
guidance_scale = 1.0
[matrix]
prompt = ["a red house"]
seed = {seeds}
"""


@pytest.mark.parametrize(
    ("name", "stub", "kind", "message"),
    [
        ("code", {"fault": "run=-3", "say": "E RKNN: failed to submit!"}, "backend", "rknn_run failed with code -3"),
        ("nan", {"output": "nan"}, "non_finite", "1 of the 12288 values of out are NaN or infinite"),
    ],
)
def test_an_image_whose_faults_stay_is_given_up_and_the_batch_goes_on(name, stub, kind, message, board):
    """The canary's three runs go well in each process; the fault strikes in both tries of the first image."""
    job = board.write_job(QUICK.format(steps=1, seeds="[1, 2]"), name)
    ended = board.run_job(job, **stub, skip=3, times=2, ledger=board.folder / f"ledger-{name}")
    assert ended.returncode == 1, ended.stderr
    found = board.manifests_by_seed(name)
    assert found[1]["status"] == "failed"
    assert found[1]["error"]["kind"] == kind
    assert message in found[1]["error"]["message"]
    assert found[2]["status"] == "done"


@pytest.mark.parametrize(
    ("name", "stub", "message"),
    [
        (
            "crash",
            {"crash": "run", "say": "E RKNN: last words"},
            "SIGSEGV, a fault in the runtime or its driver",
        ),
        ("init", {"fault": "inputs_set=-8"}, "inference refused its inputs"),
    ],
)
def test_an_image_whose_fault_passes_is_made_and_its_manifest_tells(name, stub, message, board):
    job = board.write_job(QUICK.format(steps=1, seeds="[1]"), name)
    ended = board.run_job(job, **stub, skip=3, times=1, ledger=board.folder / f"ledger-{name}")
    assert ended.returncode == 0, ended.stderr
    assert any(message in warning for warning in board.manifests_by_seed(name)[1]["warnings"])


def test_a_run_that_hangs_is_ended_at_its_deadline_and_done_again(board):
    """The second step hangs; the first one's time tells what it may take."""
    text = QUICK.format(steps=2, seeds="[1]").replace("[defaults]", "[run]\ndeadline_seconds = 5.0\n[defaults]")
    ended = board.run_job(
        board.write_job(text, "hang"), delay="run=5000", skip=25, times=1, ledger=board.folder / "ledger-hang"
    )
    assert ended.returncode == 0, ended.stderr
    assert any("gave no answer to step" in warning for warning in board.manifests_by_seed("hang")[1]["warnings"])


def test_without_a_device_no_image_is_tried_and_the_line_says_why(board):
    ended = board.run_job(board.write_job(QUICK.format(steps=1, seeds="[1]"), "device"), socket="/nowhere")
    assert ended.returncode == 4
    assert "failed to open rknpu module" in ended.stderr.splitlines()[-1]
    assert board.manifests_by_seed("device") == {}
