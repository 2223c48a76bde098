"""python -m advibp: the command line."""

import sys

from advibp.cli import main

if __name__ == "__main__":
    sys.exit(main())
