"""A board without its NPU: an arm64 root that qemu-user runs, the stub of librknnrt.so, and the server behind it."""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from command import Workspace

from anima_batch.anima.config import subgraph_keys
from anima_batch.backends.printed import PrintedFile
from anima_batch.model_set import built_in_folder, describe_component, load_model_set, write_description
from board.graph_file import compiler_of, make_graph_file
from board.npu import Npu

REPOSITORY = Path(__file__).parents[2]
TOKENS, ROWS = 64, 32  # of a picture of 128x128 pixels, and of the built-in set's contexts
COMPILED = {  # as a conversion records it
    "anima_batch": "0.1.0",
    "rknn_toolkit2": "2.3.2",
    "rknn_compiler": compiler_of("2.3.2"),
    "target_platform": "rk3588",
    "opset": "19",
    "prescale": "1.0",
}
PATIENCE = float(os.environ.get("BOARD_SECONDS", "300"))  # for a command under emulation


@pytest.fixture(scope="session")
def board_python(need_tool):
    """The root's interpreter, which `tests/board/make_root.sh .board-root` makes; BOARD_ROOT names another root."""
    need_tool("qemu-aarch64-static")
    python = Path(os.environ.get("BOARD_ROOT", REPOSITORY / ".board-root")) / "usr/bin/board-python"
    if not python.exists():
        reason = f"needs {python}: run tests/board/make_root.sh .board-root (.ci/run does)"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    return python


@pytest.fixture(scope="session")
def board_set(tmp_path_factory):
    """The built-in set with a .rknn file for each core of its transformer, for pictures of 128x128."""
    plain = load_model_set(built_in_folder() / "picture-book")
    folder = tmp_path_factory.mktemp("models") / "board-book"
    shutil.copytree(plain.folder, folder)
    sizes, added = {"tokens": TOKENS, "rows": ROWS}, []
    for key in subgraph_keys(plain.description.transformer.blocks):
        (part,) = (part for part in plain.description.components if part.role == key.role)
        inputs, outputs = (
            {spec.name: tuple(sizes.get(length, length) for length in spec.shape) for spec in specs}
            for specs in (part.inputs, part.outputs)
        )
        path = part.path.replace(".onnx", ".rknn")
        custom = json.dumps({"block": key.block, "branch": key.branch})
        (folder / path).write_bytes(make_graph_file(inputs, outputs, custom))
        added.append(describe_component(folder, key.role, path, COMPILED))
    description = plain.description.model_copy(update={"components": (*plain.description.components, *added)})
    return write_description(folder, description)


@pytest.fixture(scope="session")
def npu(board_set, tmp_path_factory):
    with Npu(board_set, tmp_path_factory.mktemp("npu")) as npu:
        yield npu


class Board(Workspace):
    """A workspace whose commands and scripts run under emulation."""

    def __init__(self, folder, python, npu):
        super().__init__(folder)
        self.npu = npu
        self.python = python
        self.plain = {
            **{name: value for name, value in os.environ.items() if not name.startswith("STUB_")},
            "PYTHONPATH": str(REPOSITORY),
            "STUB_SOCKET": str(npu.path),
        }

    def emulate(self, *arguments, **stub):
        """The ended process of the root's interpreter; `stub` are the stub's variables without their prefix."""
        return self._emulate(arguments, stub, subprocess.PIPE)

    def keep(self, *arguments, **stub):
        """As `emulate`, and the end of what it printed on a stderr that is kept as a worker's."""
        with contextlib.closing(PrintedFile()) as printed:
            return self._emulate(arguments, stub, printed.descriptor), printed.read_end()

    def _emulate(self, arguments, stub, stderr):
        environment = self.plain | {f"STUB_{name.upper()}": str(value) for name, value in stub.items()}
        return subprocess.run(
            [self.python, *arguments],
            cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=PATIENCE,
            check=False,
        )  # fmt: skip

    def run_job(self, job, *options, **stub):
        """The ended `run --backend rknn`, in which no traceback of our own shows."""
        ended = self.emulate("-m", "anima_batch", "run", job, "--backend", "rknn", *options, **stub)
        assert "Traceback" not in ended.stderr, ended.stderr
        return ended

    def shell(self, line):
        """The ended line of a documented page, whose `anima-batch` runs under emulation."""
        program = self.folder / ".venv/bin/anima-batch"
        if not program.exists():
            program.parent.mkdir(parents=True)
            program.write_text(f'#!/bin/sh\nexec {shlex.quote(str(self.python))} -m anima_batch "$@"\n')
            program.chmod(0o755)
        environment = self.plain | {"PATH": f"{program.parent}:{os.environ['PATH']}"}
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=self.folder, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip

    def tell(self, script, *arguments, **stub):
        """What a script prints as JSON on its last line."""
        ended, printed = self.keep("-c", script, *arguments, **stub)
        assert ended.returncode == 0, printed
        return json.loads(ended.stdout.splitlines()[-1])

    def manifests_by_seed(self, job):
        """The job's manifests, which each have a seed of their own."""
        return {manifest["request"]["seed"]: manifest for manifest in self.manifests(job).values()}

    def wait_for_release(self, seconds=20):
        """Wait until no context is open: the server learns of a closed connection a little later."""
        until = time.monotonic() + seconds
        while self.npu.contexts and time.monotonic() < until:
            time.sleep(0.05)
        assert self.npu.contexts == 0


@pytest.fixture(scope="session")
def board(board_python, board_set, npu, tmp_path_factory):
    """One workspace for all tests, which share its conditioning; the built-in set's twin is `board-book` there."""
    board = Board(tmp_path_factory.mktemp("board"), board_python, npu)
    (board.folder / "models").mkdir()
    (board.folder / "models" / "board-book").symlink_to(board_set.folder)
    return board
