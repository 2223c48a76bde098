"""The rules of each set: what every torch operation does to it."""
