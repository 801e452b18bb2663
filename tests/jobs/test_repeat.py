"""`tipcast train from=RUN`: a run is trained again, and what is another than it was is told or
refused.
"""

import contextlib
import functools
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
import pytest
from tests.jobs.conftest import QUICK, QUICK_TRAIN, console_lines

import tipcast
from tipcast import cli, commands
from tipcast.config import conf_files
from tipcast.config.errors import TipcastError
from tipcast.datasets.periods import of_months
from tipcast.datasets.taxi.sample import sample_block

MONTHS = ("2019-01", "2019-02")
HERE = (*QUICK[1:], *QUICK_TRAIN)
TrainAgain = Callable[..., Any]


@dataclass(frozen=True)
class Shared:
    """A store, the folder of a colleague, and what the colleague's jobs returned."""

    store: str
    folder: Path
    train: tipcast.Result
    sweep: tipcast.Result


def write(folder: Path, month: str, rows: int = 3000) -> None:
    trips = pd.DataFrame(sample_block(of_months(month, month), 0, 1, rows, "yellow"))
    times = {
        name: trips[name].astype("datetime64[us]") for name in trips if name.endswith("_datetime")
    }
    folder.mkdir(exist_ok=True)
    trips.assign(**times).to_parquet(folder / f"yellow_{month}.parquet", index=False)


