"""Rows that are made up: the same for the same seed however they are cut, others for each side."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare, kstest

from tipcast.compute.base import Frames, to_host
from tipcast.compute.frames import CpuFrames
from tipcast.config.data_schema import BlobsData, DataSpec, RegressionData
from tipcast.config.errors import TipcastError
from tipcast.datasets.base import Dataset
from tipcast.datasets.parts import merged
from tipcast.datasets.registry import dataset_of, open_dataset
from tipcast.tasks.kinds import named

SIDES: dict[str, Any] = {
    "train": None,
    "test": None,
    "rows": 5000,
    "test_rows": 1000,
    "seed": 0,
    "block_rows": 2000,
}
BLOBS = BlobsData("blobs", columns=3, centers=4, cluster_std=0.5, spread=10.0, **SIDES)
REGRESSION = RegressionData("regression", columns=6, informative=2, noise=1.0, **SIDES)
both = pytest.mark.parametrize("spec", [BLOBS, REGRESSION], ids=lambda spec: spec.source)


def made(dataset: Dataset, frames: Frames, which: str = "train") -> dict[str, Any]:
    """Return all rows of a side."""
    read = [dataset.read(part, frames) for part in dataset.scan(which, ()).parts]
    return {name: np.concatenate([to_host(rows[name]) for rows in read]) for name in read[0]}


@both
def test_a_seed_decides_all_rows(spec: DataSpec, frames: Frames) -> None:
    dataset = open_dataset(spec)
    first = made(dataset, frames)
    tested = made(dataset, frames, "test")
    for name, values in made(open_dataset(replace(spec)), frames).items():
        np.testing.assert_array_equal(values, first[name])
    assert not np.array_equal(first["x0"], made(open_dataset(replace(spec, seed=1)), frames)["x0"])
    assert len(tested["x0"]) == 1000
    assert not np.array_equal(tested["x0"], first["x0"][:1000])
    assert dataset.scan("train", ()).digest != dataset.scan("test", ()).digest
    assert (
        dataset_of({"dataset": dataset.name, **dataset.to_manifest()}).features == dataset.features
    )


@both
def test_rows_are_the_same_in_blocks_of_any_size_and_on_every_device(
    spec: DataSpec, frames: Frames
) -> None:
    dataset = open_dataset(spec)
    parts = dataset.scan("train", ()).parts
    assert [part.rows for part in parts] == [2000, 2000, 1000]
    (whole,) = merged(parts, 10_000)
    apart = made(dataset, CpuFrames())
    for name, values in dataset.read(whole, frames).items():
        np.testing.assert_array_equal(to_host(values), apart[name])
    for name in apart:
        some = dataset.read(parts[1], frames, [name])
        np.testing.assert_array_equal(to_host(some[name]), apart[name][2000:4000])


def test_numbers_are_drawn_independently_and_as_told() -> None:
    many = {"rows": 200_000, "block_rows": 60_000, "seed": 3}
    x = made(open_dataset(replace(REGRESSION, **many)), CpuFrames())
    columns = np.stack([x[f"x{at}"] for at in range(4)])
    assert kstest(columns[0], "norm").pvalue > 0.01
    assert np.abs(np.corrcoef(columns) - np.eye(4)).max() < 0.01
    assert np.abs(np.corrcoef(columns[0][:-1], columns[0][1:])[0, 1]) < 0.01
    labels = made(open_dataset(replace(BLOBS, centers=7, **many)), CpuFrames())["label"]
    assert chisquare(np.bincount(labels)).pvalue > 0.01


def test_blobs_lie_around_their_centres(frames: Frames) -> None:
    rows, tested = (made(open_dataset(BLOBS), frames, which) for which in ("train", "test"))
    for label in range(4):
        for name in ("x0", "x1", "x2"):
            inside = rows[name][rows["label"] == label]
            assert inside.std() == pytest.approx(0.5, rel=0.1)
            assert inside.mean() == pytest.approx(
                tested[name][tested["label"] == label].mean(), abs=0.2
            )


def test_the_value_of_a_regression_is_linear(frames: Frames) -> None:
    rows = made(open_dataset(REGRESSION), frames)
    x = np.stack([rows[f"x{at}"] for at in range(6)], axis=1)
    coefficients, *_ = np.linalg.lstsq(x, rows["y"], rcond=None)
    assert (rows["y"] - x @ coefficients).std() == pytest.approx(1.0, rel=0.05)
    assert np.abs(coefficients[2:]).max() < 0.1 < np.abs(coefficients[:2]).min()


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        (BLOBS, "multiclass"),
        (replace(BLOBS, centers=2), "classification"),
        (REGRESSION, "regression"),
    ],
)
def test_the_target_is_the_datasets_own(spec: DataSpec, kind: str) -> None:
    target = open_dataset(spec).target_column(None, named(kind))
    assert (target.kind.name, len(target.classes)) == (kind, getattr(spec, "centers", 0))
    with pytest.raises(TipcastError, match=f"C003.*task.target.*{target.name}, which is {kind}"):
        open_dataset(spec).target_column("x0", None)
    with pytest.raises(
        TipcastError,
        match=f"C003. task.kind: must be {kind} for column {target.name!r} of .*, got clustering",
    ):
        open_dataset(spec).target_column(None, named("clustering"))


@both
def test_gigabytes_say_how_many_rows(spec: DataSpec) -> None:
    listing = open_dataset(replace(spec, gigabytes=0.0002)).scan("train", ())
    rows = sum(part.rows or 0 for part in listing.parts)
    assert 4 * rows * (spec.columns + 1) == pytest.approx(200_000, rel=1e-3)
    assert listing.digest == open_dataset(replace(spec, rows=rows)).scan("train", ()).digest


def test_rows_to_test_on_follow_the_rows() -> None:
    for rows, tested in (
        (100, 1000),
        (5000, 1000),
        (30_000, 6000),
        (100_000, 20_000),
        (10**7, 20_000),
    ):
        spec = replace(BLOBS, rows=rows, test_rows=None, block_rows=250_000)
        assert open_dataset(spec).scan("test", ()).parts[0].rows == tested
    # more than a scheduler takes
    with pytest.raises(TipcastError, match="C003.*data.rows.*blocks"):
        open_dataset(replace(BLOBS, rows=10**12))
