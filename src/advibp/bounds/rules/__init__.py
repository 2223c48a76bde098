"""The rules of each kind of set, one module per set, and the rounding errors of the operations."""
