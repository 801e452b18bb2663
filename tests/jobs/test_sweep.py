"""`tipcast sweep` as a user runs it: the parent run and its children, every search, and what two sweeps differ in."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import pytest
import yaml
from PIL import Image
from tests.jobs.conftest import children, run_job

from tipcast.config.errors import TipcastError
from tipcast.config.schema import TrackingSpec
from tipcast.evaluation.plots import style
from tipcast.jobs import train
from tipcast.jobs.sweep_record import SweepRecord
from tipcast.search import task
from tipcast.search.trial import Objective, Trial
from tipcast.tracking import process
from tipcast.tracking.run import open_run

TRIAL_LINE = r"trial (\d) \((\d)/9\)  validation/auc 0\.\d{4}  best (0\.\d{4} \(trial \d\))  \d+\.\d s"
QUICK = ("data.rows=5000",)
FEW = "model.params.n_estimators=12"


@pytest.fixture(scope="module")
def client(store: str) -> Any:
    return mlflow.MlflowClient(store)


@pytest.fixture
def swept(job: Callable[..., Any], client: Any) -> Callable[..., Any]:
    """Run a sweep; return what it said, its run and its children."""

    def run(*words: str) -> tuple[dict[str, Any], Any, list[Any]]:
        trees = "model=kmeans" not in words and not [w for w in words if w.startswith("search.space.n_estimators")]
        few = (FEW,) if trees else ()
        ended = job("sweep", *QUICK, *few, *words)
        return ended.said, ended.run, children(client, ended.run)

    return run


def artifact(client: Any, run: Any, path: str) -> bytes:
    return Path(client.download_artifacts(run.info.run_id, path)).read_bytes()


def configured(client: Any, run: Any, config: dict[str, Any], folder: Path) -> None:
    """Let a run have another configuration."""
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    client.log_artifact(run.info.run_id, str(folder / "config.yaml"))


@dataclass(frozen=True)
class Swept:
    """A random search of nine trials."""

    said: dict[str, Any]
    parent: Any
    runs: list[Any]
    lines: list[str]
    """What the console was told."""


@pytest.fixture(scope="module")
def nine(store: str, client: Any, tmp_path_factory: pytest.TempPathFactory) -> Swept:
    logger, lines, handler = logging.getLogger("tipcast"), list[str](), logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    with contextlib.chdir(tmp_path_factory.mktemp("nine")), pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "DPI", 150)
        patch.setattr(logger, "level", logging.INFO)
        logger.addHandler(handler)
        words = ("search.trials=9", "search.space.max_depth=[3,4,5]", "tracking.register=swept")
        ended = run_job(store, "sweep", *QUICK, FEW, *words)
        logger.removeHandler(handler)
    return Swept(ended.said, ended.run, children(client, ended.run), lines)


def test_a_sweep_leaves_one_parent_and_a_child_for_each_trial(nine: Swept, client: Any) -> None:
    said, parent, runs = nine.said, nine.parent, nine.runs
    assert said["trials"] == {"finished": 9, "failed": 0, "all": 9}
    assert [run.info.status for run in (parent, *runs)] == ["FINISHED"] * 10
    assert [run.data.tags["trial.key"] for run in runs] == [f"{said['study']}-{number:04d}" for number in range(9)]
    scores = [run.data.metrics["validation/auc"] for run in runs]
    best = runs[scores.index(max(scores))]
    assert said["best"]["trial"] == int(best.data.tags["trial.number"])
    assert parent.data.metrics["sweep/best_validation_auc"] == max(scores)
    assert parent.data.tags["sweep.best"] == best.data.tags["trial.key"]
    for name in ("max_depth", "learning_rate", "subsample"):
        assert parent.data.tags[f"sweep.best.{name}"] == best.data.params[f"model.params.{name}"]
        assert f"model.params.{name}" not in parent.data.params, "it could not change when a better one is found"
    assert parent.data.params["model.params.n_estimators"] == "12"
    assert parent.data.params["search.name"] == "random"
    assert said["model_uri"].startswith("models:/swept/")
    assert parent.data.metrics["test/auc"] == pytest.approx(said["metrics"]["test/auc"])
    assert 0.5 < parent.data.metrics["test/auc"] < 1
    assert parent.data.metrics["parity/max_abs_diff"] <= 1e-5
    assert not [run for run in runs if client.list_artifacts(run.info.run_id)], "only the parent has artifacts"
    assert {name for run in runs for name in run.data.metrics if name.startswith("test/")} == set()
    for name in ("list", "cluster", "load", "search", "read", "fit", "evaluate", "log"):
        assert name in said["phases"]
        assert f"seconds/{name}" in parent.data.metrics


def test_what_the_console_is_told(nine: Swept) -> None:
    said, lines = nine.said, [line for line in nine.lines if not line.startswith("list ")]  # of a slow machine
    assert lines[0].split()[:2] == ["run", said["run"].split()[0]], "the link comes first"
    told = [re.fullmatch(TRIAL_LINE, line) for line in lines if line.startswith("trial ")]
    assert [match[2] for match in told if match] == [str(number) for number in range(1, 10)]
    assert sorted(match[1] for match in told if match) == [str(number) for number in range(9)]
    best = said["best"]
    assert (told[-1] or "")[3] == f"{best['validation/auc']:.4f} (trial {best['trial']})"
    assert ["list", *(line.split()[0] for line in lines if line.split()[0] in said["phases"])] == [*said["phases"]]


def test_the_leaderboard_the_plots_and_the_note(nine: Swept, client: Any) -> None:
    said, parent, runs = nine.said, nine.parent, nine.runs
    table = json.loads(artifact(client, parent, "sweep/leaderboard.json"))
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert [row["rank"] for row in rows] == list(range(1, 10))
    assert [row["validation/auc"] for row in rows] == sorted((row["validation/auc"] for row in rows), reverse=True)
    assert all(row["validation/auc_low"] < row["validation/auc"] < row["validation/auc_high"] for row in rows)
    assert {row["run_id"] for row in rows} == {run.info.run_id for run in runs}
    assert all(row["run_id"] in row["run"] for row in rows)
    names = {entry.path for entry in client.list_artifacts(parent.info.run_id, "sweep")}
    for name in ("roc", "parallel", "seconds", "parameter_importance", "busy"):
        assert f"sweep/{name}.png" in names
        with Image.open(io.BytesIO(artifact(client, parent, f"sweep/{name}.png"))) as picture:
            assert picture.size == (900, 900)
    note = parent.data.tags["mlflow.note.content"]
    assert len(note) <= 8000
    assert f"trial {said['best']['trial']}]" in note
    assert "Compare all trials as charts" in note
    assert "mlflow.parentRunId" in note
    assert "test AUC" in note
    assert said["charts"].endswith("workflowType=machine_learning")
    curve = client.get_metric_history(runs[0].info.run_id, "roc/true_positive_rate")
    assert [point.step for point in curve] == list(range(0, 101, 4))
    rates = [point.value for point in curve]
    assert rates == sorted(rates)
    assert rates[0] < 0.02
    assert rates[-1] == 1
    area = sum((a + b) / 2 for a, b in zip(rates[:-1], rates[1:], strict=True)) / 25
    assert area == pytest.approx(runs[0].data.metrics["validation/auc"], abs=0.01)


def test_the_refit_is_what_train_makes_of_the_best_parameters(nine: Swept, job: Callable[..., Any]) -> None:
    best = {name: value for name, value in nine.said["best"].items() if name not in {"trial", "validation/auc"}}
    trained = job("train", *QUICK, FEW, *(f"model.params.{name}={value}" for name, value in best.items()))
    assert trained.said["metrics"] == nine.said["metrics"]


@pytest.mark.parametrize("search", ["grid", "halving"])
def test_searches(swept: Callable[..., Any], client: Any, search: str) -> None:
    words = {
        "grid": ["search.space.max_depth=[3,5]", "search.space.n_estimators=[4,12,8]"],
        "halving": ["search.trials=9", "model.fit.early_stopping_rounds=null"],
    }[search]
    said, parent, runs = swept(f"search={search}", *words)
    assert said["trials"]["finished"] == len(runs) == {"grid": 6, "halving": 9}[search]
    assert {run.info.status for run in runs} == {"FINISHED"}
    if search == "grid":
        assert [run.data.params["model.params.n_estimators"] for run in runs] == ["4", "12", "8"] * 2
    if search == "halving":
        rounds = [int(run.data.tags["trial.rounds"]) for run in runs]
        assert set(rounds) == {2, 6, 12}
        assert parent.data.metrics["sweep/rounds"] == sum(rounds), "no tree was grown twice"
        promoted = runs[rounds.index(12)]
        steps = [point.step for point in client.get_metric_history(promoted.info.run_id, "validation/auc")]
        assert sorted(steps) == [2, 6, 12]
        spent = client.get_metric_history(promoted.info.run_id, "seconds/fit")
        seconds = [point.value for point in sorted(spent, key=lambda point: point.step)]
        assert seconds[0] < seconds[1] < seconds[2], "they are added up"
    assert parent.data.metrics["sweep/busy_seconds"] <= 2 * said["phases"]["search"], "on two threads"


@pytest.mark.parametrize(
    ("words", "metric"),
    [
        (["task=tip_amount", "search=tpe", "search.max_concurrent=2"], "rmse"),
        pytest.param(["data=blobs", "task=target", "data.cluster_std=9"], "log_loss", marks=pytest.mark.long),
        pytest.param(["data=regression", "task=target", "search=halving"], "rmse", marks=pytest.mark.long),
        (["data=blobs", "task=clusters", "model=kmeans"], "inertia"),
    ],
)
def test_other_kinds_of_tasks(swept: Callable[..., Any], client: Any, words: list[str], metric: str) -> None:
    """Less of their leading metric is better."""
    said, parent, runs = swept(*words, "search.trials=6")
    assert said["trials"]["failed"] == 0
    key = f"validation/{metric}"
    most = max(run.data.metrics.get("rounds", 0) for run in runs)
    scores = [run.data.metrics[key] for run in runs if run.data.metrics.get("rounds", 0) == most]
    assert said["best"][key] == min(scores) < max(run.data.metrics[key] for run in runs)
    assert parent.data.metrics[f"sweep/best_{key.replace('/', '_')}"] == min(scores)
    assert f"{key}_low" in runs[0].data.metrics
    assert "orderByAsc=true" in said["charts"]
    table = json.loads(artifact(client, parent, "sweep/leaderboard.json"))
    assert table["data"][0][table["columns"].index(key)] == min(scores)
    assert "sweep/roc.png" not in {entry.path for entry in client.list_artifacts(parent.info.run_id, "sweep")}
    assert f"Best by {key}" in parent.data.tags["mlflow.note.content"]
    if "search=halving" not in words:  # which stops on the way, and draws other samples from there on
        assert parent.data.metrics[key] == pytest.approx(min(scores), rel=1e-6), "the refit is the trial's"


def test_halving_delivers_the_model_that_it_chose(swept: Callable[..., Any]) -> None:
    space = ("search.space.learning_rate=[0.3,0.5,0.7,0.9]", "search.space.max_depth=[6,8]")
    drawn = [f"search.space.{name}=null" for name in ("subsample", "colsample_bytree", "min_child_weight")]
    words = (
        "search=halving",
        "search.trials=6",
        "model.fit.early_stopping_rounds=null",
        "model.params.n_estimators=90",
    )
    said, parent, runs = swept(*words, *space, *drawn)
    tops = [run for run in runs if run.data.tags["trial.rounds"] == "90"]
    best = max(tops, key=lambda run: float(run.data.metrics["validation/auc"]))
    assert said["best"]["trial"] == int(best.data.tags["trial.number"])
    assert parent.data.metrics["validation/auc"] == pytest.approx(said["best"]["validation/auc"], abs=1e-9)


def test_a_lead_with_fewer_trees_is_none() -> None:
    def trial(number: int, auc: float, rounds: int | None, over: bool = False) -> Trial:
        return Trial(str(number), number, {}, auc, {"auc": auc}, {}, "w", 1, rounds=rounds, over=over)

    sweep = object.__new__(SweepRecord)
    sweep.spaces = [{}]
    sweep.objective = Objective("study", "auc", maximize=True)
    sweep.trials = {0: trial(0, 0.9, 30), 1: trial(1, 0.7, 90), 2: trial(2, 0.8, 90), 3: trial(3, 0.95, 10)}
    assert [trial.number for trial in sweep.ranked] == [2, 1, 3, 0]
    sweep.trials[3] = trial(3, 0.95, 10, over=True)
    assert sweep.best.number == 3, "more trees would not be used"
    sweep.trials = {0: trial(0, 0.6, None), 1: trial(1, 0.7, None), 2: trial(2, 0.7, None)}
    assert [trial.number for trial in sweep.ranked] == [1, 2, 0]
    sweep.objective = Objective("study", "rmse", maximize=False)
    assert [trial.number for trial in sweep.ranked] == [0, 1, 2]


def test_the_same_trials_for_any_number_of_workers(swept: Callable[..., Any]) -> None:
    found = []
    for workers, threads in ((1, 1), (2, 4)):
        _, _, runs = swept(
            "search.trials=3", f"cluster.n_workers={workers}", f"cluster.threads_per_worker={threads}", "seed=3"
        )
        found.append([(run.data.params, run.data.metrics["validation/auc"]) for run in runs])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "words",
    [["model=logistic", "~model.params.n_estimators"], pytest.param(["model=xgboost_forest"], marks=pytest.mark.long)],
)
def test_other_models(swept: Callable[..., Any], words: list[str]) -> None:
    said, _, _ = swept("search.trials=2", *words)
    assert said["trials"]["finished"] == 2


def test_a_finished_sweep_is_resumed_without_a_fit(swept: Callable[..., Any], store: str) -> None:
    said, parent, runs = swept("search.trials=4", "search=tpe", "tracking.register=again")
    assert said["trials"]["finished"] == len(runs) == 4
    assert {run.info.status for run in runs} == {"FINISHED"}
    for words, key in ((["search=halving"], "search"), (["seed=9"], "seed"), (["search.trials=3"], "search.trials")):
        with pytest.raises(TipcastError, match="keeps it") as caught:
            swept(f"resume={parent.info.run_id}", *words)
        assert (caught.value.code, caught.value.where) == ("C003", key)
    again, resumed, later = swept(
        f"resume={parent.info.run_id}", "search.attempts=5", "search=tpe", "tracking.register=again"
    )
    (version,) = mlflow.MlflowClient(store).search_model_versions("name='again'")
    assert version.tags["sweep.best"] == resumed.data.tags["sweep.best"]
    assert again["run_id"] == said["run_id"]
    assert again["best"] == said["best"]
    assert again["metrics"] == said["metrics"]
    assert resumed.info.status == "FINISHED"
    assert [run.info.run_id for run in later] == [run.info.run_id for run in runs]
    assert [run.info.end_time for run in later] == [run.info.end_time for run in runs]
    more, grown, longer = swept(f"resume={parent.info.run_id}", "search.trials=6")
    assert more["trials"] == {"finished": 6, "failed": 0, "all": 6}
    assert [run.info.run_id for run in longer[:4]] == [run.info.run_id for run in runs]
    assert grown.data.metrics["sweep/trials"] == 6
    assert "search.trials" not in grown.data.params
    assert parent.data.tags["command"].count("search.trials=") == more["command"].count("search.trials=") == 1
    assert "search.trials=6" in more["command"].split(), "the command that repeats the whole of it"
    assert grown.data.tags["command"] == more["command"]
    assert more["command"] in grown.data.tags["mlflow.note.content"]


def test_interrupted_in_the_last_fit(
    swept: Callable[..., Any], client: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(train, "measure", lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt):
            swept("search.trials=2")
    finally:
        signal.signal(signal.SIGINT, before)
    told, _, run_id = capsys.readouterr().err.splitlines()[-1].rpartition("=")
    assert told == "2 of 2 trials are done; go on with: tipcast sweep resume"
    parent = client.get_run(run_id)
    assert [run.info.status for run in (parent, *children(client, parent))] == ["KILLED", "FINISHED", "FINISHED"]


def test_a_killed_sweep_that_another_command_has_closed(swept: Callable[..., Any], client: Any, store: str) -> None:
    _, parent, runs = swept("search.trials=2")
    cut = runs[1].info.run_id
    for run_id in (parent.info.run_id, cut):  # as kill -9 leaves them
        known = json.loads(client.get_run(run_id).data.tags[process.PROCESS])
        client.set_tag(run_id, process.PROCESS, json.dumps(known | {"start": "1"}))
        client.update_run(run_id, status="RUNNING")
    with open_run(TrackingSpec(uri=store, experiment="x", system_metrics=False), name="n", tags={}, params={}):
        assert [client.get_run(run_id).info.status for run_id in (parent.info.run_id, cut)] == ["KILLED"] * 2
    said, resumed, later = swept(f"resume={parent.info.run_id}")
    assert resumed.info.status == "FINISHED"
    assert "error.message" not in resumed.data.tags
    assert said["trials"] == {"finished": 2, "failed": 0, "all": 2}
    states = sorted((int(run.data.tags["trial.attempt"]), run.info.status) for run in later)
    assert states == [(1, "FINISHED"), (1, "KILLED"), (2, "FINISHED")]


def test_a_resumed_sweep_that_finds_a_better_trial(
    swept: Callable[..., Any], store: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = task.RunningWork.trials

    def first_time(self: Any) -> Any:
        if self.work.numbers == (1,):
            raise MemoryError("out of memory")
        return whole(self)

    words = ("search=grid", "search.space.max_depth=[1,4]")
    with monkeypatch.context() as patched, pytest.raises(TipcastError) as caught:
        patched.setattr(task.RunningWork, "trials", first_time)
        swept(*words)
    assert caught.value.code == "S001"
    before = client.get_run(caught.value.where)
    assert before.data.tags["error.code"] == "S001"
    assert before.data.tags["sweep.best.max_depth"] == "1"
    said, parent, runs = swept(f"resume={caught.value.where}")
    assert said["best"]["max_depth"] == 4
    tags, metrics = parent.data.tags, parent.data.metrics
    assert tags["sweep.best.max_depth"] == "4"
    assert parent.data.params.get("model.params.max_depth") is None
    assert {"error.code", "error.message"} & set(tags) == set()
    assert tags["command"] == before.data.tags["command"] == said["command"]
    for name in ("busy", "tracking"):
        assert metrics[f"sweep/{name}_seconds"] > before.data.metrics[f"sweep/{name}_seconds"], name
    table = json.loads(artifact(client, parent, "sweep/leaderboard.json"))
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert [(row["trial"], row["attempt"]) for row in rows] == [(1, 2), (0, 1)]
    assert [run.data.tags["trial.attempt"] for run in runs if run.info.status == "FINISHED"] == ["1", "2"]


def test_what_cannot_be_resumed(nine: Swept, swept: Callable[..., Any], client: Any, tmp_path: Path) -> None:
    parent = nine.parent
    trial = nine.runs[0].info.run_id
    for run_id, code in (("nothing", "T004"), ("0" * 32, "S003"), (trial, "S003"), (trial[:12], "S003")):
        with pytest.raises(TipcastError) as caught:
            swept(f"resume={run_id}")
        assert caught.value.code == code
    config = yaml.safe_load(artifact(client, parent, "config.yaml"))
    for change in (
        {"seed": 5},
        {"data": {**config["data"], "train": "${oc.env:HOME}"}},
        {"model": {**config["model"], "_target_": "os.system"}},
        {"model": {**config["model"], "cpu": "os.system"}},
        {"task": {**config["task"], "threshold": "high"}},
        {"search": None},
    ):
        configured(client, parent, {**config, **change}, tmp_path)
        with pytest.raises(TipcastError) as caught:
            swept(f"resume={parent.info.run_id}")
        assert caught.value.code in {"S003", "C006"}, change
    configured(client, parent, config, tmp_path)
    assert client.get_run(parent.info.run_id).info.status == "FINISHED", "it is left as it was"


def test_a_sweep_of_an_earlier_release(swept: Callable[..., Any], client: Any, tmp_path: Path) -> None:
    _, parent, runs = swept("search.trials=2")
    config = yaml.safe_load(artifact(client, parent, "config.yaml"))
    task, model = config["task"], {**config["model"], "kind": "classification"}
    del model["kinds"]
    kept = ("name", "kind", "threshold", "features", "categorical", "validation")
    configured(client, parent, {**config, "task": {name: task[name] for name in kept}, "model": model}, tmp_path)
    client.delete_tag(parent.info.run_id, "sweep.data")
    client.set_tag(parent.info.run_id, "sweep.study", "an old one")
    said, _, later = swept(f"resume={parent.info.run_id}", "search.trials=3")
    assert said["trials"]["finished"] == 3
    assert [run.info.run_id for run in later[:2]] == [run.info.run_id for run in runs]
    assert later[2].data.tags["trial.key"] == "an old one-0002"


def test_a_parameter_of_the_command_line_is_not_searched(swept: Callable[..., Any], logged: list[str]) -> None:
    said, parent, runs = swept("search.trials=3", "model.params.max_depth=3", "model.params.gamma=0.5")
    assert [line for line in logged if line.startswith("fixed ")] == [
        "fixed  max_depth (3), gamma (0.5): set on the command line, so not searched"
    ]
    assert parent.data.params["model.params.max_depth"] == "3"
    assert not [run for run in runs if "model.params.max_depth" in run.data.params]
    assert "max_depth" not in said["best"]
    again, _, _ = swept(f"resume={parent.info.run_id}", "search.trials=4")
    assert again["trials"]["finished"] == 4
    assert "max_depth" not in again["best"], "also when it is resumed"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["search.space.max_dept=[3]"], "C001", "max_depth"),
        (["search.trials=0"], "C003", "search.trials: must be at least 1, got 0"),
        (["model.params.max_depth=7", "search.space.max_depth=[6,8]"], "C003", "max_depth: is fixed to 7"),
        (["search.trials=1000000000"], "C003", "must be at most 10,000, got 1,000,000,000"),
        (["resume="], "C003", "names no run"),
        (["search.trial_timeout_s=0"], "C003", "search.trial_timeout_s"),
        (["search=grid", "search.trials=3"], "C003", "729 points"),
        (["search=halving", "search.space.n_estimators=[3]"], "C003", "halving decides"),
        (["search=halving", "model=logistic", "~model.params.n_estimators"], "C003", "cannot be grown on"),
        (["task.validation=0"], "C003", "validation rows"),
        (["data.limits.min_rows=1000000"], "D014", "rows"),
    ],
)
def test_mistakes(swept: Callable[..., Any], words: list[str], code: str, text: str) -> None:
    with pytest.raises(TipcastError) as caught:
        swept(*words)
    assert caught.value.code == code
    assert text in str(caught.value)
