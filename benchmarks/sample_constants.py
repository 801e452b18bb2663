"""Derive datasets/taxi/sample_profile.json, the constants behind synthetic trips, from statistics
of real months.

    python benchmarks/sample_constants.py PROFILE.json FOLDER_OF_YELLOW_PARQUET

Only rounded statistics are kept: marginal shares, label rates turned into additive log-odds, and
zone positions.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse.csgraph import shortest_path

from tipcast.datasets.taxi import sample_tables
from tipcast.datasets.taxi.sample import sample_block

ZONES = 265
SOURCES = {"yellow": "yellow_2019_03_to_2020_02", "green": "green_2024_01_full"}
NORTH = (24, 41, 42, 74, 75, 116, 120, 127, 128, 151, 152, 153, 166, 194, 202, 243, 244)
SOUTH = (
    4,
    12,
    13,
    43,
    45,
    48,
    50,
    68,
    79,
    87,
    88,
    90,
    100,
    107,
    113,
    114,
    125,
    137,
    140,
    141,
    142,
    143,
    144,
    148,
    158,
    161,
    162,
    163,
    164,
    170,
    186,
    209,
    211,
    224,
    229,
    230,
    231,
    232,
    233,
    234,
    236,
    237,
    238,
    239,
    246,
    249,
    261,
    262,
    263,
)
"""Manhattan's zones above and below 96th Street: the congestion surcharge is for the latter."""
FARE_EDGES = [5, 7.5, 10, 12.5, 15, 20, 30, 50, 53, 80]
MONTH = (1551398400000000, 1554076800000000)
"""March 2019 in microseconds of wall-clock time: the month that the log-odds are fitted on."""


def trips(folder: Path) -> pd.DataFrame:
    """Read plausible standard-rate trips with miles, seconds and hour."""
    names = [
        "tpep_pickup_datetime",
        "tpep_dropoff_datetime",
        "trip_distance",
        "PULocationID",
        "DOLocationID",
    ]
    months = [path for path in sorted(folder.glob("*_10k.parquet")) if "2020" not in path.name]
    rows = pd.concat([pd.read_parquet(path, columns=names) for path in months])
    rows["seconds"] = (rows[names[1]] - rows[names[0]]).dt.total_seconds()
    rows["hour"] = rows[names[0]].dt.hour
    return rows[rows["trip_distance"].between(0.1, 60) & rows["seconds"].between(60, 7200)]


def positions(rows: pd.DataFrame) -> tuple[np.ndarray, list[float]]:
    """Place zones so that lines fit median trip distances (weighted SMACOF): (265, 2) miles, spread
    near and far.
    """
    groups = (
        rows.groupby(["PULocationID", "DOLocationID"])["trip_distance"]
        .agg(["median", "size"])
        .reset_index()
    )
    groups = groups[(groups["PULocationID"] < 264) & (groups["DOLocationID"] < 264)]
    i = groups["PULocationID"].to_numpy() - 1
    j = groups["DOLocationID"].to_numpy() - 1
    far = np.zeros((ZONES, ZONES))
    weight = np.zeros((ZONES, ZONES))
    size = np.minimum(groups["size"].to_numpy(), 50)
    np.add.at(far, (i, j), groups["median"].to_numpy() * size)
    np.add.at(weight, (i, j), size)
    far = far + far.T
    weight = weight + weight.T
    far = np.where(weight > 0, far / np.maximum(weight, 1) - sample_tables.OFFSET, 0).clip(0)
    np.fill_diagonal(weight, 0)
    known = weight.sum(0) > 0
    paths = shortest_path(
        np.where(weight > 0, np.maximum(far, 0.05), np.inf)[np.ix_(known, known)], directed=False
    )
    paths = np.minimum(paths, 40)
    centre = np.eye(len(paths)) - 1 / len(paths)
    values, vectors = np.linalg.eigh(-0.5 * centre @ paths**2 @ centre)
    place = vectors[:, -2:] * np.sqrt(values[-2:].clip(0.01))
    w = weight[np.ix_(known, known)] / np.maximum(far[np.ix_(known, known)], 0.5)
    w = w + 1e-4
    np.fill_diagonal(w, 0)
    target = np.where(weight[np.ix_(known, known)] > 0, far[np.ix_(known, known)], paths)
    inverse = np.linalg.pinv(np.diag(w.sum(1)) - w)

    for _ in range(400):
        gap = np.hypot(*(place[:, None] - place[None]).transpose(2, 0, 1))
        ratio = w * np.where(gap > 1e-9, target / np.maximum(gap, 1e-9), 0)
        place = inverse @ ((np.diag(ratio.sum(1)) - ratio) @ place)

    every = np.zeros((ZONES, 2))
    every[known] = place
    every[~known] = place.mean(0)
    line = np.hypot(*(every[i] - every[j]).T) + sample_tables.OFFSET
    fitted = pd.Series(line, index=pd.MultiIndex.from_arrays([i + 1, j + 1])).rename("line")
    both = rows.join(fitted, on=["PULocationID", "DOLocationID"], how="inner")
    off = np.log(both["trip_distance"] / both["line"])

    return every, [
        round(sigma(off[both["line"] < sample_tables.FAR]), 3),
        round(sigma(off[both["line"] >= sample_tables.FAR]), 3),
    ]


