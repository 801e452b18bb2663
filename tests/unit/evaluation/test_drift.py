"""Profiles of training rows and how far later ones have moved: values, chance, verdicts, words."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed import Client

from tipcast.evaluation import binned, drift, profile
from tipcast.evaluation.metrics import evaluate_here

NAMES = ["pickup_hour", "passenger_count", "PULocationID", "trip_distance"]


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
    parts = [client.submit(pd.DataFrame, part, columns=NAMES) for part in np.array_split(whole, 3)]
    scores = np.random.default_rng(5).beta(3, 4, rows).astype(np.float32)
    labels = (np.random.default_rng(6).random(rows) < scores).astype(int)
    return profile.profile(client, parts, evaluate_here(scores, labels), "validation")


def scored(rows: int, seed: int) -> binned.Binned:
    return binned.count(np.random.default_rng(seed).beta(3, 4, rows).astype(np.float32), None, 0.5)


def test_a_profile_is_json_and_adds_up(client: Client) -> None:
    found = described(client)
    assert json.loads(json.dumps(found)) == found
    assert found["rows"] == 40_000
    assert set(found["features"]) == set(NAMES)
    assert found["score"]["split"] == "validation"
    assert sum(found["score"]["histogram"]) == pytest.approx(1)
    for name, each in [*found["features"].items(), ("score", found["score"])]:
        assert sum(each["shares"]) == pytest.approx(1), name
        assert len(each["bins"]) == len(each["shares"])
    hours = found["features"]["pickup_hour"]
    assert hours["bins"][0] == [0, 0], "what is missing has its own"
    assert len(hours["bins"]) == 11
    assert max(hours["shares"]) < 0.2
    zones = found["features"]["PULocationID"]
    assert zones["bins"][-1] == []
    assert len(zones["bins"]) == 21
    assert zones["shares"][1] == pytest.approx((matrix(40_000, 0)[:, 2] == 1).mean())
    assert found["features"]["passenger_count"]["shares"][0] == pytest.approx(0.05, abs=0.01)
    assert len(json.dumps(found)) < 10_000


def test_counts_do_not_depend_on_parts(client: Client) -> None:
    whole = matrix(9000, 3)
    parts = profile.total([profile.count(part, NAMES) for part in np.array_split(whole, 7)])
    for name, counts in profile.count(whole, NAMES).items():
        assert counts.tolist() == parts[name].tolist()
        assert counts.sum() == 9000


def test_a_value_of_several_deciles_leaves_fewer_bins() -> None:
    counts = np.zeros(profile.CODES, dtype=np.int64)
    assert profile.grouped(counts, "passenger_count") == [[0, 0], [1, profile.CODES - 1]]
    counts[1:8] = [200, 7200, 1500, 450, 250, 250, 150]
    bins = profile.grouped(counts, "passenger_count")
    assert bins == [[0, 0], [1, 2], [3, 3], [4, 4], [5, profile.CODES - 1]]
    assert min(profile.shares(counts, bins)[1:]) > 0.04


def test_every_value_has_a_bin() -> None:
    odd = np.asfortranarray(np.array([[-1, -1], [0, 0], [300, 1e6], [301, np.inf], [5000, 0.05]], dtype=np.float32))
    for counts in profile.count(odd, ["pickup_week_hour", "trip_distance"]).values():
        assert counts.sum() == 5
        assert counts[0] == 1
        assert len(counts) == profile.CODES


def test_unmoved_rows_have_moved_little(client: Client) -> None:
    found = drift.drifts(described(client), profile.count(matrix(20_000, 9), NAMES), scored(20_000, 9))
    assert [each.name for each in found][0] == "score"
    assert {each.name for each in found} == {"score", *NAMES}
    assert all(each.psi < 0.01 for each in found)
    assert {each.verdict for each in found} == {"little"}


def test_moved_rows(client: Client) -> None:
    moved = matrix(20_000, 9, shift=2.0)
    moved[:, 0] = 7
    found = {
        each.name: each for each in drift.drifts(described(client), profile.count(moved, NAMES), scored(20_000, 9))
    }
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
        for each in drift.drifts(then, profile.count(matrix(60, 100 + seed), NAMES), scored(60, 100 + seed))
    ]
    assert np.mean([each.psi > 0.1 for each in found]) > 0.5, "by the limits alone most would have moved"
    assert np.mean([each.verdict != "little" for each in found]) < 0.08
    assert drift.drifts(then, profile.count(matrix(60, 9)[:0], NAMES), scored(0, 0)) == []


@pytest.mark.parametrize(
    ("name", "codes", "said"),
    [
        ("pickup_hour", [0, 0], "missing"),
        ("pickup_hour", [3, 5], "2 to 4"),
        ("pickup_hour", [4, 4], "3"),
        ("pickup_hour", [20, profile.CODES - 1], "19 on"),
        ("PULocationID", [], "others"),
        ("score", [10, 24], "0.20 to 0.50"),
        ("trip_distance", [1, 1], "0.0 to 0.1"),
        ("trip_distance", [97, profile.CODES - 1], "200.0 on"),
    ],
)
def test_bins_in_words(name: str, codes: list[int], said: str) -> None:
    assert profile.label(name, codes) == said
