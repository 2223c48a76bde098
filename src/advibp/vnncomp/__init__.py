"""ONNX networks and VNN-LIB properties, the file formats of the VNN-COMP.

| function | does |
| --- | --- |
| `load_onnx`, `save_onnx` | load and save a network as an ONNX file (extra `advibp[onnx]`) |
| `onnx_metadata` | read class names, eps, input range and arithmetic from an ONNX file of `advibp export` |
| `read_vnnlib`, `write_vnnlib` | read and write a property as a VNN-LIB file |
| `decide` | decide whether a property of a network is `sat` or `unsat` |
"""

from advibp.vnncomp.onnx import OnnxNet, Saved
from advibp.vnncomp.onnx import load as load_onnx
from advibp.vnncomp.onnx import metadata_of as onnx_metadata
from advibp.vnncomp.onnx import save as save_onnx
from advibp.vnncomp.properties import Finding, decide
from advibp.vnncomp.vnnlib.vnnlib_file import Case, Property
from advibp.vnncomp.vnnlib.vnnlib_file import read as read_vnnlib
from advibp.vnncomp.vnnlib.vnnlib_file import write as write_vnnlib

__all__ = [
    "Case",
    "Finding",
    "OnnxNet",
    "Property",
    "Saved",
    "decide",
    "load_onnx",
    "onnx_metadata",
    "read_vnnlib",
    "save_onnx",
    "write_vnnlib",
]
