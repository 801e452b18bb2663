"""The note of a run."""

from __future__ import annotations

import numpy as np
import pytest
from distributed import Client

from tipcast.evaluation import report
from tipcast.evaluation.base import Evaluation
from tipcast.evaluation.classification import Classification
from tipcast.evaluation.regression import Regression
from tipcast.evaluation.sums import Interval

SPLITS = [("train", "2018-01 to 2018-12", 102_000), ("test", "2019-03", 4_000)]
COMMAND = "tipcast train model=xgboost 'data.test=2019-03'"
JUDGE = Classification()


@pytest.fixture(scope="module")
def evaluation(client: Client) -> Evaluation:
    scores = np.random.default_rng(0).random(4000)
    labels = (scores > 0.4).astype(int)
    return JUDGE.evaluate(client, [client.submit(np.array, scores)], [client.submit(np.array, labels)], threshold=0.5)


def note(found: Evaluation, **changes: object) -> str:
    options = {
        "splits": SPLITS,
        "phases": {"read": 1.5, "fit": 2.25},
        "command": COMMAND,
        "validation": None,
        "run_id": "abc",
        "changes": "",
        "remark": "The test is later.",
        **changes,
    }
    return report.note(options.pop("model", "xgboost"), options.pop("judge", JUDGE), found, **options)


def test_says_what_matters(evaluation: Evaluation) -> None:
    text = note(evaluation)
    for said in (
        "### xgboost: test AUC 1.0000 (95 % interval 1.0000 to 1.0000)",
        "| train | \u20032018-01 to 2018-12 | \u2003102,000 |",
        "| fit | \u20032.25 |",
        "| all | \u20033.75 |",
        "| auc | \u20031.0000 (1.0000 to 1.0000) |",
        "Beside an AUC is its 95 % interval by DeLong, which is asymptotic.",
        f"```\n{COMMAND}\n```",
        "](get-artifact?path=plots%2Froc_small.png&run_uuid=abc)",
        "The test is later.",
    ):
        assert said in text
    assert "data:" not in text  # MLflow's page removes such images


def test_of_numbers() -> None:
    found = Evaluation({"rmse": 2.5, "mae": 1.25, "r2": 0.5, "rows": 100.0}, Interval(2.25, 2.75), None)
    text = note(found, model="forest", judge=Regression())
    for said in (
        "### forest: test RMSE 2.5000 (95 % interval 2.2500 to 2.7500)",
        "| rmse | \u20032.5000 (2.2500 to 2.7500) |",
        "| mae | \u20031.2500 |",
        "Beside an RMSE is its asymptotic 95 % interval.",
        "plots%2Fpredicted_small.png",
    ):
        assert said in text


def test_fence_is_longer_than_any_in_the_command(evaluation: Evaluation) -> None:
    text = note(evaluation, command="tipcast train tracking.run_name='```'")
    assert "\n````\ntipcast train tracking.run_name='```'\n````" in text