@pytest.fixture(scope="module")
def shared(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """A store, the folder of a colleague, and a training and a sweep of files in it, by their
    relative paths.
    """
    folder = tmp_path_factory.mktemp("colleague")
    store = f"sqlite:///{shutil.copy(tables, folder)}"
    for month in MONTHS:
        write(folder / "trips", month)
    settings = {
        "data": {"source": "files", "train": "trips/*-01.parquet", "test": "trips/*-02.parquet"},
        "model": {"name": "xgboost", "params": {"n_estimators": 5, "subsample": 0.7}},
        "seed": 7,
        "tracking": {"uri": store, "experiment": "shared", "register": "shared"},
        "overrides": HERE,
    }
    with contextlib.chdir(folder):
        trained = tipcast.train(**settings)
        space = {"learning_rate": {"log": [0.01, 0.02]}}
        search = {"name": "random", "trials": 2, "space": space, "baseline": False}
        swept = tipcast.sweep(search=search, **settings)
    yield Shared(store, folder, trained, swept)
    mlflow.set_tracking_uri(None)


@pytest.fixture
def train_again(shared: Shared, tmp_path: Path) -> Callable[..., Any]:
    """Train again, from another folder."""
    (tmp_path / "mine").mkdir()
    os.chdir(tmp_path / "mine")  # the fixture ``_alone`` puts it back

    def run(repeat: str, *words: str, **settings: Any) -> Any:
        done = tipcast.train(
            repeat=repeat, tracking={"uri": shared.store}, overrides=[*HERE, *words], **settings
        )
        return mlflow.MlflowClient(shared.store).get_run(done.run_id), done

    return run


def measured(run: Any) -> dict[str, float]:
    """Return what a run's model was measured to be."""
    return {
        name: value
        for name, value in run.data.metrics.items()
        if name.startswith(("test/", "validation/"))
    }


def test_a_sweep_around_a_run(train_again: TrainAgain, shared: Shared) -> None:
    trained = shared.train
    done = tipcast.sweep(
        repeat=trained.run_id[:8],
        search={"trials": 1},
        tracking={"uri": shared.store},
        overrides=HERE,
    )
    assert done.details["best"]["trial"] == 0
    assert done.details["trials"] == {"finished": 1, "failed": 0, "all": 1}
    assert done.metrics == trained.metrics, "trial 0 has the parameters of the run"


@dataclass(frozen=True)
class Repetition:
    """A run of the colleague's, and its training from another folder."""

    first: Any
    run: Any
    result: tipcast.Result
    lines: list[str]
    """What the console was told."""


Repetitions = Callable[[str], Repetition]


@pytest.fixture(scope="module")
def repetitions(shared: Shared, tmp_path_factory: pytest.TempPathFactory) -> Repetitions:
    """Repeat the training or the sweep, the first time that it is asked for."""
    client = mlflow.MlflowClient(shared.store)

    @functools.cache
    def repeat_once(job: str) -> Repetition:
        result: tipcast.Result = getattr(shared, job)
        first = client.get_run(result.run_id)
        with contextlib.chdir(tmp_path_factory.mktemp("mine")), console_lines() as lines:
            done = tipcast.train(
                repeat=first.info.run_id, tracking={"uri": shared.store}, overrides=HERE
            )
        return Repetition(first, client.get_run(done.run_id), done, lines)

    return repeat_once


of_each_job = pytest.mark.parametrize("job", ["train", "sweep"])


@of_each_job
def test_the_same_metrics_to_the_bit_from_another_folder(
    repetitions: Repetitions, job: str
) -> None:
    again = repetitions(job)
    assert measured(again.run) == measured(again.first)
    assert len(measured(again.run)) > 10


@of_each_job
def test_a_repetition_says_that_metrics_are_equal_to_the_last_bit(
    repetitions: Repetitions, job: str
) -> None:
    again = repetitions(job)
    note = again.run.data.tags["mlflow.note.content"]
    assert "test metrics are bit-for-bit equal" in note
    assert any("test metrics are bit-for-bit equal" in line for line in again.lines)


@of_each_job
def test_a_repetition_has_the_parameters_of_its_run(
    repetitions: Repetitions, shared: Shared, job: str
) -> None:
    again = repetitions(job)
    params = again.run.data.params
    for name in ("seed", "model.params.subsample", "task.name"):
        assert params[name] == again.first.data.params[name]
    assert params["data.train"] == f"['{shared.folder}/trips/yellow_2019-01.parquet']"


def test_a_repeated_sweep_trains_with_what_it_found_best(
    repetitions: Repetitions, shared: Shared
) -> None:
    """A number again, whichever trial it is of."""
    rate = float(repetitions("sweep").run.data.params["model.params.learning_rate"])
    assert rate == shared.sweep.details["best"]["learning_rate"]


@of_each_job
def test_a_repetition_names_its_run(repetitions: Repetitions, job: str) -> None:
    again = repetitions(job)
    run_id = again.first.info.run_id
    assert again.run.data.tags["repeat.of"] == run_id
    assert again.result.command.startswith(f"tipcast train from={run_id} ")
    assert again.result.details["repeats"] == run_id


@of_each_job
def test_what_the_run_registered_is_not_registered_again(
    repetitions: Repetitions, job: str
) -> None:
    assert repetitions(job).result.model_uri.startswith("models:/m-")


@dataclass(frozen=True)
class Overridden:
    """A multirun of the training with two numbers of trees and another threshold."""

    run_id: str
    """Of the multirun."""
    runs: dict[int, Any]
    """Trees -> the run of the training."""
    commands: dict[int, str]


@pytest.fixture(scope="module")
def overridden(shared: Shared, tmp_path_factory: pytest.TempPathFactory) -> Overridden:
    client = mlflow.MlflowClient(shared.store)
    words = ["-m", f"from={shared.train.run_id}", "model.params.n_estimators=2,3"]
    words += ["task.threshold=0.1", f"tracking.uri={shared.store}", *HERE]
    with contextlib.chdir(tmp_path_factory.mktemp("overridden")):
        (job,) = commands.compose_jobs("train", words)
        said = job.run()
    rows = dict(enumerate(sorted(said["trainings"], key=lambda row: row["name"]), 2))
    return Overridden(
        said["run_id"],
        {trees: client.get_run(row["run_id"]) for trees, row in rows.items()},
        {trees: row["command"] for trees, row in rows.items()},
    )


of_each_override = pytest.mark.parametrize("trees", [2, 3])


@of_each_override
def test_overrides_of_a_repetition_are_applied(overridden: Overridden, trees: int) -> None:
    run = overridden.runs[trees]
    names = ("seed", "model.params.n_estimators", "model.params.subsample", "task.threshold")
    assert [run.data.params[name] for name in names] == ["7", str(trees), "0.7", "0.1"]
    assert run.data.metrics["fit/rounds"] == trees


@of_each_override
def test_a_repetition_with_overrides_is_named_by_them(
    overridden: Overridden, shared: Shared, trees: int
) -> None:
    begun = shared.train.run_id[:8]
    name = f"xgboost n_estimators={trees} from={begun} threshold=0.1"
    assert overridden.runs[trees].info.run_name == name


@of_each_override
def test_a_repetition_with_overrides_names_its_run(
    overridden: Overridden, shared: Shared, trees: int
) -> None:
    assert overridden.runs[trees].data.tags["repeat.of"] == shared.train.run_id


@of_each_override
def test_a_repetition_with_overrides_says_which_metrics_differ(
    overridden: Overridden, trees: int
) -> None:
    assert "differ: test/" in overridden.runs[trees].data.tags["mlflow.note.content"]


@of_each_override
def test_the_command_of_a_repetition_has_its_overrides(overridden: Overridden, trees: int) -> None:
    assert f"model.params.n_estimators={trees}" in overridden.commands[trees]


def test_a_multirun_is_not_repeated(overridden: Overridden, train_again: TrainAgain) -> None:
    with pytest.raises(TipcastError, match="M023.*is not a run of train or sweep"):
        train_again(overridden.run_id)


def test_a_repetition_with_another_model_drops_the_old_parameters(
    shared: Shared, train_again: TrainAgain
) -> None:
    run, _ = train_again(shared.train.run_id, model="logistic")
    assert run.data.params["model.name"] == "logistic"
    assert "model.params.subsample" not in run.data.params


def test_other_data_are_refused(
    shared: Shared, train_again: TrainAgain, tmp_path: Path, logged: list[str]
) -> None:
    shutil.copytree(shared.folder / "trips", tmp_path / "copied")
    files = [f"{tmp_path}/copied/yellow_{month}.parquet" for month in MONTHS]
    named = [f"data.train={files[0]}", f"data.test={files[1]}"]
    run, _ = train_again(shared.train.run_id, *named)
    assert measured(run) == measured(
        mlflow.MlflowClient(shared.store).get_run(shared.train.run_id)
    ), "a copy is the same"
    write(tmp_path / "copied", MONTHS[1], rows=2900)
    with pytest.raises(
        TipcastError, match="D024.*digest of test [0-9a-f]{16}, now [0-9a-f]{16}.*other_data=true"
    ):
        train_again(shared.train.run_id, *named)
    run, _ = train_again(shared.train.run_id, *named, "other_data=true")
    assert run.data.tags["repeat.of"] == shared.train.run_id
    assert any("the data differ from its training data" in line for line in logged)


@pytest.mark.parametrize(
    ("words", "name", "text"),
    [
        (
            ["tracking=own"],
            "tracking/own",
            "defaults: [/schema/tracking@_here_, _self_]\nuri: STORE\nexperiment: shared\n",
        ),
        (
            ["-m", "experiment=mine"],
            "experiment/mine",
            "# @package _global_\ntracking:\n  uri: STORE\n  experiment: shared\n",
        ),
    ],
    ids=["option", "experiment"],
)
def test_the_store_of_a_run_may_be_named_by_a_file(
    shared: Shared,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    name: str,
    text: str,
) -> None:
    monkeypatch.setenv(conf_files.OWN, "")
    path = tmp_path / "own" / f"{name}.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text.replace("STORE", shared.store))
    composed = commands.compose_jobs(
        "train", ["--config-dir=own", *words, f"from={shared.train.run_id}"]
    )
    assert [job.config.seed for job in composed] == [7]


def test_the_configuration_of_a_repetition_is_shown(
    shared: Shared, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"from={shared.sweep.run_id}", f"tracking.uri={shared.store}", "--cfg", "job"]
    assert cli.main(["train", *words]) == 0
    shown = capsys.readouterr().out
    for line in ("subsample: 0.7", "yellow_2019-01.parquet", "seed: 7"):
        assert line in shown


@pytest.mark.parametrize("name", ["f" * 32, "123e4", "nothing"])
def test_a_run_that_is_not_there_is_not_repeated(train_again: TrainAgain, name: str) -> None:
    with pytest.raises(TipcastError, match=f"T004.*run {name}"):
        train_again(name)


def test_a_record_with_an_expression_is_not_repeated(
    shared: Shared, train_again: TrainAgain
) -> None:
    client = mlflow.MlflowClient(shared.store)
    run_id = client.create_run(
        client.get_experiment_by_name("shared").experiment_id, tags={"job": "train"}
    ).info.run_id
    client.log_text(run_id, "model: {params: {x: '${oc.env:HOME}'}}", "config.yaml")
    with pytest.raises(TipcastError, match="M023"):
        train_again(run_id)
