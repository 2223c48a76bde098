"""File formats of data sets, one module each."""
