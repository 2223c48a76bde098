"""Networks as ONNX files: read any that bounds can be computed of, write ours. Needs the extra advibp[onnx]."""

from advibp.onnx.net import OnnxNet
from advibp.onnx.reading import load
from advibp.onnx.writing import Saved, save

__all__ = ["OnnxNet", "Saved", "load", "save"]
