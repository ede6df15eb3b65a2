"""How training starts the dashboard: `python -m laser_rl.view FD RUN_DIR`."""

import sys

from laser_rl.view.command import serve_for_parent

if __name__ == "__main__":
    sys.exit(serve_for_parent(sys.argv[1:]))
