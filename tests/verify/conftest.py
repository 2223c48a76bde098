"""Searches in these tests have time on a loaded machine too."""

from unhurried import unhurried

__all__ = ["unhurried"]
