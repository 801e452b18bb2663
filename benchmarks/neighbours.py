"""Compare `knn`'s scoring on one thread with scikit-learn's two searches and with blocks of NumPy, and write a result.

python benchmarks/neighbours.py [--rows 10000] [--kept 20000] [--neighbours 100] [--pairs 5] [--out FOLDER]
python benchmarks/neighbours.py --gpus 1 --rows 1000000      # P14: on GPU workers, against cuML's own Dask class
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before a library reads it
os.environ["OPENBLAS_NUM_THREADS"] = "1"

from typing import Any

import numpy as np
from sklearn.neighbors import KNeighborsClassifier

from gpu_rows import opened
from harness import compare, options, write_result
from tipcast.datasets.taxi import features
from tipcast.datasets.taxi.sample import sample_block
from tipcast.models.knn import kept

FROM, UNTIL = 1_546_300_800_000_000, 1_554_076_800_000_000
BLOCK = 4_000_000
EQUAL = 1e-6


def made(rows: int, block: int) -> np.ndarray:
    """Return features of synthetic trips of three months."""
    names = ("tpep_pickup_datetime", "passenger_count", "PULocationID", "DOLocationID")
    trips = sample_block((FROM, UNTIL), 0, block, rows, "yellow", names)
    return features.compute({"pickup": trips.pop(names[0]).view(np.int64), **trips}, features.BASE_FEATURES)


def blocks(rows: np.ndarray, labels: np.ndarray, z: np.ndarray, k: int) -> np.ndarray:
    """Return the share of label 1 among the k nearest, by all distances of some rows at a time."""
    squares, scores = (rows**2).sum(axis=1), np.empty(len(z))
    step = BLOCK // len(rows)
    for start in range(0, len(z), step):
        far = z[start : start + step] @ rows.T
        far *= -2
        far += squares
        scores[start : start + step] = labels[np.argpartition(far, k - 1, axis=1)[:, :k]].mean(axis=1)
    return scores


def on_gpus(given: Any) -> None:
    """Score rows that lie on GPU workers, each way with a model that is there; the scores end on the host."""
    import cupy
    import dask.array as da
    from cuml.dask.neighbors import KNeighborsClassifier as DaskKnn
    from dask.delayed import delayed

    x, values, k = made(given.kept, 0).astype(float), made(given.rows, 1), given.neighbours
    labels = np.random.default_rng(0).integers(0, 2, len(x)).astype(np.int32)
    scorer = kept(x, labels, k, "uniform")
    with opened("gpu", given.gpus) as workers:
        client = workers.client

        def placed(array: np.ndarray) -> list[Any]:
            parts = [np.ascontiguousarray(part) for part in np.array_split(array, workers.n_workers)]
            homes = zip(parts, client.nthreads(), strict=True)
            return [client.submit(cupy.asarray, part, workers=[home], pure=False) for part, home in homes]

        def collection(parts: list[Any], array: np.ndarray) -> Any:
            sizes = [len(part) for part in np.array_split(array, workers.n_workers)]
            shapes = [(size, *array.shape[1:]) for size in sizes]
            each = zip(parts, shapes, strict=True)
            meta = cupy.empty((0,) * array.ndim, dtype=array.dtype)
            return da.concatenate([da.from_delayed(delayed(part), shape, meta=meta) for part, shape in each])

        rows, z = ((each - scorer.mean) / scorer.scale for each in (x, values))
        ours, theirs = placed(values), placed(z.astype(np.float32))
        model = client.scatter(scorer, broadcast=True)
        own = DaskKnn(client=client, n_neighbors=k)
        known, answers = placed(rows.astype(np.float32)), placed(labels)
        own.fit(collection(known, rows.astype(np.float32)), collection(answers, labels))
        asked = collection(theirs, z.astype(np.float32))

        def tipcasts() -> None:
            client.gather(client.map(_scored, ours, scorer=model, pure=False))

        def cumls() -> None:
            own.predict(asked).compute()

        found = compare(tipcasts, cumls, given.pairs, names=("tipcast", "cuml.dask"))
        print(found)
        print(write_result(f"neighbours_gpu_{given.gpus}", found, **vars(given)))


def _scored(values: Any, scorer: Any) -> np.ndarray:
    return scorer.score(values).get()


def main() -> None:
    """Run the benchmark."""
    given = options(__doc__, rows=10_000, kept=20_000, neighbours=100, pairs=5, gpus=0)
    if given.gpus:
        on_gpus(given)
        return
    x, values, k = made(given.kept, 0).astype(float), made(given.rows, 1), given.neighbours
    labels = np.random.default_rng(0).integers(0, 2, len(x))
    scorer = kept(x, labels, k, "uniform")
    rows, z = (x - scorer.mean) / scorer.scale, (values - scorer.mean) / scorer.scale
    own = {name: KNeighborsClassifier(k, algorithm=name).fit(rows, labels) for name in ("kd_tree", "brute")}
    works = {f"scikit-learn {name}": lambda each=each: each.predict_proba(z) for name, each in own.items()}
    works["blocks of NumPy"] = lambda: blocks(rows, labels, z, k)
    apart = np.abs(scorer.score(values) - own["kd_tree"].predict_proba(z)[:, 1])
    far, _ = own["kd_tree"].kneighbors(z, k + 1)
    tied = np.isclose(far[:, -1], far[:, -2], rtol=1e-9, atol=0)
    if apart[~tied].max() > EQUAL:
        raise SystemExit(f"not equal: probabilities differ by {apart[~tied].max()} where nothing is tied")
    results = []
    for name, theirs in works.items():
        results.append(compare(lambda: scorer.score(values), theirs, given.pairs, names=("tipcast", name)))
        print(results[-1])
    print(write_result("neighbours", results, **vars(given), tied=float(tied.mean())))


if __name__ == "__main__":
    main()
