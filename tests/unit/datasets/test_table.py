"""Anybody's tables: what columns hold, how rows are split, and what a saved model knows of them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask.dataframe
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tipcast import api
from tipcast.compute.frames import CpuFrames
from tipcast.config.errors import TipcastError
from tipcast.config.schema import TableData, TaskSpec
from tipcast.datasets import parquet
from tipcast.datasets.base import ScanRequest
from tipcast.datasets.rows import Recipe, draw_all, prepare_fragment
from tipcast.datasets.split import Draw
from tipcast.datasets.table import Table
from tipcast.tasks.base import make_task

HOURS = 300


def frame() -> pd.DataFrame:
    """A table with a column of each type."""
    draw = np.random.default_rng(0)
    found = pd.DataFrame(
        {
            "size": draw.normal(size=HOURS),
            "count": draw.integers(0, 100, HOURS),
            "word": draw.choice(["pear", "fig", "apple"], HOURS),
            "flag": draw.random(HOURS) > 0.5,
            "at": pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(HOURS), unit="h"),
            "class": draw.choice([3, 7], HOURS),
            "price": draw.normal(size=HOURS),
        }
    )
    found.loc[3, "word"] = None
    found.loc[4, "size"] = np.nan
    found.loc[5, "price"] = np.nan
    return found


@pytest.fixture(params=["parquet", "csv"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Table]:
    """Write the table in a format, in several parts, and open it."""

    def opened(**settings: Any) -> Table:
        path = tmp_path / f"table.{request.param}"
        if request.param == "parquet":
            frame().to_parquet(path, index=False, row_group_size=80)
        else:
            frame().to_csv(path, index=False)
        return Table.open(
            TableData("table", str(path), **{"test": None, "test_share": 0.2, "block_bytes": 4096} | settings)
        )

    return opened


def task(table: Table, target: str, **settings: Any) -> Any:
    """A task of one column."""
    return make_task(TaskSpec(**{"name": "target", "target": target, "validation": 0.0} | settings), table)


def rows_of(table: Table, recipe: Recipe, which: str = "train") -> tuple[pd.DataFrame, Any, list[int]]:
    """Read a side's first part: features, target, and rows of each part."""
    listing = table.scan(which, recipe.columns)
    parts = [prepare_fragment(fragment, CpuFrames(), recipe) for fragment in listing.fragments]
    y = None if parts[0][0].y is None else pd.concat([part[0].y for part in parts], ignore_index=True)
    x = pd.concat([part[0].x for part in parts], ignore_index=True)
    return x, y, [sum(part[side].counts.rows for part in parts) for side in range(len(parts[0]))]


def test_columns_by_their_type(table: Callable[..., Table]) -> None:
    opened = table()
    kinds = {column.name: column.type for column in opened.columns}
    assert kinds == {name: "number" for name in ("size", "count", "flag", "class", "price")} | {"word": "category"}
    assert next(column for column in opened.columns if column.name == "word").categories == ("apple", "fig", "pear")
    assert opened.notes == ("column at is no feature: a time is split by with data.time=",)


def test_features_of_each_type(table: Callable[..., Table]) -> None:
    opened = table()
    asked = task(opened, "class")
    assert asked.features == ("size", "count", "word", "flag", "price")
    x, y, _ = rows_of(opened, Recipe(opened, asked))
    expected = frame()
    assert (asked.kind, asked.classes) == ("classification", ("3", "7"))
    assert y.dtype == np.int32
    assert y.tolist() == (expected["class"] == 7).astype(int).tolist()
    assert x.dtypes.unique().tolist() == [np.dtype("float32")]
    codes = expected["word"].map({"apple": 0, "fig": 1, "pear": 2}).fillna(-1)
    assert x["word"].tolist() == codes.tolist()
    assert x["flag"].tolist() == expected["flag"].astype(int).tolist()
    assert not x.isna().any(axis=None)
    known = expected["size"].notna()
    np.testing.assert_allclose(x["size"][known], expected["size"][known].astype(np.float32))


@pytest.mark.parametrize(
    ("target", "kind", "found"),
    [
        ("class", None, "classification"),
        ("word", None, "multiclass"),
        ("flag", None, "classification"),
        ("price", None, "regression"),
        ("count", None, "regression"),
        ("count", "multiclass", "multiclass"),
        ("class", "regression", "regression"),
    ],
)
def test_the_kind_is_what_the_column_says(
    table: Callable[..., Table], target: str, kind: str | None, found: str
) -> None:
    opened = table()
    asked = task(opened, target, kind=kind)
    assert asked.kind == found
    assert target not in asked.features
    _, y, _ = rows_of(opened, Recipe(opened, asked))
    missing = int(frame()[target].isna().sum())
    assert len(y) == HOURS - missing, "a row without an answer is dropped"
    assert y.dtype == (np.float64 if found == "regression" else np.int32)
    if found != "regression":
        assert sorted(set(y)) == list(range(len(asked.classes)))


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"target": "word", "kind": "regression"}, "C003"),
        ({"target": "word", "kind": "classification"}, "C003"),
        ({"target": "weight"}, "D007"),
        ({"target": "word", "classes": ["apple", "pear"]}, "C003"),
        ({"target": None}, "C004"),
        ({"target": "class", "features": ["size", "class"]}, "C003"),
        ({"target": "class", "features": ["weight"]}, "C003"),
    ],
)
def test_what_cannot_be_asked(table: Callable[..., Table], settings: dict[str, Any], code: str) -> None:
    with pytest.raises(TipcastError) as caught:
        task(table(), **settings)
    assert caught.value.code == code


