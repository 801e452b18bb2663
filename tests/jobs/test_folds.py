"""Folds of a training: the same as scikit-learn's cross-validation of the same rows, no group and
no time on two sides, and a model of all rows at the end.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tests.conftest import shipped_model
from tests.jobs.conftest import Ended, console_lines, run_job

from tipcast.config.errors import TipcastError

NUMBERS = ["size", "age", "speed"]
FOLDS = 4
KINDS = {
    "classes": (),
    "groups": ("data.group=owner",),
    "time": ("data.time=when",),
}
"""How rows are divided -> words of the command."""
SCORING = {
    "auc": "roc_auc",
    "log_loss": "neg_log_loss",
    "accuracy": "accuracy",
    "rmse": "neg_root_mean_squared_error",
    "mae": "neg_mean_absolute_error",
}
"""Metric -> scikit-learn's scorer."""


def make_table(rows: int = 900) -> pd.DataFrame:
    """Make rows of owners, over a year, with a class and a value that depend on the numbers."""
    draw = np.random.default_rng(7)
    owner = draw.integers(0, 60, rows)
    numbers = draw.normal(size=(rows, 3)).astype(np.float32)
    value = numbers[:, 0] + draw.normal(size=60)[owner] + draw.normal(size=rows)
    seconds = np.sort(draw.integers(0, 365 * 86_400, rows))
    return pd.DataFrame(numbers, columns=NUMBERS).assign(
        owner=[f"owner {number:03d}" for number in owner],
        when=pd.Timestamp("2025-01-01") + pd.to_timedelta(seconds, unit="s"),
        kind=np.where(value > 0.8, "large", "small"),
        value=value,
    )


@dataclass(frozen=True)
class Folded:
    """A training with folds, and its out-of-fold predictions beside the rows of the table."""

    ended: Ended
    rows: pd.DataFrame

    @property
    def metrics(self) -> dict[str, float]:
        return dict(self.ended.run.data.metrics)

    def sides(self, *, forward: bool) -> list[tuple[Any, Any]]:
        """Return the places of each fold's training rows, and of its test rows."""
        table = make_table()
        tested_at = self.rows["row"].to_numpy()
        sides = []
        for fold in range(1, FOLDS + 1):
            is_tested = self.rows["fold"].to_numpy() == fold
            trained = tested_at[~is_tested]
            if forward:
                begins = self.rows["when"][is_tested].min()
                trained = np.flatnonzero(table["when"] < begins)
            sides.append((np.sort(trained), tested_at[is_tested]))
        return sides


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("folds") / "table.parquet"
    make_table().to_parquet(path, row_group_size=250)
    return path


def train(store: str, table: Path, *words: str) -> Folded:
    """Train on the table with folds."""
    ended = run_job(
        store,
        "train",
        "data=table",
        f"data.train={table}",
        "task.features=[size,age,speed]",
        f"task.folds={FOLDS}",
        *words,
    )
    mlflow.set_tracking_uri(store)
    path = mlflow.artifacts.download_artifacts(
        run_id=ended.run.info.run_id, artifact_path="folds/predictions.parquet"
    )
    predictions = pd.read_parquet(path)
    rows = make_table().iloc[predictions["row"]].reset_index(drop=True)
    return Folded(ended, rows.assign(**predictions))


def estimator_of(model: str) -> Any:
    """Return scikit-learn's estimator of a shipped model."""
    params = shipped_model(model).params
    if model == "logistic":
        return make_pipeline(StandardScaler(), LogisticRegression(**params))
    if model == "ridge":
        return make_pipeline(StandardScaler(), Ridge(**params))
    params = {**params, "n_estimators": 21, "criterion": "gini"}
    return RandomForestClassifier(**params, random_state=0)


@pytest.mark.parametrize(
    ("divided", "model", "target"),
    [
        ("classes", "logistic", "kind"),
        ("groups", "random_forest", "kind"),
        ("time", "ridge", "value"),
    ],
)
def test_metrics_are_those_of_cross_validate(
    store: str, table: Path, divided: str, model: str, target: str
) -> None:
    words = [f"model={model}", f"task.target={target}", "seed=0", *KINDS[divided]]
    if model == "random_forest":
        words.append("model.params.n_estimators=21")
    folded = train(store, table, *words)

    rows = make_table()
    y = rows[target]
    if target == "kind":
        y = (rows["kind"] == "small").astype(int)
    sides = folded.sides(forward=divided == "time")
    scoring = {
        name: scorer for name, scorer in SCORING.items() if f"validation/{name}" in folded.metrics
    }
    x = rows[NUMBERS].astype(np.float64)
    expected = cross_validate(estimator_of(model), x, y, cv=sides, scoring=scoring)

    for name, scorer in scoring.items():
        sign = -1 if scorer.startswith("neg_") else 1
        values = sign * expected[f"test_{name}"]
        assert folded.metrics[f"validation/{name}"] == pytest.approx(values.mean(), abs=1e-9)
        error = values.std(ddof=1) / np.sqrt(FOLDS)
        assert folded.metrics[f"validation/{name}_se"] == pytest.approx(error, abs=1e-9)


