"""Load and save networks as ONNX files. Needs the extra `advibp[onnx]`."""

from advibp.vnncomp.onnx.conversion import load
from advibp.vnncomp.onnx.onnx_file import metadata_of
from advibp.vnncomp.onnx.onnx_net import OnnxNet
from advibp.vnncomp.onnx.writing import Saved, save

__all__ = ["OnnxNet", "Saved", "load", "metadata_of", "save"]
