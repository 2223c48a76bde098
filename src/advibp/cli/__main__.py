import sys

from advibp.cli import main

sys.exit(main())
