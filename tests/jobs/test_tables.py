"""Columns as people call them: what trains is promoted, and every row is scored as MLflow does
it.
"""

import contextlib
import functools
import json
import re
import shutil
import unicodedata
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mlflow.exceptions import MlflowException
from tests.jobs.conftest import Ended, run_job
from tests.jobs.test_repeat import MONTHS, write

from tipcast.commands import compose_jobs
from tipcast.config.errors import TipcastError
from tipcast.jobs.contributions import categories_of
from tipcast.jobs.train_plan import make_plan

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # MLflow's, of its own classes, at import
    from mlflow.pyfunc.scoring_server import invocations

OWN = {"tpep_pickup_datetime": "started_at", "PULocationID": "from zone", "fare_amount": "price"}
COLUMNS = ["petal length (cm)", "petal length {cm}", "size <mm>"]
FLOWERS = ["setosa", "versicolor", "virginica"]
TARGETS = {"two (classes)": "auc", "three [classes]": "log_loss", "income (k$)": "rmse"}
"""Column -> the metric that leads in its kind."""
TWO, THREE, VALUE = TARGETS
UNSCORABLE = 2
"""The row of flowers to score that has an infinite number."""


def flowers(count: int, seed: int) -> pd.DataFrame:
    """Make two numbers and a text, and two classes, three and a value, to be learnt of them."""
    draw = np.random.default_rng(seed)
    rows = pd.DataFrame(draw.normal(size=(count, 2)), columns=COLUMNS[:2])
    rows[COLUMNS[2]] = draw.choice(["small", "large"], count)
    size = 2 * rows[COLUMNS[1]] + (rows[COLUMNS[2]] == "large")
    for name, bounds in zip(TARGETS, ([0.5], [-0.5, 1]), strict=False):
        rows[name] = np.array(FLOWERS)[np.digitize(size + 0.3 * draw.normal(size=count), bounds)]
    return rows.assign(**{"income (k$)": size})


@dataclass(frozen=True)
class Flowers:
    """Two models of 40 rows, promoted one after the other and tested on 10; the second scores."""

    target: str
    leading: str
    """The metric that leads."""
    name: str
    """Of the registered model."""
    folder: Path
    tested: tuple[dict[str, float], dict[str, float]]
    """Metrics of the two trainings."""
    first: dict[str, Any]
    """What the first promotion said."""
    too_few: TipcastError
    """Of a promotion of the second that asks for 11 test rows."""
    second: Ended
    """The second promotion."""
    scored: Ended
    """Of `known.parquet`, which has the target, and `unknown.csv`, which has not."""
    kept: dict[str, Any]
    """What the same scoring said again."""

    @property
    def known(self) -> pd.DataFrame:
        """The rows that were scored, with their scores, but the one that has none."""
        table = pd.read_parquet(self.folder / "scored" / "known.parquet")
        return table.drop(index=UNSCORABLE)

    @property
    def probabilities(self) -> list[str]:
        """Columns of scores that are there beside the prediction."""
        several = [f"probability_{flower}" for flower in FLOWERS]
        return {"auc": ["probability"], "log_loss": several, "rmse": []}[self.leading]

    def loaded(self, store: str) -> Any:
        """Return the second model as MLflow loads it."""
        mlflow.set_tracking_uri(store)
        return mlflow.pyfunc.load_model(f"models:/{self.name}/2")


ByTarget = Callable[[str], Flowers]
of_each_target = pytest.mark.parametrize("target", TARGETS)
of_classes = pytest.mark.parametrize("target", [TWO, THREE])


def score_flowers(store: str, name: str, folder: Path) -> Ended:
    """Score the files of the folder `new` with the second model."""
    files = [f"input={folder}/new", f"output={folder}/scored"]
    return run_job(store, "score", f"model_uri=models:/{name}/2", *files, "block_bytes=20000")


def promote_flowers(store: str, name: str, version: int, *words: str) -> Ended:
    return run_job(store, "promote", f"model_uri=models:/{name}/{version}", *words)


def run_flowers(store: str, folder: Path, target: str) -> Flowers:
    """Train, promote and score for a target."""
    leading = TARGETS[target]
    name = f"flowers by {leading}"
    flowers(50, 0).to_parquet(folder / "train.parquet", index=False)
    words = [
        "data=table",
        f"data.train={folder}/train.parquet",
        "data.test_share=0.2",
        "task.validation=0",
        f"task.features={COLUMNS}",
        f"task.target='{target}'",
        f"tracking.register={name}",
    ]
    of_few, of_many = (
        run_job(store, "train", *words, f"model.params.n_estimators={trees}").run.data.metrics
        for trees in (3, 20)
    )
    first = promote_flowers(store, name, 1).said
    with pytest.raises(TipcastError) as too_few:
        promote_flowers(store, name, 2, "data.limits.min_rows=11")
    second = promote_flowers(store, name, 2, "margin=9")

    known = flowers(2000, 1)
    known.loc[1, COLUMNS[0]] = np.nan
    known.loc[UNSCORABLE, COLUMNS[1]] = np.inf
    new = folder / "new"
    new.mkdir()
    known.to_parquet(new / "known.parquet", index=False, row_group_size=700)
    known[COLUMNS].drop(index=UNSCORABLE).to_csv(new / "unknown.csv", index=False)
    scored = score_flowers(store, name, folder)
    kept = score_flowers(store, name, folder).said
    return Flowers(
        target,
        leading,
        name,
        folder,
        (of_few, of_many),
        first,
        too_few.value,
        second,
        scored,
        kept,
    )


