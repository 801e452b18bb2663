"""`tipcast sweep` as a user runs it: the parent run and its children, every search, and what two
sweeps differ in.
"""

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
from PIL import Image
from tests.jobs.conftest import TAGS, children, own_tags, run_job

from tipcast.config.errors import TipcastError
from tipcast.evaluation import base, metric
from tipcast.evaluation.plots import page
from tipcast.tracking.artifacts import CONFIG

QUICK = ("data.rows=5000",)
FEW = "model.params.n_estimators=12"
SPACE = "search.space.max_depth=[3,4,5]"
NOT_TRIED = {"trial", "validation/auc"}
Swept = tuple[dict[str, Any], Any, list[Any]]
"""What a sweep said, its run and its children."""
Sweep = Callable[..., Swept]


@pytest.fixture(scope="module")
def client(store: str) -> Any:
    return mlflow.MlflowClient(store)


@pytest.fixture
def swept(job: Callable[..., Any], client: Any) -> Sweep:
    def run(*words: str) -> Swept:
        ended = job("sweep", *QUICK, *(() if "model=kmeans" in words else (FEW,)), *words)
        return ended.said, ended.run, children(client, ended.run)

    return run


def artifact(client: Any, run: Any, path: str) -> bytes:
    return Path(client.download_artifacts(run.info.run_id, path)).read_bytes()


def leaderboard(client: Any, run: Any) -> list[dict[str, Any]]:
    table = json.loads(artifact(client, run, "sweep/leaderboard.json"))
    return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]


def ids(runs: list[Any]) -> list[str]:
    return [run.info.run_id for run in runs]


def points(client: Any, run: Any, name: str) -> tuple[list[int], list[float]]:
    history = client.get_metric_history(run.info.run_id, name)
    return [point.step for point in history], [point.value for point in history]


@pytest.fixture(scope="module")
def nine(store: str, client: Any, tmp_path_factory: pytest.TempPathFactory) -> Swept:
    """A random search of nine trials."""
    with contextlib.chdir(tmp_path_factory.mktemp("nine")), pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "DPI", 150)
        ended = run_job(
            store, "sweep", *QUICK, FEW, SPACE, "search.trials=9", "tracking.register=swept"
        )
    return ended.said, ended.run, children(client, ended.run)


def test_a_sweep_leaves_one_parent_and_a_child_for_each_trial(nine: Swept, client: Any) -> None:
    said, parent, runs = nine
    tags = parent.data.tags
    metrics = parent.data.metrics
    logged = parent.data.params
    assert said["trials"] == {"finished": 9, "failed": 0, "all": 9}
    assert [run.info.status for run in (parent, *runs)] == ["FINISHED"] * 10
    assert [run.data.tags["trial.key"] for run in runs] == [
        f"{tags['sweep.study']}-{at:04d}" for at in range(9)
    ]
    scores = [run.data.metrics["validation/auc"] for run in runs]
    best = runs[scores.index(max(scores))]
    assert said["best"]["trial"] == int(best.data.tags["trial.number"])
    steps, values = points(client, parent, "sweep/best_validation_auc")
    assert values == sorted(values)
    assert (steps[0], steps[-1], values[-1]) == (1, 9, max(scores))
    assert tags["sweep.best"] == best.data.tags["trial.key"]
    assert own_tags(parent) == {*TAGS, "sweep.study", "sweep.best", "sweep.best.params"}
    of_trial = {f"trial.{name}" for name in ("key", "number", "attempt", "params")}
    assert own_tags(best) == {*TAGS, *of_trial} - {"command"}
    for name, value in json.loads(tags["sweep.best.params"]).items():
        assert str(value) == best.data.params[f"model.params.{name}"]
        assert f"model.params.{name}" not in logged, (
            "it could not change when a better one is found"
        )
    assert (logged["model.params.n_estimators"], logged["search.name"]) == ("12", "random")
    assert said["model_uri"].startswith("models:/swept/")
    told = {
        name.partition("/")[0]
        for name in client.get_model_version("swept", "1").tags
        if "/" in name
    }
    assert told == {"test"}, "its metrics are of the test"
    assert metrics["test/auc"] == pytest.approx(said["metrics"]["test/auc"])
    assert 0.5 < metrics["test/auc"] < 1
    assert metrics["parity/max_abs_diff"] <= 1e-5
    assert not [run for run in runs if client.list_artifacts(run.info.run_id)], (
        "only the parent has artifacts"
    )
    assert {name for run in runs for name in run.data.metrics if name.startswith("test/")} == set()
    phases = {"list", "cluster", "load", "search", "read", "fit", "evaluate", "log"}
    assert phases <= {*said["phases"]} & {name.removeprefix("seconds/") for name in metrics}


