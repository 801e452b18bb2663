"""P6, P7, P9: a sweep on the CPU, side by side with what people do otherwise.

    python benchmarks/sweep.py --rows 500000 --trials 16 --pairs 5            # speed and memory
    python benchmarks/sweep.py --rows 500000 --halving 200 --pairs 0          # halving against the same trials in full

Speed: our search (reading included, workers up) takes turns with the same trials one after another on one thread, on
a shared matrix (their time over the cores is the least that is possible); in a loop that builds its matrix each time;
by one `xgboost.dask.train` each; by scikit-learn's GridSearchCV over joblib's Dask backend; by Optuna's n_jobs.
Memory: a worker's resident set at its most, against that of a process that reads, bins and fits one trial.
"""

from __future__ import annotations

import argparse
import dataclasses
import os

from tipcast.backends.waiting import waiting

os.environ.update(waiting())  # as tipcast's entry point does, before libgomp loads

import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import joblib
import numpy as np
import optuna
import xgboost
from distributed import Client, LocalCluster
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, PredefinedSplit
from xgboost import dask as dxgb

import sweep_rows
from harness import Comparison, compare, write_result
from tipcast.estimators.xgboost_plan import plan
from tipcast.measure.memory import peak_bytes
from tipcast.search.events import Ended
from tipcast.search.halving import Halving, ladder
from tipcast.search.hosts import Hosts
from tipcast.search.pool import Pool
from tipcast.search.searchers import Listed
from tipcast.search.trial import Study, Trial

GOALS = {"one thread": 1.08, "own matrix": 0.80, "xgboost.dask": 0.55}
"""Ratios to reach; the first is of the one-thread time over the cores."""


class Others:
    """The same trials, done otherwise."""

    def __init__(self, client: Client, common: Study, trials: int, threads: int) -> None:
        self.client, self.common, self.threads = client, common, threads
        self.proposals = sweep_rows.proposals(common.model, trials)
        self.x, self.y, self.held_x, self.held_y = sweep_rows.frames(common)
        self.options = {"max_bin": int(common.model.params["max_bin"])}
        self.shared = self._matrices(1)

    def _matrices(self, threads: int) -> tuple[Any, Any]:
        rows = xgboost.QuantileDMatrix(self.x, self.y, nthread=threads, **self.options)
        held_out = xgboost.QuantileDMatrix(self.held_x, self.held_y, ref=rows, nthread=threads, **self.options)
        return rows, held_out

    def _settings(self, number: int) -> tuple[dict[str, Any], int]:
        params = {**self.common.model.params, **self.proposals[number].params}
        planned = plan(params, {}, "cpu")
        return {**planned.params, "seed": 0}, planned.rounds

    def _trial(self, number: int, matrices: tuple[Any, Any], threads: int) -> float:
        settings, rounds = self._settings(number)
        booster = xgboost.train(
            {**settings, "nthread": threads}, matrices[0], rounds, evals=[(matrices[1], "v")], verbose_eval=False
        )
        booster.set_param({"nthread": threads})
        return float(roc_auc_score(self.held_y, booster.inplace_predict(self.held_x)))

    def one_thread(self) -> None:
        """One after another on one thread, all on one matrix."""
        for proposal in self.proposals:
            self._trial(proposal.number, self.shared, 1)

    def own_matrix(self) -> None:
        """One after another on all cores, each with a matrix of its own."""
        for proposal in self.proposals:
            self._trial(proposal.number, self._matrices(self.threads), self.threads)

    def optuna_jobs(self) -> None:
        """Optuna's threads, each trial with a matrix of its own."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(direction="maximize")
        study.optimize(
            lambda trial: self._trial(trial.number, self._matrices(1), 1), len(self.proposals), n_jobs=self.threads
        )

    def xgboost_dask(self) -> None:
        """One `xgboost.dask.train` each."""
        x, y = dd.from_pandas(self.x, npartitions=self.threads), dd.from_pandas(self.y, npartitions=self.threads)
        held_x, held_y = dd.from_pandas(self.held_x, npartitions=1), dd.from_pandas(self.held_y, npartitions=1)
        for proposal in self.proposals:
            settings, rounds = self._settings(proposal.number)
            rows = dxgb.DaskQuantileDMatrix(self.client, x, y, **self.options)
            held_out = dxgb.DaskQuantileDMatrix(self.client, held_x, held_y, ref=rows, **self.options)
            found = dxgb.train(self.client, settings, rows, rounds, evals=[(held_out, "v")], verbose_eval=False)
            roc_auc_score(self.held_y, found["booster"].inplace_predict(self.held_x))

    def grid_search(self) -> None:
        """GridSearchCV over joblib's Dask backend."""
        x, y = np.concatenate([self.x, self.held_x]), np.concatenate([self.y, self.held_y])
        fold = np.r_[np.full(len(self.x), -1), np.zeros(len(self.held_x), dtype=int)]
        grid = [{name: [value] for name, value in proposal.params.items()} for proposal in self.proposals]
        model = xgboost.XGBClassifier(**self.common.model.params, n_jobs=1, random_state=0)
        search = GridSearchCV(model, grid, scoring="roc_auc", cv=PredefinedSplit(fold), refit=False)
        with joblib.parallel_config(backend="dask"):
            search.fit(x, y)


