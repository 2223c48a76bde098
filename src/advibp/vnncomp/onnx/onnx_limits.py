"""How much a file may ask for. Files come from strangers, and a kilobyte can ask for a terabyte."""

from __future__ import annotations

MOST_BYTES = 2**30  # of a file and of the weights that it keeps beside it
MOST_NODES = 20_000
MOST_AXES = 12
MOST_ELEMENTS = 2**27  # of one constant, and of all that are computed from others; and of one value, for one input
MOST_LISTED = 2**12  # numbers of an attribute
MOST_WEIGHTS = 2**28  # elements of all constants, each as often as it is used
MOST_VALUES = 2**28  # elements of all values, for one input
MOST_WORK = 2**35  # multiplications, for one input; those of VGG-16 on ImageNet are a half of it
