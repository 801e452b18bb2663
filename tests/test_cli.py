"""The command as a user types it: help, version, mistakes that end in one line and a documented exit code."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

FORM = re.compile(r"^error\[[CDKTMS]\d{3}\] \S.* Fix: .+")


def tipcast(*arguments: str, cwd: Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tipcast", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def test_version_and_usage(tmp_path: Path) -> None:
    from tipcast import __version__

    assert tipcast("--version", cwd=tmp_path).stdout.strip() == f"tipcast {__version__}"
    usage = tipcast("--help", cwd=tmp_path)
    assert usage.returncode == 0
    assert "train" in usage.stdout
    assert tipcast(cwd=tmp_path).returncode == 2


@pytest.mark.parametrize("job", ["train", "prepare"])
def test_help_and_cfg_of_each_job(job: str, tmp_path: Path) -> None:
    shown = tipcast(job, "--help", cwd=tmp_path)
    assert shown.returncode == 0
    assert "data: files, sample, tlc" in shown.stdout
    composed = tipcast(job, "--cfg", "job", cwd=tmp_path)
    assert composed.returncode == 0
    assert "source: sample" in composed.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "code", "exit_code", "words"),
    [
        (["tran"], "C008", 2, ["tran", "train"]),
        (["train", "data.tran=x"], "C001", 2, ["data.tran", "conf/data/sample.yaml"]),
        (["train", "--modle", "x"], "C001", 2, ["modle"]),
        (["train", "model.params.max_depth=deep"], "C", 2, ["max_depth", "deep"]),
        (["train", "backend=gpu"], "C", 2, ["backend"]),
        (["train", "data=files", "data.train=no.parquet", "data.test=no2.parquet"], "D001", 3, ["no.parquet"]),
        (["train", "data=files", "data.train=no-*.parquet", "data.test=no2.parquet"], "D001", 3, ["no-*.parquet"]),
        (["train", "data.train=2019-03", "data.test=2019-01"], "D019", 3, ["2019-01", "2019-03"]),
        (["train", "data.train=2019-01..2019-03", "data.test=2019-02"], "D018", 3, ["2019-02"]),
        (["prepare", "out=x"], "C004", 2, ["data.months"]),
        (["train", "cluster=scheduler", "cluster.address=tcp://10.0.0.1:8786"], "C009", 2, ["TLS"]),
    ],
)
def test_mistakes_end_in_one_line(
    arguments: list[str], code: str, exit_code: int, words: list[str], tmp_path: Path
) -> None:
    start = time.monotonic()
    ended = tipcast(*arguments, cwd=tmp_path)
    last = ended.stderr.strip().splitlines()[-1]
    assert ended.returncode == exit_code, ended.stderr
    assert FORM.match(last), ended.stderr
    assert last.startswith(f"error[{code}")
    assert "Traceback" not in ended.stderr
    for word in words:
        assert word in last
    assert time.monotonic() - start < 30
    assert not list(tmp_path.iterdir()), "a mistake found before the start leaves nothing behind"
