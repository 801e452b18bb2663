"""`tipcast sweep` as a user runs it: the parent run and its children, every search, and what two
sweeps differ in.
"""

import contextlib
import functools
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

import mlflow
import numpy as np
import pytest
from PIL import Image
from tests.jobs.conftest import TAGS, Ended, children, console_lines, own_tags, run_job

from tipcast.config.errors import TipcastError
from tipcast.evaluation import base, metric
from tipcast.evaluation.plots import page
from tipcast.tracking.artifacts import CONFIG

QUICK = ("data.rows=5000",)
FEW = "model.params.n_estimators=12"
SPACE = "search.space.max_depth=[3,4,5]"
NOT_TRIED = {"trial", "validation/auc"}
PICTURES = ("sweep/history.png", "sweep/parameters.png", "sweep/parameter_importance.png")


@dataclass(frozen=True)
class Swept:
    """What a sweep has left: its last line, its run, and the runs of its trials by number."""

    said: dict[str, Any]
    parent: Any
    trials: list[Any]

    @property
    def best(self) -> Any:
        """The run of the trial with the highest AUC."""
        return max(self.trials, key=lambda run: run.data.metrics["validation/auc"])


Sweep = Callable[..., Swept]


@pytest.fixture(scope="module")
def client(store: str) -> Any:
    return mlflow.MlflowClient(store)


def run_sweep(store: str, *words: str) -> Swept:
    """Sweep in this process, over trainings of few rows and trees."""
    few = () if "model=kmeans" in words else (FEW,)
    ended = run_job(store, "sweep", *QUICK, *few, *words)
    return Swept(ended.said, ended.run, children(mlflow.MlflowClient(store), ended.run))


@pytest.fixture
def swept(store: str) -> Sweep:
    return functools.partial(run_sweep, store)


def artifact(client: Any, run: Any, path: str) -> bytes:
    return Path(client.download_artifacts(run.info.run_id, path)).read_bytes()


def leaderboard(client: Any, run: Any) -> list[dict[str, Any]]:
    table = json.loads(artifact(client, run, "sweep/leaderboard.json"))
    return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]


def charts_of(client: Any, swept: Swept) -> dict[str, Any]:
    """The view that the link to a sweep's charts opens."""
    (name,) = parse_qs(swept.said["charts"].partition("?")[2])["viewStateShareKey"]
    tags = client.get_experiment(swept.parent.info.experiment_id).tags
    view: dict[str, Any] = json.loads(tags[f"mlflow.sharedViewState.{name}"])
    return view


def ids(runs: list[Any]) -> list[str]:
    return [run.info.run_id for run in runs]


def points(client: Any, run: Any, name: str) -> tuple[list[int], list[float]]:
    history = client.get_metric_history(run.info.run_id, name)
    return [point.step for point in history], [point.value for point in history]


@pytest.fixture(scope="module")
def nine(store: str, tmp_path_factory: pytest.TempPathFactory) -> Swept:
    """A random search of nine trials."""
    with contextlib.chdir(tmp_path_factory.mktemp("nine")), pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "DPI", 150)
        return run_sweep(store, SPACE, "search.trials=9", "tracking.register=swept")


def test_each_trial_is_a_finished_child_of_the_sweep(nine: Swept) -> None:
    digest = nine.parent.data.tags["sweep.study"]
    assert nine.said["trials"] == {"finished": 9, "failed": 0, "all": 9}
    assert [run.info.status for run in (nine.parent, *nine.trials)] == ["FINISHED"] * 10
    assert [run.data.tags["trial.key"] for run in nine.trials] == [
        f"{digest}-{at:04d}" for at in range(9)
    ]


def test_the_best_trial_is_the_one_of_the_highest_validation_score(nine: Swept) -> None:
    tags = nine.parent.data.tags
    assert nine.said["best"]["trial"] == int(nine.best.data.tags["trial.number"])
    assert tags["sweep.best"] == nine.best.data.tags["trial.key"]
    for name, value in json.loads(tags["sweep.best.params"]).items():
        assert str(value) == nine.best.data.params[f"model.params.{name}"]


def test_the_best_score_is_a_curve_that_never_falls(nine: Swept, client: Any) -> None:
    scores = [run.data.metrics["validation/auc"] for run in nine.trials]
    steps, values = points(client, nine.parent, "sweep/best_validation_auc")
    assert values == sorted(values)
    assert (steps[0], steps[-1], values[-1]) == (1, 9, max(scores))


