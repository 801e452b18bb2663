"""Compare synthetic trips with the statistics of real months and write
benchmarks/results/sample_fidelity.csv.

    PYTHONPATH=src python benchmarks/sample_fidelity.py PROFILE.json [--colour yellow]
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from tipcast.datasets.taxi.sample import sample_block

WEEKS = (1551657600000000, 1554076800000000)
"""Four whole weeks from Monday 2019-03-04, in microseconds of wall-clock time."""
NAMES = {"yellow": "yellow_2019_03_to_2020_02", "green": "green_2024_01_full"}
RESULT = Path(__file__).parent / "results" / "sample_fidelity.csv"


def distance(ours: dict[Any, float], theirs: dict[Any, float]) -> float:
    """Total variation over the categories that the profile names, the rest taken as one."""
    rest = abs(sum(ours.get(key, 0.0) for key in theirs) - sum(theirs.values()))
    return (sum(abs(ours.get(key, 0.0) - share) for key, share in theirs.items()) + rest) / 2


def shares(values: np.ndarray) -> dict[Any, float]:
    """Share of each value."""
    names, counts = np.unique(values, return_counts=True)
    return dict(zip(names.tolist(), (counts / len(values)).tolist(), strict=True))


def compare(real: dict[str, Any], colour: str, seed: int = 0) -> list[tuple[str, float, float]]:
    """Return (what, synthetic, real) for as many synthetic rows as the profile counted."""
    prefix = "tpep" if colour == "yellow" else "lpep"
    trips = sample_block(WEEKS, 0, seed, real["rows"], colour)
    pickup = trips[f"{prefix}_pickup_datetime"]
    dropoff = trips[f"{prefix}_dropoff_datetime"]
    fare, tip = (
        np.round(trips[name] * 100).astype(np.int64) for name in ("fare_amount", "tip_amount")
    )
    paid = fare > 0
    high = 5 * tip > fare
    week_hour = (pickup // 3_600_000_000 + 72) % 168
    card = paid & (trips["payment_type"] == 1)
    rows: list[tuple[str, float, float]] = [
        ("label rate", high[paid].mean(), real["label_rate_fare_gt_0"])
    ]
    week = dict(enumerate(real["hour_of_week_share"]))
    rows.append(("hour of week, total variation", distance(shares(week_hour), week), 0.0))

    for name, column in (("pu_zones", "PULocationID"), ("do_zones", "DOLocationID")):
        top = {zone: share for zone, share, _ in real[name]["top"]}
        rows.append((f"{column}, total variation", distance(shares(trips[column]), top), 0.0))
        gaps = [
            high[paid & (trips[column] == zone)].mean() - rate
            for zone, _, rate in real[name]["top"][:20]
        ]
        rows.append((f"label rate by {column}, mean gap of 20", float(np.abs(gaps).mean()), 0.0))

    pairs = np.sort(
        np.unique(trips["PULocationID"] * 1000 + trips["DOLocationID"], return_counts=True)[1]
    )[::-1]
    rows.append(("distinct pairs", len(pairs), real["pairs"]["distinct"]))
    rows += [
        (
            f"share of the {n} commonest pairs",
            pairs[:n].sum() / len(fare),
            real["pairs"]["cum_share_at"][str(n)],
        )
        for n in (10, 100, 1000)
    ]
    same = (trips["PULocationID"] == trips["DOLocationID"]).mean()
    rows.append(("share within one zone", same, real["pairs"]["same_zone_share"]))

    for n in range(1, 5):
        rows.append(
            (
                f"payment type {n}",
                (trips["payment_type"] == n).mean(),
                real["payment_type_share"][f"{n}.0"],
            )
        )

    rows.append(
        (
            "payment type missing",
            np.isnan(trips["payment_type"]).mean(),
            real["payment_type_share"]["nan"],
        )
    )
    for n in range(7):
        rows.append(
            (
                f"passengers {n}",
                (trips["passenger_count"] == n).mean(),
                real["passenger_count_share"][f"{n}.0"],
            )
        )

    rows.append(("negative fares", (fare < 0).mean(), real["dirty_rates"]["neg_fare"]))
    rows.append(("zero fares", (fare == 0).mean(), real["dirty_rates"]["zero_fare"]))
    minutes = (dropoff - pickup) / 6e7

    for q in ("0.1", "0.25", "0.5", "0.75", "0.9", "0.95", "0.99"):
        rows.append(
            (
                f"fare quantile {q}",
                np.quantile(trips["fare_amount"][paid], float(q)),
                real["fare"]["quantiles"][q],
            )
        )
        rows.append(
            (
                f"miles quantile {q}",
                np.quantile(trips["trip_distance"], float(q)),
                real["distance_q"][q],
            )
        )
        rows.append(
            (f"minutes quantile {q}", np.quantile(minutes, float(q)), real["duration_min_q"][q])
        )

    edges = np.array(real["credit_tip"]["tip_over_fare_hist_edges"])
    found = np.histogram(tip[card] / fare[card], edges)[0] / card.sum()
    gap = np.abs(found - real["credit_tip"]["tip_over_fare_hist"]).sum() / 2
    rows.append(("tip over fare by card, total variation", gap, 0.0))
    whole = ((tip % 100 == 0) & (tip > 0))[card].mean()
    rows.append(("whole-dollar tips by card", whole, real["credit_tip"]["share_whole_dollar_tip"]))
    rows.append(("no tip by card", (tip[card] == 0).mean(), real["credit_tip"]["share_tip_zero"]))

    return [(what, float(ours), float(theirs)) for what, ours, theirs in rows]


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profile", type=Path)
    parser.add_argument("--colour", choices=list(NAMES), default="yellow")
    given = parser.parse_args()
    rows = compare(json.loads(given.profile.read_text())[NAMES[given.colour]], given.colour)
    out = RESULT if given.colour == "yellow" else RESULT.with_stem(f"{RESULT.stem}_{given.colour}")
    with out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["what", "synthetic", "real"])
        writer.writerows((what, f"{ours:.5g}", f"{theirs:.5g}") for what, ours, theirs in rows)
    for what, ours, theirs in rows:
        print(f"| {what} | {ours:.4g} | {theirs:.4g} |")


if __name__ == "__main__":
    main()
