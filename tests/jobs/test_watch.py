"""`tipcast watch`: what is found of a new month, when a challenger is trained and promoted; nothing is done twice."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from tests.jobs.conftest import QUICK, QUICK_TRAIN, run_job

import tipcast
from tipcast import cli
from tipcast.config.compose import compose, to_object
from tipcast.config.errors import TipcastError
from tipcast.jobs import prepare, promote, train
from tipcast.tracking.portable import Logged

Watch = Callable[..., Any]
CHAMPION = "models:/tipcast@champion"
PICKUP = "tpep_pickup_datetime"


def month(folder: Path, name: str) -> Path:
    return folder / f"yellow_tripdata_{name}.parquet"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two months like those that the registered model was trained on."""
    out = tmp_path_factory.mktemp("made")
    for name in ("2019-05", "2019-06"):
        words = ["data.rows=8000", f"data.months={name}", f"out={out}", *QUICK]
        (composed,) = compose("prepare", words)
        with contextlib.redirect_stdout(io.StringIO()):
            prepare.run(to_object(composed.config), "tipcast prepare")
    (out / "manifest.json").unlink()
    return out


@pytest.fixture
def months(made: Path, tmp_path: Path) -> Path:
    """Months that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "months"))


@pytest.fixture
def own(registered: Path, tmp_path: Path) -> str:
    """A store of a test's own, whose model `tipcast` has one version: the champion."""
    uri = f"sqlite:///{shutil.copy(registered, tmp_path / 'store.db')}"
    mlflow.MlflowClient(uri).set_registered_model_alias("tipcast", "champion", "1")
    return uri


@pytest.fixture
def client(own: str) -> Any:
    return mlflow.MlflowClient(own)


@pytest.fixture
def watch(own: str, months: Path, tmp_path: Path) -> Watch:
    """Watch a month, June by default."""

    def run(*words: str, given: object = None, uri: str = CHAMPION) -> Any:
        first = [f"model_uri={uri}", f"input={given or month(months, '2019-06')}", f"output={tmp_path / 'scored'}"]
        return run_job(own, "watch", *first, *words)

    return run


def changed(path: Path, change: Callable[[pd.DataFrame], None]) -> None:
    frame = pd.read_parquet(path)
    change(frame)
    frame.to_parquet(path, index=False)


def tips_by_hour(frame: pd.DataFrame) -> None:
    """Other answers for the same rows, which are easy to learn: before noon tips are high."""
    late = frame[PICKUP].dt.hour >= 12
    frame["tip_amount"] = np.where(late, 0.0, 0.5) * frame["fare_amount"]


def crowded(frame: pd.DataFrame) -> None:
    """Other rows."""
    frame["passenger_count"] = 6


def tips_by_chance(frame: pd.DataFrame) -> None:
    frame["tip_amount"] = np.where(np.random.default_rng(0).random(len(frame)) < 0.5, 0.5, 0) * frame["fare_amount"]


def runs(client: Any) -> list[Any]:
    found = client.search_runs([each.experiment_id for each in client.search_experiments()])
    return sorted(found, key=lambda each: each.info.start_time)


def holder(client: Any) -> str:
    return str(client.get_registered_model("tipcast").aliases["champion"])


def versions(client: Any) -> int:
    return len(client.search_model_versions("name='tipcast'"))


