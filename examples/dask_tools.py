"""What Dask tells of a cluster and of rows on it: cores, memory, who holds what, the graph of a
fit; files, restarts.

python examples/dask_tools.py --restart              # two processes of this machine
python examples/dask_tools.py --scheduler tcp://127.0.0.1:8786 --upload features.py
# a picture, where Graphviz and its Python package are installed
python examples/dask_tools.py --graph graph.svg
"""

import argparse
import importlib
from pathlib import Path

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask.core import get_deps
from dask.utils import format_bytes
from distributed import Client, LocalCluster, Worker, wait

PART_ROWS = 50_000


def read_part(part: int) -> pd.DataFrame:
    """Return the rows of a part, a group and a value of each; a file's would be read here, these
    are drawn.
    """
    rng = np.random.default_rng(part)
    group = rng.integers(0, 4, PART_ROWS)
    return pd.DataFrame({"group": group, "value": 2.0 * group + rng.normal(size=PART_ROWS)})


def fit_line(rows: dd.DataFrame) -> da.Array:
    """Return slope and intercept of the value over the group by least squares, not computed yet."""
    lengths = [PART_ROWS] * rows.npartitions
    features = rows[["group"]].assign(one=1.0).to_dask_array(lengths=lengths)
    return da.linalg.lstsq(features, rows["value"].to_dask_array(lengths=lengths))[0]


def write_graph(result: da.Array, path: Path) -> Path:
    """Draw the optimized tasks of a result, or, without Graphviz, list them as text; return the
    file.
    """
    (optimized,) = dask.optimize(result)
    try:
        optimized.visualize(filename=str(path))
        return path
    except (ImportError, RuntimeError):  # no Python package, or no `dot`
        dependencies, _ = get_deps(dict(optimized.__dask_graph__()))
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--scheduler", help="address of a Dask scheduler; without it workers start on this machine"
    )
    parser.add_argument(
        "--upload", type=Path, help="a file of Python, .py, .egg or .zip, that every worker imports"
    )
    parser.add_argument("--graph", type=Path, default=Path("graph.svg"))
    parser.add_argument(
        "--restart", action="store_true", help="start the workers anew, which forgets all rows"
    )
    args = parser.parse_args()
    # A worker may end within a heartbeat: Dask would log a traceback of it.
    dask.config.set({"distributed.nanny.pre-spawn-environ.DASK_LOGGING__DISTRIBUTED": "critical"})
    own = {"n_workers": 2, "dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"}
    with Client(args.scheduler or LocalCluster(**own)) as client:
        for address, (cores, memory) in client.run(resources).items():
            print(f"{address}: cores {cores}, memory {format_bytes(memory)}")
        if args.upload:  # workers that come later get it too
            client.upload_file(str(args.upload))
            for address, file in client.run(imported_from, args.upload.stem).items():
                print(f"{address}: imports {file}")
        rows = dd.from_map(read_part, range(len(client.nthreads())))
        held = rows.persist()
        wait(held)
        sizes = client.nbytes(summary=False)
        for address, keys in client.has_what().items():
            size = sum(sizes[key] for key in keys)
            print(f"{address}: partitions {len(keys)}, {format_bytes(size)}")
        line = fit_line(rows)
        print(f"graph: {write_graph(line, args.graph)}")  # of reading and of the fit
        print(f"line: {line.compute().round(4).tolist()}")
        if args.restart:
            del held
            client.restart()
            partitions = sum(map(len, client.has_what().values()))
            print(f"restarted: {len(client.nthreads())} workers, partitions {partitions}")
