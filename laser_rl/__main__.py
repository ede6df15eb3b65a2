"""`python -m laser_rl` is `laser`."""

import sys

from laser_rl.cli import main

if __name__ == "__main__":
    sys.exit(main())