def test_the_leaderboard_the_plots_the_note_and_the_refit(
    nine: Swept, client: Any, job: Callable[..., Any]
) -> None:
    said, parent, runs = nine
    best = [
        f"model.params.{name}={value}"
        for name, value in said["best"].items()
        if name not in NOT_TRIED
    ]
    assert job("train", *QUICK, FEW, *best).said["metrics"] == said["metrics"], (
        "the refit is what train makes of them"
    )
    rows = leaderboard(client, parent)
    assert [row["rank"] for row in rows] == list(range(1, 10))
    assert [row["validation/auc"] for row in rows] == sorted(
        (row["validation/auc"] for row in rows), reverse=True
    )
    assert all(
        row["validation/auc_low"] < row["validation/auc"] < row["validation/auc_high"]
        for row in rows
    )
    assert {row["run_id"] for row in rows} == {*ids(runs)}
    names = {entry.path for entry in client.list_artifacts(parent.info.run_id, "sweep")}
    assert names == {"sweep/leaderboard.json", "sweep/parameter_importance.png"}
    with Image.open(
        io.BytesIO(artifact(client, parent, "sweep/parameter_importance.png"))
    ) as picture:
        assert picture.size == (900, 900)
    defaults = {"max_depth": "6", "learning_rate": "0.1", "gamma": "0.0"}
    first = {f"model.params.{name}": value for name, value in defaults.items()}
    assert first.items() <= runs[0].data.params.items(), "the defaults, also outside the space"
    note = parent.data.tags["mlflow.note.content"]
    assert len(note) <= 8000
    for text in (
        f"trial {said['best']['trial']}]",
        "Compare all trials as charts",
        "mlflow.parentRunId",
        "test AUC",
    ):
        assert text in note
    assert said["charts"].endswith("workflowType=machine_learning")
    steps, rates = points(client, runs[0], "roc/true_positive_rate")
    assert steps == list(range(0, 101, 4))
    assert rates == sorted(rates)
    assert (rates[0] < 0.02, rates[-1]) == (True, 1)
    area = sum((a + b) / 2 for a, b in zip(rates[:-1], rates[1:], strict=True)) / 25
    assert area == pytest.approx(runs[0].data.metrics["validation/auc"], abs=0.01)


@pytest.mark.parametrize(
    ("words", "metric", "trials"),
    [
        (
            ["task=tip_amount", "search=tpe", "search.max_concurrent=2", "search.trials=6"],
            "rmse",
            6,
        ),
        (
            [
                "data=blobs",
                "task=clusters",
                "model=kmeans",
                "search=grid",
                "search.space.n_clusters=[2,5]",
            ],
            "inertia",
            2,
        ),
    ],
)
def test_other_kinds_of_tasks(
    swept: Sweep, client: Any, words: list[str], metric: str, trials: int
) -> None:
    """Less of their leading metric is better."""
    said, parent, runs = swept(*words)
    assert said["trials"] == {"finished": trials, "failed": 0, "all": trials}
    key = f"validation/{metric}"
    scores = [run.data.metrics[key] for run in runs]
    assert said["best"][key] == min(scores) < max(scores)
    assert parent.data.metrics[f"sweep/best_{key.replace('/', '_')}"] == min(scores)
    assert parent.data.metrics[key] == pytest.approx(min(scores), rel=1e-6), (
        "the refit is the trial's"
    )
    assert f"{key}_low" in runs[0].data.metrics
    assert "orderByAsc=true" in said["charts"]
    assert [row[key] for row in leaderboard(client, parent)] == sorted(scores)
    note = parent.data.tags["mlflow.note.content"]
    assert f"Best by {key}" in note
    gains = "search=tpe" in words and scores[0] > min(scores)
    assert (f"The default parameters, trial 0, have {scores[0]:.4f}." in note) == gains


