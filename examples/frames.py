"""One table as frames of pandas, Dask and cuDF, and its numbers as arrays of NumPy and CuPy; each
frame trains a model.

python examples/frames.py        # without a GPU pandas and Dask alone
"""

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd

import tipcast

NAMES = ["x0", "x1", "x2"]


def make_rows(rows: int = 4_000, seed: int = 0) -> pd.DataFrame:
    """Return rows of three numbers and a class that depends on them."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(rows, len(NAMES)))
    return pd.DataFrame(values, columns=NAMES).assign(
        y=values @ [3.0, -1.0, 0.5] + rng.normal(size=rows) > 0
    )


def gpus() -> int:
    """Return how many GPUs CuPy sees, 0 without it."""
    try:
        import cupy

        return int(cupy.cuda.runtime.getDeviceCount())
    except (ImportError, RuntimeError):  # no CuPy, no driver
        return 0


def on_gpu(frame: pd.DataFrame) -> dict[str, Any]:
    """Return name -> the same rows on the GPU, which arrays and frames of the host were made
    into.
    """
    import cudf
    import cupy
    import dask_cudf

    values = frame[NAMES].to_numpy()
    array = cupy.asarray(values)
    blocks = da.from_array(values, chunks=(1_000, 3)).map_blocks(cupy.asarray)
    back = np.array_equal(cupy.asnumpy(array), values)
    print(f"cupy: {cupy.array_equal(array, blocks.compute())}, back: {back}")
    made = cudf.DataFrame(array, columns=NAMES)
    made["y"] = cudf.Series(frame["y"])
    # the same rows in the same order: all are split alike
    parts = dd.from_pandas(frame, npartitions=2)
    return {
        "cudf": made,
        "dask_cudf": dask_cudf.from_cudf(made, npartitions=2),
        "to_backend": parts.to_backend("cudf"),
    }


if __name__ == "__main__":
    table = make_rows()
    frames = {"pandas": (table, "cpu"), "dask": (dd.from_pandas(table, npartitions=2), "cpu")}
    if gpus():
        frames |= {name: (frame, "gpu") for name, frame in on_gpu(table).items()}
    else:
        print("no GPU, or no CuPy: frames of pandas and Dask alone")
    small = {"cluster": {"n_workers": 1}, "model": {"params": {"n_estimators": 20}}}
    for name, (frame, backend) in frames.items():
        run = tipcast.train(data=frame, target="y", backend=backend, **small)
        print(f"{name}: test/auc {run.metrics['test/auc']:.3f}")
