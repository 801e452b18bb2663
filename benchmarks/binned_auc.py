"""Compare the evaluation in bins on two threads with scikit-learn's roc_auc_score + roc_curve, and
write a result.

    PYTHONPATH=src python benchmarks/binned_auc.py \\
        [--rows 8000000] [--pairs 5] [--partitions 8] [--out FOLDER]
"""

from __future__ import annotations

import numpy as np
from distributed import Client, LocalCluster
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from harness import compare, options, write_result
from tipcast.evaluation.classification import Classification

AUC = 2e-6
PRECISION = 1e-5
AREA = 1e-5
"""How far AUC, average precision and the area under the thinned curve may be from
scikit-learn's.
"""


def made(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return float32 scores and int32 labels of an AUC like that of the taxi task, ties
    included.
    """
    r = np.random.default_rng(0)
    logit = r.normal(0.0, 0.5, rows)
    labels = (r.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.int32)
    return (1 / (1 + np.exp(-logit))).astype(np.float32), labels


def main() -> None:
    """Run the benchmark."""
    given = options(__doc__, rows=8_000_000, pairs=5, partitions=8)
    scores, labels = made(given.rows)
    with (
        LocalCluster(
            processes=False, n_workers=1, threads_per_worker=2, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        on_workers = [
            [
                client.submit(np.array, part, pure=False)
                for part in np.array_split(column, given.partitions)
            ]
            for column in (scores, labels)
        ]
        found = Classification().evaluate(client, *on_workers)
        expected = roc_auc_score(labels, scores), average_precision_score(labels, scores)
        area = float(np.trapezoid(found.roc["tpr"], found.roc["fpr"]))
        values = found.headline_value, found.metrics["average_precision"], area
        apart = [
            abs(value - other)
            for value, other in zip(values, (*expected, expected[0]), strict=True)
        ]
        if any(far > most for far, most in zip(apart, (AUC, PRECISION, AREA), strict=True)):
            raise SystemExit(
                f"not equal: AUC, average precision and the curve's area differ by {apart}"
            )

        def theirs() -> object:
            return roc_auc_score(labels, scores), roc_curve(labels, scores)

        names = ("tipcast evaluate (all metrics and curves)", "sklearn roc_auc_score + roc_curve")
        result = compare(
            lambda: Classification().evaluate(client, *on_workers), theirs, given.pairs, names=names
        )
    print(result)
    print(write_result("binned_auc", result, **vars(given), threads=2, apart=apart))


if __name__ == "__main__":
    main()
