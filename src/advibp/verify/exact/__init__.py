"""Verifiers that search one image at a time: branch and bound, mixed integer programs, RefineZono."""
