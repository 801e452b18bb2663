"""Draw the documentation's picture of a terminal: run a command, and draw what it prints.

make test TESTS=--version    # installs rich
PATH=$PWD/.venv/bin:$PATH python docs/pictures/terminal.py
"""

from __future__ import annotations

import argparse
import io
import re
import shlex
import subprocess
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

HERE = Path(__file__).resolve().parent
COMMAND = "tipcast train data.rows=20000"
COLUMNS = 116
"""Characters of a line; longer ones are broken between words."""
FONT_FACE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""A font that rich would load from another server."""
SECONDS = 300
"""How long the command may take."""


def main() -> None:
    """Run the command and draw the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--command", default=COMMAND)
    parser.add_argument("--out", type=Path, default=HERE / "terminal.svg")
    options = parser.parse_args()

    printed = output_of(options.command)
    options.out.write_text(drawn(options.command, printed), encoding="utf-8")
    print(printed)
    print(options.out, options.out.stat().st_size)


def output_of(command: str) -> str:
    """Run a command in an empty folder; return what a terminal would show of it."""
    with tempfile.TemporaryDirectory() as folder:
        ended = subprocess.run(  # noqa: S603
            shlex.split(command),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=True,
        )
    return ended.stdout


def drawn(command: str, printed: str) -> str:
    """Return an SVG of a terminal that shows a command and what it has printed."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    prompt = Text("$ ", style="bold green")
    prompt.append(command, style="bold white")
    console.print(prompt)
    console.print(Text(printed.rstrip()))
    picture = console.export_svg(title="tipcast", theme=DIMMED_MONOKAI)
    return FONT_FACE.sub("", picture)


if __name__ == "__main__":
    main()
