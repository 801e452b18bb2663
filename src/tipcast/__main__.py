"""`python -m tipcast` is the command `tipcast`."""

import sys

from tipcast.cli import main

if __name__ == "__main__":
    sys.exit(main())
