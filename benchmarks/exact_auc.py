"""Compare the exact evaluation on two threads with scikit-learn's roc_auc_score + roc_curve, and write a result.

python benchmarks/exact_auc.py [--rows 8000000] [--pairs 5] [--partitions 8] [--dry]
"""

from __future__ import annotations

import argparse

import numpy as np
from distributed import Client, LocalCluster
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from harness import Comparison, compare, write_result
from tipcast.evaluation.metrics import auc, evaluate

GOAL = 0.15
EQUAL = 1e-12


def made(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return float32 scores and int32 labels of an AUC like that of the taxi task, ties included."""
    r = np.random.default_rng(0)
    logit = r.normal(0.0, 0.5, rows)
    labels = (r.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.int32)
    return (1 / (1 + np.exp(-logit))).astype(np.float32), labels


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--dry", action="store_true", help="write no result")
    options = parser.parse_args()
    scores, labels = made(options.rows)
    with (
        LocalCluster(processes=False, n_workers=1, threads_per_worker=2, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        on_workers = [
            [client.submit(np.array, part, pure=False) for part in np.array_split(column, options.partitions)]
            for column in (scores, labels)
        ]
        found = evaluate(client, *on_workers, threshold=None)
        expected = roc_auc_score(labels, scores), average_precision_score(labels, scores)
        difference = max(abs(found.metrics[k] - v) for k, v in zip(("auc", "average_precision"), expected, strict=True))
        thinned = abs(float(np.trapezoid(found.roc.tpr, found.roc.fpr)) - expected[0])
        if difference > EQUAL or thinned > 1e-6:
            raise SystemExit(f"not equal: metrics differ by {difference}, the thinned curve's area by {thinned}")

        def theirs() -> object:
            return roc_auc_score(labels, scores), roc_curve(labels, scores)

        results: list[Comparison] = []
        for name, ours in (
            ("tipcast evaluate (all metrics and curves)", lambda: evaluate(client, *on_workers, threshold=None)),
            ("tipcast auc (with interval)", lambda: auc(client, *on_workers)),
        ):
            results.append(compare(ours, theirs, options.pairs, names=(name, "sklearn roc_auc_score + roc_curve")))
            print(results[-1])
    if not options.dry:
        facts = {"partitions": options.partitions, "threads": 2, "difference": difference, "curve_area": thinned}
        print(write_result("exact_auc", results, rows=options.rows, goal=GOAL, **facts))


if __name__ == "__main__":
    main()
