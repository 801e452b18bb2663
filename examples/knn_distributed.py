"""Nearest neighbours of rows on several workers; and one model, sent to each worker once, that
scores what lies there.

python examples/knn_distributed.py                   # two processes of this machine: scikit-learn
python examples/knn_distributed.py --device gpu      # a worker for each GPU: cuML's Dask classes
python examples/knn_distributed.py --scheduler tcp://127.0.0.1:8786 --folder /shared
"""

import argparse
from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask import delayed
from distributed import Client, LocalCluster, wait
from sklearn.metrics import accuracy_score, r2_score
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors

K = 15


def make_rows(rows: int, seed: int) -> pd.DataFrame:
    """Return float32 features x0 to x4, the class of each row and a value."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 4, rows)
    x = rng.normal(label[:, None] * [1, -1, 2, 0, 1], 1.0).astype(np.float32)
    return (
        pd.DataFrame(x)
        .add_prefix("x")
        .assign(label=label.astype(np.int32), value=x[:, 0] + x[:, 1] ** 2 / 10)
    )


def nearest(part: pd.DataFrame, asked: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return (asked, k) distances of a partition's rows that are nearest, and (asked, k, 2) their
    labels and values.
    """
    index = NearestNeighbors(n_neighbors=min(K, len(part))).fit(part.filter(like="x"))
    distances, rows = index.kneighbors(asked)
    return distances, part[["label", "value"]].to_numpy()[rows]


def vote(found: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Merge the neighbours of all partitions: return the class and the mean value of the k nearest,
    (asked,) each.
    """
    distances, targets = (np.concatenate(side, axis=1) for side in zip(*found, strict=True))
    order = np.argsort(distances, axis=1, kind="stable")[:, :K]
    labels, values = np.moveaxis(np.take_along_axis(targets, order[:, :, None], axis=1), 2, 0)
    return np.apply_along_axis(np.bincount, 1, labels.astype(int), minlength=4).argmax(
        axis=1
    ), values.mean(axis=1)


def search(
    client: Client, train: dd.DataFrame, test: pd.DataFrame, device: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return class and value of each test row by its neighbours among the training rows of all
    workers.
    """
    names = list(test.filter(like="x"))
    if device == "cpu":
        asked = client.scatter(test[names], broadcast=True)
        return delayed(vote)(
            [delayed(nearest)(part, asked) for part in train.to_delayed()]
        ).compute()
    from cuml.dask import neighbors  # it needs a GPU

    asked = dd.from_pandas(test[names], npartitions=train.npartitions).to_backend("cudf")
    sides = (train[names], train["label"], train["value"], asked)
    x, label, value, asked = (side.to_dask_array(lengths=True).persist() for side in sides)
    # of lazy rows cuML has named wrong neighbours; and no model of its could be saved
    wait([x, label, value, asked])
    classes = (
        neighbors.KNeighborsClassifier(client=client, n_neighbors=K).fit(x, label).predict(asked)
    )
    values = (
        neighbors.KNeighborsRegressor(client=client, n_neighbors=K).fit(x, value).predict(asked)
    )
    return classes.compute().get().ravel(), values.compute().get().ravel()


def score_file(model: KNeighborsClassifier, path: Path) -> np.ndarray:
    """Score a file where it is read, and write the classes beside it."""
    found = model.predict(pd.read_parquet(path))
    pd.DataFrame({"class": found}).to_parquet(path.with_suffix(".scored"))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument(
        "--scheduler", help="address of a Dask scheduler; without it workers start on this machine"
    )
    parser.add_argument("--folder", type=Path, default=Path("knn"), help="that all workers reach")
    args = parser.parse_args()
    if args.device == "gpu":
        from dask_cuda import LocalCUDACluster as LocalCluster
    # A worker may end within a heartbeat: Dask would log a traceback of it.
    dask.config.set({"distributed.nanny.pre-spawn-environ.DASK_LOGGING__DISTRIBUTED": "critical"})
    own = {
        "n_workers": 2 if args.device == "cpu" else None,
        "dashboard_address": "127.0.0.1:0",
        "host": "127.0.0.1",
    }
    with Client(args.scheduler or LocalCluster(**own)) as client:
        kept, test = make_rows(15_000, 0), make_rows(5_000, 1)
        train = dd.from_pandas(kept, npartitions=len(client.nthreads()))
        train = (train.to_backend("cudf") if args.device == "gpu" else train).persist()
        classes, values = search(client, train, test, args.device)
        accuracy = accuracy_score(test["label"], classes)
        print(f"accuracy {accuracy:.4f}, r2 {r2_score(test['value'], values):.4f}")
        model = client.scatter(
            KNeighborsClassifier(K).fit(kept.filter(like="x"), kept["label"]), broadcast=True
        )
        parts = dd.from_pandas(test.filter(like="x"), npartitions=4)
        one = parts.map_partitions(
            lambda part, fitted: fitted.predict(part), model, meta=np.zeros(0, int)
        ).compute()
        parts.to_parquet(args.folder.resolve())
        files = [args.folder.resolve() / f"part.{at}.parquet" for at in range(4)]
        other = np.concatenate(client.gather(client.map(score_file, [model] * 4, files)))
        print(
            f"of partitions as of files: {np.array_equal(one, other)}; as "
            f"merged: {(one == classes).mean():.4f}"
        )
