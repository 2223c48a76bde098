"""The test images and the network that a command line names."""

from __future__ import annotations

import argparse

from torch import nn

from advibp import data as datasets
from advibp import nets

Test = datasets.Split | datasets.Lazy


def own_net(args: argparse.Namespace) -> nn.Module | None:
    return nets.from_file(args.net) if args.net else None
