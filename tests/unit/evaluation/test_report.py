"""The note of a run."""

import numpy as np

from tipcast.evaluation import report
from tipcast.evaluation.classification import Classification

COMMAND = "tipcast train model=xgboost 'data.test=2019-03'"


def test_says_what_matters() -> None:
    splits = [("train", "2018-01 to 2018-12", 102_000), ("test", "2019-03", 4_000)]
    evaluator, scores = Classification(), np.random.default_rng(0).random(4000)
    evaluation = evaluator.evaluate_here(scores, (scores > 0.4).astype(int))

    def note(**baseline: float) -> str:
        return report.note(
            "xgboost",
            evaluator,
            {"test": evaluation},
            splits=splits,
            phases={"read": 1.5, "fit": 2.25},
            folds="",
            balanced=False,
            baseline=baseline,
            run_id="abc",
            learnt="",
            remarks=report.beaten(evaluator, evaluation, baseline),
            repeated=report.repeat(COMMAND),
            remark="The test is later.",
        )

    text = note(accuracy=0.99, log_loss=0.0)
    loss = f"{evaluation.metrics['log_loss']:.4f}"
    for said in (
        "### xgboost: test AUC 1.0000 (95 % interval 1.0000 to 1.0000)",
        "| train | 2018-01 to 2018-12 | 102,000 |",
        "| fit | 2.25 |",
        "| all | 3.75 |",
        "| auc | 1.0000 (1.0000 to 1.0000) |  |",
        f"| accuracy | {evaluation.metrics['accuracy']:.4f} | 0.9900 |",
        f"does not beat a prediction without features: log_loss {loss}, baseline 0.0000.",
        f"Accuracy, precision, recall and f1 at threshold {evaluation.threshold:.4f}, set "
        "in advance.",
        f"```\n{COMMAND}\n```",
        "](get-artifact?path=plots%2Froc.png&run_uuid=abc)",
        "The test is later.",
    ):
        assert said in text
    assert "data:" not in text  # MLflow's page removes such images
    assert "does not beat" not in note(accuracy=1.0, log_loss=0.69), "of a rare class"


def test_a_note_says_what_was_learnt_from_which_columns() -> None:
    text = report.learnt("price", ["rooms", "area"], {"id": "each row has its own"})
    assert (
        text
        == "Predicts `price` from 2 features: `rooms`, `area`.\n\nLeft out: `id` (each row has "
        "its own)."
    )


def test_a_note_without_a_target_says_what_rows_are_grouped_by() -> None:
    assert report.learnt("", ["rooms"], {}) == "Groups rows by 1 feature: `rooms`."


def test_a_long_list_is_cut_between_two_names() -> None:
    names = [f"column_{number}" for number in range(1_000)]
    text = report.listed(names, 6_000)
    *shown, rest = text.split(", ")
    assert shown == names[: len(shown)]
    assert rest == f"... and {1_000 - len(shown)} more"
    assert 5_900 < len(text) <= 6_000
    assert report.listed(names[:3], 6_000) == "column_0, column_1, column_2"


def test_a_class_with_few_test_rows_is_named() -> None:
    assert report.rare_classes(("no", "rare", "one", "none"), (10, 9, 1, 0)) == [
        "Class 'rare' has 9 test rows, fewer than 10: its metrics are unreliable.",
        "Class 'one' has 1 test row, fewer than 10: its metrics are unreliable.",
        "Class 'none' has 0 test rows, fewer than 10: its metrics are unreliable.",
    ]


def test_constant_features_are_named() -> None:
    assert report.constant_features([]) == []
    assert report.constant_features(["year", "city"]) == [
        "Features 'year', 'city' have the same value in all training rows: the model learns "
        "nothing from them."
    ]
