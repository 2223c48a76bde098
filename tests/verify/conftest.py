"""Random networks and exact answers are those of the tests of bounds."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "bounds"))