def test_a_sweep_carries_no_tags_but_its_own(nine: Swept) -> None:
    assert own_tags(nine.parent) == {*TAGS, "sweep.study", "sweep.best", "sweep.best.params"}


def test_a_trial_carries_no_tags_but_its_own(nine: Swept) -> None:
    of_trial = {f"trial.{name}" for name in ("key", "number", "attempt", "params")}
    assert own_tags(nine.best) == {*TAGS, *of_trial} - {"command"}


def test_the_parent_has_no_parameter_that_a_better_trial_would_change(nine: Swept) -> None:
    params = nine.parent.data.params
    tried = json.loads(nine.parent.data.tags["sweep.best.params"])
    assert not {f"model.params.{name}" for name in tried} & params.keys()
    assert (params["model.params.n_estimators"], params["search.name"]) == ("12", "random")


def test_the_model_of_a_sweep_is_measured_on_test_rows(nine: Swept, client: Any) -> None:
    metrics = nine.parent.data.metrics
    tags = client.get_model_version("swept", "1").tags
    assert nine.said["model_uri"].startswith("models:/swept/")
    assert {name.partition("/")[0] for name in tags if "/" in name} == {"test"}
    assert metrics["test/auc"] == pytest.approx(nine.said["metrics"]["test/auc"])
    assert 0.5 < metrics["test/auc"] < 1
    assert metrics["parity/max_abs_diff"] <= 1e-5


def test_trials_have_neither_artifacts_nor_test_metrics(nine: Swept, client: Any) -> None:
    assert not [run for run in nine.trials if client.list_artifacts(run.info.run_id)]
    metrics = {name for run in nine.trials for name in run.data.metrics}
    assert not {name for name in metrics if name.startswith("test/")}


def test_every_phase_of_a_sweep_is_timed(nine: Swept) -> None:
    phases = {"list", "cluster", "load", "search", "read", "fit", "evaluate", "log"}
    assert phases <= nine.said["phases"].keys()
    assert {f"seconds/{phase}" for phase in phases} <= nine.parent.data.metrics.keys()


def test_the_refit_is_what_train_makes_of_the_best_parameters(
    nine: Swept, job: Callable[..., Ended]
) -> None:
    best = [
        f"model.params.{name}={value}"
        for name, value in nine.said["best"].items()
        if name not in NOT_TRIED
    ]
    assert job("train", *QUICK, FEW, *best).said["metrics"] == nine.said["metrics"]


def test_the_leaderboard_ranks_all_trials_by_validation_score(nine: Swept, client: Any) -> None:
    rows = leaderboard(client, nine.parent)
    scores = [row["validation/auc"] for row in rows]
    assert [row["rank"] for row in rows] == list(range(1, 10))
    assert scores == sorted(scores, reverse=True)
    assert {row["run_id"] for row in rows} == {*ids(nine.trials)}
    assert all(
        row["validation/auc_low"] < row["validation/auc"] < row["validation/auc_high"]
        for row in rows
    )


def test_the_folder_of_a_sweep_has_what_is_of_all_trials(nine: Swept, client: Any) -> None:
    names = {entry.path for entry in client.list_artifacts(nine.parent.info.run_id, "sweep")}
    assert names == {"sweep/leaderboard.json", *PICTURES}


@pytest.mark.parametrize("path", PICTURES)
def test_a_sweep_is_drawn_in_pictures(path: str, nine: Swept, client: Any) -> None:
    plot = artifact(client, nine.parent, path)
    with Image.open(io.BytesIO(plot)) as picture:
        assert picture.size == (900, 900)


def test_the_first_trial_has_the_defaults_also_outside_the_space(nine: Swept) -> None:
    defaults = {"max_depth": "6", "learning_rate": "0.1", "gamma": "0.0"}
    params = {f"model.params.{name}": value for name, value in defaults.items()}
    assert params.items() <= nine.trials[0].data.params.items()


def test_the_note_of_a_sweep_is_no_longer_than_mlflow_takes(nine: Swept) -> None:
    assert len(nine.parent.data.tags["mlflow.note.content"]) <= 8000


def test_the_note_of_a_sweep_tells_the_best_trial(nine: Swept) -> None:
    note = nine.parent.data.tags["mlflow.note.content"]
    assert f"trial {nine.said['best']['trial']}]" in note
    assert "test AUC" in note


def test_the_note_of_a_sweep_leads_to_all_trials(nine: Swept) -> None:
    note = nine.parent.data.tags["mlflow.note.content"]
    assert "Compare all trials as charts" in note
    assert f"viewStateShareKey={nine.parent.info.run_id}" in note


