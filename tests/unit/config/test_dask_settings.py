"""Values of Dask's own configuration that Dask would end at, in variables and in files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tipcast.config import dask_settings
from tipcast.config.errors import TipcastError

WRONG = {
    "DISTRIBUTED__SCHEDULER__WORKER_TTL=abc": "a duration such as 30s, got 'abc'",
    "DISTRIBUTED__SCHEDULER__IDLE_TIMEOUT=soon": "a duration such as 30s, got 'soon'",
    "DISTRIBUTED__COMM__TIMEOUTS__CONNECT=soon": "a duration such as 30s, got 'soon'",
    "DISTRIBUTED__COMM__SHARD=big": "a size such as 64MiB, got 'big'",
    "DISTRIBUTED__WORKER__MEMORY__TARGET=high": "a number, got 'high'",
    "DISTRIBUTED__NANNY__PRELOAD=5": "a list, got 5",
    "DISTRIBUTED__NANNY__ENVIRON=5": "a mapping, got 5",
    "DISTRIBUTED__ADMIN__LOG_FORMAT=5": "a string, got 5",
    "DISTRIBUTED__ADMIN__EVENT_LOOP=foo": "one of asyncio, tornado, uvloop, got 'foo'",
    "DISTRIBUTED__COMM__TLS__MIN_VERSION=9": "one of null, 1.2, 1.3, got 9",
    "DISTRIBUTED=5": "a mapping, got 5",
    "LOGGING__DISTRIBUTED=loud": "a level such as info or warning, got 'loud'",
    "TEMPORARY_DIRECTORY=/proc/nope": "a writable folder, got '/proc/nope'",
}
"""Variable without its prefix -> what its value must be."""
RIGHT = (
    "DISTRIBUTED__SCHEDULER__WORKER_TTL=30",
    "DISTRIBUTED__SCHEDULER__WORKER_TTL=null",
    "DISTRIBUTED__SCHEDULER__WORKER_SATURATION=inf",
    "DISTRIBUTED__SCHEDULER__BANDWIDTH=100MB",
    "DISTRIBUTED__WORKER__MEMORY__TARGET=False",
    "DISTRIBUTED__WORKER__PRELOAD=mine.py",
    "DISTRIBUTED__COMM__OFFLOAD=false",
    "LOGGING__DISTRIBUTED=info",
    "OF_SOMEBODY_ELSE=x",
)


def set_variable(monkeypatch: pytest.MonkeyPatch, variable: str) -> str:
    """Set a variable; return its name."""
    name, _, value = f"DASK_{variable}".partition("=")
    monkeypatch.setenv(name, value)
    return name


@pytest.mark.parametrize("variable", WRONG)
def test_a_wrong_value_is_told_with_its_variable(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = set_variable(monkeypatch, variable)
    with pytest.raises(TipcastError) as refused:
        dask_settings.check()
    assert str(refused.value).startswith(f"error[C003] {name}: must be {WRONG[variable]}. Fix: ")


@pytest.mark.parametrize("variable", RIGHT)
def test_what_dask_takes_is_taken(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_variable(monkeypatch, variable)
    dask_settings.check()


def test_defaults_of_dask_pass_as_a_users_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shipped = dask_settings._shipped("distributed.yaml")
    monkeypatch.setattr(
        dask_settings, "_given", lambda: (("", *leaf) for leaf in dask_settings._leaves(shipped))
    )
    monkeypatch.setenv("DASK_CONFIG", str(tmp_path))
    dask_settings.check()


FILES = {
    "distributed:\n  scheduler: [\n": ": Dask cannot read its configuration: ",
    "- a list\n": ": Dask cannot read its configuration: ",
    "distributed: {scheduler: {worker_ttl: abc}}\n": ", distributed.scheduler.worker-ttl: must be ",
}
"""Text of a file -> what follows its name in the line."""


@pytest.mark.parametrize("text", FILES)
def test_a_file_of_dasks_configuration_is_named(text: str, tmp_path: Path) -> None:
    """Dask reads it as it is imported, before any job begins."""
    (tmp_path / "mine.yaml").write_text(text)
    command = [sys.executable, "-m", "tipcast", "train"]
    variables = os.environ | {"DASK_CONFIG": str(tmp_path)}
    ended = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"error[C003] {tmp_path}/mine.yaml{FILES[text]}")


def test_a_value_that_ends_the_import_of_dask_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tipcast", "train"]
    variables = os.environ | {"DASK_DISTRIBUTED__ADMIN__LOG_FORMAT": "%x"}
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error[C003] Dask: rejects a value in its configuration: ")