def test_a_month_like_the_others(watch: Watch, client: Any, tmp_path: Path) -> None:
    before = len(runs(client))
    ended = watch("retrain=watched")
    said, metrics, tags = ended.said, ended.run.data.metrics, ended.run.data.tags
    assert said["exit_code"] == 0
    assert said["passed"] == {}
    assert said["challenger"] is said["promoted"] is None
    assert (tags["job"], tags["watch.passed"]) == ("watch", "none")
    assert ended.run.info.run_name == "watch tipcast"
    trained = client.get_run(client.get_model_version("tipcast", "1").run_id).data.metrics
    assert metrics["watch/reference_auc"] == pytest.approx(trained["test/auc"], abs=1e-9)
    assert metrics["watch/auc"] == metrics["labelled/auc"]
    assert metrics["watch/estimated_auc"] == pytest.approx(metrics["watch/auc"], abs=0.025)
    assert metrics["watch/estimated_auc_low"] < metrics["watch/estimated_auc"] < metrics["watch/estimated_auc_high"]
    assert metrics["watch/estimated_positive_rate"] == pytest.approx(metrics["watch/positive_rate"], abs=0.03)
    assert 0 <= metrics["watch/calibration_error"] < 0.06
    assert metrics["watch/labelled_rows"] == pytest.approx(metrics["score/rows"], rel=0.05)
    assert 0 < metrics["watch/psi_max"] < 0.1
    assert said["metrics"] == {name: value for name, value in metrics.items() if name.startswith("watch/")}
    assert "No limit is passed" in tags["mlflow.note.content"]
    scored = pd.read_parquet(tmp_path / "scored" / "yellow_tripdata_2019-06.parquet")
    assert scored["probability"].mean() == pytest.approx(metrics["score/mean"], abs=1e-6)
    again = watch("retrain=watched")
    assert again.said["scored"] == 0
    assert "run_id" not in again.said
    assert again.said["watch_run_id"] == said["run_id"]
    assert again.said["metrics"] == said["metrics"]
    assert len(runs(client)) == before + 1


def test_a_folder_that_score_has_filled_is_scored_once_more(
    watch: Watch, own: str, months: Path, tmp_path: Path
) -> None:
    words = [f"model_uri={CHAMPION}", f"input={month(months, '2019-06')}", f"output={tmp_path / 'scored'}"]
    run_job(own, "score", *words)
    assert watch().said["scored"] == 1
    assert run_job(own, "score", *words).said["scored"] == 0
    assert watch().said["scored"] == 0


def test_drifted_is_told_and_nothing_more_unless_asked(watch: Watch, client: Any, months: Path) -> None:
    changed(month(months, "2019-06"), crowded)
    ended = watch()
    assert ended.said["exit_code"] == 11
    assert ended.said["passed"]["psi"].startswith("passenger_count")
    assert list(ended.said["drift"]) == ["passenger_count"]
    assert ended.run.data.tags["watch.passed"] == "psi"
    assert "**Limits passed: psi: passenger_count" in ended.run.data.tags["mlflow.note.content"]
    assert (versions(client), holder(client)) == (1, "1")
    assert watch("limit.psi=null").said["exit_code"] == 0, "other limits, the same numbers"
    assert watch().said["exit_code"] == 11


def test_drifted_is_retrained_and_promoted(watch: Watch, client: Any, months: Path, logged: list[str]) -> None:
    for name in ("2019-05", "2019-06"):
        changed(month(months, name), tips_by_hour)
    ended = watch("retrain=" + str(months / "*.parquet"))
    said = ended.said
    assert said["exit_code"] == 10
    assert list(said["passed"]) == ["auc_drop"]
    assert (said["challenger"], said["promoted"]) == ("models:/tipcast/2", True)
    assert holder(client) == "2"
    assert any(line.startswith("limit.auc_drop is passed: AUC is 0.") for line in logged)
    challenger = client.get_run(client.get_model_version("tipcast", "2").run_id)
    tags, params = challenger.data.tags, challenger.data.params
    assert tags["mlflow.parentRunId"] == tags["watch.of"] == said["run_id"]
    assert tags["data.train_period"].startswith("2019-05-01..")
    assert tags["data.test_period"] == "2019-06-01..2019-06-30"
    assert params["model.params.n_estimators"] == "20", "as the champion was trained"
    assert challenger.data.metrics["test/auc"] > 0.99
    tags = client.get_run(said["run_id"]).data.tags
    assert (tags["watch.challenger"], tags["watch.promoted"]) == ("models:/tipcast/2", "true")
    assert tags["watch.why"].startswith("AUC +0.")
    assert [run.data.tags["job"] for run in runs(client)] == ["train", "watch", "train", "promote"]
    assert {run.info.status for run in runs(client)} == {"FINISHED"}
    again = watch("retrain=" + str(months / "*.parquet"))
    assert again.said["model_uri"] == "models:/tipcast/2", "the new champion's scores"
    assert again.said["exit_code"] == 0
    assert versions(client) == 2