def test_the_note_of_a_sweep_shows_its_pictures(nine: Swept) -> None:
    note = nine.parent.data.tags["mlflow.note.content"]
    for path in PICTURES:
        assert f"(get-artifact?path={quote(path, safe='')}" in note


def test_a_sweep_says_where_its_charts_are(nine: Swept) -> None:
    assert nine.said["charts"].endswith("workflowType=machine_learning")


def test_the_charts_of_a_sweep_begin_with_the_score_against_the_parameters(
    nine: Swept, client: Any
) -> None:
    view = charts_of(client, nine)
    assert nine.parent.info.run_id in view["searchFilter"]
    first, *_ = view["compareRunCharts"]
    assert first["yaxis"]["key"] == "validation/auc"
    assert first["xaxis"]["key"] in nine.best.data.params


def test_a_trial_has_its_roc_curve_in_25_steps(nine: Swept, client: Any) -> None:
    trial = nine.trials[0]
    steps, rates = points(client, trial, "roc/true_positive_rate")
    area = sum((a + b) / 2 for a, b in zip(rates[:-1], rates[1:], strict=True)) / 25
    assert steps == list(range(0, 101, 4))
    assert rates == sorted(rates)
    assert (rates[0] < 0.02, rates[-1]) == (True, 1)
    assert area == pytest.approx(trial.data.metrics["validation/auc"], abs=0.01)


@dataclass(frozen=True)
class OfKind:
    """A sweep of a task whose leading metric is better the less it is."""

    words: tuple[str, ...]
    metric: str
    trials: int


REGRESSION = OfKind(
    ("task=tip_amount", "search=tpe", "search.max_concurrent=2", "search.trials=6"), "rmse", 6
)
CLUSTERING = OfKind(
    (
        "data=blobs",
        "task=clusters",
        "model=kmeans",
        "search=grid",
        "search.space.n_clusters=[2,5]",
    ),
    "inertia",
    2,
)
of_each_kind = pytest.mark.parametrize(
    "kind", [REGRESSION, CLUSTERING], ids=lambda kind: kind.metric
)


@pytest.fixture(scope="module")
def swept_for(store: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[OfKind], Swept]:
    """Sweep for a kind of task, the first time that it is asked for."""

    @functools.cache
    def sweep_once(kind: OfKind) -> Swept:
        with contextlib.chdir(tmp_path_factory.mktemp(kind.metric)):
            return run_sweep(store, *kind.words)

    return sweep_once


@of_each_kind
def test_the_best_trial_is_the_one_of_the_least_error(
    swept_for: Callable[[OfKind], Swept], kind: OfKind
) -> None:
    swept = swept_for(kind)
    key = f"validation/{kind.metric}"
    scores = [run.data.metrics[key] for run in swept.trials]
    metrics = swept.parent.data.metrics
    assert swept.said["trials"] == {"finished": kind.trials, "failed": 0, "all": kind.trials}
    assert swept.said["best"][key] == min(scores) < max(scores)
    assert metrics[f"sweep/best_validation_{kind.metric}"] == min(scores)
    assert metrics[key] == pytest.approx(min(scores), rel=1e-6), "the refit is the trial's"
    assert f"{key}_low" in swept.trials[0].data.metrics


@of_each_kind
def test_trials_are_listed_from_the_least_error(
    swept_for: Callable[[OfKind], Swept], client: Any, kind: OfKind
) -> None:
    swept = swept_for(kind)
    key = f"validation/{kind.metric}"
    scores = [run.data.metrics[key] for run in swept.trials]
    assert [row[key] for row in leaderboard(client, swept.parent)] == sorted(scores)
    assert charts_of(client, swept)["orderByAsc"]


@of_each_kind
def test_the_note_tells_the_score_of_the_configured_parameters_where_a_trial_beats_them(
    swept_for: Callable[[OfKind], Swept], kind: OfKind
) -> None:
    swept = swept_for(kind)
    key = f"validation/{kind.metric}"
    scores = [run.data.metrics[key] for run in swept.trials]
    note = swept.parent.data.tags["mlflow.note.content"]
    gains = "search=tpe" in kind.words and scores[0] > min(scores)
    assert f"Best by {key}" in note
    assert (f"The configured parameters, trial 0, score {scores[0]:.4f}." in note) == gains


