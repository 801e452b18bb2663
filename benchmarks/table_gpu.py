"""Tables of what GPUs did, for docs/gpu.md: table.py."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean, median
from typing import Any

from table import GROWTH_GOAL, MISSING, gpu_names, held, million, read, rows, table

PHASES = ("read", "fit", "evaluate", "log")
SECONDS = ("list", "model", "check", "cluster", "read", "fit", "evaluate", "score", "log")
JOB_GOAL = 1.25
START_GOAL = 7.0
FIT_GOAL = 1.05
SCORE_GOAL = 1.5
CARRIED_GOAL = 1e-5
AT_ONCE_GOAL = 1.35
GPUS_GOAL = 1.9
SCORED_GOAL = 3.0
COPIED_GOAL = 2.5
CORES_GOAL = 1.0
BEYOND_GOAL = 2.5
SCALING_GOALS = {
    ("xgboost", 320_000_000): {2: 1.7, 4: 2.8},
    ("xgboost", 960_000_000): {2: 1.85, 4: 3.4},
    ("random_forest", 80_000_000): {2: 3.4, 4: 9.0},
}
"""Model and training rows -> GPUs -> at least so many times as fast as one."""


def gpu_jobs() -> str:
    """Return the table of whole jobs on GPUs, in seconds, beside the library calls on one."""
    found = [row for row in rows("gpu_train_1", "gpu_train_2") if "phases_s" in row]
    bare = {(row["model"], row["rows"]): row for row in found if row["what"] == "bare calls"}
    body = []

    for row in found:
        if row["what"] == "bare calls":
            continue

        alone = bare.get((row["model"], row["rows"]), {}) if row["gpus"] == 1 else {}
        ratio = row["job_s"] / alone["job_s"] if alone else 0.0
        start = row["process_s"] - row["job_s"]
        peak = row["memory"]["device_peak_bytes"]
        body.append(
            (
                f"`{row['model']}`",
                million(row["rows"]),
                str(row["gpus"]) if row["gpus"] else f"its {row['cores']} cores",
                *(f"{row['phases_s'][name]:.2f}" for name in PHASES),
                f"{row['job_s']:.2f}",
                f"{row['process_s']:.1f}",
                f"{alone['job_s']:.2f}" if alone else "",
                f"{alone['process_s']:.1f}" if "process_s" in alone else "",
                f"{ratio:.2f} x ({held(ratio, JOB_GOAL, '{:.2f} x')})" if alone else "",
                f"{start:.1f} ({held(start, START_GOAL, '{:.0f}')})" if row["gpus"] else "",
                f"{peak / 1e9:.1f} GB" if peak else MISSING,
            )
        )

    head = (
        "model",
        "rows",
        "GPUs",
        *PHASES,
        "job",
        "process",
        "library calls",
        "their process",
        "job over them",
        "process less job",
        "peak of a GPU",
    )
    return f"{table(head, body)}\n\nOn {gpu_names('gpu_train_1', 'gpu_train_2')}."


def gpu_fits() -> str:
    """Return the table of fits on one GPU against the bare library, and on two."""
    found = [row for row in rows("gpu_fit_1", "gpu_fit_2") if "error" not in row]
    body = []
    for model, params in dict.fromkeys(
        (row["model"], tuple(row["params"].items())) for row in found
    ):
        own = [
            row for row in found if (row["model"], tuple(row["params"].items())) == (model, params)
        ]
        one = next((row for row in own if row["gpus"] == 1 and "ratio" in row), None)
        if one is None:
            continue

        ours, bare = one["medians_s"].values()
        what = (
            f"`{model}`, {one['params']['n_estimators']} trees of "
            f"depth {one['params']['max_depth']}"
        )
        cells = (
            f"{bare:.2f} s",
            f"{ours:.2f} s",
            f"{one['ratio']:.2f} x",
            held(one["ratio"], FIT_GOAL, "{:.2f} x"),
        )
        two = next((row for row in own if row["gpus"] == 2), None)
        more = (MISSING, "", "")
        if two:
            # the last: on the machine with two
            alone = [row for row in own if row["gpus"] == 1][-1]
            faster = alone.get("median_s", ours) / two["median_s"]
            dask = f"{two['ratio']:.2f} x" if "ratio" in two else ""
            more = (f"{two['median_s']:.2f} s", f"{faster:.2f} x", dask)

        body.append((what, *cells, *more))

    head = (
        "fit of 80M rows on the GPU",
        "bare library",
        "tipcast, one GPU",
        "ratio",
        "goal",
        "two GPUs",
        "one over two",
        "two GPUs against `xgboost.dask`",
    )
    return f"{table(head, body)}\n\nOn {gpu_names('gpu_fit_1', 'gpu_fit_2')}."


def gpu_sweeps() -> str:
    """Return the table of a sweep's speed on GPUs, against one GPU or one trial at a time on the
    same machine.
    """
    body = []
    for machine in (1, 2):
        cases = {
            (row["gpus"], row["at_once"]): row
            for row in rows(f"gpu_sweep_{machine}")
            if "seconds" in row
        }
        for (gpus, at_once), row in cases.items():
            of = (1, at_once)
            aim = GPUS_GOAL
            against = "one GPU"
            if gpus == 1:
                of = (1, 1)
                aim = AT_ONCE_GOAL
                against = "one at a time"
            gain = ("", "", "")
            if of in cases and of != (gpus, at_once):
                faster = cases[of]["seconds"] / row["seconds"]
                gain = (against, f"{faster:.2f} x", held(faster, aim, "{:.2f} x", most=False))
            counts = str(gpus), str(at_once), f"{row['trials_per_minute']:.0f}"
            body.append((gpu_names(f"gpu_sweep_{machine}"), *counts, *gain))

    head = (
        "machine",
        "GPUs used",
        "trials at once on each",
        "trials a minute",
        "against",
        "faster",
        "goal",
    )
    return table(head, body or [(MISSING, *[""] * 6)])


def gpu_scores() -> str:
    """Return the table of what a registered model scores on a GPU, beside the bare library."""
    body = []
    for row in rows("gpu_scoring"):
        if "ratio" in row:
            name = row["names"][0].removeprefix("tipcast, ")
            clock = "scoring, rows on the GPU"
            ours, bare = row["medians_s"].values()
            goal = held(row["ratio"], SCORE_GOAL, "{:.2f} x")
            body.append(
                (
                    f"`{name}`",
                    clock,
                    f"{bare:.3f} s",
                    f"{ours:.3f} s",
                    f"{row['ratio']:.2f} x",
                    goal,
                )
            )
        elif row.get("what") == "tipcast score":
            for clock, goal in (
                ("job", held(row["job_s"], SCORED_GOAL, "{:.0f} s")),
                ("process", ""),
            ):
                ours = row[f"{clock}_s"]
                bare = row["by_hand"][f"{clock}_s"]
                of = {"job": "job: read, score, write, log", "process": "process, start to end"}[
                    clock
                ]
                times = f"{bare:.2f} s", f"{ours:.2f} s", f"{ours / bare:.2f} x"
                body.append(("`tipcast score`, all columns kept", of, *times, goal))
        elif row.get("what") == "phase score":
            ours, cores = (row[backend]["phases_s"]["score"] for backend in ("gpu", "cpu"))
            what = f"`tipcast score`, {row['files']} file" + "s" * (row["files"] > 1)
            for clock, bare, goal in (
                ("phase `score`; cuDF reads and writes the same", row["copied_s"], COPIED_GOAL),
                ("phase `score`; the same on the machine's cores", cores, CORES_GOAL),
            ):
                times = f"{bare:.2f} s", f"{ours:.2f} s", f"{ours / bare:.2f} x"
                body.append((what, clock, *times, held(ours / bare, goal, "{:g} x")))

    head = ("8M rows", "inside the clock", "library calls", "tipcast", "ratio", "goal")
    return f"{table(head, body or [(MISSING, *[''] * 5)])}\n\nOn {gpu_names('gpu_scoring')}."


def gpu_seconds() -> str:
    """Return the table of where the seconds of whole processes on one GPU and on the cores beside
    it go.
    """
    found = [
        (
            f"`train`, `{row['model']}`, {million(row['rows'])} rows",
            "one GPU" if row["gpus"] else "its cores",
            row,
        )
        for row in rows("gpu_train_1")
        if "memory" in row
    ]
    for row in rows("gpu_scoring"):
        if row.get("what") == "phase score":
            what = f"`score`, {row['files']} file" + "s" * (row["files"] > 1)
            found += [
                (what, on, row[key]) for on, key in (("one GPU", "gpu"), ("its cores", "cpu"))
            ]

    body = []
    for what, on, row in found:
        seconds = row["phases_s"]
        beside = f"{row['process_s'] - sum(seconds.values()):.1f}"
        cells = (f"{seconds[name]:.2f}" if name in seconds else "" for name in SECONDS)
        body.append((what, on, beside, *cells, f"{row['process_s']:.1f}"))

    head = (
        "process",
        "on",
        "imports, run opened and closed",
        *(f"`{name}`" for name in SECONDS),
        "in all",
    )
    measured = table(head, body or [(MISSING, *[""] * 11)])
    return f"{measured}\n\nOn {gpu_names('gpu_train_1', 'gpu_scoring')}."


def carried() -> str:
    """Return the table of models that were trained on a GPU and score elsewhere."""
    body: list[tuple[str, ...]] = []
    for row in rows("carried"):
        apart: Any = row["max_abs_diff"]
        goal = held(apart, CARRIED_GOAL, "{:.0e}")
        body.append((f"`{row['model']}`", million(row["rows"]), f"{apart:.1e}", goal))
    head = ("trained on a GPU", "trips scored there and here", "largest difference", "goal")
    return table(head, body or [(MISSING, "", "", "")])


def ladders() -> str:
    """Return the table of the same training on cores and on GPUs, for every kind of task."""
    body = []
    for machine in (1, 2):
        for row in rows(f"ladder_{machine}"):
            for at, rung in enumerate(row.get("rungs", ())):
                names = list(rung)
                shown = names[
                    names.index("efficiency") + 1 : names.index("difference")
                ]  # the headline; of made clusters
                judged = ", ".join(
                    f"{name} {rung[name]:.4f}" for name in shown
                )  # how they agree with the true ones too
                seconds = (
                    f"{rung[name]:.2f}" for name in ("read_s", "fit_s", "evaluate_s", "job_s")
                )
                what = (
                    row["case"].replace("_", " "),
                    million(row["rows"]),
                    gpu_names(f"ladder_{machine}"),
                )
                body.append(
                    (
                        *(("",) * 3 if at else what),
                        rung["rung"],
                        *seconds,
                        f"{rung['speed_up']:.1f} x",
                        judged,
                        rung["verdict"],
                    )
                )

    head = (
        "trained",
        "rows",
        "machine",
        "on",
        "read, s",
        "fit, s",
        "evaluate, s",
        "all three",
        "speed-up",
        "on test rows",
        "agreement",
    )
    return table(head, body or [(MISSING, *[""] * 10)])


def growth_gpu() -> str:
    """Return the table of a training's time and memory by its rows, on each number of GPUs."""
    body: list[tuple[str, ...]] = []
    alone: dict[tuple[str, int], float] = {}
    names = [
        f"growth_gpu_{gpus}{model}" for model in ("", "_random_forest") for gpus in (1, 2, 4, 8)
    ]

    for name in names:
        found = [row for row in rows(name) if "phases_s" in row]
        for row in rows(name):
            if row not in found:
                what = "out of memory" if "K008" in row["error"] else "failed"
                body.append(
                    (
                        f"`{row['model']}`",
                        million(row["rows"]),
                        str(row["workers"]),
                        "",
                        what,
                        *[""] * 6,
                    )
                )
                continue

            key = (row["model"], row["rows"])
            gpus = row["workers"]
            seconds = row["job_s"]
            alone |= {key: seconds} if gpus == 1 else {}
            efficiency = f"{alone[key] / seconds / gpus:.2f}" if key in alone else ""
            phases = (f"{row['phases_s'][phase]:.2f}" for phase in PHASES)
            whole = (
                f"{seconds:.1f}",
                f"{row['process_s']:.1f}",
                efficiency,
                f"{row['bytes_a_row']:.0f}",
            )
            body.append((f"`{row['model']}`", million(row["rows"]), str(gpus), *phases, *whole))

        if len(found) > 1:
            slopes = read(name)["facts"]["exponents"]
            goals = (
                f"{each:.2f} ({held(each, GROWTH_GOAL, '{:.2f}')})" for each in slopes.values()
            )
            body.append(
                (f"`{found[0]['model']}`", "exponent", str(found[0]["workers"]), *goals, *[""] * 6)
            )

    head = (
        "model",
        "training rows",
        "GPUs",
        *(f"{name}, s" for name in PHASES),
        "job, s",
        "process, s",
        "efficiency",
        "bytes a row at the peak",
    )
    return f"{table(head, body or [(MISSING, *[''] * 10)])}\n\nOn {gpu_names(*names)}."


