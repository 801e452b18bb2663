"""Speed kept: the same commands by this tree and by an earlier commit's, in turn, on the same
files.

    PYTHONPATH=src python benchmarks/earlier.py \\
        [--commit 7d0c7a1] [--rows 2000000] [--pairs 5] [--out FOLDER]

A command is a process, from its start to its end; the phases inside it are those of its closing
line. Both trees run with the packages that are installed.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from harness import ROOT, Comparison, compare, inside, options, tipcast, write_result
from read_prepare import prepared

SMALL_ROWS = 20_000
SWEEP_ROWS = 500_000
TRIALS = 8
ROUNDS = 100
NAMES = ("this commit", "the earlier commit")


class Tree:
    """Jobs of one tree's source, with a folder and a store of their own."""

    def __init__(self, source: Path, folder: Path) -> None:
        folder.mkdir()
        self.folder, self.path = folder, os.pathsep.join([str(source), os.environ["PYTHONPATH"]])
        self.ended: list[dict[str, Any]] = []

    def run(self, *words: str) -> dict[str, Any]:
        """Run a job; return and keep what it says."""
        # a new folder for each scoring
        filled = (word.format(number=len(self.ended)) for word in words)
        said = tipcast(*filled, folder=self.folder, PYTHONPATH=self.path)
        self.ended.append(said)
        return said


def compared(
    here: Tree, there: Tree, pairs: int, phases: tuple[str, ...], words: list[list[str]]
) -> dict[str, Any]:
    """Run a command in turn; return a comparison of the processes and one of each phase.

    ``words`` has the command of each tree.
    """
    whole = compare(lambda: here.run(*words[0]), lambda: there.run(*words[1]), pairs, names=NAMES)
    clocks: dict[str, Comparison] = {"process": whole}
    for clock in phases:
        seconds = [
            [
                said["job_s"] if clock == "job" else said["phases"][clock]
                for said in tree.ended[-len(whole.pairs) :]
            ]
            for tree in (here, there)
        ]
        clocks[clock] = inside(whole, *seconds, names=NAMES)

    return clocks


def main() -> None:
    """Run the benchmark."""
    given = options(__doc__, commit="7d0c7a1", rows=2_000_000, pairs=5)
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", given.commit, "src", "conf"],
        capture_output=True,
        check=True,
    ).stdout
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with tarfile.open(fileobj=io.BytesIO(archive)) as sources:
            sources.extractall(folder / "earlier", filter="data")

        prepared(folder / "train", given.rows)
        prepared(folder / "test", given.rows // 4, months="2019-04..2019-04")
        trees = (
            Tree(ROOT / "src", folder / "here"),
            Tree(folder / "earlier" / "src", folder / "there"),
        )
        files = ["data=files", f"data.train={folder / 'train'}", f"data.test={folder / 'test'}"]
        train = [
            "train",
            f"model.params.n_estimators={ROUNDS}",
            "model.fit.early_stopping_rounds=null",
            *files,
        ]
        # also the first start of each tree
        models = [tree.run(*train)["model_uri"] for tree in trees]
        score = [
            ["score", f"model_uri={model}", f"input={folder / 'train'}", "output=scored-{number}"]
            for model in models
        ]
        commands = {
            "train": (train, ("job", "read", "fit", "evaluate", "log")),
            f"train data.rows={SMALL_ROWS}": (["train", f"data.rows={SMALL_ROWS}"], ("job",)),
            "sweep": (["sweep", f"data.rows={SWEEP_ROWS}", f"search.trials={TRIALS}"], ("job",)),
            "score": (score, ("job", "score")),
        }
        results = []
        for name, (words, phases) in commands.items():
            both = words if isinstance(words[0], list) else [words, words]
            for clock, comparison in compared(*trees, given.pairs, phases, both).items():
                print(name, clock, comparison, flush=True)
                results.append({"command": name, "clock": clock, **comparison.record()})

    print(write_result("earlier", results, **vars(given)))


if __name__ == "__main__":
    main()
