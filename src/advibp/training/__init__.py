"""Algorithm 2: the training loop, its steps, batches, layer-wise stages and metrics."""

from advibp.training.training import Training

__all__ = ["Training"]
