"""Files: atomic writes, checkpoints, weights, lines of JSON, TensorBoard events. Knows plain data and tensors alone."""