def swept(client: Client, common: Study, searcher: Any) -> dict[int, Trial]:
    """Run a search of ours."""
    hosts = Hosts(client, common, 1, 60)
    with hosts.opened():
        hosts.load(1)
        events = [event for event in Pool(hosts, 1).events(searcher) if isinstance(event, Ended)]
    return {trial.number: trial for event in events for trial in event.trials}


def speed(file: Path, given: argparse.Namespace) -> list[Comparison]:
    """Compare seconds."""
    found = []
    with _workers(given.threads) as (_, client):
        common = sweep_rows.study(file, sweep_rows.model(given.rounds))
        others = Others(client, common, given.trials, given.threads)
        ways: dict[str, Callable[[], None]] = {
            "one thread": others.one_thread,
            "own matrix": others.own_matrix,
            "xgboost.dask": others.xgboost_dask,
            "GridSearchCV": others.grid_search,
            "Optuna n_jobs": others.optuna_jobs,
        }
        for name, way in ways.items():

            def ours() -> None:
                own = dataclasses.replace(common, sweep=uuid.uuid4().hex[:8])
                swept(client, own, Listed(others.proposals, {}, cuts=False))

            found.append(compare(ours, way, given.pairs, names=("tipcast sweep", name)))
            goal = GOALS.get(name, 1.0) / (given.threads if name == "one thread" else 1)
            print(f"{found[-1]}; goal {goal:.2f}", flush=True)
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
            common = sweep_rows.study(file, sweep_rows.model(given.rounds))
            swept(client, common, Listed(sweep_rows.proposals(common.model, given.trials), {}, cuts=False))
            (found[f"{threads} threads"],) = client.run(peak_bytes).values()
    print({name: f"{size / 1e6:.0f} MB = {size / bare:.2f} x" for name, size in found.items()}, "goal 1.2 x")
    return {name: {"bytes": size, "ratio": size / bare} for name, size in found.items()}


def bare_trial(file: Path, rounds: int) -> None:
    """Read, bin, fit and score once; print the most memory that this process held."""
    common = sweep_rows.study(file, sweep_rows.model(rounds))
    x, y, held_x, held_y = sweep_rows.frames(common)
    rows = xgboost.QuantileDMatrix(x, y, nthread=1)
    held_out = xgboost.QuantileDMatrix(held_x, held_y, ref=rows, nthread=1)
    settings = {"objective": "binary:logistic", "max_depth": 8, "nthread": 1}
    booster = xgboost.train(settings, rows, rounds, evals=[(held_out, "v")], verbose_eval=False)
    roc_auc_score(held_y, booster.inplace_predict(held_x))
    print(peak_bytes())


def halving(file: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Compare halving with the same trials in full: best AUC and trees grown.

    In full stops where halving does, since XGBoost draws rows and columns anew from there: so a trial's trees are the
    same in both. What the best is without stops says how much the draws alone matter.
    """
    rungs = ladder(given.rounds, given.eta, given.min_rounds)
    with _workers(given.threads) as (_, client):
        found = {}
        for name, stops, eta in (
            ("without stops", (given.rounds,), 1),
            ("in full", rungs, 1),
            ("halving", rungs, given.eta),
        ):
            common = sweep_rows.study(file, sweep_rows.model(given.rounds))
            trials = sweep_rows.proposals(common.model, given.halving)
            grown: list[Trial] = []
            hosts = Hosts(client, common, 1, 60)
            with hosts.opened():
                hosts.load(1)
                for event in Pool(hosts, 1).events(Halving(trials, stops, eta, {})):
                    grown += event.trials if isinstance(event, Ended) else []
            best = max((trial for trial in grown if trial.rounds == given.rounds), key=lambda trial: trial.score)
            rounds = sum(trial.grown for trial in grown)
            found[name] = {"auc": best.score, "trial": best.number, "rounds": rounds}
    difference = found["in full"]["auc"] - found["halving"]["auc"]
    ratio = found["halving"]["rounds"] / found["in full"]["rounds"]
    print(f"{given.halving} trials: {found}; AUC lost {difference:.1e} (goal 1e-3), rounds {ratio:.2f} x (goal 0.35)")
    return {**found, "auc_lost": difference, "rounds_ratio": ratio, "rungs": rungs}


def _workers(threads: int) -> Any:
    class Workers:
        def __enter__(self) -> Sequence[Any]:
            options = {"n_workers": 1, "threads_per_worker": threads, "dashboard_address": "127.0.0.1:0"}
            self.cluster = LocalCluster(host="127.0.0.1", memory_limit=0, **options)
            self.client = Client(self.cluster)
            return self.cluster, self.client

        def __exit__(self, *_: object) -> None:
            self.client.close()
            self.cluster.close()

    return Workers()


def main() -> None:
    """Run what was asked for, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=5, help="0: no speed, no memory")
    parser.add_argument("--halving", type=int, default=0, help="trials of the comparison of halving; 0: none")
    parser.add_argument("--eta", type=int, default=3)
    parser.add_argument("--min-rounds", type=int, default=None)
    parser.add_argument("--no-result", action="store_true", help="print only")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tipcast-") as scratch:
        file = sweep_rows.month(Path(scratch), given.rows)
        if given.pairs:
            results, peak = speed(file, given), memory(file, given)
            if not given.no_result:
                write_result("sweep", results, memory=peak, goals=GOALS, memory_goal=1.2, **vars(given))
        if given.halving:
            found = halving(file, given)
            if not given.no_result:
                write_result("sweep_halving", found, auc_goal=1e-3, rounds_goal=0.35, **vars(given))


if __name__ == "__main__":
    main()
