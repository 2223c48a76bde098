"""Networks and properties from files: ONNX and VNN-LIB, as in the VNN-COMP."""
