"""File formats of data sets, one module per format."""
