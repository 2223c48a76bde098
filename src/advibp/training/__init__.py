"""Algorithm 2: the training loop, its steps, batches, layer-wise stages and metrics."""

from advibp.training.training import Training, resolve_device

__all__ = ["Training", "resolve_device"]
