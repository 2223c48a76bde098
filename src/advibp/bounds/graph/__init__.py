"""A module recorded as a graph of torch calls."""
