"""Who may touch what: the import contracts of pyproject.toml."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_imports_keep_to_the_contracts(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()"]
    done = subprocess.run([*command, "--cache-dir", str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_module_has_a_generic_name() -> None:
    vague = {"manager", "managers", "helper", "helpers", "util", "utils", "common", "misc"}
    assert not [path for path in (ROOT / "src").rglob("*.py") if path.stem in vague]