def pace(rows: pd.DataFrame) -> dict[str, Any]:
    """Fit ln seconds = at_one_mile[hour] + a curve over miles, and the spread around it of near and
    far trips.
    """
    miles = rows["trip_distance"]
    seconds = np.log(rows["seconds"])
    hour = rows["hour"]
    knots = np.array([0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 11, 15, 20, 30])
    near = pd.Series(np.abs(np.log(miles.to_numpy()[:, None] / knots)).argmin(1), index=miles.index)
    level = seconds.groupby(hour).mean()
    for _ in range(10):
        curve = (seconds - level.loc[hour].to_numpy()).groupby(near).mean()
        level = (seconds - curve.loc[near].to_numpy()).groupby(hour).mean()

    off = seconds - level.loc[hour].to_numpy() - np.interp(np.log(miles), np.log(knots), curve)
    at_one = float(curve.iloc[4])
    return {
        "seconds_at_one_mile": np.exp(level + at_one).round().astype(int).tolist(),
        "miles": knots.tolist(),
        "times": np.exp(curve - at_one).round(3).tolist(),
        "sigma": [
            round(sigma(off[miles < sample_tables.FAR]), 3),
            round(sigma(off[miles >= sample_tables.FAR]), 3),
        ],
    }


def sigma(values: pd.Series) -> float:
    """Estimate a standard deviation from the middle 80 %."""
    return float((values.quantile(0.9) - values.quantile(0.1)) / 2.563)


def shares(zones: dict[str, Any], order: list[int]) -> list[int]:
    """Fill the zones below the profile's top list along its cumulative shares; 265 shares in
    millionths.
    """
    share = np.zeros(ZONES)
    top = [int(zone) for zone, *_ in zones["top"]]
    share[np.array(top) - 1] = [row[1] for row in zones["top"]]
    rest = [zone for zone in order if zone not in top]
    marks = {
        int(rank): value for rank, value in zones["cum_share_at"].items() if int(rank) > len(top)
    }
    marks = {len(top): share.sum(), **marks, ZONES: 1.0}
    ranks = np.arange(len(top), ZONES + 1)
    left = np.interp(
        ranks, list(marks), np.log(np.maximum(1 - np.array(list(marks.values())), 2e-5))
    )
    share[np.array(rest) - 1] = np.diff(1 - np.exp(left))

    return (share / share.sum() * 1e6).round().astype(int).tolist()


