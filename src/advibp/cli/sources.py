"""The data and the network that a command line names."""

from __future__ import annotations

import argparse

from torch import nn

from advibp import data as datasets
from advibp import nets
from advibp.progress import Fetching
from advibp.recipe import Recipe

Test = datasets.Split | datasets.Lazy


def load_data(recipe: Recipe, source: str, limit: int | None, root: str | None = None) -> datasets.Data:
    with Fetching() as fetching:
        return datasets.load(
            source,
            validation=recipe.validation,
            limit=limit,
            root=root or recipe.data_root,
            size=recipe.size,
            progress=fetching.progress,
        )


def own_net(args: argparse.Namespace) -> nn.Module | None:
    return nets.from_file(args.net) if args.net else None
