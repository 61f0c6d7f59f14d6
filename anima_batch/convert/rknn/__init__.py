"""ONNX graphs compiled for the NPU by Rockchip's toolkit, and how near they come; an extra, like all of `convert`."""
