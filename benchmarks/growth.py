"""P15, P18: how the time and the memory of `tipcast train` grow with its rows, on processors or
GPUs.

    PYTHONPATH=src python benchmarks/growth.py --out FOLDER
    PYTHONPATH=src python benchmarks/growth.py --device gpu --gpus 8 \\
        --rows 8000000 80000000 960000000 --out FOLDER
    # draw all results in benchmarks/results
    PYTHONPATH=src python benchmarks/growth.py --picture 1 --out docs/pictures

Each run is a process of its own; of several the median counts. Beyond 80 million rows the same
months are there under several names, as hard links. An exponent is the slope of the logarithm of a
phase's seconds over that of the rows.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gpu_rows import attempt, months
from gpu_train import MEMORY, job
from harness import RESULTS, options, tipcast, write_result
from table import gpu_names, read

MADE = 80_000_000
"""Rows that are made; more of them are links."""
GROWING = ("read", "fit")
"""Phases that the training rows decide; the test rows are as many for all."""


def linked(folder: Path, train: Path, times: int) -> Path:
    """Return a folder with each file of another so many times."""
    out = folder / f"{train.name}-x{times}"
    if not out.exists():
        out.mkdir()
        for file in sorted(train.glob("*.parquet")):
            for copy in range(times):
                os.link(file, out / f"{copy}_{file.name}")
    return out


def measured(given: Any, count: int, folder: Path) -> dict[str, Any]:
    """Train on so many rows, several times; return the medians."""
    times = -(-count // MADE)
    train, test = months(folder, count // times)
    train = train if times == 1 else linked(folder, train, times)
    runs = [job(given, given.model, train, test, folder) for _ in range(given.repeats)]
    peak = max(
        run["memory"]["device_peak_bytes"] or run["memory"]["worker_peak_bytes"] for run in runs
    )

    return {
        "links": times,
        "phases_s": {
            name: statistics.median(run["phases_s"][name] for run in runs)
            for name in runs[0]["phases_s"]
        },
        "job_s": statistics.median(run["job_s"] for run in runs),
        "process_s": statistics.median(run["process_s"] for run in runs),
        "memory": {
            name.removeprefix("memory/"): runs[-1]["memory"][name.removeprefix("memory/")]
            for name in MEMORY
        },
        "bytes_a_row": peak * given.gpus / count,
        "test_auc": runs[-1]["test_auc"],
    }


def exponents(found: list[dict[str, Any]]) -> dict[str, float]:
    """Return phase -> the slope of its seconds over the rows, both as logarithms."""
    done = [row for row in found if "error" not in row]
    if len(done) < 2:
        return {}
    size = np.log([row["rows"] for row in done])
    return {
        name: float(np.polyfit(size, np.log([row["phases_s"][name] for row in done]), 1)[0])
        for name in GROWING
    }


def drawn(path: Path) -> None:
    """Draw seconds of reading and fitting over rows, both axes logarithmic, for each device with a
    result.
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(GROWING), figsize=(9, 4.2), sharex=True, sharey=True, layout="constrained"
    )
    for file in sorted(RESULTS.glob("growth_*.json")):
        # all cards that the machine has
        found = read(file.stem)
        cards = gpu_names(file.stem)
        facts = found["facts"]
        where = f"{facts['gpus']} {cards.split()[-1]}" if cards else "2 cores"
        label = f"{facts['model']}, {where}"
        done = [row for row in found["results"] if "phases_s" in row]
        for axis, phase in zip(axes, GROWING, strict=True):
            seconds = [row["phases_s"][phase] for row in done]
            slope = facts["exponents"][phase]
            axis.loglog(
                [row["rows"] for row in done],
                seconds,
                marker="o",
                label=f"{label}, exponent {slope:.2f}",
            )
    for axis, phase in zip(axes, GROWING, strict=True):
        axis.set(
            title=phase, xlabel="training rows", ylabel="seconds" if phase == GROWING[0] else ""
        )
        axis.grid(alpha=0.3, which="both")
        axis.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run the benchmark."""
    counts = [1_000_000, 2_000_000, 4_000_000, 8_000_000]
    given = options(
        __doc__, device="cpu", gpus=1, model="xgboost", rows=counts, repeats=3, picture=0, folder=""
    )
    if given.picture:
        drawn(given.out / "growth.png")
        return

    name = "growth_cpu" if given.device == "cpu" else f"growth_gpu_{given.gpus}"
    name += "" if given.model == "xgboost" else f"_{given.model}"
    found: list[dict[str, Any]] = []

    with tempfile.TemporaryDirectory() as scratch:
        # A machine's first process reads all libraries from its disk.
        words = [f"backend={given.device}", f"model={given.model}", "data.rows=20000"]
        tipcast("train", *words, folder=Path(scratch))
        for count in given.rows:
            what = {"model": given.model, "rows": count, "workers": given.gpus}
            found.append(
                attempt(what, partial(measured, given, count, Path(given.folder or scratch)))
            )
            write_result(name, found, exponents=exponents(found), **vars(given))


if __name__ == "__main__":
    main()