def test_a_version_is_watched_in_the_place_of_its_alias(watch: Watch, client: Any, months: Path) -> None:
    for name in ("2019-05", "2019-06"):
        changed(month(months, name), tips_by_hour)
    first = watch("retrain=watched", given=months, uri="models:/tipcast/1")
    assert (first.said["exit_code"], holder(client)) == (10, "2")
    second = watch("retrain=watched", given=months, uri="models:/tipcast/1")
    assert second.said["scored"] == 0
    assert (second.said["exit_code"], second.said["challenger"]) == (10, "models:/tipcast/2"), "it is as it was"
    assert versions(client) == 2


def test_a_worse_challenger_is_not_promoted(watch: Watch, client: Any, months: Path) -> None:
    changed(month(months, "2019-05"), tips_by_chance)
    changed(month(months, "2019-06"), crowded)
    retrain = "retrain=" + str(month(months, "2019-05"))
    ended = watch(retrain)
    assert ended.said["exit_code"] == 11
    assert (ended.said["challenger"], ended.said["promoted"]) == ("models:/tipcast/2", False)
    assert "comparison: AUC -0." in ended.said["why"]
    assert holder(client) == "1"
    assert client.get_run(ended.said["run_id"]).data.tags["watch.promoted"] == "false"
    many = len(runs(client))
    again = watch(retrain)
    assert (again.said["exit_code"], again.said["why"]) == (11, ended.said["why"])
    assert len(runs(client)) == many, "it is not tried twice"


@pytest.mark.parametrize("stopped", [KeyboardInterrupt, pytest.param(OSError, marks=pytest.mark.long)])
def test_what_was_stopped_is_taken_up(
    watch: Watch, client: Any, months: Path, monkeypatch: pytest.MonkeyPatch, stopped: type[BaseException]
) -> None:
    """Before the challenger is registered, before it is promoted, before that is kept: each is done once in the end."""
    for name in ("2019-05", "2019-06"):
        changed(month(months, name), tips_by_hour)

    def stop(*_: Any, **__: Any) -> Logged:
        raise stopped

    words = ("retrain=watched",)
    for at, (module, name) in enumerate([(train, "finish"), (promote, "_contest"), (promote.registry, "move_alias")]):
        with monkeypatch.context() as patch, pytest.raises(stopped):
            patch.setattr(module, name, stop)
            watch(*words, given=months)
        assert versions(client) == (1 if at == 0 else 2)
        assert holder(client) == "1"
    with monkeypatch.context() as patch, pytest.raises(stopped):
        patch.setattr("tipcast.jobs.watch._keep", stop)
        watch(*words, given=months, uri="models:/tipcast/1")
    assert (versions(client), holder(client)) == (2, "2")
    ended = watch(*words, given=months, uri="models:/tipcast/1")
    assert ended.said["scored"] == 0
    assert (ended.said["exit_code"], ended.said["challenger"]) == (10, "models:/tipcast/2")
    assert versions(client) == 2
    jobs = [(run.data.tags["job"], run.info.status) for run in runs(client)]
    assert [job for job, status in jobs if status == "FINISHED"].count("train") == 2, "the champion's and one more"
    assert "RUNNING" not in {status for _, status in jobs}


def test_without_answers(watch: Watch, months: Path) -> None:
    path = month(months, "2019-06")
    changed(path, lambda frame: frame.drop(columns=["tip_amount", "fare_amount"], inplace=True))
    ended = watch()
    metrics = ended.said["metrics"]
    assert (ended.said["exit_code"], metrics["watch/labelled_rows"]) == (0, 0)
    assert "watch/auc" not in metrics
    assert metrics["watch/estimated_auc"] == pytest.approx(metrics["watch/reference_auc"], abs=0.03)
    changed(path, crowded)
    assert watch().said["passed"]["psi"].startswith("passenger_count")
    with pytest.raises(TipcastError) as caught:
        watch("retrain=watched")
    assert caught.value.code == "C003"
    assert "no answers" in caught.value.what


