"""Exact answers: branch and bound, mixed integer programs, RefineZono."""
