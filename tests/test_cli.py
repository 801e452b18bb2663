"""The command as a user types it: Hydra's flags and keys, mistakes that end in one line with a
documented exit code.
"""

import json
import logging
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.conftest import python

from tipcast import cli
from tipcast.config import conf_files
from tipcast.config.compose import compose

FORM = re.compile(r"^error\[[CDKTMS]\d{3}\] \S.* Fix: .+")
PAGE = Path(__file__).resolve().parent.parent / "docs" / "command_line.md"


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("command", "exit_code", "line"),
    [
        ("trian", 2, "C008.*trian.*did you mean train\\?"),
        ("-vv train", 2, "C008.*-vv.*use one of train"),
        (
            "train --foo --cfg job",
            2,
            "C005.*--foo: unknown flag, or no value for it.*KEY=VALUE.*--multirun.*--cfg",
        ),
        ("train backend=gpu", 4, "K006.*backend"),
        ("train data=files data.train=no.parquet data.test=no2.parquet", 3, r"D001.*no\.parquet"),
        (
            "train data.train=2019-03 data.test=2019-01 debug=true",
            3,
            "D019.*2019-0[13].*2019-0[13]",
        ),
        ("prepare out=x", 2, r"C004.*data\.months"),
        ("train --config-dir nope", 2, "C003.*--config-dir"),
        ("-sc install=tcsh", 2, "C005.*--shell-completion: must be install=bash"),
        # not imported before it is checked
        ("train model.cpu=evil.X data.rows=200", 2, r"C006.*model\.cpu"),
    ],
)
def test_mistakes_end_in_one_line(
    command: str,
    exit_code: int,
    line: str,
    tmp_path: Path,
    monkeypatch: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "evil.py").write_text("open('imported', 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert cli.main(command.split()) == exit_code
    err = capsys.readouterr().err
    last = err.splitlines()[-1]
    assert FORM.match(last), err
    assert re.match(rf"error\[{line}", last.replace("]", "", 1)), last
    assert len(last) <= 300
    assert err.startswith("Traceback") == ("debug=true" in command)
    assert [path.name for path in tmp_path.iterdir()] == ["evil.py"], (
        "a mistake before the start leaves nothing"
    )


OF_CONFIGURATION = {
    "train data.rows=0": "data.rows: must be at least 1, got 0. Fix: use a number within these "
    "bounds",
    "train seed=-1": "seed: must be at least 0 and below 2147483648, got -1",
    "train data.months=2019-01": "data.months: has no effect with data=sample here. Fix: leave "
    "it out",
    "promote model_uri=models:/a/1 data.train=t.csv": "data.train: has no effect with "
    "data=tested here",
    "train task.validation=1": "task.validation: must be at least 0 and below 1, got 1",
    "train tracking.experiment=''": "tracking.experiment: is empty",
    "train tracking.register=a/b": "tracking.register: not a model name: 'a/b'",
    "sweep search.metric=aucc": "search.metric: cannot rank a classification by aucc. "
    "Fix: use auc, ",
    "sweep search.timeout_s=inf": "search.timeout_s: must be above 0, got inf",
    "sweep search.trials=20000": "search.trials: must be at most 10,000, got 20,000",
    "sweep search.trials_per_gpu=2": "search.trials_per_gpu: cannot be combined with backend=cpu",
    "sweep search=tpe search.trials=null": "search.trials: tpe needs a number of trials",
    "sweep task.validation=0": "task.validation: must be above 0, to compare trials, got 0",
}
"""Command -> what its configuration alone shows to be wrong with it."""
WITHOUT_LIBRARIES = """
import shlex, sys, tipcast
assert "train" in dir(tipcast) and not hasattr(tipcast, "trian")
assert not {"hydra", "mlflow", "numpy"} & set(sys.modules)
from tipcast import cli
assert cli.main(["train", "--help"]) == 0
assert [cli.main(shlex.split(command)) for command in sys.argv[1:]] == [2] * len(sys.argv[1:])
heavy = {"dask", "distributed", "mlflow", "pandas", "pyarrow", "scipy", "sklearn", "xgboost"}
print(sorted(heavy & set(sys.modules)))
"""


def test_what_the_configuration_shows_is_told_before_libraries_are_loaded(tmp_path: Path) -> None:
    ended = python(tmp_path, "-c", WITHOUT_LIBRARIES, *OF_CONFIGURATION)
    for said, message in zip(ended.stderr.splitlines(), OF_CONFIGURATION.values(), strict=True):
        assert said.startswith(f"error[C003] {message}")
        assert FORM.match(said)
    assert ended.stdout.splitlines()[-1] == "[]"
    assert not list(tmp_path.iterdir())


COLLECTED = """
import gc, os, signal, sys
from tipcast import cli
def collecting(phase, info):
    gc.callbacks.clear()
    os.kill(os.getpid(), int(sys.argv[1]))
def run(job, arguments):
    gc.callbacks.append(collecting)
    gc.collect()
    signal.sigtimedwait([], 60)
cli._run = run
sys.exit(cli.main(['train']))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_are_heeded_while_garbage_is_collected(
    number: int, code: int, tmp_path: Path
) -> None:
    ended = python(tmp_path, "-c", COLLECTED, int(number))
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr


SWALLOWED = """
import os, signal, sys
from tipcast import cli
from tipcast.jobs import doctor
def library():
    try:
        os.kill(os.getpid(), int(sys.argv[1]))
        signal.sigtimedwait([], 60)
    except BaseException:
        return ""
def waits():
    for _ in range(2):
        library()
    signal.sigtimedwait([], 60)
doctor.show_gpus = waits
sys.exit(cli.main(["doctor"]))
"""
"""A job whose library swallows what a signal raises, twice, and goes on."""


@pytest.mark.parametrize(
    ("number", "code", "line"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_a_signal_that_a_library_swallows_ends_the_job_all_the_same(
    number: int, code: int, line: str, tmp_path: Path
) -> None:
    ended = python(tmp_path, "-c", SWALLOWED, int(number))
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", f"{line}\n")


def test_a_signal_is_not_lost_where_closing_handles_an_error_of_its_own(
    monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = []

    def struck(*_: object) -> int:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            try:
                raise OSError("the store is gone")
            except OSError:
                signal.raise_signal(signal.SIGINT)
                closed.append(cli._unwinding())
        return 0

    monkeypatch.setattr(cli, "_run", struck)
    assert cli.main(["train"]) == 130
    assert closed == [True]


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("first", "line"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")]
)
def test_a_second_signal_does_not_cut_closing_off(
    first: signal.Signals,
    line: str,
    second: signal.Signals,
    monkeypatch: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run that was closed meanwhile is named; a process that goes on keeps its handlers."""
    ended = []

    def struck(*_: object) -> int:
        try:
            signal.raise_signal(first)
        except BaseException as problem:
            signal.raise_signal(second)
            if ended:
                problem.add_note("a run is closed")
            ended.append(True)
            raise
        return 0

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    monkeypatch.setattr(cli, "_run", struck)
    for told in (line, f"{line}: a run is closed"):  # the next job heeds signals again
        assert cli.main(["train"]) == 128 + first
        assert capsys.readouterr().err == f"{told}\n"
    assert ended == [True, True]
    assert [signal.getsignal(number) for number in numbers] == before


def test_what_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    def run(job: str, arguments: list[str]) -> int:
        runs.append((job, arguments, logging.getLogger("tipcast").level))
        return 0

    monkeypatch.setattr(cli, "_run", run)
    for line in ("train a=1", "-q train a=1", "train --quiet a=1 -v"):
        assert cli.main(line.split()) == 0
    assert runs == [
        ("train", ["a=1"], level) for level in (logging.INFO, logging.WARNING, logging.DEBUG)
    ]


def output_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main([*words]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_cfg_shows_the_configuration_with_overrides_of_hydra_s_grammar(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["+model.params.max_leaves=8", "~model.params.gamma", "++model.params.max_depth=3"]
    shown = yaml.safe_load(
        output_of(capsys, "train", "--cfg", "job", "data=tlc", "data.train=2019-01", *words)
    )
    params = shown["model"]["params"]
    assert (params["max_leaves"], params["max_depth"], "gamma" in params) == (8, 3, False)
    assert (shown["data"]["train"], shown["data"]["test"]) == ("2019-01", "???")
    assert shown["data"]["cache"] == '${oc.env:TIPCAST_CACHE,"~/.cache/tipcast"}'
    assert "hydra" not in shown
    assert "categorical:\n  - PULocationID\n" in output_of(
        capsys, "sweep", "-c", "job", "experiment=categorical_zones"
    )
    assert output_of(capsys, "train", "--version") == output_of(capsys, "-V")


def test_config_dir(own_conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["--config-dir", str(own_conf)],
        [f"-cd={own_conf}"],
        [f"--config-dir={own_conf}"],
    ):
        assert (
            yaml.safe_load(output_of(capsys, "train", *words, "task=mine", "--cfg", "job"))["task"][
                "threshold"
            ]
            == 0.3
        )
    file = own_conf / "data" / "small.yaml"
    file.parent.mkdir()
    file.write_text("defaults:\n  - sample\n  - _self_\n\nmonths: 2019-01\nrows: 200\n")
    words = [
        "data=small",
        "backend=glob(c*)",
        "data.seed=1,2",
        "out=one,two",
        "print=json",
        "cluster.processes=false",
    ]
    text = output_of(capsys, "prepare", "--config-dir", str(own_conf), "--multirun", *words)
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["out"], line["written"]) for line in lines] == [("one", 1), ("two", 1)] * 2
    assert len({line["command"] for line in lines}) == 4, "each command repeats its own run"
    assert all("--config-dir=" in line["command"] for line in lines)
    assert {path.name for path in Path().iterdir()} == {"own", "one", "two"}


CALLS = "{version: 1, root: {handlers: [x]}, handlers: {x: {(): pathlib.Path.touch, self: made}}}"
"""Logging that calls a function as it is set up."""
MAKES = "{_target_: os.mkdir, path: made}"


@pytest.mark.parametrize(
    "words", [["task=mine", "--cfg=job"], ["-m", "task=high_tip,mine"], ["task=mine", "--help"]]
)
@pytest.mark.parametrize(
    "keys",
    [
        "{launcher: {_target_: sys.exit}, sweeper: {_target_: sys.exit}, mode: MULTIRUN}",
        f"{{callbacks: {{x: {MAKES}}}}}",
        f"{{job_logging: {CALLS}, hydra_logging: {CALLS}}}",
        "{job: {env_set: {TIPCAST_CONFIG_DIR: nowhere}, chdir: true}}",
    ],
)
def test_a_folder_of_one_s_own_cannot_have_hydra_run_code(
    own_conf: Path, keys: str, words: list[str]
) -> None:
    (own_conf / "task" / "mine.yaml").write_text(f"# @package _global_\nhydra: {keys}\n")
    here = Path.cwd()
    compose("train", [f"--config-dir={own_conf}", *words])
    assert [path.name for path in here.iterdir()] == ["own"], (
        "no object was made, no folder, no run"
    )
    assert (Path.cwd(), os.environ[conf_files.OWN]) == (here, str(own_conf))


def test_keys_of_hydra_s_own_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for word in (
        "hydra/launcher=dask",
        "hydra/sweeper=optuna",
        "hydra.run.dir=x",
        "hydra.sweep.dir=x",
        "hydra.job.chdir=true",
        "hydra.mode=MULTIRUN",
        "hydra.searchpath=[file:///x]",
        "hydra.output_subdir=x",
        "hydra.verbose=true",
        "+hydra.callbacks.x._target_=os.getcwd",
    ):
        assert cli.main(["train", word]) == 2
        assert capsys.readouterr().err.startswith("error[C006]")
        assert word.lstrip("+").partition("=")[0] in page or "hydra.callbacks" in word