def test_refused_files_are_told_last(watch: Watch, client: Any, months: Path) -> None:
    for name in ("2019-05", "2019-06"):
        changed(month(months, name), tips_by_hour)
    month(months, "2019-07").write_bytes(b"PAR1")
    with pytest.raises(TipcastError) as caught:
        watch("retrain=watched", given=months)
    assert caught.value.code == "S010"
    assert holder(client) == "2"


def test_numbers(own: str, client: Any, months: Path, tmp_path: Path) -> None:
    words = ["task=tip_amount", "task.params.card_only=false", "data.rows=8000", "model.params.n_estimators=20"]
    run_job(own, "train", *words, "tracking.register=amounts")
    first = ["model_uri=models:/amounts/1", f"output={tmp_path / 'amounts'}", f"input={month(months, '2019-06')}"]
    metrics = run_job(own, "watch", *first).said["metrics"]
    assert metrics["watch/estimated_rmse"] == pytest.approx(metrics["watch/reference_rmse"], rel=0.1)
    assert abs(metrics["watch/estimated_bias"] - metrics["watch/bias"]) < 0.3
    changed(month(months, "2019-06"), lambda frame: frame.update(frame[["tip_amount"]] * 3))
    assert list(run_job(own, "watch", *first).said["passed"]) == ["loss_rise"]


def test_a_table(own: str, client: Any, tmp_path: Path) -> None:
    """Rows without a time: of the watched file a fifth is drawn to test both on."""

    def rows(seed: int, sign: int) -> pd.DataFrame:
        draw = np.random.default_rng(seed)
        frame = pd.DataFrame(draw.standard_normal((3000, 2)), columns=["a", "b"])
        frame["y"] = (sign * frame["a"] + draw.standard_normal(3000) > 0).astype(int)
        return frame

    for name, seed, sign in (("train", 0, 1), ("same", 1, 1), ("other", 2, -1)):
        rows(seed, sign).to_parquet(tmp_path / f"{name}.parquet", index=False)
    words = [f"data.train={tmp_path}/train.parquet", "task=target", "task.target=y", "model.params.n_estimators=20"]
    run_job(own, "train", "data=table", *words, "tracking.register=signs")
    client.set_registered_model_alias("signs", "champion", "1")
    for name, code in (("same", 0), ("other", 10)):
        first = ["model_uri=models:/signs@champion", f"input={tmp_path}/{name}.parquet", f"output={tmp_path / 'out'}"]
        assert run_job(own, "watch", *first, "retrain=watched").said["exit_code"] == code
    assert client.get_registered_model("signs").aliases["champion"] == 2


