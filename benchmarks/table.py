"""Print the tables of results that README and docs/gpu.md show, from the committed result files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from harness import RESULTS

Result = dict[str, Any]


def _ratio(at: int = 0) -> Callable[[Result], str]:
    return lambda result: f"{result['results'][at]['ratio']:.2f} x"


def _million(number: int) -> str:
    return f"{number / 1e6:g}M"


ROWS: tuple[tuple[str, str, Callable[[Result], str]], ...] = (
    (
        "all metrics and curves of {rows} scores, against scikit-learn's `roc_auc_score` and `roc_curve`",
        "exact_auc",
        _ratio(),
    ),
    ("reading and preparing {rows} rows, against pyarrow decoding the same columns", "read_prepare", _ratio(1)),
    ("the same, against `pandas.read_parquet`", "read_prepare", _ratio()),
    ("XGBoost through Dask, {rows} rows, against `xgboost.train`", "xgboost_dask", _ratio()),
    (
        "the whole `train` job, {rows} rows, against pandas, `xgboost.train` and scikit-learn alone",
        "train_job",
        _ratio(),
    ),
    ("memory of that job, all processes", "train_job", lambda result: f"{result['facts']['peak_bytes'] / 1e9:.1f} GB"),
    (
        "a run's parameters, metrics and tags in MLflow's sqlite store",
        "tracking",
        lambda result: f"{result['facts']['ms_per_trial']['tracking.run.Run']:.0f} ms",
    ),
    (
        "recording the 100 trials of a sweep there while they run, of the sweep's time",
        "sweep_tracking",
        lambda result: f"{result['results'][0]['share']:.1%}",
    ),
    (
        "a fit beside busy processes, its threads soon asleep while they wait, against OpenMP's default",
        "busy_cores",
        _ratio(),
    ),
    ("a sweep of 16 trials on {rows} rows, against one `xgboost.dask.train` a trial", "sweep", _ratio(2)),
    ("the same, against a loop that bins the rows for each trial", "sweep", _ratio(1)),
    ("the same, against scikit-learn's `GridSearchCV` over joblib's Dask backend", "sweep", _ratio(3)),
    ("the same, against Optuna's `n_jobs`", "sweep", _ratio(4)),
    (
        "the same, against half the time of its fits one after another on one thread",
        "sweep",
        lambda result: f"{result['results'][0]['ratio'] * result['facts']['threads']:.2f} x",
    ),
    (
        "memory of its worker, against a process that reads, bins and fits once",
        "sweep",
        lambda result: f"{result['facts']['memory']['2 threads']['ratio']:.2f} x",
    ),
    (
        "rounds that halving grows, {rows} rows, against the same 200 trials in full",
        "sweep_halving",
        lambda result: f"{result['results'][0]['rounds_ratio']:.2f} x, {result['results'][0]['auc_lost']:.4f} AUC lost",
    ),
    ("scores of {rows} rows in memory by a registered `xgboost`, against `inplace_predict`", "scoring", _ratio(2)),
    ("the same by a registered `random_forest`, against `predict_proba`", "scoring", _ratio()),
)
"""What is measured, result file, what the file says."""


def read(name: str) -> Result:
    """Return a result file."""
    found: Result = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def times() -> str:
    """Return the table of ratios and sizes."""
    rows = []
    for what, name, say in ROWS:
        result = read(name)
        rows.append((what.format(rows=_million(result["facts"].get("rows", 0))), say(result)))
    return _table(("time or memory, two CPU cores", "measured"), rows)


def aucs() -> str:
    """Return the table of test AUCs on real trips, a row for each model."""
    found = read("real_trips")["results"]
    trips = list(dict.fromkeys(result["trips"] for result in found))
    rows = []
    for model in dict.fromkeys(result["model"] for result in found):
        values = [result["test/auc"] for result in found if result["model"] == model]
        rows.append((f"`{model}`", *(f"{value:.3f}" for value in values)))
    return _table(("test AUC", *trips), rows)


def swept() -> str:
    """Return the table of what a sweep gains on real trips."""
    found = read("sweep_real")["results"]
    rows = [("default parameters", "", f"{found[0]['default/auc']:.3f}")]
    for row in found:
        what = f"{row['trials']} trials by `search={row['search']}`, {row['zones']}"
        rows.append((what, f"{row['best']['validation/auc']:.3f}", f"{row['test/auc']:.3f}"))
    return _table(("`xgboost`, yellow 2018 -> 2019-03, chosen on validation trips", "validation AUC", "test AUC"), rows)


PHASES = ("read", "fit", "evaluate", "log")


def gpu_jobs() -> str:
    """Return the table of whole jobs on GPUs, in seconds, beside the bare library calls on one."""
    found = [result for result in read("gpu_train")["results"] if "phases_s" in result]
    bare = {(row["model"], row["rows"]): row["job_s"] for row in found if row["what"] == "bare calls"}
    head = ("model", "rows", "GPUs", *PHASES, "job", "bare calls", "peak of a GPU")
    rows = []
    for row in found:
        if row["what"] != "bare calls":
            phases = [f"{row['phases_s'][name]:.2f}" for name in PHASES]
            alone = f"{bare[row['model'], row['rows']]:.2f}" if row["gpus"] == 1 else ""
            peak = f"{row['memory']['device_peak_bytes'] / 1e9:.1f} GB"
            cells = (
                f"`{row['model']}`",
                _million(row["rows"]),
                str(row["gpus"]),
                *phases,
                f"{row['job_s']:.2f}",
                alone,
            )
            rows.append((*cells, peak))
    return _table(head, rows)


def gpu_fits() -> str:
    """Return the table of fits on one GPU against the bare library, and on two."""
    found = read("gpu_fit")["results"]
    rows = []
    for one, two in zip(found[::2], found[1::2], strict=True):
        ours, bare = (one["medians_s"][name] for name in ("tipcast fit", "bare library"))
        name = f"`{one['model']}`, {one['params']['n_estimators']} trees of depth {one['params']['max_depth']}"
        times = (f"{bare:.2f} s", f"{ours:.2f} s", f"{one['ratio']:.2f} x", f"{two['median_s']:.2f} s")
        rows.append((name, *times, f"{ours / two['median_s']:.2f} x"))
    return _table(("fit of 80M rows", "bare library", "tipcast, one GPU", "ratio", "two GPUs", "one over two"), rows)


def gpu_faults() -> str:
    """Return the table of what becomes of a fit on two GPUs that loses a worker."""
    rows = [
        (f"`{row['model']}`, {row['worker']}", f"{row['error_after_s']:.1f} s") for row in read("gpu_faults")["results"]
    ]
    return _table(("fit on two GPUs, a worker is", "the job ends with K003 after"), rows)


def gpu_together() -> str:
    """Return the table of what XGBoost's rounds cost on two GPUs."""
    found = {(row["way"], row["rounds"]): row["median_s"] for row in read("gpu_together")["results"]}
    rows = []
    for way in dict.fromkeys(way for way, _ in found):
        one, many = found[way, 1], found[way, 100]
        rows.append((way, f"{one:.2f} s", f"{many:.2f} s", f"{1e3 * (many - one) / 99:.0f} ms"))
    for row in read("gpu_together_blocking")["results"]:
        rows.append((f"{row['way']}, `NCCL_COMM_BLOCKING=1`", "", f"{row['median_s']:.2f} s", ""))
    return _table(("XGBoost, 80M rows, two GPUs", "1 round", "100 rounds", "a further round"), rows)


