"""Do the ranks of cuML's distributed forest draw the same rows? Two GPUs that hold the same share,
against one.

    python benchmarks/forest_shares.py --out FOLDER

A forest grown on the same rows twice, once on each of two GPUs, is that of one GPU where each
rank's sample for a tree is the same: then all counts double, and no split or leaf changes. Without
bootstrap samples, and with all features at each split, nothing is drawn, and the two must agree:
that row shows what agreement looks like. Features have fewer values than there are bins, so that
quantiles of twice the rows are the same. Nothing of tipcast is in it.
"""

from __future__ import annotations

from typing import Any

from harness import options, write_result

PARAMS = {"n_estimators": 20, "max_depth": 8, "n_bins": 64, "max_features": 1.0, "random_state": 0}
VALUES = 32


def share(rows: int, seed: int) -> tuple[Any, Any]:
    """Return features (rows, 8) and labels (rows,), the same for the same seed."""
    import cudf
    import numpy as np

    draw = np.random.default_rng(seed)
    x = draw.integers(0, VALUES, size=(rows, 8)).astype(np.float32)
    y = (x[:, 0] + 2 * x[:, 1] + x[:, 2] + draw.normal(size=rows) * VALUES > 2 * VALUES).astype(
        np.int32
    )
    return cudf.DataFrame(x, columns=[f"x{at}" for at in range(8)]), cudf.Series(y)


def alone(rows: int, bootstrap: bool) -> Any:
    """Return the probabilities of a forest of one GPU."""
    from cuml.ensemble import RandomForestClassifier

    x, y = share(rows, 0)
    return (
        RandomForestClassifier(**PARAMS, bootstrap=bootstrap).fit(x, y).predict_proba(x).to_numpy()
    )


def scored(model: Any, rows: int) -> Any:
    """Return the probabilities that a forest gives the share."""
    return model.predict_proba(share(rows, 0)[0]).to_numpy()


def main() -> None:
    """Run the benchmark."""
    given = options(__doc__, rows=400_000)
    import dask.dataframe as dd
    import numpy as np
    from cuml.dask.ensemble import RandomForestClassifier
    from dask_cuda import LocalCUDACluster
    from distributed import Client

    found = []
    with (
        LocalCUDACluster(n_workers=2, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        first, second = client.nthreads()
        for name, seeds in (("the same share twice", (0, 0)), ("two shares", (0, 1))):
            parts = [
                client.submit(share, given.rows, seed, workers=[worker], pure=False)
                for seed, worker in zip(seeds, (first, second), strict=True)
            ]
            meta = client.submit(
                lambda part: (part[0].iloc[:0], part[1].iloc[:0]), parts[0]
            ).result()
            x, y = (
                dd.from_delayed(
                    [
                        client.submit(
                            lambda part, at: part[at], part, at, workers=[worker], pure=False
                        )
                        for part, worker in zip(parts, (first, second), strict=True)
                    ],
                    meta=meta[at],
                    verify_meta=False,
                )
                for at in (0, 1)
            )
            for bootstrap in (False, True):
                forest = RandomForestClassifier(**PARAMS, bootstrap=bootstrap, client=client)
                forest.fit(x, y)
                model = forest.get_combined_model()
                both = client.submit(
                    scored, model, given.rows, workers=[first], pure=False
                ).result()
                one = client.submit(
                    alone, given.rows, bootstrap, workers=[first], pure=False
                ).result()
                apart = np.abs(np.asarray(both) - np.asarray(one))
                found.append(
                    {
                        "rows": name,
                        "bootstrap": bootstrap,
                        "largest": float(apart.max()),
                        "mean": float(apart.mean()),
                    }
                )
                print(found[-1], flush=True)
    write_result("forest_shares", found, params=PARAMS, **vars(given))


if __name__ == "__main__":
    main()
