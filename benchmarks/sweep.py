"""P6, P9: a sweep on the CPU, side by side with what people do otherwise.

    PYTHONPATH=src python benchmarks/sweep.py \\
        [--rows 500000] [--trials 16] [--pairs 5] [--out FOLDER]

Speed: our search (reading and binning included, workers up) takes turns with the same trials one
after another on one thread, on a matrix that is there (their time over the cores is the least that
is possible); in a loop that builds its matrix each time from rows in memory; by one
`xgboost.dask.train` each; and by what a careful user of Optuna writes: pandas reads the file, one
QuantileDMatrix is shared, `n_jobs` threads run trials of one thread each. Memory: a worker's
resident set at its most, against that of a process that reads, bins and fits one trial.
"""

from __future__ import annotations

import argparse
import dataclasses
import os

from tipcast.compute.forkserver import waiting

os.environ.update(waiting())  # as tipcast's entry point does, before libgomp loads

import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import optuna
import pandas as pd
import xgboost
from distributed import Client, LocalCluster
from sklearn.metrics import roc_auc_score
from xgboost import dask as dxgb

import by_hand
import sweep_rows
from harness import Comparison, compare, options, write_result
from tipcast.compute.session import peak_bytes
from tipcast.models.xgboost import XGBoost
from tipcast.search.pool import Pool, TrialWorkers
from tipcast.search.proposals import Listed
from tipcast.search.trial import SweepSetup, TrialResult


class Others:
    """The same trials, done otherwise."""

    def __init__(
        self, client: Client, common: SweepSetup, file: Path, trials: int, threads: int
    ) -> None:
        self.client = client
        self.common = common
        self.file = file
        self.threads = threads
        self.proposals = sweep_rows.proposals(common.model, trials)
        self.x, self.y, self.held_x, self.held_y = sweep_rows.frames(common)
        self.options = {"max_bin": int(common.model.params["max_bin"])}
        self.shared = self._matrices(1, self.x, self.y, self.held_x, self.held_y)

    def _matrices(self, threads: int, x: Any, y: Any, held_x: Any, held_y: Any) -> tuple[Any, Any]:
        rows = xgboost.QuantileDMatrix(x, y, nthread=threads, **self.options)
        return rows, xgboost.QuantileDMatrix(
            held_x, held_y, ref=rows, nthread=threads, **self.options
        )

    def _settings(self, number: int) -> tuple[dict[str, Any], int]:
        params = {**self.common.model.params, **self.proposals[number].params}
        training = XGBoost(params, {}, "cpu").to_xgboost()
        return {**training.params, "seed": 0}, training.rounds

    def _trial(
        self, number: int, matrices: tuple[Any, Any], threads: int, held_out: Any = None
    ) -> float:
        settings, rounds = self._settings(number)
        booster = xgboost.train(
            {**settings, "nthread": threads},
            matrices[0],
            rounds,
            evals=[(matrices[1], "v")],
            verbose_eval=False,
        )
        booster.set_param({"nthread": threads})
        held_x, held_y = held_out or (self.held_x, self.held_y)
        return float(roc_auc_score(held_y, booster.inplace_predict(held_x)))

    def one_thread(self) -> None:
        """One after another on one thread, all on one matrix."""
        for proposal in self.proposals:
            self._trial(proposal.number, self.shared, 1)

    def own_matrix(self) -> None:
        """One after another on all cores, each with a matrix of its own."""
        for proposal in self.proposals:
            matrices = self._matrices(self.threads, self.x, self.y, self.held_x, self.held_y)
            self._trial(proposal.number, matrices, self.threads)

    def optuna_jobs(self) -> None:
        """Optuna's threads, all on one matrix of rows that pandas reads."""
        x, y, *held_out = by_hand.split(pd, [self.file], sweep_rows.DAYS / 31)
        matrices = self._matrices(self.threads, x, y, *held_out)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(direction="maximize")
        study.optimize(
            lambda trial: self._trial(trial.number, matrices, 1, held_out),
            len(self.proposals),
            n_jobs=self.threads,
        )

    def xgboost_dask(self) -> None:
        """One `xgboost.dask.train` each."""
        x = dd.from_pandas(self.x, npartitions=self.threads)
        y = dd.from_pandas(self.y, npartitions=self.threads)
        held_x = dd.from_pandas(self.held_x, npartitions=1)
        held_y = dd.from_pandas(self.held_y, npartitions=1)

        for proposal in self.proposals:
            settings, rounds = self._settings(proposal.number)
            rows = dxgb.DaskQuantileDMatrix(self.client, x, y, **self.options)
            held_out = dxgb.DaskQuantileDMatrix(
                self.client, held_x, held_y, ref=rows, **self.options
            )
            found = dxgb.train(
                self.client, settings, rows, rounds, evals=[(held_out, "v")], verbose_eval=False
            )
            roc_auc_score(self.held_y, found["booster"].inplace_predict(self.held_x))


