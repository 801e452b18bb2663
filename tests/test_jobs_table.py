"""The table of jobs: what is made from it, and that a new job needs no other line."""

import inspect
import os
import re
import shutil
from pathlib import Path

import pytest
from tests.conftest import python

import tipcast
from tipcast.config import help
from tipcast.config.jobs import JOBS

ROOT = Path(__file__).resolve().parent.parent
COMMAND = "PYTHONPATH=src${{PYTHONPATH:+:$PYTHONPATH}} TIPCAST_LAUNCHED=1 python -P -m tipcast"
WRITE = "TIPCAST_WRITE_JOBS=1 make test TESTS=tests/test_jobs_table.py"


def entry_points() -> str:
    """Return the entry points of MLproject, of which ``main`` trains."""
    commands = {"main": "train"} | {name: name for name in JOBS}
    return "".join(
        f"  {point}:\n    command: {COMMAND} {name}\n" for point, name in commands.items()
    )


def list_of_commands() -> str:
    """Return the table of docs/command_line.md."""
    rows = ["| command | function | what it does |", "|---|---|---|"]
    for name in JOBS:
        function = f'tipcast.run_job("{name}", ...)'
        if name in tipcast.__all__:
            parameters = inspect.signature(getattr(tipcast, name)).parameters.values()
            given = [item.name for item in parameters if item.kind is item.POSITIONAL_OR_KEYWORD]
            function = f"tipcast.{name}({', '.join([*given, '...'])})"
        rows.append(f"| `tipcast {name}` | `{function}` | {help.purpose(name)} |")
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize(
    ("file", "before", "after", "write"),
    [
        ("MLproject", "entry_points:\n", "", entry_points),
        ("docs/command_line.md", "<!-- jobs -->\n", "<!-- end of jobs -->", list_of_commands),
    ],
)
def test_the_file_lists_all_jobs(file: str, before: str, after: str, write: object) -> None:
    path = ROOT / file
    pattern = rf"(?s)(?<={re.escape(before)}).*?(?={re.escape(after) or chr(92) + 'Z'})"
    text = path.read_text(encoding="utf-8")
    expected = re.sub(pattern, lambda _: write(), text, count=1)  # type: ignore[operator]

    if os.environ.get("TIPCAST_WRITE_JOBS"):
        path.write_text(expected, encoding="utf-8")
        return
    assert text == expected, f"{WRITE} writes it"


CONFIG = '''

@dataclass
class CountConfig(JobConfig):
    """How many rows are counted."""

    rows: int = bounded(1)
'''
LINE = '    Job("count", schema.CountConfig, has_run=False),\n'
YAML = """# tipcast count: count rows.
# Keys: rows print
#   tipcast count rows=3
defaults:
  - count_schema
  - _self_

rows: ??? # how many
print: text # text or json
debug: false
"""
MODULE = '''"""`tipcast count`: count rows."""

from collections.abc import Mapping
from typing import Any

from tipcast.config.schema import CountConfig
from tipcast.jobs import end_job


def run(config: CountConfig, command: str) -> Mapping[str, Any]:
    """Say how many rows there are."""
    return end_job({"rows": config.rows, "command": command}, config.print)
'''


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source with the job `count`: what CONTRIBUTING.md's "Adding a job" asks for."""
    copy = tmp_path_factory.mktemp("planted")
    for folder in ("src", "conf"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))

    schema = copy / "src/tipcast/config/schema.py"
    schema.write_text(schema.read_text(encoding="utf-8") + CONFIG, encoding="utf-8")
    table = copy / "src/tipcast/config/jobs.py"
    last = '    Job("inspect"'
    lines = table.read_text(encoding="utf-8").replace(last, LINE + last)
    table.write_text(lines, encoding="utf-8")
    (copy / "conf/count.yaml").write_text(YAML, encoding="utf-8")
    (copy / "src/tipcast/jobs/count.py").write_text(MODULE, encoding="utf-8")
    return copy


def test_a_new_job_is_a_command(planted: Path, tmp_path: Path) -> None:
    done = python(tmp_path, "-m", "tipcast", "count", "rows=3", PYTHONPATH=str(planted / "src"))
    assert done.stdout == "rows     3\ncommand  tipcast count rows=3\n", done.stderr


def test_a_new_job_is_in_the_help(planted: Path, tmp_path: Path) -> None:
    done = python(tmp_path, "-m", "tipcast", "--help", PYTHONPATH=str(planted / "src"))
    assert "\n  count     count rows.\n" in done.stdout, done.stderr


def test_a_new_job_is_called_from_python(planted: Path, tmp_path: Path) -> None:
    code = "import tipcast; print(tipcast.run_job('count', rows=3).details['rows'])"
    done = python(tmp_path, "-c", code, PYTHONPATH=str(planted / "src"))
    assert done.stdout == "3\n", done.stderr


def test_help_loads_neither_mlflow_nor_dask(tmp_path: Path) -> None:
    done = python(tmp_path, "-X", "importtime", "-m", "tipcast", "--help")
    assert done.returncode == 0
    modules = re.findall(r"\| +(\w+)", done.stderr)
    assert {"hydra", "omegaconf"} <= set(modules)
    assert not {"mlflow", "dask", "distributed", "sklearn"} & set(modules)
