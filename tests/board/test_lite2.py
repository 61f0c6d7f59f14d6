"""The adapter over the real rknn-toolkit-lite2 wheel, under emulation: librknnrt.so alone is a stub (make_root.sh)."""

import json
import os

import pytest

SCRIPT = """
import json, os, sys
from pathlib import Path
import numpy as np
from anima_batch.backends.rknn import RknnBackend
from anima_batch.errors import BackendError, NonFiniteError
folder = Path(sys.argv[1])
path = folder / "transformer/00.cross_attn.rknn"
rng = np.random.default_rng(1)
feeds = {"context": rng.standard_normal((1, 32, 64), np.float32), "z": rng.standard_normal((1, 64, 192), np.float32)}
"""

FAULTS = {
    "init": {"FAULT": "init=-6", "SAY": "E RKNN: said by the stub", "MUTTER": "said on stdout"},
    "core mask": {"FAULT": "set_core_mask=-5"},
    "version query": {"FAULT": "query.5=-1"},
    "version text": {"API": "nonsense", "DRIVER": ""},
    "count query": {"FAULT": "query.0=-1"},
    "input query": {"FAULT": "query.1=-1"},
    "output query": {"FAULT": "query.2=-1"},
    "inputs_set": {"FAULT": "inputs_set=-8"},
    "run": {"FAULT": "run=-3", "SAY": "E RKNN: failed to submit!"},
    "run, on stdout": {"FAULT": "run=-1", "MUTTER": "a line in the C library's buffer"},
    "outputs_get": {"FAULT": "outputs_get=-9"},
    "short output": {"OUTPUT": "short"},
    "nan": {"OUTPUT": "nan"},
    "inf": {"OUTPUT": "inf"},
    "no device": {"SOCKET": "/nowhere"},
    "none": {},
}
NO_INIT = "init_runtime failed with code -1 on core mask 0; it printed "
FIT = "check that toolkit 2.3.2, lite2 2.3.2, librknnrt 2.3.2 and driver 0.9.8 fit together"
UNKNOWN = "check that toolkit 2.3.2, lite2 2.3.2, librknnrt (unknown) and driver (unknown) fit together"
REFUSED, NO_OUTPUT = "inference refused its inputs; it printed ", "inference gave no output; it printed "
MESSAGES = {
    "init": f'{NO_INIT}"E RKNN: said by the stub" and "Exception: RKNN init failed. error code: '
    f'RKNN_ERR_MODEL_INVALID": {UNKNOWN}',
    "core mask": f'{NO_INIT}"E Catch exception when set npu core mode.": {UNKNOWN}',
    "version query": f'{NO_INIT}"Exception: Query RKNN SDK version Failed. Error code: RKNN_ERR_FAIL": {UNKNOWN}',
    "version text": f'{NO_INIT}"ValueError: need more than 1 value to unpack": {UNKNOWN}',
    "count query": f'{REFUSED}"Exception: Get input output num failed! Error code: RKNN_ERR_FAIL": {FIT}',
    "input query": f'{REFUSED}"Exception: Query tensor attribute of input node(s) failed, error code: '
    f'RKNN_ERR_FAIL": {FIT}',
    "output query": f'{NO_OUTPUT}"Exception: Query run perf failed, error code: RKNN_ERR_FAIL": {FIT}',
    "inputs_set": f'{REFUSED}"Exception: Set inputs failed. error code: RKNN_ERR_INPUT_INVALID": {FIT}',
    "run": f'rknn_run failed with code -3; it printed "E RKNN: failed to submit!": {FIT}',
    "run, on stdout": f'rknn_run failed with code -1; it printed "a line in the C library\'s buffer": {FIT}',
    "outputs_get": f'{NO_OUTPUT}"Exception: E Get outputs failed, error code: RKNN_ERR_OUTPUT_INVALID": {FIT}',
    "short output": f'{NO_OUTPUT}"ValueError: buffer is smaller than requested size": {FIT}',
    "nan": "1 of the 12288 values of out are NaN or infinite",
    "inf": "1 of the 12288 values of out are NaN or infinite",
    "no device": f'{NO_INIT}"E RKNN: failed to open rknpu module, need to insmod rknpu driver!" and '
    f'"Exception: RKNN init failed. error code: RKNN_ERR_DEVICE_UNAVAILABLE": {UNKNOWN}',
    "none": None,
}


def test_every_fault_of_the_library_is_an_error_of_its_own_and_a_good_run_follows(board, board_set):
    found = board.tell(
        SCRIPT
        + """
told = os.dup(1)
os.dup2(2, 1)  # as a worker's: both are kept
def try_once(variables):
    for name, value in variables.items():
        os.environ["STUB_" + name] = value
    backend = RknnBackend()
    try:
        session = backend.open(path)
        try:
            session.run(feeds)
        finally:
            session.close()
    except BackendError as error:
        return type(error).__name__, str(error).removeprefix(f"{path}: ")
    finally:
        for name in variables:
            del os.environ["STUB_" + name]
        os.environ["STUB_SOCKET"] = sys.argv[3]
    return None, None
found = {}
for name, variables in json.loads(sys.argv[2]).items():
    found[name] = try_once(variables)
    assert try_once({}) == (None, None), name
os.write(told, json.dumps(found).encode())
""",
        str(board_set.folder),
        json.dumps(FAULTS),
        str(board.npu.path),
    )
    assert {name: message for name, (_, message) in found.items()} == MESSAGES
    kinds = {name: kind for name, (kind, _) in found.items()}
    assert kinds.pop("none") is None
    assert kinds == dict.fromkeys(kinds, "BackendError") | {"nan": "NonFiniteError", "inf": "NonFiniteError"}
    board.wait_for_release()


