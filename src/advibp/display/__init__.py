"""Output on a terminal: safe text and progress."""

from advibp.moved import relocated

__getattr__ = relocated(__name__, dict.fromkeys(("Display", "Live", "Silent"), "advibp.runs.training_display"))
