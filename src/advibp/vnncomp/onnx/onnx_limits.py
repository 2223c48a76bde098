"""Limits on the size of networks. A small file from an untrusted source can describe a huge computation."""

from __future__ import annotations

MAX_BYTES = 2**30  # of the file, and of all external weights
MAX_NODES = 20_000
MAX_AXES = 12
MAX_ELEMENTS = 2**27  # of one constant, of all folded constants, and of one value for one input
MAX_LISTED = 2**12  # numbers in one attribute
MAX_WEIGHTS = 2**28  # elements of all constants; a constant counts once per use
MAX_VALUES = 2**28  # elements of all values for one input
MAX_WORK = 2**35  # multiplications for one input; VGG-16 on ImageNet needs half of it

MISSING_PACKAGES = "ONNX files need the packages onnx and onnxruntime; run pip install 'advibp[onnx]'."