def test_numbers_are_categories_where_xgboost_takes_them_so(table: Callable[..., Table]) -> None:
    opened = table().with_categories(["count", "word"])
    gap = opened.compute({"count": np.array([3.0, np.nan])}, ["count"], np)
    assert gap.tolist() == [[3.0], [-1.0]]  # a missing number is no category, where elsewhere it is the median
    assert table().compute({"count": np.array([np.nan])}, ["count"], np)[0] > 0
    with pytest.raises(TipcastError, match=r"C003.*task.categorical.*whole numbers from 0: not 'size'"):
        opened.with_categories(["size"])


def test_more_numbers_than_texts_may_be_are_no_categories(tmp_path: Path) -> None:
    pd.DataFrame({"id": range(10_002), "price": 1.5}).to_parquet(tmp_path / "ids.parquet")
    opened = Table.open(TableData("table", str(tmp_path / "ids.parquet"), test=None, test_share=0.2))
    with pytest.raises(TipcastError, match=r"C003.*at most 10,000 whole numbers from 0: not 'id'"):
        opened.with_categories(["id"])


def test_nulls_are_counted_where_a_footer_has_no_statistics(tmp_path: Path) -> None:
    values = pa.table({"size": pa.array([None] * 4, pa.int32()), "price": pa.array([1.0, None, 3.0, 4.0])})
    pq.write_table(values, tmp_path / "bare.parquet", write_statistics=False)
    opened = Table.open(TableData("table", str(tmp_path / "bare.parquet"), test=None, test_share=0.2))
    assert {row["column"]: row["missing"] for row in opened.report} == {"size": 4, "price": 1}
    assert opened.features == ("price",)


def test_a_column_without_a_name_is_no_feature(tmp_path: Path) -> None:
    pq.write_table(pa.table({"": [1.0, 2.0], "x": [1.0, 3.0]}), tmp_path / "t.parquet")
    opened = Table.open(TableData("table", str(tmp_path / "t.parquet"), test=None, test_share=0.2))
    assert opened.features == ("x",)
    assert "column '' is no feature: it has no name" in opened.notes


def test_a_footer_tells_nulls_of_a_column_only_if_all_row_groups_do(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1.0, None], "y": [None, None]}), tmp_path / "t.parquet", row_group_size=1)
    read = parquet.read_footer(str(tmp_path / "t.parquet"), ScanRequest(())).metadata
    told = [read.row_group(at) for at in range(2)]
    bare = SimpleNamespace(column=lambda at: SimpleNamespace(path_in_schema="xy"[at], statistics=None))
    for groups, nulls in ((told, {"x": 1, "y": 2}), ([told[0], bare], {"y": 2})):  # y's type tells that it is empty
        sizes = {"num_row_groups": 2, "num_columns": 2, "num_rows": 2}
        metadata = SimpleNamespace(row_group=groups.__getitem__, schema=read.schema, **sizes)
        assert parquet.Footer("t", {}, metadata, "").nulls == nulls


def test_values_of_texts_that_were_looked_at_are_not_read_again(tmp_path: Path) -> None:
    pd.DataFrame({"y": [0, 1, 1.5] * 50, "x": [3, 1, 2] * 50}).to_csv(tmp_path / "t.csv", index=False)
    opened = Table.open(TableData("table", str(tmp_path / "t.csv"), test=None, test_share=0.2, block_bytes=4096))
    (tmp_path / "t.csv").unlink()
    assert opened.target_column("x", None).classes == ("1", "2", "3")
    assert opened.with_categories(["x"]).columns[1].fill is None
    with pytest.raises(TipcastError, match="C003.*not 'y'"):
        opened.with_categories(["y"])
    assert pickle.loads(pickle.dumps(opened)).seen == {}


@pytest.mark.parametrize(("value", "shown"), [(1, "1"), ("yes", "yes")])
@pytest.mark.parametrize("kind", [None, "classification"])
def test_a_target_of_one_value(tmp_path: Path, value: object, shown: str, kind: str | None) -> None:
    pd.DataFrame({"x": range(300), "y": value}).to_csv(tmp_path / "const.csv", index=False)
    opened = Table.open(TableData("table", str(tmp_path / "const.csv"), test=None, test_share=0.2, block_bytes=4096))
    with pytest.raises(TipcastError, match=rf"all rows of column 'y' have the same value \({shown}\)") as caught:
        task(opened, "y", kind=kind)
    assert caught.value.code == "D015"


