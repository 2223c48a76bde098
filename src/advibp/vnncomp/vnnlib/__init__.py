"""Read and write properties as VNN-LIB files."""