def gpu_scaling() -> str:
    """Return the table of how much faster several GPUs fit than one, with the goals."""
    body = []
    for (model, number), goals in SCALING_GOALS.items():
        suffix = "" if model == "xgboost" else f"_{model}"
        fits = {
            gpus: row["phases_s"]["fit"]
            for gpus in (1, *goals)
            for row in rows(f"growth_gpu_{gpus}{suffix}")
            if row["rows"] == number and "phases_s" in row
        }
        for gpus, goal in goals.items():
            measured = (MISSING, "", "")
            if {1, gpus} <= set(fits):
                faster = fits[1] / fits[gpus]
                judged = held(faster, goal, "{:g} x", most=False)
                measured = (f"{fits[gpus]:.2f}", f"{faster:.2f} x", judged)
            one = f"{fits[1]:.2f}" if 1 in fits else MISSING
            body.append((f"`{model}`", million(number), one, str(gpus), *measured))

    head = (
        "model",
        "training rows",
        "fit on one GPU, s",
        "GPUs",
        "fit on these, s",
        "faster",
        "goal",
    )
    return table(head, body)


def beyond() -> str:
    """Return the table of a training on more rows than a GPU holds, beside rows that it holds."""
    found = [row for row in rows("gpu_beyond") if "phases_s" in row]
    body = []
    for row in found:
        each = row["fit_s_each_million_rows_and_round"]
        slower = each / found[0]["fit_s_each_million_rows_and_round"]
        judged = f"{slower:.2f} x ({held(slower, BEYOND_GOAL, '{:.1f} x')})"
        body.append(
            (
                million(row["train_rows"]),
                f"{row['bytes'] / 1e9:.0f} GB",
                *(f"{row['phases_s'][name]:.1f}" for name in ("list", "read", "fit", "evaluate")),
                f"{row['process_s']:.0f}",
                f"{row['memory']['worker_peak_bytes'] / 1e9:.0f} GB",
                f"{each * 1000:.1f}",
                "" if row is found[0] else judged,
            )
        )

    head = (
        "training rows",
        "features as float32",
        "list, s",
        "read, s",
        "fit, s",
        "evaluate, s",
        "process, s",
        "host memory of the worker",
        "ms of fit for each million rows and round",
        "against the first row",
    )
    return table(head, body or [(MISSING, *[""] * 9)])


