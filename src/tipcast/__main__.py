"""The command `tipcast`, and `python -m tipcast`."""

import os
import signal
import sys

try:
    folder = os.getcwd()  # noqa: PTH109
except OSError:  # it was deleted, which the command tells
    folder = ""
if not sys.flags.safe_path and sys.path[0] == folder and not os.path.isdir("tipcast"):  # noqa: PTH112
    # files there may have the names of libraries, also of those that pathlib imports
    del sys.path[0]

from tipcast import end_quietly  # noqa: E402 - with the path that libraries are imported by
from tipcast.config.streams import open_streams  # noqa: E402

open_streams()  # before any file is opened
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, end_quietly)  # until the command has a handler of its own

from tipcast.cli import main  # noqa: E402 - loads for most of a second

if __name__ == "__main__":
    sys.exit(main())
