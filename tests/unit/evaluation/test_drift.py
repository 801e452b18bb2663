"""Profiles of training rows and how far later ones have moved: values, chance, verdicts, words."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed import Client

from tipcast.evaluation import drift
from tipcast.evaluation.classification import Classification

JUDGE = Classification()
NAMES = ["pickup_hour", "passenger_count", "PULocationID", "trip_distance"]
BINS = {"pickup_hour": {"edges": [0.0, 6.0, 12.0, 18.0]}, "PULocationID": {"values": [1.0, 2.0, 3.0]}}


def matrix(rows: int, seed: int, shift: float = 0.0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    columns = [
        draw.integers(0, 24, rows),
        np.where(draw.random(rows) < 0.05, -1, draw.poisson(1.2, rows)),
        np.minimum(draw.zipf(1.5, rows), 265),
        draw.exponential(3 + shift, rows),
    ]
    return np.asfortranarray(np.stack(columns, axis=1).astype(np.float32))


def described(client: Client, rows: int = 40_000) -> dict[str, Any]:
    whole = matrix(rows, 0)
    split = np.array_split(whole, 3)
    parts = [client.submit(pd.DataFrame, part, columns=NAMES, pure=False) for part in split]
    scores = np.random.default_rng(5).beta(3, 4, rows).astype(np.float32)
    labels = (np.random.default_rng(6).random(rows) < scores).astype(int)
    score = JUDGE.profile(JUDGE.evaluate_here(scores, labels), "validation")
    return drift.profile(client, parts, [len(part) for part in split], score, ["PULocationID"])


def scored(rows: int, seed: int) -> np.ndarray:
    return JUDGE.histogram(JUDGE.count(np.random.default_rng(seed).beta(3, 4, rows).astype(np.float32), None))


def test_a_profile_is_json_and_adds_up(client: Client) -> None:
    found = described(client)
    assert json.loads(json.dumps(found)) == found
    assert found["rows"] == 40_000
    assert set(found["features"]) == set(NAMES)
    assert found["score"]["split"] == "validation"
    assert sum(found["score"]["histogram"]) == pytest.approx(1)
    for name, each in [*found["features"].items(), ("score", found["score"])]:
        assert sum(each["shares"]) == pytest.approx(1), name
        assert len(drift.labels(each)) == len(each["shares"])
    hours = found["features"]["pickup_hour"]
    assert hours["edges"][0] == 0, "what is missing has its own"
    assert hours["shares"][0] == hours["shares"][-1] == 0
    assert len(hours["shares"]) == 12
    assert max(hours["shares"]) < 0.2
    zones = found["features"]["PULocationID"]
    assert len(zones["shares"]) == 20
    assert zones["shares"][0] == (matrix(40_000, 0)[:, 2] == 1).mean()
    assert found["features"]["passenger_count"]["shares"][0] == (matrix(40_000, 0)[:, 1] == -1).mean()
    assert len(json.dumps(found)) < 10_000


def test_the_bins_do_not_depend_on_parts(client: Client) -> None:
    whole = pd.DataFrame(matrix(50_000, 3), columns=NAMES)
    found = []
    for cuts in ((), (1, 20_000, 20_001)):
        borders = [0, *cuts, 50_000]
        split = [whole.iloc[low:high] for low, high in zip(borders, borders[1:], strict=False)]
        parts = [client.submit(pd.DataFrame, part, pure=False) for part in split]
        found.append(drift.profile(client, parts, [len(part) for part in split], {}, ["PULocationID"]))
    assert found[0] == found[1]


def test_counts_do_not_depend_on_parts() -> None:
    whole = matrix(9000, 3)
    parts = drift.total([drift.count(part, NAMES, BINS) for part in np.array_split(whole, 7)])
    for name, counts in drift.count(whole, NAMES, BINS).items():
        assert counts.tolist() == parts[name].tolist()
        assert counts.sum() == 9000


def test_sides_are_counted_apart() -> None:
    whole = matrix(9000, 3)
    side = (np.arange(9000) % 3 == 0).astype(np.int8)
    for name, counts in drift.count(whole, NAMES, BINS, side).items():
        for which in (0, 1):
            alone = drift.count(whole[side == which], NAMES, BINS)[name]
            assert counts[which].tolist() == alone.tolist()


def test_a_value_of_several_deciles_leaves_fewer_bins() -> None:
    values = np.repeat([-1.0, 0, 1, 2, 3, 4], [200, 7200, 1500, 450, 250, 400]).astype(np.float32)
    frame = pd.DataFrame({"passengers": values, "temperature": values - 20, "constant": 1.0})
    found = drift.cut([frame], [])
    assert found["passengers"]["edges"] == [0.0, 1.0, 2.0, 3.0][: len(found["passengers"]["edges"])]
    assert found["temperature"]["edges"][0] > -21
    assert found["constant"]["edges"] == [0.0]
    counts = drift.of_frame(frame, found)
    assert counts["passengers"][0] == 200
    assert counts["constant"].tolist() == [0, 10_000, 0]


def test_every_value_has_a_bin() -> None:
    odd = np.array([[-1, 3], [0, 4], [300, 1e6], [np.inf, np.nan], [np.nan, -1]], dtype=np.float32)
    bins = {"numbers": {"edges": [0.0, 5.0]}, "zones": {"values": [-1.0, 3.0, 4.0]}}
    found = drift.count(odd, ["numbers", "zones"], bins)
    assert found["numbers"].tolist() == [1, 1, 2, 1]
    assert found["zones"].tolist() == [1, 1, 1, 2]
    assert drift.labels(bins["numbers"]) == ["below 0", "0 to 5", "5 on", "missing"]
    assert drift.labels(bins["zones"]) == ["-1", "3", "4", "others"]
    nothing = {"none": {"edges": []}, "no": {"values": []}}
    assert {name: each.tolist() for name, each in drift.count(odd, ["none", "no"], nothing).items()} == {
        "none": [4, 1],
        "no": [5],
    }


def test_unmoved_rows_have_moved_little(client: Client) -> None:
    then = described(client)
    found = drift.drifts(then, drift.count(matrix(20_000, 9), NAMES, then["features"]), scored(20_000, 9))
    assert [each.name for each in found][0] == "score"
    assert {each.name for each in found} == {"score", *NAMES}
    assert all(each.psi < 0.01 for each in found)
    assert {each.verdict for each in found} == {"little"}


def test_moved_rows(client: Client) -> None:
    moved = matrix(20_000, 9, shift=2.0)
    moved[:, 0] = 7
    then = described(client)
    now = drift.count(moved, NAMES, then["features"])
    found = {each.name: each for each in drift.drifts(then, now, scored(20_000, 9))}
    assert found["pickup_hour"].verdict == "much"
    assert found["pickup_hour"].psi > 2
    assert found["trip_distance"].verdict == "some"
    assert found["PULocationID"].verdict == "little"
    order = [each.psi for each in list(found.values())[1:]]
    assert order == sorted(order, reverse=True)


def test_psi_by_its_formula() -> None:
    then, now = [0.5, 0.3, 0.2], [0.25, 0.25, 0.5]
    expected = sum((b - a) * math.log(b / a) for a, b in zip(then, now, strict=True))
    assert drift.psi(then, now, 1000, 1000) == pytest.approx(expected)
    assert drift.psi(now, then, 1000, 1000) == pytest.approx(expected)
    assert drift.psi(then, then, 1000, 1000) == 0
    assert drift.psi([1.0, 0.0], [0.0, 1.0], 1000, 1000) == pytest.approx(2 * (1 - 5e-4) * math.log(2000))
    assert drift.psi([1.0, 0.0], [1.0, 0.0], 10, 10) == 0, "a bin that was and is empty tells nothing"


def test_chance_is_what_nineteen_of_twenty_samples_stay_below() -> None:
    draw, shares = np.random.default_rng(0), np.full(10, 0.1)
    found = [
        drift.psi(draw.multinomial(3000, shares) / 3000, draw.multinomial(800, shares) / 800, 3000, 800)
        for _ in range(4000)
    ]
    assert np.mean(np.array(found) < drift.chance(10, 3000, 800)) == pytest.approx(0.95, abs=0.015)


def test_few_rows_hardly_make_a_verdict(client: Client) -> None:
    then = described(client)
    found = [
        each
        for seed in range(60)
        for each in drift.drifts(
            then, drift.count(matrix(60, 100 + seed), NAMES, then["features"]), scored(60, 100 + seed)
        )
    ]
    assert np.mean([each.psi > 0.1 for each in found]) > 0.5, "by the limits alone most would have moved"
    assert np.mean([each.verdict != "little" for each in found]) < 0.1
    assert drift.drifts(then, drift.count(matrix(60, 9)[:0], NAMES, then["features"]), scored(0, 0)) == []


def test_classes_that_none_was_of(client: Client) -> None:
    then = {"rows": 100, "features": {}, "score": drift.described(np.array([40, 60, 0]), "test")}
    (found,) = drift.drifts(then, {}, np.array([45, 55]))
    assert found.labels == ["0", "1", "2"]
    assert found.now == [0.45, 0.55, 0]
    assert found.verdict == "little"
