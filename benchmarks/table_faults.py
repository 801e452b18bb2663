"""Tables of what becomes of a training that loses a worker or its driver: table.py."""

from __future__ import annotations

from collections.abc import Callable

from table import MISSING, rows, table

DEVICES = ("cpu", "gpu")


def lost() -> str:
    """Return the table of what becomes of bare xgboost.dask whose worker is killed."""
    body = []
    for device in DEVICES:
        found = rows(f"lost_worker_{device}")
        if not found:
            continue

        errors = [
            row["after_kill_s"] for row in found if "after_kill_s" in row and row["exit_code"] == 0
        ]
        hangs = sum(row["exit_code"] is None for row in found)
        spread = f"{min(errors):.1f} to {max(errors):.1f} s" if errors else ""
        body.append(
            (
                device,
                str(len(found)),
                str(len(errors)),
                spread,
                str(hangs),
                str(len(found) - len(errors) - hangs),
            )
        )

    head = (
        "workers on",
        "kills",
        "errors",
        "after",
        "hangs of a minute",
        "ends of the driver's process",
    )
    return table(head, body or [(MISSING, *[""] * 5)])


def killed() -> str:
    """Return the table of what becomes of `tipcast train` whose worker is killed."""
    body = []
    for device in DEVICES:
        all_kills = [row for row in rows(f"killed_worker_{device}") if "ratio" in row]
        for part in ("successor", "fewer"):
            kills = [row for row in all_kills if row.get("part", "successor") == part]
            if not kills:
                continue

            finished = [row for row in kills if row["status"] == "FINISHED"]
            same = sum(row["same_model"] for row in finished)
            aucs = [row["auc_apart"] for row in finished if "auc_apart" in row]
            ratios = [row["ratio"] for row in finished]
            body.append(
                (
                    device,
                    part,
                    str(len(kills)),
                    str(sum(row["recoveries"] > 0 for row in kills)),
                    f"{len(finished)} of {len(kills)}",
                    f"{same} of {len(finished)}",
                    f"{max(row['apart'] for row in finished):.1g}",
                    f"{max(aucs):.1g}" if aucs else "",
                    f"{min(ratios):.2f} to {max(ratios):.2f}",
                )
            )

    head = (
        "workers on",
        "then",
        "kills",
        "during the rounds",
        "finished",
        "same model file",
        "largest difference of a score",
        "of the AUC",
        "seconds / undisturbed",
    )
    return table(head, body or [(MISSING, *[""] * 8)])


def killed_drivers() -> str:
    """Return the table of what becomes of `tipcast train` whose driver is killed, and that is
    resumed.
    """
    body = []
    for device in DEVICES:
        kills = [row for row in rows(f"killed_driver_{device}") if row["killed"]]
        if not kills:
            continue

        finished = [row for row in kills if row["status"] == "FINISHED"]
        body.append(
            (
                device,
                str(len(kills)),
                f"{len(finished)} of {len(kills)}",
                f"{sum(row['same_model'] for row in finished)} of {len(finished)}",
                f"{max(row['apart'] for row in finished):.1g}",
                f"{sum(row['same_points'] for row in finished)} of {len(finished)}",
                str(sum(row["logged_twice"] for row in kills)),
            )
        )

    head = (
        "workers on",
        "kills",
        "finished",
        "same model file",
        "largest difference of a score",
        "same points of all curves",
        "points logged twice",
    )
    return table(head, body or [(MISSING, *[""] * 6)])


def checkpoint_costs() -> str:
    """Return the table of a fit's seconds with checkpoints, beside those without."""
    body = []
    for device in DEVICES:
        for row in rows(f"checkpoint_cost_{device}"):
            seconds, without = row["medians_s"].values()
            body.append(
                (
                    device,
                    f"{row['every_s']} s",
                    str(row["checkpoints"]),
                    f"{seconds:.1f}",
                    f"{without:.1f}",
                    f"{row['ratio']:.3f}",
                )
            )

    head = ("workers on", "at most every", "checkpoints", "fit, s", "without any, s", "ratio")
    return table(head, body or [(MISSING, *[""] * 5)])


TABLES: dict[str, Callable[[], str]] = {
    each.__name__: each for each in (lost, killed, killed_drivers, checkpoint_costs)
}
