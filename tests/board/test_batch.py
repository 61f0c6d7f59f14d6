"""`anima-batch run --backend rknn` with the real rknn-toolkit-lite2 wheel, under emulation."""

import json

import numpy as np
import pytest
from command import Workspace
from PIL import Image

from board.graph_file import compiler_of

JOB = 'model_set = "board-book"\n[defaults]\nsteps = {steps}\n[matrix]\nprompt = ["a red house"]\nseed = {seeds}\n'
QUICK = JOB.replace("[matrix]", "guidance_scale = 1.0\n[matrix]")


@pytest.fixture(scope="module")
def picture(board):
    """A picture of three steps, made through lite2."""
    ended = board.run_job(board.write_job(JOB.format(steps=3, seeds="[1]"), "picture"))
    assert ended.returncode == 0, ended.stderr
    (path,) = board.pictures("picture")
    return path.relative_to(board.folder)


def test_a_picture_made_through_lite2_is_the_one_that_onnx_runtime_makes(board, picture, tmp_path):
    """Tolerance: each of the 18 cores' inputs and outputs are rounded to float16 (relative 2^-11), the text encoder and
    the decoder compute in float32 on another processor. Over three steps that is far below a level of 255 in the mean.
    """
    host = Workspace(tmp_path / "host")
    host.run("run", host.write_job(JOB.format(steps=3, seeds="[1]").replace("board-book", "picture-book"), "picture"))
    made, reference = (
        np.asarray(Image.open(path), np.float64) for path in (board.folder / picture, *host.pictures("picture"))
    )
    psnr = 10 * np.log10(255**2 / np.mean((made - reference) ** 2))
    assert psnr > 50, psnr


def test_the_audit_of_an_npu_picture_names_toolkit_compiler_runtime_driver_and_core_mask(board, picture):
    """And finds every digest right, on the board itself."""
    audited = board.emulate("-m", "anima_batch", "audit", str(picture), "--json")
    assert audited.returncode == 0, audited.stdout + audited.stderr
    (entry,) = json.loads(audited.stdout)
    compiled = {"rknn_toolkit2": ["2.3.2"], "rknn_compiler": [compiler_of("2.3.2")], "target_platform": ["rk3588"]}
    assert compiled.items() <= entry["built_with"]["rknn"].items()
    expected = {
        "rknn_toolkit_lite2": "2.3.2",
        "librknnrt": "2.3.2",
        "rknpu_driver": "0.9.8",
        "soc": "rk3588s",
        "core_mask": "0",
        "machine": "aarch64",
    }
    assert expected.items() <= entry["environment"].items()
    assert len(entry["environment"]["npu_canary"]) == 32


def test_opened_ahead_on_two_cores_with_the_streams_in_turn_the_picture_has_the_same_bits(board):
    """Three threads call lite2 at once: one opens and releases contexts, one runs attention, one mlp."""
    digests = set()
    for name, options in {
        "plain": ("--staging", "on-demand", "--no-interleave"),
        "turns": ("--staging", "ahead", "--interleave", "--core-mask", "0+1", "--min-available-mib", "0"),
    }.items():
        ended = board.run_job(board.write_job(JOB.format(steps=2, seeds="[1]"), name), *options)
        assert ended.returncode == 0, ended.stderr
        (manifest,) = board.manifests_by_seed(name).values()
        digests.add(manifest["latents"]["sha256"])
    assert manifest["environment"]["core_mask"] == "0+1"
    assert len(digests) == 1
    board.wait_for_release()


def test_an_npu_that_computes_otherwise_than_for_the_jobs_last_picture_stops_the_run(board):
    """One bit of each output is wrong, as after an overclock or a failing memory."""
    job = board.write_job(QUICK.format(steps=1, seeds="[1, 2]"), "canary")
    assert board.run_job(job, "--limit", "1").returncode == 0
    ended = board.run_job(job, flip=1)
    assert ended.returncode == 4, ended.stderr
    assert "the same versions gave another answer to fixed inputs (npu_canary: " in ended.stderr.splitlines()[-1]
    assert len(board.manifests_by_seed("canary")) == 1