def colour(source: dict[str, Any], orders: tuple[list[int], list[int]]) -> dict[str, Any]:
    """Round what the generator needs of one profile."""
    dirty = source["dirty_rates"]
    people = {
        key: value
        for key, value in source["passenger_count_share"].items()
        if key in {"nan", *(f"{n}.0" for n in range(7))}
    }
    return {
        "label_rate": source["label_rate_fare_gt_0"],
        "hour_of_week": (np.array(source["hour_of_week_share"]) * 1e5).round().astype(int).tolist(),
        "passengers": [people.get(f"{n}.0", 0.0) for n in range(7)] + [people["nan"]],
        "vendor_1": source["vendor_share"].get("1.0", source["vendor_share"].get("1")),
        "zero_fare": dirty["zero_fare"],
        "zero_miles": dirty["zero_dist"],
        "day_long": dirty["duration_gt_3h"],
        "stray": max(dirty["pickup_out_of_month"], 3e-5),
        "pu": shares(source["pu_zones"], orders[0]),
        "do": shares(source["do_zones"], orders[1]),
        "pairs": [[pu, do, round(share * 1e5)] for pu, do, share in source["pairs"]["top"]],
        "same_zone": source["pairs"]["same_zone_share"],
        "endings": endings(source),
        "logit": {
            "base": 0,
            "hour": [0] * 168,
            "pu": [0] * ZONES,
            "do": [0] * ZONES,
            "passengers": [0] * 8,
            "fare": [0] * 11,
        },
    }


def endings(source: dict[str, Any]) -> list[list[float]]:
    """Return the chances of the kinds of ending in ``sample``: of high tips, and of low ones by
    hour of the day.

    None of the first five kinds can come of a low tip, nor the rest of a high one.
    """
    tips = source["credit_tip"]
    dirty = source["dirty_rates"]
    zero = source["credit_tip"]["share_tip_zero"]
    press = tips["share_tip_equal_pct_of_pretip_total"]
    payment = [source["payment_type_share"].get(f"{n}.0", 0.0) for n in range(1, 5)]
    refunds = source["neg_fare_rows"]["payment_type_share"]
    negative = [dirty["neg_fare"] * refunds.get(f"{n}.0", 0.0) for n in range(2, 5)]
    high = source["label_rate_fare_gt_0"] / payment[0]
    above = max(high - press["0.2"] - press["0.25"] - press["0.3"] - 0.049, 0.01)
    rows = [[press["0.2"], press["0.25"], press["0.3"], 0.049, above] + [0.0] * 15]
    below = max(1 - high - zero - press["0.1"] - press["0.15"] - press["0.18"] - 0.12 - 0.004, 0.01)
    by_card = [zero, press["0.1"], press["0.15"], press["0.18"], 0.12, 0.004, below]
    rest = [part - less for part, less in zip(payment[1:], negative, strict=True)] + negative

    for share, label in zip(source["credit_share_by_hour"], source["hour_label_rate"], strict=True):
        low = max(share - label, 0.02) / (1 - label)
        low_by_card = [p / sum(by_card) * low for p in by_card]
        otherwise = [p / sum(rest) * (1 - low) for p in rest]
        rows.append([0.0] * 5 + low_by_card + otherwise + [0.0, 0.0])

    return [[round(p, 7) for p in row] for row in rows]


