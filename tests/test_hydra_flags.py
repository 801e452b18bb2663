"""Hydra's documented flags and keys, as its users type them: docs/command_line.md has the table."""

import json
import os
from pathlib import Path

import pytest
import yaml

from tipcast import cli
from tipcast.config import conf_files
from tipcast.config.compose import compose

PAGE = Path(__file__).resolve().parent.parent / "docs" / "command_line.md"


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(conf_files.OWN, "")


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


def test_cfg_shows_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    shown = yaml.safe_load(said(capsys, "train", "--cfg", "job", "seed=7", "data=tlc", "data.train=2019-01"))
    assert shown["seed"] == 7
    assert (shown["data"]["train"], shown["data"]["test"]) == ("2019-01", "???")
    assert shown["data"]["cache"] == '${oc.env:TIPCAST_CACHE,"~/.cache/tipcast"}'
    assert "hydra" not in shown
    assert "error[C005] --cfg: must be job, got all" in refused(capsys, "train", "-c", "all")


def test_config_dir(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--config-dir", str(own)], [f"-cd={own}"], [f"--config-dir={own}"]):
        assert yaml.safe_load(said(capsys, "train", *words, "task=mine", "--cfg", "job"))["task"]["threshold"] == 0.3
    assert "error[C003] --config-dir" in refused(capsys, "train", "--config-dir", "nope")
    file = own / "data" / "small.yaml"
    file.parent.mkdir()
    file.write_text("defaults:\n  - sample\n  - _self_\n\nmonths: 2019-01\nrows: 200\n")
    words = ["data=small", "backend=glob(c*)", "data.seed=1,2", "out=one,two", "print=json", "cluster.processes=false"]
    text = said(capsys, "prepare", "--config-dir", str(own), "--multirun", *words)
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["out"], line["written"]) for line in lines] == [("one", 1), ("two", 1)] * 2
    assert len({line["command"] for line in lines}) == 4, "each command repeats its own run"
    assert all("--config-dir=" in line["command"] for line in lines)
    assert {path.name for path in Path().iterdir()} == {"own", "one", "two"}


CALLS = "{version: 1, root: {handlers: [x]}, handlers: {x: {(): pathlib.Path.touch, self: made}}}"
"""Logging that calls a function as it is set up."""
MAKES = "{_target_: os.mkdir, path: made}"


@pytest.mark.parametrize("words", [["task=mine", "--cfg=job"], ["-m", "task=high_tip,mine"], ["task=mine", "--help"]])
@pytest.mark.parametrize(
    "keys",
    [
        "{launcher: {_target_: sys.exit}, sweeper: {_target_: sys.exit}, mode: MULTIRUN}",
        f"{{callbacks: {{x: {MAKES}}}}}",
        f"{{job_logging: {CALLS}, hydra_logging: {CALLS}}}",
        "{job: {env_set: {TIPCAST_CONFIG_DIR: nowhere}, chdir: true}}",
    ],
)
def test_a_folder_of_one_s_own_cannot_have_hydra_run_code(own: Path, keys: str, words: list[str]) -> None:
    (own / "task" / "mine.yaml").write_text(f"# @package _global_\nhydra: {keys}\n")
    here = Path.cwd()
    compose("train", [f"--config-dir={own}", *words])
    assert [path.name for path in here.iterdir()] == ["own"], "no object was made, no folder, no run"
    assert (Path.cwd(), os.environ[conf_files.OWN]) == (here, str(own))


def test_keys_of_hydra_s_own_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for word in (
        "hydra/launcher=dask", "hydra/sweeper=optuna", "hydra.run.dir=x", "hydra.sweep.dir=x", "hydra.job.chdir=true",
        "hydra.mode=MULTIRUN", "hydra.searchpath=[file:///x]", "hydra.output_subdir=x", "hydra.verbose=true",
        "+hydra.callbacks.x._target_=os.getcwd",
    ):  # fmt: skip
        assert refused(capsys, "train", word).startswith("error[C006]")
        assert word.lstrip("+").partition("=")[0] in page or "hydra.callbacks" in word


def test_overrides_of_hydra_s_grammar(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["+model.params.max_leaves=8", "~model.params.gamma", "++model.params.max_depth=3"]
    params = yaml.safe_load(said(capsys, "train", "--cfg", "job", *words))["model"]["params"]
    assert (params["max_leaves"], params["max_depth"], "gamma" in params) == (8, 3, False)
    assert "categorical:\n  - PULocationID\n" in said(capsys, "sweep", "-c", "job", "experiment=categorical_zones")
    assert said(capsys, "train", "--version") == said(capsys, "-V")
