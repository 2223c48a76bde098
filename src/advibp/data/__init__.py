"""Images and labels as tensors: MNIST (shipped inside the package), folders of idx files, npz files, your own arrays.

Pixels are float32 in [0, 1], labels int64 from 0. The validation images are a fixed part of the training set, never
of the test set. Nothing here unpickles, and nothing trusts what a file's header promises.
"""

from advibp.data.assemble import PARTS, from_tensors
from advibp.data.sets import Data, Split
from advibp.data.sources import NAMES, load

__all__ = ["NAMES", "PARTS", "Data", "Split", "from_tensors", "load"]
