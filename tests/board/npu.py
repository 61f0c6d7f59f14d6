"""What computes behind librknnrt_stub.c: a server that answers each context with what ONNX Runtime gives.

The graph is named by the .rknn file's custom string, {"block": 0, "branch": "mlp"} and what else may be in it, and is a
component of an ONNX model set. Inputs come as float16, the output is rounded to float16, as on the NPU, and in between
it is float32.
"""

import json
import socket
import struct
import threading

import numpy as np

from anima_batch.anima.config import SubgraphKey
from anima_batch.backends.onnx import OnnxBackend
from anima_batch.backends.rknn_file import read_rknn
from anima_batch.errors import AnimaBatchError

NAME_BYTES, MAX_DIMS = 256, 16  # of the stub's structures
TYPES = {"float32": 0, "float16": 1, "int8": 2}
DTYPES = {0: np.float32, 1: np.float16}
MODEL_INVALID, INPUT_INVALID = -6, -8


class Npu:
    """Serves on a Unix socket while it is open; `contexts` counts those open now, `runs` all runs."""

    def __init__(self, model_set, folder):
        self._model_set = model_set
        self._folder = folder
        self._backend = OnnxBackend(threads=1)
        self._graphs = {}
        self._lock = threading.Lock()
        self.path = folder / "npu"
        self.contexts = self.opened = self.runs = 0

    def __enter__(self):
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.path.unlink()

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection:
            self.contexts += 1
            try:
                self._serve_context(connection)
            except ConnectionError:  # the context, or its process, is gone
                pass
            finally:
                self.contexts -= 1

    def _serve_context(self, connection):
        (size,) = struct.unpack("<I", _receive(connection, 4))
        model = _receive(connection, size)
        try:
            description, graph = self._open(model)
        except (AnimaBatchError, ValueError, KeyError):
            connection.sendall(struct.pack("<i", MODEL_INVALID))
            return
        self.opened += 1
        tensors = [*description.inputs, *description.outputs]
        head = struct.pack("<iII", 0, len(description.inputs), len(description.outputs))
        connection.sendall(head + b"".join(map(_pack_tensor, tensors)))
        feeds = {}
        while True:
            index, kind, length = struct.unpack("<iiI", _receive(connection, 12))
            if index >= 0:
                spec = description.inputs[index]
                feeds[spec.name] = np.frombuffer(_receive(connection, length), DTYPES[kind]).reshape(spec.shape)
                continue
            if set(feeds) != {spec.name for spec in description.inputs}:
                connection.sendall(struct.pack("<i", INPUT_INVALID))
                continue
            with self._lock:
                output = graph.run({name: array.astype(np.float32) for name, array in feeds.items()})
                self.runs += 1
            rounded = output.astype(np.float16).astype(np.float32)
            connection.sendall(struct.pack("<i", 0) + rounded.tobytes())

    def _open(self, model):
        """The description of a .rknn file's bytes, and the session of the graph that it names."""
        with self._lock:
            copy = self._folder / "model.rknn"
            copy.write_bytes(model)
            description = read_rknn(copy)
            custom = json.loads(description.custom)
            role = SubgraphKey("transformer", custom["block"], custom["branch"]).role
            if role not in self._graphs:
                self._graphs[role] = self._backend.open(self._model_set.path(role))
            return description, self._graphs[role]


def _pack_tensor(spec):
    dims = [*spec.shape, *[0] * (MAX_DIMS - len(spec.shape))]
    return struct.pack(f"<{NAME_BYTES}siI{MAX_DIMS}I", spec.name.encode(), TYPES[spec.dtype], len(spec.shape), *dims)


def _receive(connection, size):
    data = bytearray()
    while len(data) < size:
        if not (block := connection.recv(min(size - len(data), 1 << 20))):
            raise ConnectionError
        data += block
    return bytes(data)