@dataclass(frozen=True)
class Resumed:
    """A sweep of three trials and each time that it was resumed, in order."""

    first: Swept
    refused: dict[str, TipcastError]
    """What could not be changed -> the error."""
    unchanged: Swept
    registered: Swept
    """Registered as `another`."""
    grown: Swept
    """To five trials."""
    unchanged_again: Swept


@pytest.fixture(scope="module")
def resumed(store: str, tmp_path_factory: pytest.TempPathFactory) -> Resumed:
    """A sweep by a metric of the user's own, and with a parameter that the command line sets, that
    is resumed after its end.
    """

    def cost(target: Any, prediction: Any) -> Any:
        return np.where(target == 1, 3 * (1 - prediction), prediction)

    fixed = (
        "model.params.max_depth=3",
        "search=tpe",
        "search.metric=cost",
        "tracking.register=again",
    )
    changes = {"search": "search=random", "seed": "seed=9", "search.trials": "search.trials=2"}
    with (
        contextlib.chdir(tmp_path_factory.mktemp("resumed")),
        pytest.MonkeyPatch.context() as patch,
    ):
        for kind in base.OWN:
            patch.setitem(base.OWN, kind, {})
        metric("classification", maximize=False)(cost)

        first = run_sweep(store, "search.trials=3", *fixed)
        resume = f"resume={first.said['run_id']}"
        refused = {}
        for key, word in changes.items():
            with pytest.raises(TipcastError, match="keeps it") as caught:
                run_sweep(store, resume, word)
            refused[key] = caught.value
        return Resumed(
            first,
            refused,
            unchanged=run_sweep(store, resume, "search.attempts=5", "search=tpe"),
            registered=run_sweep(store, resume, "tracking.register=another"),
            grown=run_sweep(store, resume[:15], "search.trials=5"),
            unchanged_again=run_sweep(store, resume),
        )


def test_trials_are_ranked_by_the_metric_of_a_user(resumed: Resumed) -> None:
    costs = [run.data.metrics["validation/cost"] for run in resumed.first.trials]
    note = resumed.first.parent.data.tags["mlflow.note.content"]
    assert resumed.first.said["best"]["validation/cost"] == min(costs)
    assert "validation/cost_low" not in note, "it has none"


def test_a_parameter_that_the_command_line_sets_is_not_searched(resumed: Resumed) -> None:
    swept = resumed.first
    assert swept.parent.data.params["model.params.max_depth"] == "3"
    assert not [run for run in swept.trials if "model.params.max_depth" in run.data.params]
    assert "max_depth" not in resumed.grown.said["best"], "also when it is resumed"


def test_what_decides_the_trials_cannot_be_changed_on_resuming(resumed: Resumed) -> None:
    assert {key: (error.code, error.where) for key, error in resumed.refused.items()} == {
        key: ("C003", key) for key in ("search", "seed", "search.trials")
    }


def test_a_finished_sweep_is_resumed_without_a_fit(resumed: Resumed, client: Any) -> None:
    said = resumed.first.said
    parent = resumed.first.parent
    whole = resumed.unchanged.said
    run = resumed.unchanged.parent
    same = ("run_id", "best", "trials", "run", "command")
    tested = {name: value for name, value in said["metrics"].items() if name.startswith("test/")}
    model = client.get_logged_model(whole["model_uri"].removeprefix("models:/"))
    assert {name: whole[name] for name in same} == {name: said[name] for name in same}
    assert tested.items() <= whole["metrics"].items()
    assert run.data.metrics == parent.data.metrics
    assert (run.info.status, run.info.end_time) == ("FINISHED", parent.info.end_time)
    assert model.source_run_id == said["run_id"]


def test_a_finished_sweep_is_registered_later_without_a_trial(
    resumed: Resumed, client: Any
) -> None:
    (version,) = client.search_model_versions("name='another'")
    best = resumed.first.parent.data.tags["sweep.best"]
    assert resumed.registered.parent.data.tags["sweep.best"] == best
    assert version.tags["sweep.best"] == best
    assert [run.info.end_time for run in resumed.registered.trials] == [
        run.info.end_time for run in resumed.first.trials
    ]


def test_a_sweep_grows_by_trials_alone(resumed: Resumed) -> None:
    grown = resumed.grown
    assert grown.said["trials"] == {"finished": 5, "failed": 0, "all": 5}
    assert grown.parent.data.metrics["sweep/trials"] == 5
    assert ids(resumed.registered.trials) == ids(resumed.first.trials)
    assert ids(grown.trials[:3]) == ids(resumed.first.trials)