@pytest.fixture(scope="module")
def by_target(store: str, tmp_path_factory: pytest.TempPathFactory) -> ByTarget:
    """Run the jobs for a target, the first time that it is asked for."""

    @functools.cache
    def run_once(target: str) -> Flowers:
        folder = tmp_path_factory.mktemp(TARGETS[target])
        with contextlib.chdir(folder):
            return run_flowers(store, folder, target)

    return run_once


@of_each_target
def test_one_reading_gives_the_rows_of_both_sides(by_target: ByTarget, target: str) -> None:
    metrics = by_target(target).tested[0]
    assert metrics["train/rows"] + metrics["test/rows"] == metrics["train/rows_read"] == 50
    assert "test/rows_read" not in metrics


@of_each_target
def test_ten_test_rows_are_enough_to_promote(by_target: ByTarget, target: str) -> None:
    done = by_target(target)
    assert (done.first["moved"], done.first["metrics"]["test/rows"]) == (True, 10)
    assert done.second.said["moved"]
    assert done.second.said["checks"]["test rows"]["what"] == "held out by the same draw"
    assert (
        "Scored on the same rows: 20% at random."
        in done.second.run.data.tags["mlflow.note.content"]
    )


@of_each_target
def test_fewer_test_rows_than_asked_for_are_refused(by_target: ByTarget, target: str) -> None:
    assert re.search("D014.*10 usable rows, but at least 11", str(by_target(target).too_few))


@of_each_target
def test_a_promotion_measures_both_models_as_their_trainings_did(
    by_target: ByTarget, target: str
) -> None:
    done = by_target(target)
    metrics = done.second.said["metrics"]
    for side, tested in zip(("champion", "challenger"), done.tested, strict=True):
        assert metrics[f"{side}/{done.leading}"] == pytest.approx(tested[f"test/{done.leading}"])


@of_each_target
def test_the_difference_of_models_lies_in_its_interval(by_target: ByTarget, target: str) -> None:
    done = by_target(target)
    metrics = done.second.said["metrics"]
    challenger, champion, difference, low, high = (
        metrics[name.format(done.leading)]
        for name in (
            "challenger/{}",
            "champion/{}",
            "difference/{}",
            "difference/{}_low",
            "difference/{}_high",
        )
    )
    assert difference == pytest.approx(challenger - champion)
    assert low <= difference <= high


def test_a_worse_model_of_values_is_not_promoted(by_target: ByTarget, store: str) -> None:
    name = by_target(VALUE).name
    with pytest.raises(TipcastError, match=r"comparison: RMSE \+\d\.\d+ .*, at most 0.001"):
        promote_flowers(store, name, 1)


def test_a_promotion_of_values_draws_what_is_predicted(by_target: ByTarget, store: str) -> None:
    run = by_target(VALUE).second.run
    (plot,) = mlflow.MlflowClient(store).list_artifacts(run.info.run_id, "plots")
    assert plot.path == "plots/predicted.png"


@of_each_target
def test_scores_stand_beside_the_columns_as_they_were(by_target: ByTarget, target: str) -> None:
    done = by_target(target)
    given = pq.read_table(done.folder / "new" / "known.parquet")
    table = pq.read_table(done.folder / "scored" / "known.parquet")
    added = [*done.probabilities, "prediction", "model_name", "model_version"]
    assert table.column_names == [*given.column_names, *added]
    assert table.select(given.column_names).equals(given.replace_schema_metadata(None))


@of_each_target
def test_a_row_with_an_infinite_number_alone_gets_no_score(
    by_target: ByTarget, target: str
) -> None:
    done = by_target(target)
    metrics = done.scored.run.data.metrics
    scores = pq.read_table(done.folder / "scored" / "known.parquet")["prediction"].to_pylist()
    assert [at for at, value in enumerate(scores) if value is None] == [UNSCORABLE]
    assert metrics["score/rows"] == 3999
    assert (metrics["score/unscored"], metrics["labelled/rows"]) == (1, 1999)


