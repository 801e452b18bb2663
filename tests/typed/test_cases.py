"""Cases that lie beside the project: scripts that use the commands as others do, and end with 0 where all is right."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import environment
from .documents import ROOT

WATCHDOG_S = 600.0
CASES = Path(os.environ.get("TIPCAST_CASES", ROOT.parent / "shared" / "cases"))
SCRIPTS = sorted(CASES.glob("*/run.sh"))
ABSENT = pytest.param(None, marks=pytest.mark.skip(reason="no cases are here: set TIPCAST_CASES to their folder"))


@pytest.mark.typed
@pytest.mark.parametrize("script", SCRIPTS or [ABSENT], ids=[path.parent.name for path in SCRIPTS] or ["none"])
def test_a_case_ends_right(script: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    own = os.environ.get("TIPCAST_BIN", str(Path(sys.executable).parent))
    variables = {"TIPCAST_BIN": own, "TMPDIR": str(tmp_path), "PORT": str(port)}
    with (tmp_path / "output").open("wb") as output:
        running = subprocess.Popen(
            ["bash", str(script)],
            cwd=tmp_path,
            env=environment(tmp_path) | variables,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = running.wait(WATCHDOG_S)
        finally:
            with contextlib.suppress(ProcessLookupError):  # a case may leave a server
                os.killpg(running.pid, signal.SIGKILL)
    said = (tmp_path / "output").read_text(encoding="utf-8", errors="replace").splitlines()
    assert code == 0, said[-1] if said else f"exit code {code}, without a word"