def test_the_command_of_a_grown_sweep_repeats_the_whole_of_it(resumed: Resumed) -> None:
    command = resumed.grown.said["command"]
    run = resumed.grown.parent
    assert [word for word in command.split() if word.startswith("search.trials")] == [
        "search.trials=5"
    ]
    assert run.data.tags["command"] == command
    assert "search.trials" not in run.data.params


def test_a_resumed_sweep_names_the_model_of_its_last_fit(resumed: Resumed, client: Any) -> None:
    whole = resumed.unchanged_again
    outputs = whole.parent.outputs.model_outputs
    models = [client.get_logged_model(output.model_id) for output in outputs]
    newest = max(models, key=lambda model: model.creation_timestamp)
    assert whole.said["model_uri"] == f"models:/{newest.model_id}"


@dataclass(frozen=True)
class CutOff:
    """A sweep that registered its model, was killed before its end, and went on."""

    first: Swept
    again: Swept


@pytest.fixture(scope="module")
def cut_off(store: str, tmp_path_factory: pytest.TempPathFactory) -> CutOff:
    with contextlib.chdir(tmp_path_factory.mktemp("cut_off")):
        first = run_sweep(store, "search.trials=2", "tracking.register=cut_off")
        run_id = first.said["run_id"]
        mlflow.MlflowClient(store).set_terminated(run_id, "KILLED")
        return CutOff(first, run_sweep(store, f"resume={run_id}"))


def test_a_sweep_killed_after_it_was_registered_keeps_its_model(cut_off: CutOff) -> None:
    assert cut_off.again.said["model_uri"] == cut_off.first.said["model_uri"]
    assert cut_off.again.parent.outputs == cut_off.first.parent.outputs
    assert cut_off.again.parent.info.status == "FINISHED"


def test_a_page_that_is_written_again_has_each_part_once(cut_off: CutOff) -> None:
    notes = [
        swept.parent.data.tags["mlflow.note.content"] for swept in (cut_off.first, cut_off.again)
    ]
    assert notes[1] == notes[0]
    assert notes[0].count("### The last fit") == 1


def test_a_last_fit_that_was_cut_off_leaves_one_model(store: str, client: Any) -> None:
    """The model of the killed process is given up, and no point of a curve is logged twice."""
    run_id = run_sweep(store, "search.trials=2").said["run_id"]
    client.set_terminated(run_id, "KILLED")
    again = run_sweep(store, f"resume={run_id}")
    models = [
        client.get_logged_model(output.model_id) for output in again.parent.outputs.model_outputs
    ]
    ready = [f"models:/{model.model_id}" for model in models if model.status == "READY"]
    assert ready == [again.said["model_uri"]]
    assert len(client.get_metric_history(run_id, "test/auc")) == 1


@pytest.fixture
def never_a_number(monkeypatch: pytest.MonkeyPatch) -> str:
    """A metric of the user's own: no trial that is judged by it ends well."""
    for kind in base.OWN:
        monkeypatch.setitem(base.OWN, kind, {})

    @metric("classification", maximize=True)
    def broken(target: Any, prediction: Any) -> Any:
        return np.full(len(target), np.nan)

    return "broken"


def test_a_trial_that_failed_has_its_parameters(
    swept: Sweep, client: Any, never_a_number: str
) -> None:
    """MLflow compares it with those that ended well."""
    with pytest.raises(TipcastError, match="S004") as caught:
        swept(f"search.metric={never_a_number}", "search.trials=1")
    (failed,) = children(client, client.get_run(caught.value.where))
    proposed = json.loads(failed.data.tags["trial.params"])
    assert failed.data.params == {
        f"model.params.{name}": str(value) for name, value in proposed.items()
    }