@of_classes
def test_probabilities_are_those_of_mlflow(by_target: ByTarget, store: str, target: str) -> None:
    done = by_target(target)
    known = done.known
    expected = np.asarray(done.loaded(store).predict(known[COLUMNS]))
    np.testing.assert_allclose(known[done.probabilities].to_numpy().squeeze(), expected, atol=1e-6)


@of_classes
def test_predicted_classes_are_those_of_mlflow(
    by_target: ByTarget, store: str, target: str
) -> None:
    done = by_target(target)
    known = done.known
    labels = done.loaded(store).predict(known[COLUMNS], params={"output": "label"})
    assert [*predicted_classes(known, target)] == labels.tolist()


@of_classes
def test_known_classes_are_judged(by_target: ByTarget, target: str) -> None:
    done = by_target(target)
    known = done.known
    right = (predicted_classes(known, target) == known[target]).mean()
    assert done.scored.run.data.metrics["labelled/accuracy"] == pytest.approx(right)


def predicted_classes(scored: pd.DataFrame, target: str) -> Any:
    """Return the names of the classes that were predicted; of two classes there are numbers."""
    if target == THREE:
        return scored["prediction"]
    return np.array(FLOWERS)[scored["prediction"].astype(int)]


def test_values_are_those_of_mlflow(by_target: ByTarget, store: str) -> None:
    done = by_target(VALUE)
    known = done.known
    expected = np.asarray(done.loaded(store).predict(known[COLUMNS]))
    np.testing.assert_allclose(known["prediction"], expected, atol=1e-5)


def test_known_values_are_judged(by_target: ByTarget) -> None:
    done = by_target(VALUE)
    known = done.known
    metrics = done.scored.run.data.metrics
    error = float(np.sqrt(((known["prediction"] - known[VALUE]) ** 2).mean()))
    assert metrics["labelled/rmse"] == pytest.approx(error, rel=1e-5)
    assert metrics["score/mean"] == pytest.approx(known["prediction"].mean(), rel=1e-5)


@of_each_target
def test_csv_gets_the_scores_of_parquet(by_target: ByTarget, target: str) -> None:
    done = by_target(target)
    unknown = pq.read_table(done.folder / "scored" / "unknown.csv.parquet")
    assert unknown.schema.field(COLUMNS[0]).type == pa.float64()
    assert unknown["prediction"].to_pylist() == done.known["prediction"].to_list()


@of_each_target
def test_scores_of_a_table_are_kept(by_target: ByTarget, target: str) -> None:
    assert by_target(target).kept["scored"] == 0


@pytest.fixture
def values_as_texts(by_target: ByTarget, tmp_path: Path) -> pd.DataFrame:
    """The rows of `known.parquet` whose target is written as texts, in a copy of its folder."""
    done = by_target(VALUE)
    for name in ("new", "scored"):
        shutil.copytree(done.folder / name, tmp_path / name)
    texts = pd.read_parquet(tmp_path / "new" / "known.parquet").astype({VALUE: str})
    texts.to_parquet(tmp_path / "new" / "known.parquet", index=False)
    return texts


def test_values_that_are_written_as_texts_are_judged_alike(
    by_target: ByTarget, store: str, tmp_path: Path, values_as_texts: pd.DataFrame
) -> None:
    done = by_target(VALUE)
    again = score_flowers(store, done.name, tmp_path)
    metrics = done.scored.run.data.metrics
    assert again.run.data.metrics["labelled/rmse"] == metrics["labelled/rmse"]


def test_a_file_whose_numbers_are_times_is_refused(
    by_target: ByTarget, store: str, tmp_path: Path, values_as_texts: pd.DataFrame
) -> None:
    times = values_as_texts.assign(**{COLUMNS[0]: pd.Timestamp("2020-01-01")})
    times.to_parquet(tmp_path / "new" / "known.parquet", index=False)
    with pytest.raises(TipcastError, match=r"S010.*1 of 2 files"):
        score_flowers(store, by_target(VALUE).name, tmp_path)


