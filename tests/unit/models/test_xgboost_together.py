"""Several workers train one booster: wherever the rows lie, and whatever becomes of a worker."""

import threading

import dask
import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster

from tipcast.models.base import Split
from tipcast.models.build import build
from tipcast.models.fit import holders


def threads():
    """Return the ids of this process's threads that are not Python's."""
    return {thread.id for thread in psutil.Process().threads()} - {
        thread.native_id for thread in threading.enumerate()
    }


@pytest.mark.parametrize(("train", "held_out"), [("ab", "ab"), ("aab", "b"), ("b", "aa")])
def test_it_makes_no_difference_where_the_rows_lie(pair, spec, rows, scattered, train, held_out):
    def placed(homes, seed=0):
        return scattered([rows(900 + 100 * at, seed + at) for at in range(len(homes))], pair, homes)

    homes = dict(zip("ab", sorted(pair.nthreads()), strict=True))
    model = build(spec("xgboost", n_estimators=12, max_depth=4), "cpu")
    asked, _ = rows(500, 99)
    x, y = placed([homes[name] for name in train])
    validation = placed([homes[name] for name in held_out], seed=50)
    found = model.fit_distributed(pair, Split(x, y, Split(*validation)), seed=1)
    here = [pair.gather(side) for side in (x, y, *validation)]
    alone = model.fit(Split(*here[:2], Split(*here[2:])), seed=1)
    # sums in another order
    np.testing.assert_allclose(found.scorer.score(asked), alone.scorer.score(asked), atol=2e-3)
    assert found.history["validation_logloss"] == pytest.approx(
        alone.history["validation_logloss"], abs=1e-4
    )


def test_a_fit_by_two_workers_copies_no_part(pair, spec, rows, scattered):
    homes = sorted(pair.nthreads())
    x, y = scattered([rows(900, 0), rows(800, 1)], pair, homes)
    build(spec("xgboost", n_estimators=2), "cpu").fit_distributed(pair, Split(x, y), seed=0)
    assert holders(pair, [*x, *y]) == [{home} for home in homes] * 2


def test_the_rank_of_each_worker_is_kept_off_the_terminal(client, spec, rows, scattered, capfd):
    """XGBoost writes it at every verbosity; ``capfd`` sees what this process' workers write."""
    model = build(spec("xgboost", n_estimators=2, max_depth=2), "cpu")
    model.fit_distributed(client, Split(*scattered([rows(900, 0)])), seed=0)
    assert capfd.readouterr() == ("", "")


def test_a_workers_process_computes_with_all_its_threads(rows, spec, scattered):
    model = build(spec("xgboost", n_estimators=3), "cpu")
    with (
        dask.config.set({"distributed.worker.multiprocessing-method": "spawn"}),
        LocalCluster(
            n_workers=1, threads_per_worker=3, dashboard_address="127.0.0.1:0", host="127.0.0.1"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        (before,) = client.run(threads).values()
        model.fit_distributed(client, Split(*scattered([rows(20_000, 0)], client)), seed=0)
        (after,) = client.run(threads).values()
    assert len(after - before) >= 2, "OpenMP's threads stay, for the next fit"
