"""``task.weight`` and ``task.class_weight`` in jobs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tests.jobs.conftest import Ended

from tipcast.config.errors import TipcastError

KEYS = ("model=logistic", "data=table", "task.target=bought", "task.validation=0")
BALANCED = "task.class_weight=balanced"


def customers(count: int, seed: int) -> pd.DataFrame:
    """Make two features, a rare class and weights, of which some are 0."""
    draw = np.random.default_rng(seed)
    rows = pd.DataFrame(draw.normal(size=(count, 2)), columns=["age", "income"])
    rows["bought"] = np.where(rows["age"] + draw.normal(size=count) > 1.5, "yes", "no")
    rows["times"] = draw.integers(0, 4, count) * 0.5
    return rows


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Words that name files to train and to test on."""
    names = []
    for side, seed in (("train", 0), ("test", 1)):
        path = tmp_path / f"{side}.csv"
        customers(600, seed).to_csv(path, index=False)
        names.append(f"data.{side}={path}")
    return names[0], names[1]


def probabilities(ended: Ended, store: str, rows: pd.DataFrame) -> Any:
    """Return P(yes) of a training's model."""
    mlflow.set_tracking_uri(store)
    model = mlflow.pyfunc.load_model(ended.said["model_uri"])
    return np.asarray(model.predict(rows[["age", "income"]])).ravel()


@pytest.mark.parametrize(
    ("keys", "weight", "class_weight"),
    [
        (("task.weight=times",), True, False),
        (("task.features=[age,income]", BALANCED), False, True),
        (("task.weight=times", BALANCED), True, True),
    ],
    ids=["rows", "classes", "both"],
)
def test_a_training_counts_rows_by_their_weights(
    job: Callable[..., Ended],
    store: str,
    files: tuple[str, str],
    keys: tuple[str, ...],
    weight: bool,
    class_weight: bool,
) -> None:
    ended = job("train", *KEYS, *files, *keys)
    train, test = customers(600, 0), customers(600, 1)
    y = train["bought"] == "yes"
    expected = np.ones(len(train))
    if weight:
        expected *= train["times"]
    if class_weight:
        of_class = np.bincount(y, expected)
        expected *= (of_class.sum() / (2 * of_class))[y.astype(int)]

    x = train[["age", "income"]].astype(np.float32).to_numpy(float)
    model = make_pipeline(StandardScaler(), LogisticRegression())
    model.fit(x, y, logisticregression__sample_weight=expected)
    theirs = model.predict_proba(test[["age", "income"]].astype(np.float32).to_numpy(float))[:, 1]
    np.testing.assert_allclose(probabilities(ended, store, test), theirs, atol=1e-6)


def test_the_rate_of_positives_is_that_of_the_weights(
    job: Callable[..., Ended], files: tuple[str, str]
) -> None:
    metrics = job("train", *KEYS, *files, "task.weight=times").run.data.metrics
    test = customers(600, 1)
    expected = np.average(test["bought"] == "yes", weights=test["times"])
    assert metrics["test/positive_rate"] == pytest.approx(expected)


def test_the_note_says_how_rows_count(job: Callable[..., Ended], tmp_path: Path) -> None:
    path = tmp_path / "incomplete.csv"
    rows = customers(600, 0).assign(bought=lambda rows: rows["bought"].mask(rows.index < 2))
    rows.loc[5, "times"] = np.nan
    rows.to_csv(path, index=False)

    ended = job("train", *KEYS, f"data.train={path}", "task.weight=times", BALANCED)
    note = ended.run.data.tags["mlflow.note.content"]
    assert "\n\nRows are weighted by `times`. All classes count the same in the fit.\n\n" in note
    assert "\n\nDropped: 2 rows (`no_target`), 1 row (`no_weight`).\n\n" in note


def test_the_note_is_silent_on_rows_that_all_count(
    job: Callable[..., Ended], files: tuple[str, str]
) -> None:
    note = job("train", *KEYS, *files).run.data.tags["mlflow.note.content"]
    for words in ("Rows are weighted", "All classes", "Rows with the same", "Dropped"):
        assert words not in note


def test_trials_of_a_sweep_count_classes_as_a_training_does(
    job: Callable[..., Ended], files: tuple[str, str]
) -> None:
    keys = (
        "model=xgboost",
        "model.params.n_estimators=5",
        *KEYS[1:3],
        *files,
        "task.validation=0.3",
        "task.weight=times",
    )
    one_trial = ("search.trials=1", "search.baseline=true", "search.metric=log_loss")
    plain = job("train", *keys)
    weighted = job("train", *keys, BALANCED)
    swept = job("sweep", *keys, BALANCED, *one_trial)

    found = swept.said["best"]["validation/log_loss"]
    expected = weighted.run.data.metrics["validation/log_loss"]
    assert found == pytest.approx(expected, abs=1e-6)
    assert abs(plain.run.data.metrics["validation/log_loss"] - expected) > 1e-3