def test_a_sweep_of_which_no_trial_ended_well_says_why(
    swept: Sweep, client: Any, never_a_number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(
        TipcastError, match="S004.*none of the 2 trials succeeded: non-fin"
    ) as caught:
        swept(f"search.metric={never_a_number}", "search.trials=2")
    assert caught.value.exit_code == 7
    parent = client.get_run(caught.value.where)
    assert (parent.info.status, parent.data.tags["error.code"]) == ("FAILED", "S004")
    assert [run.info.status for run in children(client, parent)] == ["FAILED"] * 2
    assert f"tipcast sweep resume={parent.info.run_id}" in capsys.readouterr().err


@dataclass(frozen=True)
class TimedOut:
    """A sweep of four trials whose time is over as the first begins, and the same resumed."""

    first: Swept
    lines: list[str]
    """What the console was told until then."""
    whole: Swept


@pytest.fixture(scope="module")
def timed_out(store: str, client: Any, tmp_path_factory: pytest.TempPathFactory) -> TimedOut:
    """With fewer points than trials; resumed as one that had begun on GPUs."""
    others = ("colsample_bytree", "gamma", "learning_rate", "min_child_weight", "subsample")
    few = ("search.trials=8", SPACE, *(f"search.space.{name}=null" for name in others))
    with contextlib.chdir(tmp_path_factory.mktemp("timed_out")), console_lines() as lines:
        first = run_sweep(store, *few, "search.timeout_s=1e-9")
        first_lines = [*lines]

        experiment = client.get_experiment(first.parent.info.experiment_id).name
        stored = artifact(client, first.parent, CONFIG).decode()
        on_gpus = stored.replace("trials_per_gpu: 1", "trials_per_gpu: 2")
        client.log_text(first.said["run_id"], on_gpus, CONFIG)
        resume = ("resume=last", "search.timeout_s=null", f"tracking.experiment={experiment}")
        return TimedOut(first, first_lines, run_sweep(store, *resume))


def test_the_number_of_trials_is_said_before_the_first(timed_out: TimedOut) -> None:
    """Three points and the defaults."""
    of_trials = [line for line in timed_out.lines if line.startswith("trial")]
    assert of_trials[0] == "trials   4 in all"


def test_a_sweep_out_of_time_finishes_the_trial_that_runs(timed_out: TimedOut) -> None:
    swept = timed_out.first
    assert swept.said["trials"] == {"finished": 1, "failed": 0, "all": 4, "not_tried": 3}
    assert {run.info.status for run in (swept.parent, *swept.trials)} == {"FINISHED"}


def test_a_sweep_out_of_time_fits_the_best_of_its_trials(timed_out: TimedOut) -> None:
    assert "test/auc" in timed_out.first.said["metrics"]


def test_the_note_of_a_sweep_out_of_time_tells_how_it_goes_on(timed_out: TimedOut) -> None:
    swept = timed_out.first
    line = f"1 of 4 trials are done; continue with: tipcast sweep resume={swept.said['run_id']}"
    assert line in swept.parent.data.tags["mlflow.note.content"]


def test_a_sweep_out_of_time_is_resumed_to_its_end(timed_out: TimedOut) -> None:
    whole = timed_out.whole
    assert whole.said["run_id"] == timed_out.first.said["run_id"]
    assert whole.said["trials"] == {"finished": 4, "failed": 0, "all": 4}
    assert ids(whole.trials)[:1] == ids(timed_out.first.trials)


def test_a_better_trial_of_the_resumed_sweep_becomes_its_best(timed_out: TimedOut) -> None:
    whole = timed_out.whole
    best = whole.best.data.tags
    tags = whole.parent.data.tags
    params = json.loads(tags["sweep.best.params"])
    assert ids([whole.best]) != ids(timed_out.first.trials), "a better one is found"
    assert whole.said["best"]["trial"] == int(best["trial.number"])
    assert tags["sweep.best"] == best["trial.key"]
    assert params["max_depth"] == whole.said["best"]["max_depth"]


def test_what_cannot_be_resumed(nine: Swept, swept: Sweep, client: Any) -> None:
    run_id = nine.parent.info.run_id
    trial = nine.trials[0].info.run_id
    text = artifact(client, nine.parent, CONFIG).decode()
    client.log_text(run_id, text.replace("source: sample", "source: '${oc.env:HOME}'"), CONFIG)
    for name in ("nothing", "0" * 32, trial, trial[:12], run_id):
        with pytest.raises(TipcastError, match="S003" if name in run_id + trial else "T004"):
            swept(f"resume={name}")
    client.log_text(run_id, text, CONFIG)
    assert client.get_run(run_id).info.status == "FINISHED", "it is left as it was"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["model.params.max_depth=7", "search.space.max_depth=[6,8]"],
            "C003.*max_depth: is fixed to 7",
        ),
        (["resume="], "C003.*does not name a run"),
        (["search=grid", "search.baseline=true"], "C003.*search.baseline"),
        (["data.limits.min_rows=1000000"], "D014.*rows"),
    ],
)
def test_mistakes(swept: Sweep, words: list[str], message: str) -> None:
    with pytest.raises(TipcastError, match=message):
        swept(*words)
