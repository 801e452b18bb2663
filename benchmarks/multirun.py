"""Eight configurations by `tipcast train --multirun` against eight processes of `tipcast train`,
one after another.

    PYTHONPATH=src python benchmarks/multirun.py [--rows 200000] [--pairs 5] [--out FOLDER]

Inside the clock is all, from the first process's start to the last one's end. Both write the same
runs and models.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

from harness import compare, options, tipcast, write_result

MODELS = ("xgboost", "random_forest")
DEPTHS = (4, 6)
SEEDS = (1, 2)


def main() -> None:
    """Run the benchmark."""
    given = options(__doc__, rows=200_000, pairs=5)
    every = [f"data.rows={given.rows}"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)

        def together() -> None:
            values = {"model": MODELS, "model.params.max_depth": DEPTHS, "seed": SEEDS}
            words = [f"{key}={','.join(map(str, each))}" for key, each in values.items()]
            tipcast("train", "--multirun", *words, *every, folder=folder)

        def apart() -> None:
            for model, depth, seed in itertools.product(MODELS, DEPTHS, SEEDS):
                tipcast(
                    "train",
                    f"model={model}",
                    f"model.params.max_depth={depth}",
                    f"seed={seed}",
                    *every,
                    folder=folder,
                )

        found = compare(
            together, apart, given.pairs, names=("--multirun", "eight processes"), warmups=1
        )
    print(found)
    print(write_result("multirun", [found], **vars(given)))


if __name__ == "__main__":
    main()
