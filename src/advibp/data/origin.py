"""Where a data set comes from, so that it can be loaded again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Origin:
    """The arguments of `advibp.data.load`.

    Args:
        source: Name or path as it was given.
        path: Absolute path; None for a data set known by name.
        limit: Number of training images that were kept. Default: all.
        size: Height and width to which images were resized. Default: not resized.
        root: Folder of the data sets. Default: not given.
        label: Label column of a table. Default: not given.

    Examples:
        >>> from advibp import data
        >>> data.load("mnist", limit=100).origin
        Origin(source='mnist', path=None, limit=100, size=None, root=None, label=None)
    """

    source: str
    path: str | None = None
    limit: int | None = None
    size: int | None = None
    root: str | None = None
    label: str | None = None
