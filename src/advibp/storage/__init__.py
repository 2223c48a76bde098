"""Files: atomic writes, checkpoints, weights, JSON lines, TensorBoard events. Stores only plain data and tensors."""
