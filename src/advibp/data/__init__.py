"""Data sets: by name, from files and folders, from tensors, and from torch's Datasets and DataLoaders.

Images are float32 in [0, 1] and labels are int64, from 0. The validation images are a fixed subset of the training
images, never of the test images. No file is unpickled, and sizes stated in a file are checked before memory is
allocated.
"""

from advibp.data.assembly import PARTS, from_tensors
from advibp.data.lazy import Lazy
from advibp.data.loaders import Loader
from advibp.data.sets import Data, Split
from advibp.data.sources import NAMES, load
from advibp.data.torch_datasets import from_datasets
from advibp.data.user_data import as_data, as_images

__all__ = [
    "NAMES",
    "PARTS",
    "Data",
    "Lazy",
    "Loader",
    "Split",
    "as_data",
    "as_images",
    "from_datasets",
    "from_tensors",
    "load",
]