def test_a_row_gets_one_score_whichever_way_it_comes(job: Any, tmp_path: Path) -> None:
    """Texts that pandas takes for missing, codes, odd texts, blanks, and numbers that are too
    large.
    """
    rng = np.random.default_rng(5)
    state = rng.choice(["NA", "CA", "", " "], 300)
    code = rng.choice(["007", "7", "12"], 300)
    size = rng.normal(size=300).round(3).astype(str)
    size[::30] = "?"
    y = np.where((state == "NA") | (code == "7"), 5.0, 0.0)
    texts = pd.DataFrame({"state": state, "code": code, "y": y})
    texts.to_parquet(tmp_path / "train.parquet", index=False)
    words = [
        "data=table",
        f"data.train={tmp_path}/train.parquet",
        "task.target=y",
        "task.kind=regression",
    ]
    words += ["task.validation=0", "model.params.n_estimators=4"]
    model = job("train", *words, "data.types={state: text}", "data.types.code=category")
    texts.drop(columns="y").to_csv(tmp_path / "new.csv", index=False)
    job(
        "score",
        f"model_uri={model.said['model_uri']}",
        f"input={tmp_path}/new.csv",
        f"output={tmp_path}/scores",
    )
    scores = pd.read_parquet(tmp_path / "scores")["prediction"].to_numpy()
    assert len(set(scores)) > 1
    loaded = mlflow.pyfunc.load_model(model.said["model_uri"])
    plain = pd.read_csv(tmp_path / "new.csv", dtype=str, keep_default_na=False)
    np.testing.assert_allclose(loaded.predict(plain), scores, rtol=1e-6)
    np.testing.assert_allclose(loaded.predict(texts), scores, rtol=1e-6)
    for options, error in (
        ({"keep_default_na": False}, "'code' has lost its text: 7 may have been '007' or '7'"),
        ({"dtype": str}, "'state' has NaN, which may have been 'NA' or nothing"),
    ):
        with pytest.raises(mlflow.MlflowException, match=error):
            loaded.predict(pd.read_csv(tmp_path / "new.csv", **options))

    pd.DataFrame({"size": size, "y": y}).to_csv(tmp_path / "train.csv", index=False)
    model = job("train", *words, f"data.train={tmp_path}/train.csv")
    (tmp_path / "new.csv").write_text("size\n0.5\n \n?\n 0.5 \n1e39\nNA\n")
    job(
        "score",
        f"model_uri={model.said['model_uri']}",
        f"input={tmp_path}/new.csv",
        f"output={tmp_path}/more",
    )
    scores = pd.read_parquet(tmp_path / "more")["prediction"].to_numpy()
    assert np.isnan(scores).tolist() == [False] * 4 + [True, False]
    assert scores[0] == scores[3]
    assert scores[1] == scores[2] == scores[5]
    loaded = mlflow.pyfunc.load_model(model.said["model_uri"])
    for options in ({}, {"dtype": str, "keep_default_na": False}):
        found = loaded.predict(pd.read_csv(tmp_path / "new.csv", skip_blank_lines=False, **options))
        np.testing.assert_allclose(found, scores, rtol=1e-6)
    with pytest.raises(mlflow.MlflowException, match="'size' cannot be read"):
        loaded.predict(pd.DataFrame({"size": pd.to_datetime(["2019-01-01"])}))