def gpu_sweeps() -> str:
    """Return the table of a sweep's speed on GPUs; each machine's first row is what its others are held against."""
    head = ("machine", "GPUs used", "trials at once on each", "trials a minute", "against its first row")
    rows = []
    for gpus, name in ((1, "gpu_sweep_1"), (2, "gpu_sweep_2")):
        found = read(name)["results"]
        speed = {(row["gpus"], row["at_once"]): row["trials_per_minute"] for row in found if row["what"] == "speed"}
        for row in found:
            if row["what"] == "ratio":
                at = row["gpus"], row["at_once"]
                cells = (f"{gpus} H200", str(at[0]), str(at[1]), f"{speed[at]:.0f}", f"{row['faster']:.2f} x")
                rows.append(cells)
    return _table(head, rows)


def gpu_scores() -> str:
    """Return the table of what a registered model scores on a GPU, beside the bare library."""
    rows = []
    for row in read("gpu_scoring")["results"]:
        if "ratio" in row:
            ours, bare = row["medians_s"].values()
            name = row["names"][0].removeprefix("tipcast, ")
            rows.append((f"`{name}`", f"{bare:.3f} s", f"{ours:.3f} s", f"{row['ratio']:.2f} x"))
    return _table(("8M rows in a GPU's memory", "bare library", "tipcast", "ratio"), rows)


def forest_ways() -> str:
    """Return the table of the ways to score a forest, in rows a second of one thread or one GPU."""
    (found,) = (row for row in read("gpu_scoring")["results"] if row.get("what") == "ways to score a forest")
    rows = [(name, f"{pace:,.0f}") for name, pace in found["rows_per_s"].items()]
    return _table(("a `random_forest` of 100 trees scored by", "rows a second, one thread or one H200"), rows)


def carried() -> str:
    """Return the table of models that were trained on a GPU and score elsewhere."""
    rows = [
        (f"`{row['model']}`", _million(row["rows"]), f"{row['max_abs_diff']:.1e}") for row in read("carried")["results"]
    ]
    return _table(("trained on a GPU", "trips scored there and here", "largest difference"), rows)


def served() -> str:
    """Return the table of what a served model answers."""
    head = (
        "model behind `mlflow models serve`",
        "sent",
        "trips a request",
        "clients",
        "requests a second",
        "p50",
        "p99",
    )
    rows = []
    for row in read("serving")["results"]:
        cells = (f"`{row['model']}`", row["form"], f"{row['rows']:,}", str(row["clients"]))
        times = (f"{row['requests_per_s']:.0f}", f"{row['p50_ms']:.1f} ms", f"{row['p99_ms']:.1f} ms")
        rows.append((*cells, *times))
    return _table(head, rows)


def neighbours() -> str:
    """Return the table of how fast nearest neighbours are looked up."""
    rows = [(row["names"][1], f"{row['ratio']:.2f} x") for row in read("neighbours")["results"]]
    return _table(("`knn`'s scores of the same rows on one thread, against", "time"), rows)


TABLES = {
    "README.md": (aucs, swept, times),
    "docs/serving.md": (served,),
    "docs/knn.md": (neighbours,),
    "docs/gpu.md": (carried, gpu_fits, gpu_together, gpu_jobs, gpu_sweeps, gpu_faults, gpu_scores, forest_ways),
}
"""Page -> the tables it shows."""

if __name__ == "__main__":
    for tables in TABLES.values():
        print(*(table() for table in tables), sep="\n\n", end="\n\n")