def logits(source: dict[str, Any], which: str, rows: int) -> dict[str, Any]:
    """Rake additive log-odds until the label rates of every margin are the profile's; in
    hundredths.
    """
    pickup = ("tpep" if which == "yellow" else "lpep") + "_pickup_datetime"
    names = [pickup, "PULocationID", "DOLocationID", "passenger_count", "fare_amount"]
    block = sample_block(MONTH, 0, 1, rows, which, columns=names)
    keep = block["fare_amount"] > 0
    block = {name: values[keep] for name, values in block.items()}
    hours = block[pickup] // 3_600_000_000
    week_hour = (hours + 72) % 168
    people = np.nan_to_num(block["passenger_count"], nan=7).astype(int)
    factors = {}
    targets = {}
    factors["hour"], targets["hour"] = (
        week_hour,
        np.array(source["hour_of_week_label_rate_smoothed"]),
    )
    factors["clock"], targets["clock"] = week_hour % 24, np.array(source["hour_label_rate"])

    for key, column, zones in (
        ("pu", "PULocationID", "pu_zones"),
        ("do", "DOLocationID", "do_zones"),
    ):
        target = np.full(ZONES + 1, np.nan)
        for zone, _, rate in source[zones]["top"]:
            target[int(zone) - 1] = rate
        group = block[column] - 1
        tail = np.isnan(target)[group]
        group = np.where(tail, ZONES, group)
        top = sum(share * rate for _, share, rate in source[zones]["top"])
        left = 1 - sum(share for _, share, _ in source[zones]["top"])
        target[ZONES] = np.clip((source["label_rate_fare_gt_0"] - top) / left, 0.2, 0.6)
        factors[key], targets[key] = group, target

    rates = source["label_rate_by_passenger"]
    factors["passengers"] = people
    targets["passengers"] = np.array(
        [rates.get(f"{n}.0", np.nan) for n in range(7)] + [rates["nan"]]
    )
    factors["fare"] = np.searchsorted(FARE_EDGES, block["fare_amount"], side="left")
    targets["fare"] = np.array([rate for rate, _ in source["label_rate_by_fare_bin"].values()])
    kept = 1 - source["dirty_rates"]["neg_fare"]  # refunds never count, and come out of low tips
    targets = {key: target * kept for key, target in targets.items()}
    total = np.full(len(people), np.log(1 / (1 / source["label_rate_fare_gt_0"] - 1)))
    effects = {key: np.zeros(len(target)) for key, target in targets.items()}

    for _ in range(25):
        for key, group in factors.items():
            p = 1 / (1 + np.exp(-total))
            size = np.bincount(group, minlength=len(targets[key]))
            mean = np.bincount(group, p, minlength=len(size)) / np.maximum(size, 1)
            slope = np.bincount(group, p * (1 - p), minlength=len(size)) / np.maximum(size, 1)
            step = np.where(
                (size > 0) & np.isfinite(targets[key]),
                (targets[key] - mean) / np.maximum(slope, 1e-3),
                0,
            )
            step = step.clip(-1, 1)
            effects[key] += step
            total += step[group]

    shift = 0.0
    aim = source["label_rate_fare_gt_0"] * kept
    for _ in range(5):
        p = 1 / (1 + np.exp(-total - shift))
        shift += (aim - p.mean()) / (p * (1 - p)).mean()

    effects["hour"] += np.tile(effects.pop("clock"), 7)
    base = shift
    for key in effects:
        weights = np.bincount(factors[key], minlength=len(effects[key]))
        mean = float(np.average(effects[key], weights=weights))
        effects[key] -= mean
        base += mean

    for key in ("pu", "do"):
        effects[key] = np.where(np.isnan(targets[key]), effects[key][ZONES], effects[key])[:ZONES]

    base += np.log(1 / (1 / source["label_rate_fare_gt_0"] - 1))
    return {"base": round(base * 100)} | {
        key: (100 * effect).round().astype(int).tolist() for key, effect in effects.items()
    }


def main() -> None:
    """Write the constants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profile", type=Path)
    parser.add_argument("trips", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    given = parser.parse_args()
    sources = json.loads(given.profile.read_text())
    rows = trips(given.trips)
    place, spread = positions(rows)
    orders = []
    for name in ("PULocationID", "DOLocationID"):
        counts = rows[name].value_counts().reindex(range(1, ZONES + 1), fill_value=0)
        orders.append(sorted(counts.index, key=lambda zone: (-counts[zone], zone)))
    made: dict[str, Any] = {
        "x": (place[:, 0] * 100).round().astype(int).tolist(),
        "y": (place[:, 1] * 100).round().astype(int).tolist(),
        "spread": spread,
        "pace": pace(rows),
        "north": NORTH,
        "south": SOUTH,
    }
    made |= {
        which: colour(sources[name], (orders[0], orders[1])) for which, name in SOURCES.items()
    }

    def write() -> None:
        sample_tables.PATH.write_text(
            json.dumps(made, separators=(",", ":")).replace('],"', '],\n"') + "\n"
        )

    write()
    for which, name in SOURCES.items():
        made[which]["logit"] = logits(sources[name], which, given.rows)
    write()
    print(
        f"{sample_tables.PATH}: {sample_tables.PATH.stat().st_size} bytes, "
        f"spread {made['spread']}, pace {made['pace']}"
    )


if __name__ == "__main__":
    main()
