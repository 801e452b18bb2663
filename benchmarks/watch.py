"""How near `tipcast watch` estimates a real month's AUC and what it flags; what it takes beside `tipcast score`.

    TIPCAST_TAXI=FOLDER PYTHONPATH=src python benchmarks/watch.py [--rows 4000000] [--pairs 5] [--out FOLDER]

The answers of the months are in their files: the estimate does not use them, the real AUC does. For the time a model
of synthetic trips scores others; inside the clock is the job (reading, scoring, writing, recording), processes up.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from card_trips import MONTHS
from harness import TAXI, compare, inside, options, tipcast, write_result
from read_prepare import prepared

OCTOBER = "no_repo_license/green_tripdata_2020-10.csv.gz"
PERIODS = (
    ("2020-10", "2021-01", "2021-02"),
    ("2021-02", "2022-01", "2022-02"),
    ("2022-01", "2022-02", "2022-02"),
    ("2022-02", "2023-01", "2023-02"),
    ("2022-01", "2022-02", "2023-01"),
    ("2021-01", "2021-02", "2023-01"),
)
"""Month that a model learns from, month that it is tested on, month that is watched."""
TASKS = ("high_tip_card", "high_tip")
FLAGGED = (0, 10, 11)
"""Exit codes of a watch that is done."""


def trips(month: str) -> Path:
    """Return a whole month of green trips."""
    return TAXI / (OCTOBER if month == "2020-10" else MONTHS.format(month))


def watched(task: str, months: tuple[str, str, str], folder: Path) -> dict[str, Any]:
    """Train, test and watch; return what the watch has found."""
    train, test, month = months
    name = f"{task}-{train}-{test}"
    files = ["data=files", f"data.train={trips(train)}", f"data.test={trips(test)}", f"tracking.register={name}"]
    if not (folder / name).exists():  # another month may have been watched by the same model
        tipcast("train", f"task={task}", *files, folder=folder)
        (folder / name).mkdir()
    words = [f"model_uri=models:/{name}/1", f"input={trips(month)}", f"output={folder / name / month}"]
    said = tipcast("watch", *words, folder=folder, codes=FLAGGED)
    told = {key.removeprefix("watch/"): value for key, value in said["metrics"].items()}
    return {"task": task, "train": train, "test": test, "watched": month, **told, "passed": list(said["passed"])}


def main() -> None:
    """Run the benchmark."""
    given = options(__doc__, rows=4_000_000, pairs=5, tasks=list(TASKS))
    found: list[Any] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for task in given.tasks:
            for months in PERIODS:
                found.append(watched(task, months, folder))
                print(found[-1], flush=True)
        prepared(folder / "trips", given.rows, months="2019-04..2019-06")
        (folder / "trips" / "manifest.json").unlink()
        tipcast("train", "data.rows=200000", "tracking.register=tips", folder=folder)
        jobs: dict[str, list[float]] = {"watch": [], "score": []}

        def run(job: str) -> float:
            """Run a job; return the seconds that it took to remove old scores."""
            start = time.perf_counter()
            shutil.rmtree(folder / "scored", ignore_errors=True)
            apart = time.perf_counter() - start
            words = ["model_uri=models:/tips/1", f"input={folder}/trips", f"output={folder}/scored"]
            jobs[job].append(tipcast(job, *words, folder=folder, codes=FLAGGED)["job_s"])
            return apart

        whole = compare(lambda: run("watch"), lambda: run("score"), given.pairs, names=("watch", "score"))
    costs = [inside(whole, *jobs.values(), names=("tipcast watch, job", "tipcast score, job")), whole]
    print(*costs, write_result("watch", [*costs, *found], **vars(given)), sep="\n")


if __name__ == "__main__":
    main()
