"""Cases that lie beside the project: scripts that use the commands as others do, and end with 0
where all is right.
"""

import os
import socket
import sys
from pathlib import Path

import pytest

from .conftest import environment, run
from .documents import ROOT

CASES = Path(os.environ.get("TIPCAST_CASES", ROOT.parent / "shared" / "cases"))
SCRIPTS = sorted(CASES.glob("*/run.sh"))
ABSENT = pytest.param(
    None, marks=pytest.mark.skip(reason="no cases are here: set TIPCAST_CASES to their folder")
)


@pytest.mark.typed
@pytest.mark.parametrize(
    "script", SCRIPTS or [ABSENT], ids=[path.parent.name for path in SCRIPTS] or ["none"]
)
def test_a_case_ends_right(script: Path, tmp_path: Path) -> None:
    programs = os.environ.get("TIPCAST_BIN", str(Path(sys.executable).parent))
    with socket.socket() as held:  # so that nobody else is given the port
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        variables = {
            "TIPCAST_BIN": programs,
            "TMPDIR": str(tmp_path),
            "PORT": str(held.getsockname()[1]),
        }
        run(f"bash {script}", tmp_path, environment(tmp_path) | variables)