def test_a_model_of_many_features_is_promoted(job: Any, store: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    rows = pd.DataFrame(rng.normal(size=(80, 1200)).round(2)).add_prefix("gene ")
    rows.assign(y=rows["gene 7"]).to_parquet(tmp_path / "wide.parquet", index=False)
    words = [
        "data=table",
        f"data.train={tmp_path}/wide.parquet",
        "task.target=y",
        "model=ridge",
        "task.validation=0",
    ]
    job("train", *words, "tracking.register=wide")
    assert job("promote", "model_uri=models:/wide/1").said["moved"]
    mlflow.MlflowClient(store).copy_model_version("models:/wide/1", "wide")
    done = job("promote", "model_uri=models:/wide/2", "margin=0").said
    assert (done["moved"], done["metrics"]["difference/rmse"]) == (True, 0)


def test_what_a_user_may_not_expect_is_said(
    job: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An index in CSV, blanks after commas, rows that are dropped, dates that fit either order, a
    loss near 0.
    """
    rng = np.random.default_rng(6)
    x = rng.normal(size=600)
    rows = pd.DataFrame(
        {"x": x, "when": "01/02/2019", "y": np.where(x > 0, "a", np.where(x > -1, "b", "c"))}
    )
    rows.loc[::10, "x"] = np.inf
    (tmp_path / "train.csv").write_text(rows.to_csv().replace(",b", ", b "))
    words = [
        "data=table",
        f"data.train={tmp_path}/train.csv",
        "task.target=y",
        "model.params.n_estimators=30",
    ]
    model = job("train", *words)
    assert "60 of 600 rows of train.csv are not used: non_finite" in caplog.text
    assert "month/day/year, although all fit either order" in caplog.text
    loaded = mlflow.pyfunc.load_model(model.said["model_uri"])
    assert loaded.metadata.signature.inputs.input_names() == ["x"]
    assert {*loaded.predict(rows, params={"output": "label"})} == {"a", "b", "c", None}
    assert model.run.data.metrics["test/log_loss_low"] >= 0


OWN_COLUMNS = "columns={pickup: started_at, PULocationID: 'from zone', fare_amount: price}"
FILES = [f"yellow_{month}.parquet" for month in MONTHS]


@dataclass(frozen=True)
class Named:
    """The same trips and trainings, by the TLC's names and by a user's own."""

    store: str
    tlc: Path
    mine: Path
    usual: Ended
    own: Ended

    def loaded(self, ended: Ended) -> Any:
        """Return a training's model as MLflow loads it."""
        mlflow.set_tracking_uri(self.store)
        mlflow.set_registry_uri(self.store)
        return mlflow.pyfunc.load_model(ended.said["model_uri"])

    def scores(self, ended: Ended, given: Path, *words: str) -> pa.Table:
        """Score a folder of trips with a training's model, into the working folder."""
        files = (f"input={given}", f"output={Path.cwd() / 'scored'}")
        run_job(self.store, "score", f"model_uri={ended.said['model_uri']}", *files, *words)
        return pq.read_table(Path.cwd() / "scored" / FILES[1])


@pytest.fixture(scope="module")
def named(store: str, tmp_path_factory: pytest.TempPathFactory) -> Named:
    folder = tmp_path_factory.mktemp("named")
    tlc = folder / "tlc"
    mine = folder / "own"
    mine.mkdir()
    for month, file in zip(MONTHS, FILES, strict=True):
        write(tlc, month)
        pd.read_parquet(tlc / file).rename(columns=OWN).to_parquet(mine / file, index=False)

    def train(trips: Path, *words: str) -> Ended:
        sides = (f"data.train={trips / FILES[0]}", f"data.test={trips / FILES[1]}")
        few = "model.params.n_estimators=5"
        return run_job(store, "train", "data=files", few, *sides, *words)

    with contextlib.chdir(folder):
        own = train(mine, f"data.{OWN_COLUMNS}", "tracking.register=own")
        return Named(store, tlc, mine, train(tlc), own)


def test_a_training_by_own_names_learns_the_same(named: Named) -> None:
    assert named.own.said["metrics"] == named.usual.said["metrics"]
    assert named.own.run.data.params["data.columns.pickup"] == "started_at"


def test_a_model_learnt_by_own_names_asks_for_these(named: Named) -> None:
    model = named.loaded(named.own)
    names = model.metadata.signature.inputs.input_names()
    trips = pd.read_parquet(named.tlc / FILES[1])
    renamed = pd.read_parquet(named.mine / FILES[1])
    assert names == ["started_at", "passenger_count", "from zone", "DOLocationID"]
    assert list(model.input_example) == names
    assert np.array_equal(model.predict(renamed), named.loaded(named.usual).predict(trips))
    with pytest.raises(mlflow.MlflowException, match="started_at"):
        model.predict(trips)


@pytest.fixture(scope="module")
def usual_scores(named: Named, tmp_path_factory: pytest.TempPathFactory) -> pa.ChunkedArray:
    """What the model that was learnt by the TLC's names says of trips by these."""
    with contextlib.chdir(tmp_path_factory.mktemp("usual")):
        return named.scores(named.usual, named.tlc)["probability"]


def test_trips_by_own_names_are_scored_by_the_names_of_the_training(
    named: Named, usual_scores: pa.ChunkedArray
) -> None:
    scored = named.scores(named.own, named.mine)
    assert scored["probability"].equals(usual_scores)
    assert scored.column_names[:3] == pq.read_schema(named.mine / FILES[1]).names[:3]


def test_a_model_learnt_by_own_names_knows_those_of_the_tlc(
    named: Named, usual_scores: pa.ChunkedArray
) -> None:
    assert named.scores(named.own, named.tlc)["probability"].equals(usual_scores)


def test_own_names_may_be_told_when_scoring(named: Named, usual_scores: pa.ChunkedArray) -> None:
    scored = named.scores(named.usual, named.mine, OWN_COLUMNS, "keep=[pickup,tip_amount]")
    assert scored["probability"].equals(usual_scores)
    assert scored.column_names[:2] == ["started_at", "tip_amount"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), r"D007.*with columns=\{"),
        (("columns={up: x}",), "C003.*unknown column of taxi 'up'"),
    ],
)
def test_own_names_that_nobody_told_are_refused(
    named: Named, words: tuple[str, ...], error: str
) -> None:
    with pytest.raises(TipcastError, match=error):
        named.scores(named.usual, named.mine, *words)


def test_months_are_prepared_by_the_names_of_the_tlc(
    named: Named, job: Any, tmp_path: Path
) -> None:
    words = ("data=files", f"data.months={named.mine}", f"data.{OWN_COLUMNS}")
    job("prepare", *words, f"out={tmp_path}/usual")
    names = pq.read_schema(tmp_path / "usual" / "yellow_tripdata_2019-01.parquet").names
    assert set(OWN) <= set(names)
    assert not set(OWN.values()) & set(names)