@pytest.mark.parametrize("held_out", ["task.validation=0.3", "task.folds=3"])
def test_the_threshold_does_not_undo_class_weights(
    job: Callable[..., Ended], files: tuple[str, str], held_out: str
) -> None:
    keys = ("model=logistic", "task.features=[age,income]", held_out)
    ended = job("train", *KEYS[1:3], *files, *keys, BALANCED)

    assert ended.run.data.metrics["test/threshold"] == 0.5
    assert (
        "at threshold 0.5000, set in advance: the most accurate one would undo the class weights."
        in ended.run.data.tags["mlflow.note.content"]
    )


@pytest.mark.parametrize(("keys", "warned"), [((), True), ((BALANCED,), False)])
def test_shifted_probabilities_are_no_reason_for_a_warning(
    job: Callable[..., Ended],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    keys: tuple[str, ...],
    warned: bool,
) -> None:
    """Trees learn answers that do not depend on the features by heart."""
    draw = np.random.default_rng(2)
    rows = customers(600, 0).assign(bought=np.where(draw.random(600) < 0.1, "yes", "no"))
    path = tmp_path / "chance.csv"
    rows.to_csv(path, index=False)

    learner = ("model=xgboost", "model.params.n_estimators=50")
    ended = job("train", *learner, *KEYS[1:], f"data.train={path}", *keys)
    metrics = ended.run.data.metrics
    assert metrics["test/log_loss"] > metrics["baseline/log_loss"]
    note = ended.run.data.tags["mlflow.note.content"]
    assert ("does not beat" in note) is warned
    assert ("does not beat" in caplog.text) is warned


def test_trials_have_the_threshold_of_class_weights(
    job: Callable[..., Ended], files: tuple[str, str]
) -> None:
    keys = (
        "model=logistic",
        *KEYS[1:3],
        *files,
        "task.validation=0.3",
        "task.features=[age,income]",
        BALANCED,
    )
    swept = job("sweep", *keys, "search.trials=1", "search.baseline=true", "search.metric=accuracy")
    expected = swept.run.data.metrics["validation/accuracy"]
    assert swept.said["best"]["validation/accuracy"] == pytest.approx(expected, abs=1e-9)


def test_each_fold_counts_its_classes(job: Callable[..., Ended], files: tuple[str, str]) -> None:
    plain, weighted = (
        job("train", *KEYS, *files, "task.folds=3", "task.weight=times", *keys).run.data.metrics
        for keys in ((), (BALANCED,))
    )
    assert abs(plain["validation/log_loss"] - weighted["validation/log_loss"]) > 1e-3


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            ("model=knn", "task.weight=times"),
            "error[C003] task.weight: knn does not support weights. Fix: use model=logistic",
        ),
        (
            ("model=knn", BALANCED),
            "error[C003] task.class_weight: knn does not support weights. Fix: use model=logistic",
        ),
        (
            ("model=ridge", "task.target=income", BALANCED),
            "error[C003] task.class_weight: regression has no classes. Fix: leave it out",
        ),
        (
            ("task.class_weight=equal",),
            "error[C003] task.class_weight: must be balanced or null, got 'equal'. Fix: ",
        ),
    ],
)
def test_weights_that_cannot_count_are_refused(
    job: Callable[..., Ended], files: tuple[str, str], keys: tuple[str, ...], message: str
) -> None:
    with pytest.raises(TipcastError) as refused:
        job("train", *KEYS, *files, *keys)
    assert str(refused.value).startswith(message)


def test_rows_that_do_not_count_at_all_are_refused(
    job: Callable[..., Ended], tmp_path: Path
) -> None:
    path = tmp_path / "zero.csv"
    customers(600, 0).assign(times=0.0).to_csv(path, index=False)
    with pytest.raises(TipcastError, match=r"D032.*column 'times': all .* weights are 0\. Fix: "):
        job("train", *KEYS, f"data.train={path}", "task.weight=times")


def test_a_class_that_does_not_count_is_none(job: Callable[..., Ended], tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    rows = customers(600, 0)
    rows.assign(times=(rows["bought"] == "no") * 1.0).to_csv(path, index=False)
    with pytest.raises(TipcastError, match=r"D015.*have the same label \(no\)"):
        job("train", *KEYS, f"data.train={path}", "task.weight=times")