def test_a_finished_sweep_is_resumed_without_a_fit_and_grows(
    swept: Sweep, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranked by a metric of the user's own, and with a parameter that the command line sets."""
    for kind in base.OWN:
        monkeypatch.setitem(base.OWN, kind, {})

    @metric("classification", maximize=False)
    def cost(target: Any, prediction: Any) -> Any:
        return np.where(target == 1, 3 * (1 - prediction), prediction)

    fixed = (
        "model.params.max_depth=3",
        "search=tpe",
        "search.metric=cost",
        "tracking.register=again",
    )
    said, parent, runs = swept("search.trials=3", *fixed)
    assert said["best"]["validation/cost"] == min(
        run.data.metrics["validation/cost"] for run in runs
    )
    assert "validation/cost_low" not in parent.data.tags["mlflow.note.content"], "it has none"
    assert parent.data.params["model.params.max_depth"] == "3"
    assert not [run for run in runs if "model.params.max_depth" in run.data.params]
    resume = f"resume={said['run_id']}"
    for word, key in (
        ("search=random", "search"),
        ("seed=9", "seed"),
        ("search.trials=2", "search.trials"),
    ):
        with pytest.raises(TipcastError, match="keeps it") as caught:
            swept(resume, word)
        assert (caught.value.code, caught.value.where) == ("C003", key)
    whole, unchanged, _ = swept(resume, "search.attempts=5", "search=tpe")
    same = ("run_id", "best", "trials", "run", "command")
    assert {name: whole[name] for name in same} == {name: said[name] for name in same}
    tested = {name: value for name, value in said["metrics"].items() if name.startswith("test/")}
    assert tested.items() <= whole["metrics"].items()
    assert unchanged.data.metrics == parent.data.metrics
    assert (unchanged.info.status, unchanged.info.end_time) == ("FINISHED", parent.info.end_time), (
        "nothing was done"
    )
    assert (
        mlflow.get_logged_model(whole["model_uri"].removeprefix("models:/")).source_run_id
        == said["run_id"]
    )
    _, resumed, later = swept(resume, "tracking.register=another")
    (version,) = client.search_model_versions("name='another'")
    assert (
        version.tags["sweep.best"]
        == resumed.data.tags["sweep.best"]
        == parent.data.tags["sweep.best"]
    )
    assert [run.info.end_time for run in later] == [run.info.end_time for run in runs]
    more, grown, longer = swept(resume[:15], "search.trials=5")
    assert more["trials"] == {"finished": 5, "failed": 0, "all": 5}
    assert "max_depth" not in more["best"], "also when it is resumed"
    assert ids(longer[:3]) == ids(later) == ids(runs)
    assert grown.data.metrics["sweep/trials"] == 5
    assert "search.trials" not in grown.data.params
    assert [word for word in more["command"].split() if word.startswith("search.trials")] == [
        "search.trials=5"
    ]
    assert grown.data.tags["command"] == more["command"], "the command that repeats the whole of it"
    whole, last, _ = swept(resume)
    logged = [mlflow.get_logged_model(output.model_id) for output in last.outputs.model_outputs]
    newest = max(logged, key=lambda model: model.creation_timestamp)
    assert whole["model_uri"] == f"models:/{newest.model_id}", "the model of the last fit"


def test_a_sweep_of_which_no_trial_ended_well_says_why(
    swept: Sweep, client: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its metric is the user's own, and is never a number."""
    for kind in base.OWN:
        monkeypatch.setitem(base.OWN, kind, {})

    @metric("classification", maximize=True)
    def broken(target: Any, prediction: Any) -> Any:
        return np.full(len(target), np.nan)

    with pytest.raises(TipcastError, match="S004.*no trial of 2 ended well: non-fin") as caught:
        swept("search.metric=broken", "search.trials=2")
    assert caught.value.exit_code == 7
    parent = client.get_run(caught.value.where)
    assert (parent.info.status, parent.data.tags["error.code"]) == ("FAILED", "S004")
    assert [run.info.status for run in children(client, parent)] == ["FAILED"] * 2
    assert f"tipcast sweep resume={parent.info.run_id}" in capsys.readouterr().err


def test_a_sweep_that_ends_in_time_goes_on_and_is_whole(
    swept: Sweep, client: Any, logged: list[str]
) -> None:
    """With fewer points than trials."""
    others = ("colsample_bytree", "gamma", "learning_rate", "min_child_weight", "subsample")
    few = ("search.trials=8", SPACE, *(f"search.space.{name}=null" for name in others))
    said, parent, runs = swept(*few, "search.timeout_s=1e-9")  # over as the first begins
    assert said["trials"] == {"finished": 1, "failed": 0, "all": 4, "not_tried": 3}, (
        "three points and the defaults"
    )
    assert next(line for line in logged if line.startswith("trial")) == "trials   4 in all", (
        "before the first"
    )
    assert {run.info.status for run in (parent, *runs)} == {"FINISHED"}, (
        "what runs is finished, the best is fitted"
    )
    assert "test/auc" in said["metrics"]
    go_on = f"1 of 4 trials are done; go on with: tipcast sweep resume={said['run_id']}"
    assert go_on in parent.data.tags["mlflow.note.content"]
    experiment = client.get_experiment(parent.info.experiment_id).name
    # as of a sweep on GPUs, which may go on here
    stored = artifact(client, parent, CONFIG).decode()
    client.log_text(
        said["run_id"], stored.replace("trials_per_gpu: 1", "trials_per_gpu: 2"), CONFIG
    )
    more, whole, later = swept(
        "resume=last", "search.timeout_s=null", f"tracking.experiment={experiment}"
    )
    assert more["run_id"] == said["run_id"]
    assert more["trials"] == {"finished": 4, "failed": 0, "all": 4}
    assert ids(later)[:1] == ids(runs)
    best = max(later, key=lambda run: run.data.metrics["validation/auc"])
    assert ids([best]) != ids(runs), "a better one is found"
    assert (more["best"]["trial"], whole.data.tags["sweep.best"]) == (
        int(best.data.tags["trial.number"]),
        best.data.tags["trial.key"],
    )
    assert (
        json.loads(whole.data.tags["sweep.best.params"])["max_depth"] == more["best"]["max_depth"]
    )


def test_what_cannot_be_resumed(nine: Swept, swept: Sweep, client: Any) -> None:
    _, parent, (first, *_) = nine
    run_id = parent.info.run_id
    trial = first.info.run_id
    text = artifact(client, parent, CONFIG).decode()
    client.log_text(run_id, text.replace("source: sample", "source: '${oc.env:HOME}'"), CONFIG)
    for name in ("nothing", "0" * 32, trial, trial[:12], run_id):
        with pytest.raises(TipcastError, match="S003" if name in run_id + trial else "T004"):
            swept(f"resume={name}")
    client.log_text(run_id, text, CONFIG)
    assert client.get_run(run_id).info.status == "FINISHED", "it is left as it was"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["model.params.max_depth=7", "search.space.max_depth=[6,8]"],
            "C003.*max_depth: is fixed to 7",
        ),
        (["resume="], "C003.*names no run"),
        (["search=grid", "search.baseline=true"], "C003.*search.baseline"),
        (["data.limits.min_rows=1000000"], "D014.*rows"),
    ],
)
def test_mistakes(swept: Sweep, words: list[str], told: str) -> None:
    with pytest.raises(TipcastError, match=told):
        swept(*words)
