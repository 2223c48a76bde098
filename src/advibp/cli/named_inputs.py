"""Load the network that an option names."""

from __future__ import annotations

import argparse

from torch import nn

from advibp import data as datasets
from advibp import nets

Test = datasets.Split | datasets.Lazy


def own_net(args: argparse.Namespace) -> nn.Module | None:
    """Return the network of --net file.py:function; None without the option."""
    return nets.from_file(args.net) if args.net else None
