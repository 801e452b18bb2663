"""What Dask tells of a cluster and of rows on it: cores and memory, who holds what, the task graph; files and restarts.

python examples/dask_tools.py --restart              # two processes of this machine
python examples/dask_tools.py --scheduler tcp://127.0.0.1:8786 --upload features.py
python examples/dask_tools.py --graph graph.svg      # a picture, where Graphviz and its Python package are installed
"""

import argparse
import importlib
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask.core import get_deps
from dask.utils import format_bytes
from distributed import Client, LocalCluster, Worker, wait


def make_rows(rows: int, seed: int = 0) -> pd.DataFrame:
    """Return rows of a group and a value."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"group": rng.integers(0, 4, rows), "value": rng.normal(size=rows)})


def write_graph(collection: dd.DataFrame | dd.Series, path: Path) -> Path:
    """Draw the optimized tasks of a collection, or, without Graphviz, list them as text; return the file."""
    try:
        collection.optimize().visualize(filename=str(path), tasks=True)
        return path
    except (ImportError, RuntimeError):  # no Python package, or no `dot`
        dependencies, _ = get_deps(dict(collection.optimize().__dask_graph__()))
        lines = [
            f"{key} <- {', '.join(sorted(str(need) for need in needs if need != key)) or 'nothing'}"
            for key, needs in dependencies.items()
        ]
        text = path.with_suffix(".txt")
        text.write_text("\n".join([f"{len(lines)} tasks", *sorted(lines)]) + "\n", encoding="utf-8")
        return text


def resources(dask_worker: Worker) -> tuple[int, int]:
    """Return a worker's cores and its limit of memory in bytes, 0 for none."""
    return dask_worker.state.nthreads, dask_worker.memory_manager.memory_limit or 0


def imported_from(module: str) -> str | None:
    """Import a module, as a task of yours would; return its file."""
    return importlib.import_module(module).__file__


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scheduler", help="address of a Dask scheduler; without it workers start on this machine")
    parser.add_argument("--upload", type=Path, help="a file of Python, .py, .egg or .zip, that every worker imports")
    parser.add_argument("--graph", type=Path, default=Path("graph.svg"))
    parser.add_argument("--restart", action="store_true", help="start the workers anew, which forgets all rows")
    args = parser.parse_args()
    own = {"n_workers": 2, "dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"}
    with Client(args.scheduler or LocalCluster(**own)) as client:
        for address, (cores, memory) in client.run(resources).items():
            print(f"{address}: cores {cores}, memory {format_bytes(memory)}")
        if args.upload:  # workers that come later get it too
            client.upload_file(str(args.upload))
            for address, file in client.run(imported_from, args.upload.stem).items():
                print(f"{address}: imports {file}")
        rows = dd.from_pandas(make_rows(100_000), npartitions=len(client.nthreads())).persist()
        wait(rows)
        sizes = client.nbytes(summary=False)
        for address, keys in client.has_what().items():
            print(f"{address}: partitions {len(keys)}, {format_bytes(sum(sizes[key] for key in keys))}")
        means = rows.groupby("group")["value"].mean()
        print(f"graph: {write_graph(means, args.graph)}")
        print(f"means: {means.compute().round(4).tolist()}")
        if args.restart:
            del rows, means
            client.restart()
            held = sum(map(len, client.has_what().values()))
            print(f"restarted: {len(client.nthreads())} workers, partitions {held}")
