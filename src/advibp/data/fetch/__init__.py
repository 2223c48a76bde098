"""Download, verification and extraction of the data sets that are available by name."""