def test_groups_are_on_one_side_and_in_one_fold(store: str, table: Path) -> None:
    folded = train(store, table, "model=logistic", "task.target=kind", "data.group=owner")

    trained = folded.rows
    assert (trained.groupby("owner")["fold"].nunique() == 1).all()
    tested = make_table().drop(index=trained["row"])
    assert not set(tested["owner"]) & set(trained["owner"])
    assert 0.15 < len(tested) / 900 < 0.25
    rows_of_folds = trained["fold"].value_counts()
    assert rows_of_folds.max() - rows_of_folds.min() < 40


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (("task.folds=3",), "on one side of the split, and in one fold"),
        (("data.test={table}", "task.folds=3"), "in one fold"),
        (("task.validation=0.2",), "on one side of the split"),
    ],
    ids=["both", "folds", "split"],
)
def test_the_note_names_the_groups(
    store: str, table: Path, words: tuple[str, ...], where: str
) -> None:
    given = [word.format(table=table) for word in words]
    ended = run_job(
        store,
        "train",
        "model=logistic",
        "data=table",
        f"data.train={table}",
        "data.group=owner",
        "task.target=kind",
        "task.features=[size,age,speed]",
        *given,
    )
    note = ended.run.data.tags["mlflow.note.content"]
    assert f"\n\nRows with the same `owner` are {where}.\n\n" in note


def test_rows_are_named_where_parts_of_a_file_are_not_read(store: str, tmp_path: Path) -> None:
    """The test rows, which are late, stand first: their parts are left out."""
    rows = make_table().sort_values("when", ascending=False, ignore_index=True)
    rows.to_csv(tmp_path / "late.csv", index=False)
    (tmp_path / "b").mkdir()
    rows.iloc[:30].assign(when=rows["when"].min()).to_csv(tmp_path / "b/early.csv", index=False)
    ended = run_job(
        store,
        "train",
        "data=table",
        f"data.train=[{tmp_path}/b/early.csv,{tmp_path}/late.csv]",
        "data.block_bytes=4096",
        "data.time=when",
        "task.target=value",
        "task.features=[size]",
        "task.folds=2",
        "model=ridge",
    )
    mlflow.set_tracking_uri(store)
    path = mlflow.artifacts.download_artifacts(
        run_id=ended.run.info.run_id, artifact_path="folds/predictions.parquet"
    )
    found = pd.read_parquet(path)
    assert {Path(file).name for file in found["file"]} == {"late.csv"}
    expected = rows["value"].iloc[found["row"]].to_numpy()
    assert found["target"].to_numpy() == pytest.approx(expected)


def test_folds_in_time_learn_from_earlier_rows_alone(store: str, table: Path) -> None:
    folded = train(store, table, "model=logistic", "task.target=kind", "data.time=when")

    spans = folded.rows.groupby("fold")["when"].agg(["min", "max"])
    assert (spans["max"].to_numpy()[:-1] < spans["min"].to_numpy()[1:]).all()
    trained = [len(train) for train, _ in folded.sides(forward=True)]
    assert trained == sorted(trained)
    assert "fold | training rows" in folded.ended.run.data.tags["mlflow.note.content"]
    assert f"{trained[0]:,} |" in folded.ended.run.data.tags["mlflow.note.content"]


def test_texts_are_features_of_folds_too(store: str, table: Path) -> None:
    """Few rows have a text, so that all of them may be drawn to test on."""
    words = ("model=xgboost", "task.target=value", "task.features=[size,owner]")
    folded = train(store, table, *words, "model.params.n_estimators=20")

    assert folded.rows["row"].is_unique
    assert folded.metrics["validation/rmse"] < make_table()["value"].std()


def test_each_fold_is_a_step(store: str, table: Path) -> None:
    folded = train(store, table, "model=ridge", "task.target=value")

    client = mlflow.MlflowClient(store)
    history = client.get_metric_history(folded.ended.run.info.run_id, "folds/rmse")
    assert [entry.step for entry in history] == [1, 2, 3, 4]
    values = [entry.value for entry in history]
    assert folded.metrics["validation/rmse"] == pytest.approx(np.mean(values))
    of_first = folded.rows[folded.rows["fold"] == 1]
    error = of_first["target"] - of_first["prediction"]
    assert values[0] == pytest.approx(np.sqrt((error**2).mean()))
    assert folded.rows["target"].to_numpy() == pytest.approx(folded.rows["value"].to_numpy())


