"""Sets of inputs as values: sets in, sets out. Knows only torch."""

from advibp.bounds.box import Box

__all__ = ["Box"]