@pytest.mark.parametrize(("target", "shares"), [("class", None), ("word", None), ("price", [60, 36, 203])])
def test_a_random_split_has_exact_shares_and_is_the_same_whatever_holds_the_rows(
    tmp_path: Path, target: str, shares: list[int] | None
) -> None:
    rows, found = frame().assign(id=range(HOURS)), []
    rows.loc[7, "size"] = np.inf  # of use to no model: the others are drawn as if it were there
    rows.to_parquet(tmp_path / "a.parquet", row_group_size=80)
    rows.to_csv(tmp_path / "a.csv", index=False)
    (tmp_path / "many").mkdir()
    for number, at in enumerate(range(0, HOURS, 23)):
        rows.iloc[at : at + 23].to_parquet(tmp_path / "many" / f"{number:02}.parquet")
    api._written(dask.dataframe.from_pandas(rows, npartitions=12), tmp_path / "frame", "train")
    for name in ("a.parquet", "a.csv", "many", "frame"):
        opened = Table.open(TableData("table", str(tmp_path / name), test=None, test_share=0.2, block_bytes=4096))
        for features in (["id"], ["id", "size"]):
            recipe = Recipe(opened, task(opened, target, features=features), draw=Draw(1, 0.2, 0.15))
            fragments = opened.scan("train", recipe.columns).fragments
            parts = draw_all([prepare_fragment(fragment, CpuFrames(), recipe) for fragment in fragments], recipe)
            sides = [[int(row) for part in parts for row in part[side].x["id"]] for side in range(3)]
            assert name == "a.parquet" or len(fragments) > 1
            found.append([[row for row in side if row != 7] for side in sides])
            if features == ["id"]:
                counts = rows[target].map(str).where(rows[target].notna()).value_counts()
                expected = {name: round(count * 0.2) for name, count in counts.items()}
                of_class = rows[target].iloc[sides[0]].map(str).value_counts().to_dict()
                assert shares == [*map(len, sides)] if shares else of_class == expected
    assert found == [found[0]] * 8
    assert sorted(sum(found[0], [7])) == rows.index[rows[target].notna()].tolist()


def test_a_time_splits(table: Callable[..., Table]) -> None:
    opened = table(time="at")
    assert opened.test_share == 0
    assert "at" not in opened.features
    recipe = Recipe(opened, task(opened, "class"))
    listings = [opened.scan(which, recipe.columns) for which in ("train", "test")]
    assert listings[0].period[1] == listings[1].period[0]
    parts = [fragment.part for listing in listings for fragment in listing.fragments]
    assert len(parts) <= len(table().scan("train", ("class",)).fragments) + 1, "one at the border is of both sides"
    rows = [rows_of(opened, recipe, which)[2][0] for which in ("train", "test")]
    assert sum(rows) == HOURS
    assert rows[1] == pytest.approx(0.2 * HOURS, abs=2)


def test_other_files_must_have_the_same_columns(table: Callable[..., Table], tmp_path: Path) -> None:
    other = frame().assign(size=pd.Timestamp("2020-01-01"))
    other.to_parquet(tmp_path / "other.parquet")
    frame().drop(columns="count").to_parquet(tmp_path / "less.parquet")
    recipe = Recipe(opened := table(), task(opened, "class"))
    for name, code, column in (("other", "D008", "size"), ("less", "D007", "count")):
        with pytest.raises(TipcastError, match=f"{name}.parquet.*'{column}'") as caught:
            table(test=str(tmp_path / f"{name}.parquet")).scan("test", recipe.columns)
        assert caught.value.code == code


def test_rows_are_read_with_the_codes_and_fillings_of_a_saved_model(table: Callable[..., Table]) -> None:
    known = {"word": {"type": "category", "categories": ["fig", "apple"], "fill": None}}
    known |= {"size": {"type": "number", "categories": [], "fill": 7.0}, "gone": {"type": "number"}}
    opened = table().as_trained({"columns": [{"name": name, **column} for name, column in known.items()]})
    x, _, _ = rows_of(opened, Recipe(opened, task(opened, "class", features=["word", "size", "count"])))
    assert x["word"].tolist() == frame()["word"].map({"fig": 0, "apple": 1}).fillna(-1).tolist()
    assert x["size"][4] == 7
    assert x["count"].tolist() == frame()["count"].tolist()


def test_a_saved_model_knows_its_columns(table: Callable[..., Table]) -> None:
    opened = table(time="at")
    again = Table.of_model(opened.facts())
    assert again.columns == opened.columns
    assert again.time == "at"
    raw = opened.raw_frame({"word": np.array([0.0, np.nan, 2.0]), "size": np.ones(3)}, {})
    assert raw["word"].tolist()[::2] == ["apple", "pear"]
    assert raw["word"].isna().tolist() == [False, True, False]
