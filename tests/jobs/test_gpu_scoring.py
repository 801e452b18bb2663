"""Scoring, promoting and tables of one's own with backend=gpu, held against the same on the CPU:
see test_gpu.py.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tipcast.scoring.plan import MODEL_COLUMNS

pytestmark = pytest.mark.gpu
BOTH = ("cpu", "gpu")
TREES = ("xgboost", "random_forest", "xgboost_forest")
FEW = ("svc", "knn")
"""Models that score fewer than a million trips: the CPU takes a minute for more."""


@pytest.mark.parametrize("model", [*TREES, "logistic", *FEW])
def test_both_devices_score_alike(job: Callable[..., Any], tmp_path: Path, model: str) -> None:
    words = ["model.params.n_estimators=50"] if model in TREES else []
    job(
        "train",
        "backend=gpu",
        f"model={model}",
        *words,
        "data.rows=200000",
        f"tracking.register=gpu_{model}",
    )
    rows = 100_000 if model in FEW else 1_000_000
    job("prepare", f"data.rows={rows}", "data.months=2019-04", "out=trips", "row_group_rows=60000")
    (file,) = (tmp_path / "trips").glob("*.parquet")
    scored = {}
    for device in BOTH:
        out = tmp_path / f"on_{device}"
        given = [f"model_uri=models:/gpu_{model}/1", "input=trips", f"output={out}"]
        ended = job("score", f"backend={device}", *given)
        scored[device] = pq.read_table(out / file.name)
        assert ended.said["rows"] == scored[device].num_rows == pq.read_metadata(file).num_rows
        manifest = json.loads((out / "_manifest.json").read_text())
        assert manifest["device"] == device
    kept = pq.read_schema(file).names
    assert scored["gpu"].schema.equals(scored["cpu"].schema)
    for name in (*kept, *MODEL_COLUMNS):
        assert scored["gpu"][name].equals(scored["cpu"][name])
    on_cpu, on_gpu = (scored[device]["probability"].to_numpy() for device in BOTH)
    assert np.abs(on_gpu - on_cpu).max() <= 1e-5
    other = scored["gpu"]["prediction"].to_numpy() != scored["cpu"]["prediction"].to_numpy()
    assert (np.abs(on_cpu[other] - manifest["model"]["threshold"]) <= 1e-5).all()


def table_of_all_types(rows: int) -> pa.Table:
    """Return columns of the types that cuDF keeps, with nulls, NaN and an infinite value."""
    draw = np.random.default_rng(0)
    numbers = draw.normal(size=rows)
    numbers[3:5] = [np.nan, np.inf]
    null = draw.random(rows) < 0.1
    days = pa.array(draw.integers(0, 20_000, rows), pa.int32(), mask=null)
    texts = np.array(["", "a", "köln", "z" * 300])[draw.integers(0, 4, rows)]
    return pa.table(
        {
            "number": pa.array(numbers, mask=null),
            "single": pa.array(draw.normal(size=rows), pa.float32(), mask=null),
            "target": draw.integers(0, 2, rows),
            "small": pa.array(draw.integers(-9, 9, rows), pa.int8(), mask=null),
            "unsigned": pa.array(draw.integers(0, 9, rows), pa.uint16()),
            "flag": pa.array(draw.random(rows) < 0.5, mask=null),
            "text": pa.array(texts, mask=null),
            "large_text": pa.array(texts, pa.large_string()),
            "day": days.cast(pa.date32()),
            "when": pa.array(draw.integers(0, 10**15, rows), pa.timestamp("us"), mask=null),
            "milliseconds": pa.array(draw.integers(0, 10**12, rows), pa.timestamp("ms")),
            "nanoseconds": pa.array(draw.integers(0, 10**18, rows), pa.timestamp("ns")),
        }
    )


OTHER_TYPES = {
    "zone": pa.timestamp("us", tz="Europe/Berlin"),
    "decimal": pa.decimal128(24, 2),
    "bytes": pa.binary(),
}
"""Types whose columns the host writes."""


@pytest.mark.parametrize("other", ["", *OTHER_TYPES])
def test_a_gpu_writes_the_columns_as_they_are(
    job: Callable[..., Any], tmp_path: Path, other: str
) -> None:
    rows = table_of_all_types(50_000)
    if other:
        values = pa.array([b"x"] * 50_000) if other == "bytes" else pa.array(range(50_000))
        rows = rows.append_column(other, values.cast(OTHER_TYPES[other]))
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=20_000)
    given = ["data=table", "data.train=rows.parquet", "task.target=target"]
    features = "task.features=[number,small]"
    trained = job("train", *given, features, "model=xgboost")

    scored = {}
    for device in BOTH:
        uri = trained.said["model_uri"]  # not registered, so it has no version
        words = [f"model_uri={uri}", "input=rows.parquet", f"output={device}"]
        ended = job("score", f"backend={device}", *words)
        assert ended.said["scored_rows"] == 50_000
        scored[device] = pq.ParquetFile(tmp_path / device / "rows.parquet")

    on_cpu = scored["cpu"].read()
    on_gpu = scored["gpu"].read()
    assert on_gpu.schema.equals(on_cpu.schema)
    assert (
        on_gpu.select(rows.column_names)
        .to_pandas()
        .equals(on_cpu.select(rows.column_names).to_pandas())
    )
    for name in MODEL_COLUMNS:
        assert on_gpu[name].equals(on_cpu[name])
    footers = [json.loads(scored[device].metadata.metadata[b"tipcast"]) for device in BOTH]
    assert footers[0] == footers[1]
    written_by_cudf = "cudf" in scored["gpu"].metadata.created_by.lower()
    assert written_by_cudf == (not other)


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("trees", "random_forest task.features=[trip_distance,PULocationID]", "xgboost"),
        ("neighbours", "svc", "knn"),
    ],
)
def test_a_gpu_says_what_the_cpu_does(
    job: Callable[..., Any], store: str, name: str, first: str, second: str
) -> None:
    for words in (first, second):
        job(
            "train",
            "backend=gpu",
            "data.rows=20000",
            f"tracking.register={name}",
            *f"model={words}".split(),
        )
    client = mlflow.MlflowClient(store)
    said = {}
    for device in BOTH:
        client.set_registered_model_alias(name, "champion", "1")
        said[device] = job(
            "promote", f"backend={device}", f"model_uri=models:/{name}/2", "margin=0.5"
        ).said
        assert said[device]["moved"]
    for metric, value in said["cpu"]["metrics"].items():
        assert said["gpu"]["metrics"][metric] == pytest.approx(value, abs=1e-4), metric


def test_a_table_with_categories(job: Callable[..., Any], tmp_path: Path) -> None:
    """A table with texts, a boolean and missing numbers: trained on a GPU, scored on both
    devices.
    """
    r = np.random.default_rng(8)
    rows = pd.DataFrame({"size": r.normal(0, 1, 40_000), "fast": r.random(40_000) < 0.2})
    rows["town"] = pd.Series(r.choice(list("ABCDEFGH"), 40_000), dtype=object).where(
        r.random(40_000) < 0.9
    )
    rows["late"] = np.where(
        rows["size"] + 2 * rows["town"].isin(["B", "E"]) + r.normal(0, 1, 40_000) > 1, "yes", "no"
    )
    rows["size"] = rows["size"].where(r.random(40_000) < 0.9)
    file = tmp_path / "rows.parquet"
    rows.to_parquet(file)
    words = [
        "data=table",
        f"data.train={file}",
        "task.target=late",
        "task.categorical=[town]",
        "data.test_share=0.3",
    ]
    words += ["model=xgboost", "model.params.n_estimators=30"]
    auc = {
        device: job("train", f"backend={device}", *words, f"tracking.register={device}").auc
        for device in BOTH
    }
    assert auc["cpu"] > 0.75
    assert auc["gpu"] == pytest.approx(auc["cpu"], abs=0.005)
    scored = {}
    for device in BOTH:
        out = tmp_path / device
        job(
            "score",
            f"backend={device}",
            "model_uri=models:/gpu/1",
            f"input={file}",
            f"output={out}",
        )
        # it ends at some row's very score
        scored[device] = pd.read_parquet(out / file.name).drop(columns="prediction")
    pd.testing.assert_frame_equal(scored["gpu"], scored["cpu"], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("model", "target"),
    [
        ("logistic", "late"),
        ("svc", "late"),
        ("knn", "late"),
        ("random_forest", "late"),
        ("xgboost", "late"),
        ("linear", "minutes"),
        ("ridge", "minutes"),
        ("kmeans", None),
    ],
)
def test_a_gpu_learns_from_texts_beside_gaps_as_processors_do(
    job: Callable[..., Any], tmp_path: Path, model: str, target: str | None
) -> None:
    r = np.random.default_rng(8)
    rows = pd.DataFrame({"size": r.normal(0, 1, 8_000), "town": r.choice(list("ABCDEFGH"), 8_000)})
    rows["minutes"] = rows["size"] + 3 * rows["town"].isin(["B", "E"]) + r.normal(0, 1, 8_000)
    rows["late"] = np.where(rows["minutes"] > 1, "yes", "no")
    rows["size"] = rows["size"].where(r.random(8_000) < 0.9)
    rows.to_parquet(tmp_path / "rows.parquet")

    words = [
        "data=table",
        f"data.train={tmp_path}/rows.parquet",
        f"model={model}",
        "task.features=[size,town]",
    ]
    words += ["data.test_share=0.3"] + ([f"task.target={target}"] if target else [])
    said = {device: job("train", f"backend={device}", *words).said["metrics"] for device in BOTH}

    headline = {"minutes": "test/r2", "late": "test/auc"}.get(target or "", "test/inertia")
    assert said["gpu"][headline] == pytest.approx(said["cpu"][headline], abs=0.05)
    if target:
        assert said["cpu"][headline] > {"minutes": 0.4, "late": 0.8}[target]
