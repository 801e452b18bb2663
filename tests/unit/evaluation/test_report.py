"""The note of a run."""

import numpy as np

from tipcast.evaluation import report
from tipcast.evaluation.classification import Classification

COMMAND = "tipcast train model=xgboost 'data.test=2019-03'"


def test_says_what_matters() -> None:
    splits = [("train", "2018-01 to 2018-12", 102_000), ("test", "2019-03", 4_000)]
    judge, scores = Classification(), np.random.default_rng(0).random(4000)
    evaluation = judge.evaluate_here(scores, (scores > 0.4).astype(int))

    def note(**baseline: float) -> str:
        return report.note(
            "xgboost", judge, evaluation, splits=splits, phases={"read": 1.5, "fit": 2.25}, validation=None,
            baseline=baseline, run_id="abc", repeated=report.repeat(COMMAND), remark="The test is later.",
        )  # fmt: skip

    text, loss = note(accuracy=0.99, log_loss=0.0), f"{evaluation.metrics['log_loss']:.4f}"
    for said in (
        "### xgboost: test AUC 1.0000 (95 % interval 1.0000 to 1.0000)",
        "| train | 2018-01 to 2018-12 | 102,000 |",
        "| fit | 2.25 |",
        "| all | 3.75 |",
        "| auc | 1.0000 (1.0000 to 1.0000) |  |",
        f"| accuracy | {evaluation.metrics['accuracy']:.4f} | 0.9900 |",
        f"does not beat a prediction without features: log_loss {loss}, baseline 0.0000.",
        f"Accuracy, precision, recall and f1 at threshold {evaluation.threshold:.4f}, set beforehand.",
        f"```\n{COMMAND}\n```",
        "](get-artifact?path=plots%2Froc.png&run_uuid=abc)",
        "The test is later.",
    ):
        assert said in text
    assert "data:" not in text  # MLflow's page removes such images
    assert "does not beat" not in note(accuracy=1.0, log_loss=0.69), "of a rare class"
