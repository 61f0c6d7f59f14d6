"""A small builder of ONNX graphs: inputs, weights, and the layers that Anima is made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from anima_batch.model_set import TensorShape

OPSET = 19  # what the published RK3588 conversion used; RKNN-Toolkit2 2.3 takes up to 19
IR_VERSION = 9  # of opset 19's time: older runtimes refuse a newer one

Array = npt.NDArray[np.generic]


class Graph:
    """A graph under construction. Values are named by strings; every method returns the name of its result.

    Computing is float32. A float16 weight is stored as it is and cast in the graph.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[TensorShape] = []
        self._initializers: dict[str, onnx.TensorProto] = {}

    def input(self, name: str, shape: Sequence[int | str]) -> str:
        """A float32 input; a dimension given by name is symbolic."""
        self._inputs.append(TensorShape(name=name, dtype="float32", shape=tuple(shape)))
        return name

    def weight(self, name: str, array: Array) -> str:
        """A weight of the model under its official name, float16 or float32."""
        if array.dtype == np.float16:
            self._initializers[name] = numpy_helper.from_array(array, name)
            return self.op("Cast", name, to=TensorProto.FLOAT)
        if array.dtype != np.float32:
            raise TypeError(f"{name}: weights must be float16 or float32, got {array.dtype}")
        self._initializers[name] = numpy_helper.from_array(array, name)
        return name

    def constant(self, value: float | Sequence[int] | Sequence[float]) -> str:
        """A float32 scalar, a float32 vector, or an int64 vector for shapes and axes; equal ones are shared."""
        if isinstance(value, int | float):
            array = np.asarray(value, np.float32)
        else:
            array = np.array(list(value), np.float32 if isinstance(value[0], float) else np.int64)
        name = f"constant_{array.dtype}_{'_'.join(map(str, np.atleast_1d(array)))}"
        self._initializers.setdefault(name, numpy_helper.from_array(array, name))
        return name

    def op(self, kind: str, *inputs: str, **attributes: int | float | str | Sequence[int]) -> str:
        """One operator with one output."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, count: int, *inputs: str, **attributes: int | float | str | Sequence[int]) -> list[str]:
        """One operator with `count` outputs."""
        outputs = [f"{kind.lower()}_{len(self._nodes)}_{index}" for index in range(count)]
        node = helper.make_node(kind, list(inputs), outputs)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in sorted(attributes.items()))
        self._nodes.append(node)
        return outputs

    def linear(self, x: str, name: str, weight: Array, bias: Array | None = None) -> str:
        """x @ weight.T + bias; weight is [out, in] as PyTorch keeps it, and stored transposed."""
        y = self.op("MatMul", x, self.weight(f"{name}.weight", np.ascontiguousarray(weight.T)))
        return y if bias is None else self.op("Add", y, self.weight(f"{name}.bias", bias))

    def rms_norm(self, x: str, name: str, weight: Array, eps: float = 1e-6) -> str:
        """x / sqrt(mean(x²) + eps) · weight over the last axis."""
        mean = self.op("ReduceMean", self.op("Mul", x, x), self.constant([-1]), keepdims=1)
        root = self.op("Sqrt", self.op("Add", mean, self.constant(eps)))
        return self.op("Mul", self.op("Div", x, root), self.weight(f"{name}.weight", weight))

    def channel_norm(self, x: str, name: str, gamma: Array) -> str:
        """RMS norm of (1, C, h, w) over its channels: x / max(‖x‖₂, 1e-12) · √C · gamma.

        Written with the mean of the squares, which stays within float16 where their sum would not. A convolution
        computes it in a third of ReduceMean's time, for which ONNX Runtime takes one thread.
        """
        shares = f"constant_float32_mean_{gamma.size}"
        average = np.full((1, gamma.size, 1, 1), 1 / gamma.size, np.float32)
        self._initializers.setdefault(shares, numpy_helper.from_array(average, shares))
        mean = self.op("Conv", self.op("Mul", x, x), shares, kernel_shape=[1, 1])
        root = self.op("Max", self.op("Sqrt", mean), self.constant(1e-12))
        return self.op("Mul", self.op("Div", x, root), self.weight(f"{name}.gamma", gamma.reshape(-1, 1, 1)))

    def conv(self, x: str, name: str, weight: Array, bias: Array) -> str:
        """2-D convolution of (1, C, h, w) that keeps h and w: zeros around; weight [out, in, k, k] with odd k."""
        size = weight.shape[-1]
        kernel, shift = self.weight(f"{name}.weight", np.ascontiguousarray(weight)), self.weight(f"{name}.bias", bias)
        return self.op("Conv", x, kernel, shift, kernel_shape=[size, size], pads=[size // 2] * 4)

    def upsample(self, x: str) -> str:
        """(1, C, h, w) -> (1, C, 2h, 2w), each pixel repeated 2 x 2."""
        scales = self.constant([1.0, 1.0, 2.0, 2.0])
        return self.op(
            "Resize", x, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
        )

    def silu(self, x: str) -> str:
        """x · sigmoid(x)."""
        return self.op("Mul", x, self.op("Sigmoid", x))

    def gelu(self, x: str) -> str:
        """x · (1 + erf(x / √2)) / 2: the exact form, as in training; the tanh form differs by about 1e-4."""
        erf = self.op("Erf", self.op("Div", x, self.constant(float(np.sqrt(2.0)))))
        return self.op("Mul", self.op("Mul", x, self.op("Add", erf, self.constant(1.0))), self.constant(0.5))

    def split_heads(self, x: str, head_dim: int) -> str:
        """(1, L, H·d) -> (1, L, H, d)."""
        return self.op("Reshape", x, self.constant([1, -1, self._heads(x, head_dim), head_dim]))

    def _heads(self, x: str, head_dim: int) -> int:
        """Number of heads of a projection, from the weight of the MatMul that made it."""
        weight = next(node.input[1] for node in self._nodes if x in node.output)
        source = next((node.input[0] for node in self._nodes if weight in node.output), weight)
        return int(self._initializers[source].dims[-1]) // head_dim

    def rotate(self, x: str, cos: str, sin: str) -> str:
        """Half-split rotary embedding: x (1, L, H, d), cos and sin (1, L, d/2); pair i is (i, i + d/2)."""
        cos, sin = (self.op("Unsqueeze", table, self.constant([2])) for table in (cos, sin))  # (1, L, 1, d/2)
        a, b = self.ops("Split", 2, x, axis=3, num_outputs=2)
        first = self.op("Sub", self.op("Mul", a, cos), self.op("Mul", b, sin))
        second = self.op("Add", self.op("Mul", b, cos), self.op("Mul", a, sin))
        return self.op("Concat", first, second, axis=3)

    def attend(self, q: str, k: str, v: str, head_dim: int, mask: str | None = None) -> str:
        """softmax(q kᵀ / √d + mask) v: q, k, v (1, L, H, d) -> (1, L, H·d); mask (1, Lq, Lk) is added to the scores."""
        q = self.op("Transpose", q, perm=[0, 2, 1, 3])  # (1, H, L, d)
        k = self.op("Transpose", k, perm=[0, 2, 3, 1])  # (1, H, d, L)
        v = self.op("Transpose", v, perm=[0, 2, 1, 3])
        scores = self.op("MatMul", self.op("Mul", q, self.constant(head_dim**-0.5)), k)
        if mask is not None:
            scores = self.op("Add", scores, self.op("Unsqueeze", mask, self.constant([1])))
        y = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        return self.op("Reshape", self.op("Transpose", y, perm=[0, 2, 1, 3]), self.constant([1, 0, -1]))

    def finish(
        self, result: str, shape: Sequence[int | str]
    ) -> tuple[bytes, tuple[TensorShape, ...], tuple[TensorShape, ...]]:
        """The checked model as bytes, its inputs and its one output, called `out`; the builder is used up."""
        self._nodes.append(helper.make_node("Identity", [result], ["out"]))
        outputs = (TensorShape(name="out", dtype="float32", shape=tuple(shape)),)
        graph = helper.make_graph(
            self._nodes,
            self._name,
            _value_infos(self._inputs),
            _value_infos(outputs),
            list(self._initializers.values()),
        )
        self._initializers.clear()  # every stage copies the weights: at most two are kept, Qwen's alone are 0.9 GB
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="anima-batch"
        )
        del graph
        data: bytes = model.SerializeToString(deterministic=True)
        del model
        onnx.checker.check_model(data, full_check=True)
        return data, tuple(self._inputs), outputs


def _value_infos(tensors: Sequence[TensorShape]) -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, list(tensor.shape)) for tensor in tensors]