def test_what_a_sweep_has_found_is_trained_again(own: str, client: Any, months: Path, tmp_path: Path) -> None:
    words = ["search=random", "search.trials=2", "search.space={max_depth: [2, 3]}", "model.params.n_estimators=20"]
    swept = run_job(own, "sweep", *words, "data.rows=4000", "tracking.register=swept").said
    for name in ("2019-05", "2019-06"):
        changed(month(months, name), tips_by_hour)
    first = ["model_uri=models:/swept/1", f"input={months}", f"output={tmp_path / 'out'}", "retrain=watched"]
    assert run_job(own, "watch", *first).said["promoted"]
    challenger = client.get_run(client.get_model_version("swept", "2").run_id).data.params
    assert challenger["model.params.max_depth"] == str(swept["best"]["max_depth"])
    assert challenger["model.params.n_estimators"] == "20"


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (["limit.psi=0"], "C003", "limit.psi"),
        (["limit.auc_drop=-0.1"], "C003", "limit.auc_drop"),
        (["retrain=nowhere/*.parquet"], "D001", "nowhere"),
        (["retrain=nofile.parquet"], "D001", "nofile.parquet"),
        (["retrain=[]"], "C004", "retrain"),
        (["model_uri=models:/m-0123456789abcdef", "retrain=watched"], "C003", "is not registered"),
        (["model_uri=models:/tipcast@nobody"], "M001", "no such alias"),
        (["limits.psi=1"], "C001", "limit.psi"),
        (["limit=null"], "C003", "limit"),
        (["limit.psi=much"], "C003", "much"),
        (["colour=green"], "S010", "so it is a yellow-taxi file"),
    ],
)
def test_mistakes_are_one_line(
    own: str, months: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: str, what: str
) -> None:
    first = ["watch", f"tracking.uri={own}", f"model_uri={CHAMPION}", f"input={months}", f"output={tmp_path / 'out'}"]
    assert cli.main([*first, *words]) == {"C": 2, "D": 3, "M": 6, "S": 7}[code[0]]
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"error[{code}] ")
    assert what in line
    assert not (tmp_path / "out").exists()


def test_in_an_object_store(watch: Watch, client: Any, months: Path, bucket: Any) -> None:
    for path in months.glob("*.parquet"):
        changed(path, tips_by_hour)
        bucket.put_file(str(path), f"trips/months/{path.name}")
    words = ("output=s3://trips/scored", "retrain=s3://trips/months/*.parquet")
    given = "s3://trips/months/yellow_tripdata_2019-06.parquet"
    assert watch(*words, given=given, uri="models:/tipcast/1").said["exit_code"] == 10
    again = watch(*words, given=given, uri="models:/tipcast/1").said
    assert (again["scored"], again["challenger"], again["exit_code"]) == (0, "models:/tipcast/2", 10)
    assert versions(client) == 2


@pytest.mark.long
def test_made_rows_are_not_trained_on_from_files(own: str, tmp_path: Path) -> None:
    words = ["data=regression", "data.rows=3000", "data.test_rows=1000", "data.columns=2", "model=linear"]
    run_job(own, "train", *words, "tracking.register=made")
    far = pd.DataFrame(np.random.default_rng(0).standard_normal((500, 2)) + 5, columns=["x0", "x1"])
    far.to_parquet(tmp_path / "far.parquet")
    first = ["model_uri=models:/made/1", f"input={tmp_path}/far.parquet", f"output={tmp_path / 'out'}"]
    with pytest.raises(TipcastError) as caught:
        run_job(own, "watch", *first, "retrain=watched")
    assert (caught.value.code, caught.value.where) == ("C003", "retrain")


def test_one_month_alone_trains_nobody(watch: Watch, client: Any, months: Path) -> None:
    changed(month(months, "2019-06"), tips_by_hour)
    with pytest.raises(TipcastError) as caught:
        watch("retrain=watched")
    assert (caught.value.code, caught.value.where) == ("C003", "retrain")
    assert versions(client) == 1


def test_the_command_and_the_function(
    own: str, months: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(month(months, "2019-06"), crowded)
    quick = [word for word in (*QUICK, *QUICK_TRAIN) if "performance" not in word]
    words = [f"tracking.uri={own}", f"model_uri={CHAMPION}", f"input={month(months, '2019-06')}"]
    assert cli.main(["watch", *words, *quick, f"output={tmp_path / 'one'}"]) == 11
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["exit_code"] == 11
    found = tipcast.watch(
        CHAMPION,
        month(months, "2019-06"),
        tmp_path / "two",
        limit={"psi": 0.2},
        tracking={"uri": own, "system_metrics": False},
        cluster={"processes": False, "n_workers": 1},
    )
    assert isinstance(found, tipcast.Watched)
    assert list(found.passed) == ["psi"]
    assert (found.challenger, found.promoted) == (None, False)
    assert found.metrics["watch/psi_max"] == pytest.approx(said["metrics"]["watch/psi_max"])
