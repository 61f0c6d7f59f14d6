"""Official weights to a model set of ONNX graphs; an extra, never imported at run time."""
