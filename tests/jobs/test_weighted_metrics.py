"""Scorings and promotions count rows by the weights of the task that a model was trained for."""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from tests.jobs.conftest import Ended, run_job


def customers(count: int, seed: int) -> pd.DataFrame:
    """Make rows of two numbers, a class that is learnt of them, and a weight that goes with it."""
    draw = np.random.default_rng(seed)
    rows = pd.DataFrame(draw.normal(size=(count, 2)), columns=["age", "visits"])
    rows["bought"] = np.where(rows["age"] + draw.normal(size=count) > 0, "yes", "no")
    rows["members"] = np.round(draw.lognormal(0, 1, count) * np.where(rows["visits"] > 0, 5, 1), 3)
    rows.loc[::10, "members"] = 0
    return rows


@dataclass(frozen=True)
class Customers:
    """Two models of weighted rows, the second of one feature alone; the first scores files."""

    folder: Path
    promoted: Ended
    """Of the first, while the second holds the alias."""
    weighted: Ended
    """The scoring of a file with weights, some of which are impossible, and one without answers."""
    unweighted: Ended
    """The scoring of that file and one that has answers without weights."""
    warnings: list[str]
    """Log lines of the second scoring."""

    def scores(self, name: str) -> pd.DataFrame:
        """Return scored rows with their answers as 0 and 1."""
        rows = pd.read_parquet(self.folder / name)
        return rows.assign(answer=(rows["bought"] == "yes").astype(int))


def train(store: str, *words: str) -> None:
    run_job(
        store,
        "train",
        "data=table",
        "data.train=train.csv",
        "data.test=test.csv",
        "task.target=bought",
        "task.weight=members",
        "tracking.register=customers",
        *words,
    )


def score(store: str, output: str, *files: str) -> Ended:
    inputs = f"input=[{','.join(files)}]"
    return run_job(store, "score", "model_uri=models:/customers/2", inputs, f"output={output}")


@pytest.fixture(scope="module")
def done(store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Customers]:
    folder = tmp_path_factory.mktemp("weighted")
    with contextlib.chdir(folder):
        customers(400, 0).to_csv("train.csv", index=False)
        test = customers(300, 1)
        test.to_csv("test.csv", index=False)
        impossible = test.assign(members=test["members"].astype(object))
        impossible.loc[[3, 5], "members"] = ["", -1]
        impossible.to_csv("impossible.csv", index=False)
        test.drop(columns=["bought", "members"]).to_csv("unanswered.csv", index=False)
        test.drop(columns="members").to_csv("bare.csv", index=False)

        train(store, "task.features=[age]")
        run_job(store, "promote", "model_uri=models:/customers/1", "alias=champion", "margin=9")
        train(store)
        promoted = run_job(
            store, "promote", "model_uri=models:/customers/2", "alias=champion", "margin=9"
        )
        weighted = score(store, "weighted", "impossible.csv", "unanswered.csv")

        lines: list[str] = []
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("tipcast").addHandler(handler)
        unweighted = score(store, "unweighted", "impossible.csv", "bare.csv")
        logging.getLogger("tipcast").removeHandler(handler)

        yield Customers(folder, promoted, weighted, unweighted, lines)


def test_a_scoring_counts_known_answers_by_their_weights(done: Customers) -> None:
    rows = done.scores("weighted/impossible.csv.parquet").drop(index=[3, 5])
    judged: dict[str, Any] = {"sample_weight": rows["members"]}
    called = rows["prediction"]
    expected = {
        "labelled/auc": roc_auc_score(rows["answer"], rows["probability"], **judged),
        "labelled/log_loss": log_loss(rows["answer"], rows["probability"], **judged),
        "labelled/accuracy": accuracy_score(rows["answer"], called, **judged),
    }
    metrics = done.weighted.run.data.metrics
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-6)


def test_a_row_whose_weight_is_impossible_counts_as_one_without_an_answer(done: Customers) -> None:
    metrics = done.weighted.run.data.metrics
    assert (metrics["score/rows"], metrics["labelled/rows"]) == (600, 298)


def test_the_note_of_a_scoring_names_the_weights(done: Customers) -> None:
    note = done.weighted.run.data.tags["mlflow.note.content"]
    assert "are weighted by the column `members`" in note


def test_files_that_lack_weights_are_scored_without_them(done: Customers) -> None:
    files = ("impossible.csv", "bare.csv")
    rows = pd.concat(done.scores(f"unweighted/{name}.parquet") for name in files)
    metrics = done.unweighted.run.data.metrics
    assert metrics["labelled/rows"] == 600
    expected = roc_auc_score(rows["answer"], rows["probability"])
    assert metrics["labelled/auc"] == pytest.approx(expected, rel=1e-6)


def test_one_line_says_that_files_lack_weights(done: Customers) -> None:
    lines = [line for line in done.warnings if "unweighted" in line]
    assert lines == [
        "metrics are unweighted: 1 of 2 files with a target lack the weight column 'members' (as "
        "bare.csv.parquet)"
    ]


def test_a_promotion_compares_weighted_metrics(done: Customers, store: str) -> None:
    mlflow.set_tracking_uri(store)
    test = pd.read_csv(done.folder / "test.csv")
    answers = test["bought"] == "yes"
    expected = {}
    for side, version in (("challenger", 2), ("champion", 1)):
        model = mlflow.pyfunc.load_model(f"models:/customers/{version}")
        scores = np.asarray(model.predict(test)).squeeze()
        auc = roc_auc_score(answers, scores, sample_weight=test["members"])
        expected[f"{side}/auc"] = auc
    metrics = done.promoted.said["metrics"]
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    difference = expected["challenger/auc"] - expected["champion/auc"]
    assert metrics["difference/auc"] == pytest.approx(difference, abs=2e-6)
    assert metrics["difference/auc_low"] < difference < metrics["difference/auc_high"]


def test_the_note_of_a_promotion_names_the_weights(done: Customers) -> None:
    note = done.promoted.run.data.tags["mlflow.note.content"]
    assert ", weighted by `members`." in note
