"""The clock of a process starts with the process."""

from __future__ import annotations

import subprocess
import sys
import time

from advibp.execution.process_clock import process_start


def test_start_lies_before_now() -> None:
    assert process_start() < time.monotonic()


def test_time_before_the_first_import_counts() -> None:
    code = "import time; time.sleep(0.6); from advibp.execution.process_clock import process_start as s; "
    code += "print(time.monotonic() - s())"
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    age = float(done.stdout)
    assert age <= time.monotonic() - began + 0.02
    if sys.platform == "linux":
        assert age >= 0.6