def forest_apart() -> str:
    """Return the table of forests whose trees learn from a share of the rows, beside all rows."""
    found = [row for row in rows("forest_apart") if "auc" in row]
    body = []
    for number in dict.fromkeys(row["rows"] for row in found):
        seeds = [row for row in found if row["rows"] == number]
        together, share = (
            median(row["fit_s"][name] for row in seeds) for name in ("together", "longest_share")
        )
        ways = [[row["auc"][name] for row in seeds] for name in ("together", "apart")]
        body.append(
            (
                million(number),
                str(len(seeds)),
                f"{together:.1f} s",
                f"{share:.2f} s",
                *(f"{min(aucs):.4f} to {max(aucs):.4f}" for aucs in ways),
                f"{mean(ways[1]) - mean(ways[0]):+.4f}",
            )
        )

    head = (
        "training rows",
        "seeds",
        "100 trees from all rows",
        "25 trees from a quarter of the rows",
        "test AUC, trees from all rows",
        "test AUC, trees from a quarter each",
        "difference of the means",
    )
    return table(head, body or [(MISSING, *[""] * 6)])


def nccl() -> str:
    """Return the table of fits by one and two GPUs, with variables of NCCL."""
    body = []
    for row in rows("nccl_2"):
        variables = ", ".join(f"`{name}={value}`" for name, value in row["variables"].items())
        seconds = (
            f"{row[name]:.2f}" if name in row else MISSING
            for name in ("first_fit_s", "later_fit_s", "one_tree_s")
        )
        body.append((million(row["rows"]), str(row["gpus"]), variables, *seconds))

    head = (
        "training rows",
        "GPUs",
        "variables of NCCL",
        "first fit, s",
        "later fit, s",
        "later fit of one tree, s",
    )
    return f"{table(head, body or [(MISSING, *[''] * 5)])}\n\nOn {gpu_names('nccl_2')}."