def test_the_model_has_the_rounds_that_folds_agree_on(store: str, table: Path) -> None:
    words = ("model=xgboost", "task.target=value", "model.fit.early_stopping_rounds=3")
    folded = train(store, table, *words, "model.params.n_estimators=200")

    rounds = int(folded.metrics["fit/rounds"])
    assert 1 < rounds < 200
    assert "fit/best_iteration" not in folded.metrics
    assert "validation_rmse" not in " ".join(folded.metrics)


def test_the_threshold_is_chosen_on_out_of_fold_rows(store: str, table: Path) -> None:
    folded = train(store, table, "model=logistic", "task.target=kind")

    threshold = folded.metrics["test/threshold"]
    assert threshold != 0.5
    called = folded.rows["probability"] >= threshold
    right = (called == folded.rows["target"]).mean()
    for other in np.linspace(0.05, 0.95, 19):
        assert right >= ((folded.rows["probability"] >= other) == folded.rows["target"]).mean()


def test_trials_have_the_threshold_of_a_training(store: str, table: Path) -> None:
    words = (
        "model=logistic",
        "data=table",
        f"data.train={table}",
        "task.target=kind",
        "task.features=[size,age,speed]",
        "task.folds=3",
    )
    trial = ("search.trials=1", "search.baseline=true", "search.metric=f1")
    swept = run_job(store, "sweep", *words, *trial)

    best = swept.said["best"]["validation/f1"]
    assert best == pytest.approx(swept.run.data.metrics["validation/f1"], abs=1e-9)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["task.folds=1"], "C003", "task.folds"),
        (["data.group=nobody"], "D007", "nobody"),
        (["data.group=owner", "data.time=when"], "C003", "data.group"),
        (["data.group=kind", "task.target=value", "model=ridge"], "D033", "2 groups"),
        (
            ["task.folds=90", "model=logistic"],
            "D014",
            "fold 1 of 90: 8 test rows, but at least 10 ",
        ),
        (
            ["data.group=owner", "data.test={table}", "task.validation=0", "task.folds=0"],
            "C003",
            "data.group",
        ),
    ],
)
def test_what_cannot_be_folded_is_refused(
    store: str, table: Path, words: list[str], code: str, text: str
) -> None:
    given = ["task.target=kind", *words]
    if "task.target=value" in words:
        given = words
    with pytest.raises(TipcastError, match=text) as caught:
        train(store, table, *(word.format(table=table) for word in given))
    assert caught.value.code == code


LACKING = {
    "two": r"D015. fold 2 of 3: no test row has class small. Fix: use fewer folds, or another data",
    "three": r"D015. fold 1 of 3: no training row has class huge. Fix: use fewer folds, or another",
}
"""Target of ``lacking`` -> the error of a fold that lacks a class."""


@pytest.fixture(scope="module")
def lacking(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Words of a job on rows of a year, of which folds in time lack classes.

    The first 292 days are for training, so that each fold tests 73 days. ``two`` has no small ones
    when fold 2 tests, ``three`` no huge ones before fold 1 tests, ``absent`` no huge ones when fold
    2 tests.
    """
    rows = make_table(1500)
    day = rows["when"].dt.dayofyear
    is_huge = rows["size"] < 0
    rows["two"] = rows["kind"].where(~day.between(140, 225), "large")
    rows["three"] = rows["kind"].mask(is_huge & (day > 80), "huge")
    rows["absent"] = rows["kind"].mask(is_huge & ~day.between(140, 225), "huge")
    path = tmp_path_factory.mktemp("lacking") / "table.parquet"
    rows.to_parquet(path)
    return [
        "data=table",
        f"data.train={path}",
        "data.time=when",
        "task.features=[size,age,speed]",
        "task.folds=3",
        "model=random_forest",
        "model.params.n_estimators=5",
    ]


@pytest.mark.parametrize("target", LACKING)
def test_a_fold_without_a_class_is_named(store: str, lacking: list[str], target: str) -> None:
    with pytest.raises(TipcastError, match=LACKING[target]):
        run_job(store, "train", *lacking, f"task.target={target}")


def test_test_rows_may_lack_one_of_several_classes(store: str, lacking: list[str]) -> None:
    ended = run_job(store, "train", *lacking, "task.target=absent")
    assert ended.run.data.metrics["validation/log_loss_se"] > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["task.target=two"], LACKING["two"]),
        (["task.target=three", "task.class_weight=balanced"], LACKING["three"]),
        (
            ["task.target=kind", "task.folds=20", "data.limits.min_rows=100"],
            "D014. fold 1 of 20: .* training rows, but at least 100",
        ),
        (
            ["task.target=two", "data.limits.min_rows=2000"],
            "D014. .*usable rows, but at least 2000",
        ),
    ],
)
def test_a_sweep_names_a_fold_that_lacks_rows_before_its_first_trial(
    store: str, lacking: list[str], words: list[str], message: str
) -> None:
    with console_lines() as lines, pytest.raises(TipcastError, match=message):
        run_job(store, "sweep", *lacking, "search.trials=2", *words)
    assert not [line for line in lines if line.startswith("trial ")]
