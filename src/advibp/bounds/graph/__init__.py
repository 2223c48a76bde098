"""Record a module as a graph of torch calls, and replay it."""