def test_a_core_gives_what_onnx_runtime_gives_for_inputs_rounded_to_float16(board, board_set):
    """Both round to float16 once more at the end; ONNX Runtime is the same build for both, on another machine."""
    found = board.tell(
        SCRIPT
        + """
from anima_batch.backends.onnx import OnnxBackend
backend = RknnBackend("0+1")
session = backend.open(path)
rounded = {name: array.astype(np.float16).astype(np.float32) for name, array in feeds.items()}
reference = OnnxBackend(1).open(path.with_suffix(".onnx")).run(rounded)
out = session.run(feeds)
print(json.dumps({
    "difference": float(np.abs(out - reference).max() / np.abs(reference).max()), "shape": out.shape,
    "inputs": [spec.name for spec in session.inputs], "versions": backend.versions(), "machine": os.uname().machine,
}))
""",
        str(board_set.folder),
    )
    assert found.pop("difference") < 1e-3  # an ulp of float16 is 2^-10 of the largest value
    assert found == {
        "shape": [1, 64, 192],
        "inputs": ["z", "context"],
        "versions": {"rknn_toolkit_lite2": "2.3.2", "librknnrt": "2.3.2", "rknpu_driver": "0.9.8"},
        "machine": "aarch64",
    }


def test_lite2_parses_its_settings_once(board, board_set):
    """By itself it does so nine times for each graph that is initialised, which is four fifths of that time here."""
    found = board.tell(
        SCRIPT
        + """
from ruamel.yaml import YAML
load, parsed = YAML.load, []
YAML.load = lambda self, stream: (parsed.append(1), load(self, stream))[1]
counts = []
for _ in range(3):
    session = RknnBackend().open(path)
    session.run(feeds)
    session.close()
    counts.append(len(parsed))
print(json.dumps(counts))
""",
        str(board_set.folder),
    )
    assert found == [1, 1, 1]
    board.wait_for_release()


def test_memory_stays_flat_over_many_loads_and_releases(board, board_set):
    """Bytes in use after the first tenth of the cycles and after the last; BOARD_CYCLES=1000 takes two minutes.

    They are those of the C library's and of Python's allocators. Resident memory is the emulator's too: qemu-user keeps
    the code that it translated from each copy of the library, 40 kB a cycle. The file is padded with 4 MB, so that each
    one kept would show.
    """
    cycles = int(os.environ.get("BOARD_CYCLES", "200"))
    opened = board.npu.opened
    found = board.tell(
        SCRIPT
        + """
import ctypes, struct
data = path.read_bytes()
(length,) = struct.unpack_from("<Q", data, 16)
padded = folder.parent / "padded.rknn"
room = 4 << 20
graph = data[64 : 64 + length] + bytes(room)
padded.write_bytes(data[:16] + struct.pack("<Q", length + room) + data[24:64] + graph + data[64 + length :])
class Mallinfo(ctypes.Structure):  # mallinfo2(3)
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]
library = ctypes.CDLL(None)
library.mallinfo2.restype = Mallinfo
def in_use():
    found = library.mallinfo2()
    return found.uordblks + found.hblkhd, sys.getallocatedblocks()
backend, held, descriptors = RknnBackend(), [], []
cycles = int(sys.argv[2])
for cycle in range(cycles):
    session = backend.open(padded)
    if cycle % 50 == 0:
        session.run(feeds)
    session.close()
    if (cycle + 1) % (cycles // 10) == 0:
        held.append(in_use())
        descriptors.append(len(os.listdir("/proc/self/fd")))
print(json.dumps({"held": held, "descriptors": descriptors}))
""",
        str(board_set.folder),
        str(cycles),
    )
    assert board.npu.opened - opened == cycles
    (first_bytes, first_blocks), (last_bytes, last_blocks) = found["held"][0], found["held"][-1]
    assert last_bytes - first_bytes < (1 << 20), found["held"]  # less than a quarter of one of the files opened between
    assert last_blocks - first_blocks < 5 * cycles, found["held"]
    assert len(set(found["descriptors"])) == 1
    board.wait_for_release()


@pytest.mark.parametrize("call", ["run", "init"])
@pytest.mark.parametrize("says", ["say", "mutter"])
def test_the_last_words_before_a_crash_are_there(says, call, board, board_set):
    """`mutter` is on C's stdout, which keeps nothing back, as in a worker."""
    ended, printed = board.keep(
        "-u",
        "-c",
        SCRIPT + "os.dup2(2, 1)\nRknnBackend().open(path).run(feeds)",
        str(board_set.folder),
        crash=call,
        **{says: "E RKNN: last words"},
    )
    assert ended.returncode == -11
    assert "E RKNN: last words" in printed
