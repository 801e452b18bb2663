"""The command `tipcast`, and `python -m tipcast`."""

import os
import signal
import sys

try:
    folder = os.getcwd()  # noqa: PTH109
except OSError:  # it was deleted; the command will say so
    folder = ""
has_tipcast = os.path.isdir("tipcast")  # noqa: PTH112
if not sys.flags.safe_path and sys.path[0] == folder and not has_tipcast:
    # Files in the working folder may have the names of libraries, even of those that pathlib
    # imports.
    del sys.path[0]

from tipcast import end_quietly  # noqa: E402 - after the path is set
from tipcast.config.streams import open_streams  # noqa: E402

open_streams()  # before any file is opened
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, end_quietly)  # until the command has a handler of its own

from tipcast.cli import main  # noqa: E402 - takes most of a second

if __name__ == "__main__":
    sys.exit(main())
