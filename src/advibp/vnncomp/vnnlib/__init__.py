"""Properties in VNN-LIB."""
