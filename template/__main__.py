"""``python -m template <command>``."""

import sys

from template.cli import main

if __name__ == "__main__":
    sys.exit(main())
