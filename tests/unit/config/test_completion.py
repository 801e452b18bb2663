"""What a shell completes, asked as it asks: Hydra's plugin, our jobs and flags, and bash and zsh
themselves.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tipcast import cli
from tipcast.config import conf_files
from tipcast.config.completion import candidates
from tipcast.config.jobs import JOBS


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("tipcast ", [*JOBS]),
        ("tipcast -q sc", ["score"]),
        ("tipcast train mod", ["model=", "model."]),
        ("tipcast train model=xg", ["model=xgboost", "model=xgboost_forest"]),
        (
            "tipcast train model=svc model.fit.",
            ["model.fit.folds=", "model.fit.rows=", "model.fit.standardize="],
        ),
        ("tipcast train -m seed=1,2 cluster.n_w", ["cluster.n_workers="]),
        ("tipcast train --config-", ["--config-dir"]),
        ("tipcast train hydra.v", []),
        ("tipcast train [=1 mod", []),
        ("tipcast train task=mi", ["task=mine"]),
        ("", []),
    ],
)
def test_words(line: str, some: list[str], own_conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(conf_files.OWN, str(own_conf))
    assert set(some) == set(candidates(line))
    offered = candidates("tipcast train ")
    assert {"seed=", "model="} <= set(offered)
    assert not [word for word in offered if word.startswith(("hydra", "schema"))]


ASKED = """COMP_LINE="tipcast train model=xg" COMP_POINT=22 COMP_CWORD=2
asked() { hydra_bash_completion; echo ${COMPREPLY[@]}; }
"""
INSTALLED = 'eval "$(tipcast -sc install=bash)"\n'
SCRIPTS = {
    "bash": INSTALLED
    + 'set -- $(complete -p tipcast); [ "${@: -2:1}" = hydra_bash_completion ] || exit 1\n'
    + f"{ASKED}asked",
    # as bashcompinit calls a function
    "zsh": "autoload -Uz compinit bashcompinit && compinit -D -u && "
    f"bashcompinit; {INSTALLED}{ASKED}"
    "as_bash() { emulate -L sh; setopt kshglob noshglob; asked }; as_bash",
}


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_shell_completes(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    program = tmp_path / "tipcast"  # the one on the PATH is this one
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tipcast "$@"\n')
    program.chmod(0o755)
    source = str(Path(cli.__file__).resolve().parents[1])
    env = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": source}
    command = [shell, "-c", SCRIPTS[shell]]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["model=xgboost", "model=xgboost_forest"]
