"""Output on a terminal: safe text and progress."""
