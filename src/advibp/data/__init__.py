"""Images and labels as tensors: data sets by name, folders and files of many kinds, your own arrays and Datasets.

Pixels are float32 in [0, 1], labels int64 from 0. The validation images are a fixed part of the training set, never
of the test set. Nothing here unpickles, and nothing trusts what a file's header promises.
"""

from advibp.data.assembly import PARTS, from_tensors
from advibp.data.lazy import Lazy
from advibp.data.loaders import Loader
from advibp.data.sets import Data, Split
from advibp.data.sources import NAMES, load
from advibp.data.torch_datasets import from_datasets

__all__ = ["NAMES", "PARTS", "Data", "Lazy", "Loader", "Split", "from_datasets", "from_tensors", "load"]
