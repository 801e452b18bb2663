"""Rows that are made up: the same for the same seed however they are cut, others for each side."""

import dataclasses
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare, kstest

from tipcast.compute.base import Frames, to_host
from tipcast.compute.frames import CpuFrames
from tipcast.config.errors import TipcastError
from tipcast.config.schema import BlobsData, DataSpec, RegressionData
from tipcast.datasets.base import Dataset, merged
from tipcast.datasets.made import Blobs, drawn, normal
from tipcast.datasets.registry import dataset_of, open_dataset

SIDES: dict[str, Any] = {"train": None, "test": None, "rows": 5000, "test_rows": 1000, "seed": 0, "block_rows": 2000}
BLOBS = BlobsData("blobs", columns=3, centers=4, cluster_std=0.5, spread=10.0, **SIDES)
REGRESSION = RegressionData("regression", columns=6, informative=2, noise=1.0, **SIDES)


def made(dataset: Dataset, frames: Frames, which: str = "train") -> dict[str, Any]:
    """Return all rows of a side."""
    parts = [dataset.read(fragment, frames) for fragment in dataset.scan(which, ()).fragments]
    return {name: np.concatenate([to_host(part[name]) for part in parts]) for name in parts[0]}


@pytest.mark.parametrize("spec", [BLOBS, REGRESSION], ids=lambda spec: spec.source)
def test_a_seed_decides_all_rows(spec: DataSpec, frames: Frames) -> None:
    dataset = open_dataset(spec)
    listing = dataset.scan("train", ())
    assert [fragment.rows for fragment in listing.fragments] == [2000, 2000, 1000]
    first, again = made(dataset, frames), made(open_dataset(dataclasses.replace(spec)), frames)
    other = made(open_dataset(dataclasses.replace(spec, seed=1)), frames)
    for name, values in first.items():
        np.testing.assert_array_equal(values, again[name])
    assert not np.array_equal(first["x0"], other["x0"])
    assert len(made(dataset, frames, "test")["x0"]) == 1000
    assert not np.array_equal(made(dataset, frames, "test")["x0"], first["x0"][:1000])
    assert dataset.scan("train", ()).digest != dataset.scan("test", ()).digest
    assert dataset_of({"dataset": dataset.name, **dataset.facts()}).features == dataset.features


@pytest.mark.parametrize("spec", [BLOBS, REGRESSION], ids=lambda spec: spec.source)
def test_rows_are_the_same_in_blocks_of_any_size_and_on_every_device(spec: DataSpec, frames: Frames) -> None:
    dataset = open_dataset(spec)
    fragments = dataset.scan("train", ()).fragments
    (whole,) = merged(fragments, 10_000)
    together, apart = dataset.read(whole, frames), made(dataset, CpuFrames())
    for name, values in together.items():
        np.testing.assert_array_equal(to_host(values), apart[name])
    some = dataset.read(fragments[1], frames, ["x1"])
    np.testing.assert_array_equal(to_host(some["x1"]), apart["x1"][2000:4000])


def test_numbers_are_drawn_independently_and_as_told() -> None:
    bits = partial(drawn, np, 3, 0, 7, 200_000)
    columns = np.stack([normal(bits(at)) for at in range(4)])
    assert kstest(columns[0], "norm").pvalue > 0.01
    assert np.abs(np.corrcoef(columns) - np.eye(4)).max() < 0.01
    assert np.abs(np.corrcoef(columns[0][:-1], columns[0][1:])[0, 1]) < 0.01
    assert chisquare(np.bincount((bits(9) % 7).astype(int))).pvalue > 0.01


def test_blobs_lie_around_their_centres(frames: Frames) -> None:
    rows, tested = (made(open_dataset(BLOBS), frames, which) for which in ("train", "test"))
    for label in range(4):
        for name in ("x0", "x1", "x2"):
            inside = rows[name][rows["label"] == label]
            assert inside.std() == pytest.approx(0.5, rel=0.1)
            assert inside.mean() == pytest.approx(tested[name][tested["label"] == label].mean(), abs=0.2)


def test_the_value_of_a_regression_is_linear(frames: Frames) -> None:
    rows = made(open_dataset(REGRESSION), frames)
    x = np.stack([rows[f"x{at}"] for at in range(6)], axis=1)
    coefficients, *_ = np.linalg.lstsq(x, rows["y"], rcond=None)
    assert (rows["y"] - x @ coefficients).std() == pytest.approx(1.0, rel=0.05)
    assert np.abs(coefficients[2:]).max() < 0.1 < np.abs(coefficients[:2]).min()


def test_the_label_of_blobs() -> None:
    for centers, kind in ((2, "classification"), (3, "multiclass")):
        target = Blobs.open(dataclasses.replace(BLOBS, centers=centers)).target_column(None, None)
        assert (target.name, target.kind, len(target.classes)) == ("label", kind, centers)


@pytest.mark.parametrize("spec", [BLOBS, REGRESSION], ids=lambda spec: spec.source)
def test_gigabytes_say_how_many_rows(spec: DataSpec) -> None:
    listing = open_dataset(dataclasses.replace(spec, gigabytes=0.0002)).scan("train", ())
    rows = sum(fragment.rows or 0 for fragment in listing.fragments)
    assert 4 * rows * (spec.columns + 1) == pytest.approx(200_000, rel=1e-3)
    same = open_dataset(dataclasses.replace(spec, rows=rows)).scan("train", ())
    assert listing.digest == same.digest


@pytest.mark.parametrize(
    ("rows", "tested"), [(100, 1000), (5000, 1000), (30_000, 6000), (100_000, 20_000), (10**7, 20_000)]
)
def test_rows_to_test_on_follow_the_rows(rows: int, tested: int) -> None:
    spec = dataclasses.replace(BLOBS, rows=rows, test_rows=None, block_rows=250_000)
    assert open_dataset(spec).scan("test", ()).fragments[0].rows == tested


def test_more_blocks_than_a_scheduler_takes_are_refused() -> None:
    with pytest.raises(TipcastError, match="C003.*data.rows.*blocks"):
        open_dataset(dataclasses.replace(BLOBS, rows=10**12)).scan("train", ())
