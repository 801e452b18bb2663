"""P3b: a forest of the trees that each GPU grows from its own rows, beside one of all rows.

    PYTHONPATH=src python benchmarks/forest_apart.py --out FOLDER

On one GPU: the shares are fitted one after another, as several GPUs would side by side. What four
GPUs would take is the longest share. AUC is of the same test rows for both forests, over
``--seeds``, a number for each of ``--rows``.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from distributed import wait
from sklearn.metrics import roc_auc_score

from gpu_rows import attempt, in_memory, months, opened
from harness import options, write_result
from tipcast.compute.base import Session, to_host
from tipcast.config.compose import compose, to_object
from tipcast.datasets.rows import Rows
from tipcast.models.base import Fitted, Split
from tipcast.models.build import build
from tipcast.models.cuml_forest import join_shares, share_seed


def fit_share(spec: Any, trees: int, x: list[Any], y: list[Any], seed: int) -> tuple[Fitted, float]:
    """Grow some trees from some parts; return the forest and its seconds."""
    start = time.perf_counter()
    share = dataclasses.replace(spec, params={**spec.params, "n_estimators": trees})
    fitted = build(share, "gpu").fit(Split(list(x), list(y)), seed)
    return fitted, time.perf_counter() - start


def strided_rows(part: Any, start: int, step: int) -> Any:
    """Return rows of a part at even distances."""
    return part.iloc[start::step].reset_index(drop=True)


def auc(fitted: Fitted, x: list[Any], y: list[Any]) -> float:
    """Return the AUC on test rows."""
    import numpy as np

    scores = np.concatenate([to_host(fitted.scorer.score(part)) for part in x])
    return float(roc_auc_score(np.concatenate([to_host(part.values) for part in y]), scores))


def measured(session: Session, train: Rows, test: Rows, shares: int, seed: int) -> dict[str, Any]:
    """Fit both forests with a seed; return their AUC and seconds."""
    client = session.client
    spec = to_object(compose("train", ["model=random_forest"])[0].config).model
    trees = spec.params["n_estimators"]

    def fitted(number: int, seed: int, x: list[Any], y: list[Any]) -> Any:
        return client.submit(fit_share, spec, number, x, y, seed, pure=False).result()

    def parts_of_share(parts: list[Any], at: int) -> list[Any]:
        return client.map(strided_rows, parts, start=at, step=shares, pure=False)

    together, together_s = fitted(trees, seed, train.x, train.y)
    apart = []
    for at in range(shares):
        x, y = (parts_of_share(side, at) for side in (train.x, train.y))
        wait([*x, *y])
        apart.append(fitted(trees // shares, share_seed(seed, at * trees // shares), x, y))

    joined = join_shares([share for share, _ in apart], [trees // shares] * shares)
    values = [
        client.submit(auc, forest, test.x, test.y, pure=False).result()
        for forest in (together, joined)
    ]
    return {
        "auc": {"together": values[0], "apart": values[1]},
        "fit_s": {"together": together_s, "longest_share": max(seconds for _, seconds in apart)},
    }


def main() -> None:
    """Run the benchmark."""
    given = options(
        __doc__, device="gpu", rows=[8_000_000, 80_000_000], seeds=[5, 2], shares=4, folder=""
    )
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for rows, seeds in zip(given.rows, given.seeds, strict=True):
            folders = months(Path(given.folder or scratch), rows)
            with opened(given.device, 1) as session:
                train, test = (in_memory(session, folder) for folder in folders)
                for seed in range(seeds):
                    name = {"rows": rows, "shares": given.shares, "seed": seed}
                    work = partial(measured, session, train, test, given.shares, seed)
                    found.append(attempt(name, work))
                    write_result(
                        "forest_apart", found, differences=differences(found), **vars(given)
                    )


def differences(found: list[dict[str, Any]]) -> dict[int, dict[str, float]]:
    """Return rows -> the difference of the two forests' mean AUC, and the spread over seeds."""
    done = [row for row in found if "auc" in row]
    summary = {}
    for rows in {row["rows"] for row in done}:
        both = {
            way: [row["auc"][way] for row in done if row["rows"] == rows]
            for way in ("together", "apart")
        }
        means = {way: statistics.mean(values) for way, values in both.items()}
        summary[rows] = {
            "apart_less_together": means["apart"] - means["together"],
            "spread_of_together": max(both["together"]) - min(both["together"]),
        }
    return summary


if __name__ == "__main__":
    main()
