"""Linear bounds of a network by a backward pass over its recorded graph."""
