"""A `.rknn` file without a compiled graph: what anima_batch.backends.rknn_file reads, in the layout of rknn-toolkit2.

The real runtime would refuse it; the stub's server reads no more of it than this.
"""

import json
import struct

FIELDS = 22  # of the root table


def compiler_of(toolkit):
    """The text by which a toolkit names itself and its compiler."""
    return f"{toolkit}(compiler version: {toolkit} (no build@1970-01-01T00:00:00))"


def make_graph_file(inputs, outputs, custom="", toolkit="2.3.2", platform="rk3588", dtype="float16"):
    """The bytes, for inputs and outputs {name: shape} in the graph's order."""
    attributes = {name: {"idx": index, "shape": list(shape)} for index, (name, shape) in enumerate(inputs.items())}
    for index, (name, shape) in enumerate(outputs.items()):
        attributes[name] = {"is_output": True, "idx": index, "shape": list(shape)}
    texts = {
        3: repr({"attrs": attributes}),
        7: compiler_of(toolkit),
        8: platform,
        11: custom,
        12: json.dumps({name: {"dtype": dtype, "layout": "UNDEFINED"} for name in inputs}),
        13: json.dumps({name: {"dtype": dtype, "layout": "NCHW"} for name in outputs}),
    }
    described = json.dumps(
        {
            "graph": [*_links("input", inputs, 0), *_links("output", outputs, len(inputs))],
            "norm_tensor": [
                {"dim_num": len(shape), "size": list(shape), "tensor_id": index, "url": name}
                for index, (name, shape) in enumerate([*inputs.items(), *outputs.items()])
            ],
            "target_platform": [platform],
            "version": toolkit,
        }
    ).encode()
    graph = _make_table(texts)
    header = b"RKNN\0\0\0\0" + struct.pack("<QQ", 6, len(graph)) + bytes(40)
    return header + graph + struct.pack("<Q", len(described)) + described


def _links(side, tensors, first):
    return [
        {"left": side, "left_tensor_id": index, "right": "norm_tensor", "right_tensor_id": first + index}
        for index in range(len(tensors))
    ]


def _make_table(texts):
    """A FlatBuffer of one table whose fields are byte vectors."""
    fields = 8  # where the list of fields begins, behind the root's offset and the identifier
    root = fields + 4 + 2 * FIELDS
    places = {index: 4 + 4 * number for number, index in enumerate(texts)}
    table_bytes = 4 + 4 * len(texts)
    offsets = b"".join(struct.pack("<H", places.get(index, 0)) for index in range(FIELDS))
    head = struct.pack("<I4s", root, b"RKNN") + struct.pack("<HH", 4 + 2 * FIELDS, table_bytes) + offsets
    table, vectors = struct.pack("<i", root - fields), b""
    for index, text in texts.items():
        data = text.encode()
        table += struct.pack("<I", root + table_bytes + len(vectors) - (root + places[index]))
        vectors += struct.pack("<I", len(data)) + data + bytes(-len(data) % 4 + 4)
    return head + table + vectors
