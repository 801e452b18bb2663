"""The note of a run."""

from __future__ import annotations

import numpy as np
import pytest
from distributed import Client

from tipcast.evaluation import report
from tipcast.evaluation.base import Evaluation
from tipcast.evaluation.classification import Classification

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
        "baseline": {"accuracy": 0.99, "log_loss": 0.0},
        "run_id": "abc",
        "changes": "",
        "remark": "The test is later.",
        **changes,
    }
    return report.note(options.pop("model", "xgboost"), options.pop("judge", JUDGE), found, **options)


def test_says_what_matters(evaluation: Evaluation) -> None:
    text, loss = note(evaluation), f"{evaluation.metrics['log_loss']:.4f}"
    for said in (
        "### xgboost: test AUC 1.0000 (95 % interval 1.0000 to 1.0000)",
        "| train | 2018-01 to 2018-12 | 102,000 |",
        "| fit | 2.25 |",
        "| all | 3.75 |",
        "| auc | 1.0000 (1.0000 to 1.0000) |  |",
        f"| accuracy | {evaluation.metrics['accuracy']:.4f} | 0.9900 |",
        f"does not beat a prediction without features: log_loss {loss}, baseline 0.0000.",
        "Accuracy, precision, recall and f1 at threshold 0.5000, set beforehand.",
        f"```\n{COMMAND}\n```",
        "](get-artifact?path=plots%2Froc.png&run_uuid=abc)",
        "The test is later.",
    ):
        assert said in text
    assert "data:" not in text  # MLflow's page removes such images
    assert "does not beat" not in note(evaluation, baseline={"accuracy": 1.0, "log_loss": 0.69}), "of a rare class"