@pytest.fixture(scope="module")
def doubtful(store: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A training on a table with a constant column, a column without a value, names of rows and a
    rare class.
    """
    folder = tmp_path_factory.mktemp("doubtful")
    draw = np.random.default_rng(0)
    rows = pd.DataFrame({"x": draw.normal(size=1_000)})
    rows["kind"] = np.where(rows["x"] > 0, "a", "b")
    rows.loc[:9, "kind"] = "rare"
    rows = rows.assign(name=[f"r{number}" for number in range(1_000)], year=2019, empty=np.nan)
    rows.to_csv(folder / "rows.csv", index=False)
    words = (
        "data=table",
        f"data.train={folder}/rows.csv",
        "data.test_share=0.2",
        "task.target=kind",
    )
    return run_job(store, "train", *words, "model.params.n_estimators=3")


def test_what_is_learnt_of_a_table_is_a_parameter(doubtful: Any) -> None:
    params = doubtful.run.data.params
    assert params["task.target"] == "kind"
    assert params["task.features"] == "x, year"


@pytest.mark.parametrize(
    "column", ["empty (it has no value)", "name (1,000 texts in 1,000 rows look like names of rows"]
)
def test_a_column_that_was_left_out_is_in_a_parameter(doubtful: Any, column: str) -> None:
    assert column in doubtful.run.data.params["data.left_out"]


@pytest.mark.parametrize(
    "remark",
    [
        "Predicts `kind` from 2 features: `x`, `year`.",
        "`empty` (it has no value)",
        "Class 'rare' has 2 test rows, fewer than 10",
        "Feature 'year' has the same value in all training rows",
    ],
    ids=["features", "left_out", "rare_class", "constant_feature"],
)
def test_the_note_of_a_doubtful_table_has_its_remark(doubtful: Any, remark: str) -> None:
    assert remark in doubtful.run.data.tags["mlflow.note.content"]


def test_a_feature_of_one_value_is_not_constant_where_its_gaps_are_a_feature(
    store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = pd.DataFrame({"flag": [1, None, 1, None] * 50, "class": ["a", "b"] * 100})
    rows.to_csv(tmp_path / "gaps.csv", index=False)
    words = ("data=table", f"data.train={tmp_path}/gaps.csv", "task.target=class", "model=knn")
    run_job(store, "train", *words)
    assert "the same value in all training rows" not in caplog.text


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_inspect_names_constant_columns(tmp_path: Path, ending: str) -> None:
    rows = pd.DataFrame(
        {"x": [1.0, 2.0, 3.0], "year": 2019, "city": "Bern", "some": [1.0, np.nan, 1.0]}
    )
    path = tmp_path / f"rows.{ending}"
    rows.to_csv(path, index=False) if ending == "csv" else rows.to_parquet(path)
    said = inspected(path)
    assert [
        row["column"] for row in said["columns"] if "same value in all rows" in row["note"]
    ] == ["year", "city"]


def inspected(path: Path) -> Any:
    """Return what `tipcast inspect` says of a file."""
    (composed,) = compose_jobs("inspect", [f"data.train={path}", "print=none"])
    return composed.run()


def gaps(count: int) -> pd.DataFrame:
    """Make rows whose town, and whether a size is missing, tell the class and the value."""
    draw = np.random.default_rng(3)
    rows = pd.DataFrame(
        {
            "size": draw.normal(50, 10, count),
            "town": draw.choice(["Ulm", "Bonn", "Jena", "Köln"], count),
        }
    )
    rows["size"] = rows["size"].where(draw.random(count) < 0.6)
    rows["cost"] = (
        5.0 * rows["size"].isna()
        + 3.0 * rows["town"].isin(["Bonn", "Ulm"])
        + draw.normal(0, 0.5, count)
    )
    return rows.assign(sold=np.where(rows["cost"] > 3.5, "yes", "no"))


@dataclass(frozen=True)
class OfGaps:
    """A training on texts beside gaps, and what it must reach."""

    target: str
    ended: Ended
    metric: str
    least: float


@pytest.fixture(
    scope="module",
    params=[
        ("xgboost", "sold", "auc", 0.97),
        ("random_forest", "sold", "auc", 0.97),
        ("logistic", "sold", "auc", 0.97),
        ("hist_gradient_boosting", "sold", "auc", 0.97),
        ("knn", "sold", "auc", 0.97),
        ("svc", "sold", "auc", 0.97),
        ("incremental", "sold", "auc", 0.97),
        ("linear", "cost", "r2", 0.9),
        ("ridge", "cost", "r2", 0.9),
    ],
    ids=lambda param: param[0],
)
def of_gaps(
    request: pytest.FixtureRequest, store: str, tmp_path_factory: pytest.TempPathFactory
) -> OfGaps:
    model, target, metric, least = request.param
    folder = tmp_path_factory.mktemp("gaps")
    gaps(1200).to_csv(folder / "rows.csv", index=False)
    words = [
        "data=table",
        f"data.train={folder}/rows.csv",
        "task.features=[size,town]",
        f"task.target={target}",
    ]
    with contextlib.chdir(folder):
        ended = run_job(store, "train", *words, f"model={model}", "tracking.register=gaps")
    return OfGaps(target, ended, metric, least)


def test_every_model_learns_from_texts_beside_gaps(of_gaps: OfGaps) -> None:
    assert of_gaps.ended.run.data.metrics[f"test/{of_gaps.metric}"] > of_gaps.least


def test_texts_beside_gaps_are_scored_as_mlflow_scores_them(
    of_gaps: OfGaps, job: Any, store: str, tmp_path: Path
) -> None:
    """Also a text that is new."""
    new = gaps(300).assign(town=lambda rows: rows["town"].replace("Jena", "Trier"))
    new[["size", "town"]].to_csv(tmp_path / "new.csv", index=False)
    uri = of_gaps.ended.said["model_uri"]
    job("score", f"model_uri={uri}", f"input={tmp_path}/new.csv", f"output={tmp_path}/scored")
    (file,) = (tmp_path / "scored").glob("new*")
    scored = pq.read_table(file).to_pandas()
    mlflow.set_tracking_uri(store)
    predicted = mlflow.pyfunc.load_model(uri).predict(pd.read_csv(tmp_path / "new.csv"))
    column = "probability" if of_gaps.target == "sold" else "prediction"
    np.testing.assert_allclose(scored[column], predicted, atol=1e-6)


def test_clusters_of_texts_are_judged_by_a_column_for_each(job: Any, tmp_path: Path) -> None:
    gaps(600).to_parquet(tmp_path / "rows.parquet")
    words = [
        "data=table",
        f"data.train={tmp_path}/rows.parquet",
        "task.features=[size,town]",
        "model=kmeans",
    ]
    metrics = job("train", *words, "model.params.n_clusters=4").run.data.metrics
    assert np.isfinite([value for name, value in metrics.items() if name.startswith("test/")]).all()


def test_categories_are_drawn_by_their_texts_alone(tmp_path: Path) -> None:
    towns = ["Rome", "Oslo", "Bonn", "Oslo"] * 30
    rows = pd.DataFrame({"town": towns, "age": range(120), "floor": [1, 2, 3, 4] * 30})
    rows.assign(y=np.arange(120) % 7 / 3).to_csv(tmp_path / "rows.csv", index=False)
    words = ["data=table", f"data.train={tmp_path}/rows.csv", "task.target=y"]
    (composed,) = compose_jobs("train", [*words, "task.categorical=[floor]"])
    assert categories_of(make_plan(composed.config)) == {
        "town": ("Bonn", "Oslo", "Rome"),
        "floor": (),
    }


def test_codes_of_trips_are_categories_also_to_a_task_that_has_none() -> None:
    (composed,) = compose_jobs("train", ["data=sample"])
    plan = make_plan(composed.config)
    assert not plan.task.categorical
    zones = {"PULocationID", "DOLocationID"}
    assert zones <= categories_of(plan).keys()
    assert "trip_distance" not in categories_of(plan)


@pytest.mark.parametrize(
    ("model", "refused"), [("knn", True), ("linear", False), ("random_forest", False)]
)
def test_too_many_texts_for_dense_columns_are_refused_before_rows_are_read(
    tmp_path: Path, model: str, refused: bool
) -> None:
    """Two columns of 2,100 texts each; sparse columns, and trees that take codes, may have them."""
    draw = np.random.default_rng(0)
    texts = {name: draw.permutation(np.arange(4200) % 2100).astype(str) for name in ("a", "b")}
    rows = pd.DataFrame({**texts, "y": draw.random(4200)})
    rows[["a", "b"]] = "text " + rows[["a", "b"]]
    rows.to_parquet(tmp_path / "rows.parquet")
    words = ["data=table", f"data.train={tmp_path}/rows.parquet", "task.target=y"]
    (composed,) = compose_jobs("train", [*words, f"model={model}"])
    if refused:
        with pytest.raises(TipcastError, match=r"C003.*4,200 values of a, b .*types=\{a: none"):
            make_plan(composed.config)
    else:
        assert make_plan(composed.config).task.features == ("a", "b")


FLAGS = {"1": 10.0, "True": 20.0, "0": 30.0, "False": 40.0, "other": 50.0}
"""Text -> the value of its rows."""


@pytest.fixture(scope="module")
def flag_model(store: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model of a column that has true and 1 as texts, as MLflow loads it."""
    folder = tmp_path_factory.mktemp("flags")
    rows = pd.DataFrame({"flag": [*FLAGS] * 60, "cost": [*FLAGS.values()] * 60})
    rows.to_csv(folder / "t.csv", index=False)
    words = ["data=table", f"data.train={folder}/t.csv", "task.target=cost"]
    words += ["task.kind=regression", "model=linear"]
    with contextlib.chdir(folder):
        ended = run_job(store, "train", *words)
        return mlflow.pyfunc.load_model(ended.said["model_uri"])


@pytest.mark.parametrize(
    "flags", [[True, 1, 0, False], [0, 1.0, False, True, "other"], [1, True]], ids=str
)
def test_true_is_another_text_than_1(flag_model: Any, flags: list[Any]) -> None:
    """Whether a frame or JSON has them as texts or as what they look like, in any order."""
    texts = [str(int(flag)) if type(flag) is float else str(flag) for flag in flags]
    expected = [FLAGS[text] for text in texts]
    frame = pd.DataFrame({"flag": pd.Series(flags, dtype=object)})
    np.testing.assert_allclose(flag_model.predict(frame), expected, atol=0.1)
    frame = pd.DataFrame({"flag": texts})
    np.testing.assert_allclose(flag_model.predict(frame), expected, atol=0.1)


def test_booleans_that_may_have_been_numbers_are_refused(flag_model: Any) -> None:
    with pytest.raises(MlflowException, match="True may have been 'True' or '1'"):
        flag_model.predict(pd.DataFrame({"flag": [True, False]}))


@dataclass(frozen=True)
class OfForm:
    """A model whose column of numbers is written in a Unicode form; it is sent in the other."""

    column: str
    """As the training has it."""
    sent: str
    """As rows to score have it."""
    uri: str
    loaded: Any

    def serve(self, body: str, kind: str) -> Any:
        """Return the answer of MLflow's server."""
        return invocations(body, kind, self.loaded, self.loaded.metadata.get_input_schema())

    def rows(self, cell: str) -> pd.DataFrame:
        """Return two rows to score, the second of which has a cell."""
        return pd.DataFrame({self.sent: ["3", cell], "art": ["x", "y"]})


@pytest.fixture(scope="module", params=[("NFC", "NFD"), ("NFD", "NFC")], ids=["NFC", "NFD"])
def of_form(
    request: pytest.FixtureRequest, store: str, tmp_path_factory: pytest.TempPathFactory
) -> OfForm:
    folder = tmp_path_factory.mktemp("form")
    column, sent = (unicodedata.normalize(form, "größe") for form in request.param)
    size = np.arange(300.0)
    frame = pd.DataFrame(
        {column: size.astype(str), "art": ["x", "y", "z"] * 100, "y": size % 7 + size}
    )
    frame.loc[::29, column] = ""
    frame.to_csv(folder / "train.csv", index=False)
    words = [
        "data=table",
        f"data.train={folder}/train.csv",
        "task.target=y",
        "task.kind=regression",
        "model.params.n_estimators=4",
        f"data.types={{{sent}: number}}",
    ]
    with contextlib.chdir(folder):
        uri = run_job(store, "train", *words).said["model_uri"]
        return OfForm(column, sent, uri, mlflow.pyfunc.load_model(uri))


def bodies(rows: pd.DataFrame) -> dict[str, str]:
    """Return rows in the forms that a server takes, by their content types."""
    return {
        "application/json": json.dumps({"dataframe_split": rows.to_dict("split")}),
        "text/csv": rows.to_csv(index=False),
    }


def test_a_model_asks_for_the_name_that_it_was_trained_with(of_form: OfForm) -> None:
    assert of_form.loaded.metadata.get_input_schema().input_names()[0] == of_form.column


@pytest.mark.parametrize("cell", ["", "\t", " 12 ", "1e2"])
def test_a_name_in_either_unicode_form_gets_one_score(
    of_form: OfForm, job: Any, tmp_path: Path, cell: str
) -> None:
    """By files, frames and the server of MLflow."""
    rows = of_form.rows(cell)
    rows.to_csv(tmp_path / "new.csv", index=False)
    words = (f"model_uri={of_form.uri}", f"input={tmp_path}/new.csv", f"output={tmp_path}/scored")
    job("score", *words)
    scores = pd.read_parquet(tmp_path / "scored")["prediction"].to_numpy()

    predict = of_form.loaded.predict
    np.testing.assert_allclose(predict(rows), scores, rtol=1e-6)
    renamed = rows.rename(columns={of_form.sent: of_form.column})
    np.testing.assert_allclose(predict(renamed), scores, rtol=1e-6)
    for kind, body in bodies(rows).items():
        served = json.loads(of_form.serve(body, kind).response)["predictions"]
        np.testing.assert_allclose(served, scores, rtol=1e-6, err_msg=kind)


@pytest.mark.parametrize("cell", ["1,5", "true"])
def test_a_cell_that_is_no_number_is_refused_by_every_way(of_form: OfForm, cell: str) -> None:
    rows = of_form.rows(cell)
    with pytest.raises(MlflowException, match="is not a number"):
        of_form.loaded.predict(rows)
    for kind, body in bodies(rows).items():
        with pytest.raises(MlflowException, match="is not a number"):
            of_form.serve(body, kind)


def test_a_column_missing_in_both_unicode_forms_is_refused(of_form: OfForm) -> None:
    rows = of_form.rows("1")
    with pytest.raises(MlflowException, match="missing column"):
        of_form.loaded.predict(rows.drop(columns=of_form.sent))
