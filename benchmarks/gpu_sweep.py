"""P8: a sweep's trials on GPUs: on one and on several, one trial at a time and more, and memory over 50 trials.

python benchmarks/gpu_sweep.py [--rows 8000000] [--gpus 1] [--at-once 1 2 3] [--trials 32] [--memory 50] [--dry]

Rows are read and binned, and every slot has had a trial, before the clock runs; the same trials run in every case.
The result is kept for each largest number of GPUs.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

import sweep_rows
from gpu_rows import attempt, months
from harness import write_result
from tipcast.backends import device_memory
from tipcast.backends.session import session
from tipcast.config.location import conf_dir
from tipcast.config.schema import BackendSpec, LocalCudaCluster, ModelSpec
from tipcast.search.events import Ended
from tipcast.search.hosts import Hosts
from tipcast.search.pool import Pool
from tipcast.search.proposals import Proposal
from tipcast.search.searchers import Listed

GOALS = {"gpus": 0.95, "at_once": 1.35, "memory_growth": 0.02}
"""Speed on n GPUs over n; of several trials at once on one GPU; growth of a GPU's memory in use over the trials."""
SETTLED = 5
"""Trials after which memory is first read: the libraries' own buffers have their size by then."""


def shipped(name: str) -> ModelSpec:
    """Return a model with parameters that 8M rows take about a second for."""
    if name == "xgboost":
        return sweep_rows.model(100)
    spec = yaml.safe_load((conf_dir() / "model" / f"{name}.yaml").read_text(encoding="utf-8"))
    spec.pop("defaults")
    spec["params"] |= {"n_estimators": 20}
    spec["space"] = {key: axis for key, axis in spec["space"].items() if key != "n_estimators"}
    return ModelSpec(**spec)


def searched(folder: Path, name: str, gpus: int, at_once: int, trials: int, watched: bool) -> dict[str, Any]:
    """Time a search; read the memory of each worker's GPU after each trial where that is asked for: it takes time."""
    spec = shipped(name)
    with session(BackendSpec("gpu"), LocalCudaCluster("local_cuda", n_workers=gpus)) as workers:
        client = workers.client
        client.run(device_memory.watch)
        common = sweep_rows.study(folder, spec, workers.device, workers.frames)
        hosts = Hosts(client, common, at_once, 60)
        proposals = sweep_rows.proposals(spec, trials)
        memory: list[int] = []
        with hosts.opened():
            start = time.perf_counter()
            hosts.load(1)
            load_s = time.perf_counter() - start
            _run(hosts, [Proposal(at, proposals[at % trials].params) for at in range(2 * gpus * at_once)])
            start = time.perf_counter()
            again = [Proposal(1000 + each.number, each.params) for each in proposals]
            ended = _run(hosts, again, memory if watched else None)
            seconds = time.perf_counter() - start
    found = [trial for event in ended for trial in event.trials]
    return {
        "load_s": load_s,
        "seconds": seconds,
        "trials_per_minute": 60 * len(found) / seconds,
        "busy": sum(trial.seconds for trial in found) / (seconds * gpus * at_once),
        "best_auc": max(trial.score for trial in found),
        "trial_s": statistics.median(trial.seconds for trial in found),
        "trials_s": [trial.seconds for trial in sorted(found, key=lambda trial: trial.number)],
        "memory_bytes": memory,
        "memory_growth": memory[-1] / memory[SETTLED] - 1 if len(memory) > SETTLED else None,
    }


def _run(hosts: Hosts, proposals: Sequence[Proposal], memory: list[int] | None = None) -> list[Ended]:
    found = []
    for event in Pool(hosts, 1).events(Listed(proposals, {}, cuts=False)):
        if isinstance(event, Ended):
            found.append(event)
            if memory is not None:
                memory.append(max(hosts.client.run(device_memory.used_bytes).values()))
    return found


def ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return how much faster each case is than one trial at a time on one GPU."""
    base = {
        row["model"]: row["seconds"]
        for row in rows
        if row["what"] == "speed" and (row["gpus"], row["at_once"]) == (1, 1) and "seconds" in row
    }
    return [
        {
            "what": "ratio",
            **{name: row[name] for name in ("model", "gpus", "at_once")},
            "faster": base[row["model"]] / row["seconds"],
        }
        for row in rows
        if row["what"] == "speed" and row["model"] in base and "seconds" in row
    ]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--models", nargs="+", default=["xgboost"])
    parser.add_argument("--gpus", type=int, nargs="+", default=[1])
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--memory", type=int, default=50, help="trials of the account of memory; 0: none")
    parser.add_argument("--folder", type=Path, help="keeps the prepared months here")
    parser.add_argument("--dry", action="store_true", help="write no result")
    given = parser.parse_args()
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="tipcast-") as scratch:
        folder = (given.folder or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        train, _ = months(folder, given.rows)
        cases = [("speed", gpus, at_once, given.trials) for gpus in given.gpus for at_once in given.at_once]
        cases += [("memory", 1, 1, given.memory)] if given.memory else []
        for model in given.models:
            for what, gpus, at_once, trials in cases:
                name = {"what": what, "model": model, "rows": given.rows, "gpus": gpus, "at_once": at_once}
                name["trials"] = trials
                found.append(attempt(name, partial(searched, train, model, gpus, at_once, trials, what == "memory")))
                if not given.dry:
                    write_result(f"gpu_sweep_{max(given.gpus)}", [*found, *ratios(found)], goals=GOALS)
    for row in ratios(found):
        print(row)


if __name__ == "__main__":
    main()
