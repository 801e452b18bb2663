"""`python -m tipcast` is the command `tipcast`."""

import sys
from pathlib import Path

if not sys.flags.safe_path and sys.path[0] == str(Path.cwd()) and not Path("tipcast").is_dir():
    del sys.path[0]  # files there may have the names of libraries

from tipcast.cli import main  # noqa: E402 - with the path that the libraries are imported by

if __name__ == "__main__":
    sys.exit(main())
