"""Linear bounds by a backward pass over a recorded graph."""
