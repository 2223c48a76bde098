"""Importing advibp is fast: it does not load the optional packages."""

from __future__ import annotations

import subprocess
import sys


def test_import_does_not_load_onnx() -> None:
    code = "import sys, advibp; advibp.vnncomp.load_onnx; print({'onnx', 'onnxruntime', 'scipy'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