def nodes() -> str:
    """Return the table of one GPU, several of a node, and as many nodes of one GPU each."""
    body: list[tuple[str, ...]] = []
    found = [row for row in rows("nodes_2") if "phases_s" in row]
    alone = {
        row["model"]: row["phases_s"]["fit"]
        for row in found
        if row["nodes"] == row["gpus_each"] == 1
    }

    for row in found:
        fit = row["phases_s"]["fit"]
        faster = f"{alone[row['model']] / fit:.2f} x" if row["model"] in alone else ""
        where = f"{row['nodes']} of {row['gpus_each']} GPU{'s' if row['gpus_each'] > 1 else ''}"
        seconds = (f"{row['phases_s'][name]:.2f}" for name in ("read", "fit", "evaluate"))
        body.append(
            (
                f"`{row['model']}`",
                million(row["rows"]),
                where,
                *seconds,
                f"{row['job_s']:.1f}",
                faster,
            )
        )

    head = (
        "model",
        "training rows",
        "nodes",
        "read, s",
        "fit, s",
        "evaluate, s",
        "job, s",
        "fit against one GPU",
    )
    return table(head, body or [(MISSING, *[""] * 7)])


def network() -> str:
    """Return the table of a network's training on one GPU and on several."""
    found = [row for row in rows("network_2") if "fit_s" in row]
    body = [
        (
            str(row["processes"]),
            f"{row['train_rows']:,.0f}",
            f"{row['fit_s']:.2f}",
            f"{row['test_auc']:.4f}",
        )
        for row in found
    ]
    head = ("processes, a GPU each", "training rows", "fit, s", "test AUC")
    return table(head, body or [(MISSING, *[""] * 3)])


TABLES: dict[str, Callable[[], str]] = {
    each.__name__: each
    for each in (
        gpu_jobs,
        gpu_fits,
        gpu_sweeps,
        gpu_scores,
        gpu_seconds,
        carried,
        ladders,
        growth_gpu,
        beyond,
        forest_apart,
        gpu_scaling,
        nccl,
        nodes,
        network,
    )
}