def swept(client: Client, common: SweepSetup, searcher: Any) -> dict[int, TrialResult]:
    """Run a search of ours."""
    workers = TrialWorkers(client, common, 1, 60)
    with workers.opened():
        workers.load(1)
        events = list(Pool(workers, 1).events(searcher))
    return {event.number: event for event in events if isinstance(event, TrialResult)}


def speed(file: Path, given: argparse.Namespace) -> list[Comparison]:
    """Compare seconds."""
    found = []
    with _workers(given.threads) as (_, client):
        common = sweep_rows.sweep_setup(file, sweep_rows.model(given.rounds))
        others = Others(client, common, file, given.trials, given.threads)
        ways: dict[str, Callable[[], None]] = {
            "one thread": others.one_thread,
            "own matrix": others.own_matrix,
            "xgboost.dask": others.xgboost_dask,
            "Optuna, one matrix, n_jobs": others.optuna_jobs,
        }
        for name, way in ways.items():

            def ours() -> None:
                own = dataclasses.replace(common, sweep_id=uuid.uuid4().hex[:8])
                swept(client, own, Listed(others.proposals, {}))

            found.append(compare(ours, way, given.pairs, names=("tipcast sweep", name)))
            print(found[-1], flush=True)
    return found


def memory(file: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Compare the largest resident sets of a worker and of a process with one trial."""
    code = (
        "import sys; sys.path.insert(0, 'benchmarks'); import sweep; from pathlib import Path;"
        f"sweep.bare_trial(Path({str(file)!r}), {given.rounds})"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    bare = int(ended.stdout.splitlines()[-1])
    found: dict[str, Any] = {"one bare trial": bare}

    for threads in (1, given.threads, 2 * given.threads):
        with _workers(threads) as (_, client):
            common = sweep_rows.sweep_setup(file, sweep_rows.model(given.rounds))
            swept(client, common, Listed(sweep_rows.proposals(common.model, given.trials), {}))
            (found[f"{threads} threads"],) = client.run(peak_bytes).values()

    print({name: f"{size / 1e6:.0f} MB = {size / bare:.2f} x" for name, size in found.items()})
    return {name: {"bytes": size, "ratio": size / bare} for name, size in found.items()}


def bare_trial(file: Path, rounds: int) -> None:
    """Read, bin, fit and score once; print the most memory that this process held."""
    common = sweep_rows.sweep_setup(file, sweep_rows.model(rounds))
    x, y, held_x, held_y = sweep_rows.frames(common)
    rows = xgboost.QuantileDMatrix(x, y, nthread=1)
    held_out = xgboost.QuantileDMatrix(held_x, held_y, ref=rows, nthread=1)
    settings = {"objective": "binary:logistic", "max_depth": 8, "nthread": 1}
    booster = xgboost.train(settings, rows, rounds, evals=[(held_out, "v")], verbose_eval=False)
    roc_auc_score(held_y, booster.inplace_predict(held_x))
    print(peak_bytes())


def _workers(threads: int) -> Any:
    class Workers:
        def __enter__(self) -> Sequence[Any]:
            options = {
                "n_workers": 1,
                "threads_per_worker": threads,
                "dashboard_address": "127.0.0.1:0",
            }
            self.cluster = LocalCluster(host="127.0.0.1", memory_limit=0, **options)
            self.client = Client(self.cluster)
            return self.cluster, self.client

        def __exit__(self, *_: object) -> None:
            self.client.close()
            self.cluster.close()

    return Workers()


def main() -> None:
    """Run what was asked for, print and write the results."""
    given = options(__doc__, rows=500_000, trials=16, rounds=30, threads=2, pairs=5)
    with tempfile.TemporaryDirectory(prefix="tipcast-") as scratch:
        file = sweep_rows.month(Path(scratch), given.rows)
        results = speed(file, given)
        peak = memory(file, given)
        print(write_result("sweep", results, memory=peak, **vars(given)))


if __name__ == "__main__":
    main()
