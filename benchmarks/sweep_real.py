"""A sweep of XGBoost on real trips: chosen on validation rows and tested a year later;
real_trips.py has the defaults.

    TIPCAST_TAXI=FOLDER PYTHONPATH=src python benchmarks/sweep_real.py \\
        [--trials 64] [--trees 200] [--out FOLDER]
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from harness import TAXI, options, tipcast, write_result
from real_trips import TRIPS

TASKS = {"zones as numbers": [], "zones as categories": ["experiment=categorical_zones"]}
"""What the trips' zones are to the model; which is better is chosen on validation rows, as the
parameters are.
"""


def main() -> None:
    """Run the benchmark."""
    given = options(__doc__, trials=64, trees=200, search="tpe", seed=0)
    train, test = TRIPS["yellow 2018 -> 2019-03"]
    words = [
        "data=files",
        f"data.train={TAXI / train}",
        f"data.test={TAXI / test}",
        f"seed={given.seed}",
    ]
    words += [
        f"search={given.search}",
        f"search.trials={given.trials}",
        f"model.params.n_estimators={given.trees}",
    ]
    rows = []

    with tempfile.TemporaryDirectory() as scratch:
        for name, task in TASKS.items():
            said = tipcast("sweep", *words, *task, folder=Path(scratch))
            row = {
                "zones": name,
                "search": given.search,
                "trials": given.trials,
                "best": said["best"],
            }
            rows.append({**row, **said["metrics"], "seconds": said["phases"]["search"]})
            print(rows[-1], flush=True)

    print(write_result("sweep_real", rows, **vars(given)))


if __name__ == "__main__":
    main()
