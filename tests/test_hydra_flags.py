"""Hydra's documented flags and keys, as its users type them: docs/command_line.md has the table."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hydra._internal.utils import get_args_parser

from tipcast import cli
from tipcast.config import conf_files
from tipcast.config.arguments import SHOWN
from tipcast.config.compose import compose

PAGE = Path(__file__).resolve().parent.parent / "docs" / "command_line.md"


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of its own; levels of loggers, which hydra.verbose and --info change, put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(conf_files.OWN, "")
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with an option of one's own."""
    file = tmp_path / "own" / "task" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("defaults:\n  - high_tip\n  - _self_\n\nname: mine\nthreshold: 0.3\n")
    return tmp_path / "own"


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main([*words]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main([*words]) == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_the_page_has_every_flag_of_hydra() -> None:
    text = PAGE.read_text(encoding="utf-8")
    flags = [flag for action in get_args_parser()._actions for flag in action.option_strings]
    assert "--multirun" in flags
    assert [flag for flag in flags if f"`{flag}" not in text] == []


def test_cfg_package_and_resolve(capsys: pytest.CaptureFixture[str]) -> None:
    assert yaml.safe_load(said(capsys, "train", "--cfg", "job", "seed=7"))["seed"] == 7
    assert list(yaml.safe_load(said(capsys, "train", "-c", "hydra"))) == ["hydra"]
    assert {"hydra", "seed"} <= set(yaml.safe_load(said(capsys, "train", "--cfg=all")))
    assert yaml.safe_load(said(capsys, "train", "--cfg", "job", "--package", "data"))["rows"] == 200_000
    plain = ["train", "--cfg", "job", "-p", "data", "data=tlc", "data.train=2019-01", "data.test=2019-02"]
    assert yaml.safe_load(said(capsys, *plain))["cache"] == '${oc.env:TIPCAST_CACHE,"~/.cache/tipcast"}'
    assert yaml.safe_load(said(capsys, *plain, "--resolve"))["cache"].endswith("cache/tipcast")
    assert "error[C005]" in refused(capsys, "train", "--resolve")
    assert "unknown thing to show 'jobs'. Fix: did you mean job?" in refused(capsys, "train", "--cfg", "jobs")
    for words in (["--info=nope"], ["--info", "nope"], ["-i", "nope", "seed=1"]):
        assert "unknown thing to show 'nope'. Fix: use one of all, config" in refused(capsys, "train", *words)


@pytest.mark.parametrize("what", ["", *SHOWN["--info"]])
def test_info(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--info", what] if what else ["--info"]
    text = said(capsys, "train", *words, "model=svc")
    expected = {
        "defaults": "| model/svc ", "defaults-tree": "model: svc", "config": "name: svc", "plugins": "BasicLauncher",
        "searchpath": "file://", "all": "Hydra 1.", "": "Hydra 1.",
    }  # fmt: skip
    assert expected[what] in text
    assert said(capsys, "train", "-i", *words[1:], "model=svc").count(expected[what])
    assert not list(Path().iterdir())


def test_hydra_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--hydra-help : Hydra's help" in said(capsys, "train", "--hydra-help")
    assert said(capsys, "train", "--version") == said(capsys, "-V")
    assert said(capsys, "train", "-h") == said(capsys, "train", "--help")


def test_config_dir(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--config-dir", str(own)], [f"-cd={own}"], [f"--config-dir={own}"]):
        assert yaml.safe_load(said(capsys, "train", *words, "task=mine", "--cfg", "job"))["task"]["threshold"] == 0.3
    assert "task: mine" in said(capsys, "train", "--config-dir", str(own), "task=mine", "--info", "defaults-tree")
    assert "error[C003] --config-dir" in refused(capsys, "train", "--config-dir", "nope")


def test_config_dir_with_multirun(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = own / "data" / "small.yaml"
    file.parent.mkdir()
    file.write_text("defaults:\n  - sample\n  - _self_\n\nmonths: 2019-01\nrows: 200\n")
    words = ["data=small", "backend=glob(c*)", "data.seed=1,2", "out=one,two", "print=json", "cluster.processes=false"]
    text = said(capsys, "prepare", "--config-dir", str(own), "--multirun", *words)
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["out"] for line in lines] == ["one", "two", "one", "two"]
    assert [line["written"] for line in lines] == [1, 1, 1, 1]
    assert len({line["command"] for line in lines}) == 4, "each command repeats its own run"
    assert all("--config-dir=" in line["command"] for line in lines)
    assert {path.name for path in Path().iterdir()} == {"own", "one", "two"}


CALLS = "{version: 1, root: {handlers: [x]}, handlers: {x: {(): os.getcwd}}}"
"""Logging that calls a function as it is set up."""


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("{launcher: {_target_: os.getcwd}}", ["-m", "seed=1,2", "task=mine"]),
        ("{sweeper: {_target_: os.getcwd}}", ["-m", "seed=1,2", "task=mine"]),
        ("{sweeper: {params: {seed: '1,2'}}}", ["-m", "task=mine"]),
        ("{callbacks: {x: {_target_: os.getcwd}}}", ["--cfg", "job", "task=mine"]),
        (f"{{job_logging: {CALLS}}}", ["-m", "task=high_tip,mine"]),
        (f"{{hydra_logging: {CALLS}}}", ["--hydra-help", "task=mine"]),
        ("{job: {env_set: {PATH: /}}}", ["-m", "task=high_tip,mine"]),
        ("{job: {chdir: true}}", ["task=mine"]),
        ("{mode: MULTIRUN}", ["task=mine"]),
    ],
)
def test_a_folder_of_one_s_own_cannot_have_hydra_run_code(
    own: Path, keys: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (own / "task" / "mine.yaml").write_text(f"# @package _global_\nhydra: {keys}\n")
    assert "error[C006] --config-dir" in refused(capsys, "train", "--config-dir", str(own), *words)
    assert [path.name for path in Path().iterdir()] == ["own"], "no object was made, no folder, no run"


def test_verbose_sets_levels_of_loggers() -> None:
    compose("train", ["hydra.verbose=[fsspec]"])
    assert logging.getLogger("fsspec").level == logging.DEBUG
    logging.getLogger("fsspec").setLevel(logging.NOTSET)
    compose("train", ["-m", "hydra.verbose=true", "seed=1,2"])
    assert logging.getLogger().level == logging.DEBUG


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["--config-path", "x"], "--config-dir DIR"),
        (["-cp", "x"], "--config-dir DIR"),
        (["--config-name=sweep"], "the job's name"),
        (["-cn", "sweep"], "the job's name"),
        (["--experimental-rerun", "x"], "a run's tag command"),
        *(
            ([word], "of Hydra's own keys use hydra.verbose")
            for word in (
                "hydra/launcher=dask",
                "hydra/sweeper=optuna",
                "hydra.run.dir=x",
                "hydra.sweep.dir=x",
                "hydra.job.chdir=true",
                "hydra.mode=MULTIRUN",
                "hydra.searchpath=[file:///x]",
                "hydra.output_subdir=x",
                "+hydra.callbacks.x._target_=os.getcwd",
            )  # fmt: skip
        ),
    ],
)
def test_what_is_refused_says_what_to_use(words: list[str], fix: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "train", *words)
    assert line.startswith("error[C006]")
    assert fix in line
    name = re.sub(r"[=+].*", "", words[0].lstrip("+"))
    page = PAGE.read_text(encoding="utf-8")
    assert name in page or name.rpartition(".x")[0].removesuffix(".x") in page or "hydra.callbacks" in page


def test_overrides_of_hydra_s_grammar(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["+model.params.max_leaves=8", "~model.params.gamma", "++model.params.max_depth=3"]
    found = yaml.safe_load(said(capsys, "train", "--cfg", "job", *words))["model"]["params"]
    assert (found["max_leaves"], found["max_depth"], "gamma" in found) == (8, 3, False)
    text = said(capsys, "sweep", "--cfg", "job", "experiment=categorical_zones")
    assert "categorical:\n  - PULocationID\n" in text
