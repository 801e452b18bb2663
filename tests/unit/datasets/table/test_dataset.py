"""Anybody's tables: what columns hold, how rows are split, and what a saved model knows of them."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dask.dataframe
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.datasets.conftest import open_table

from tipcast.compute.frames import CpuFrames
from tipcast.config.errors import TipcastError
from tipcast.config.schema import TaskSpec
from tipcast.datasets.dataframe import write_dataframe
from tipcast.datasets.prepare import Recipe, draw_all, prepare_part
from tipcast.datasets.random_split import Draw
from tipcast.datasets.table.dataset import Table
from tipcast.tasks.kinds import Multiclass
from tipcast.tasks.make import make_task

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
        return open_table(path, **settings)

    return opened


def task(table: Table, target: str, **settings: Any) -> Any:
    """A task of one column."""
    return make_task(
        TaskSpec(**{"name": "target", "target": target, "validation": 0.0} | settings), table
    )


def rows_of(table: Table, recipe: Recipe, which: str = "train") -> tuple[Any, Any]:
    """Read a side: features and target."""
    parts = table.scan(which, recipe.columns).parts
    prepared = [prepare_part(part, CpuFrames(), recipe)[0] for part in parts]
    return pd.concat([rows.x for rows in prepared], ignore_index=True), pd.concat(
        [rows.y for rows in prepared]
    )


def test_features_of_each_type(table: Callable[..., Table]) -> None:
    opened = table()
    kinds = {column.name: column.type for column in opened.columns}
    assert kinds == {name: "number" for name in ("size", "count", "flag", "class", "price")} | {
        "word": "category"
    }
    assert opened.columns[2].categories == ("apple", "fig", "pear")
    assert opened.notes == (
        "column at is no feature: it holds times, by which data.time= can split the rows",
        "at could be a date: data.types.at=date",
    )
    asked = task(opened, "class")
    expected = frame()
    assert asked.features == ("size", "count", "word", "flag", "price")
    x, y = rows_of(opened, Recipe(opened, asked))
    assert (asked.kind.name, asked.classes) == ("classification", ("3", "7"))
    assert y.tolist() == (expected["class"] == 7).astype(int).tolist()
    assert x.dtypes.unique().tolist() == [np.dtype("float32")]
    codes = expected["word"].map({"apple": 0, "fig": 1, "pear": 2})
    np.testing.assert_array_equal(x["word"], codes)
    assert x["flag"].tolist() == expected["flag"].astype(int).tolist()
    known = expected["size"].notna()
    np.testing.assert_allclose(x["size"][known], expected["size"][known].astype(np.float32))


class Ordinal(Multiclass):
    """A user's kind: classes in an order."""

    name = "ordinal"


def test_a_kind_of_a_user_s_own_takes_a_column_of_classes(table: Callable[..., Table]) -> None:
    target = table().target_column("word", Ordinal())
    assert target.kind == Ordinal()
    assert target.classes == ("apple", "fig", "pear")


def test_the_kind_is_what_the_column_says(table: Callable[..., Table]) -> None:
    opened = table()
    for target, kind, expected in [
        ("class", None, "classification"),
        ("word", None, "multiclass"),
        ("flag", None, "classification"),
        ("count", None, "regression"),
        ("price", None, "regression"),
        ("count", "multiclass", "multiclass"),
        ("class", "regression", "regression"),
    ]:
        asked = task(opened, target, kind=kind)
        assert (asked.kind.name, target in asked.features) == (expected, False)
        _, y = rows_of(opened, Recipe(opened, asked))
        assert len(y) == frame()[target].notna().sum(), "a row without an answer is dropped"
        assert y.dtype == (np.float64 if expected == "regression" else np.int32)
        assert expected == "regression" or sorted(set(y)) == list(range(len(asked.classes)))
    for code, settings in [
        ("C003", {"target": "word", "kind": "regression"}),
        ("C003", {"target": "word", "kind": "classification"}),
        ("C003", {"target": "word", "classes": ["apple", "pear"]}),
        ("D007", {"target": "weight"}),
        ("C003", {"target": "class", "features": ["size", "class"]}),
        ("C004", {"target": None}),
        ("C003", {"target": "class", "features": ["weight"]}),
    ]:
        with pytest.raises(TipcastError, match=code):
            task(opened, **settings)


def test_numbers_are_categories_where_xgboost_takes_them_so(tmp_path: Path) -> None:
    columns = {"id": range(10_002), "size": 1.5, "count": np.arange(10_002) % 9}
    pd.DataFrame(columns).to_parquet(tmp_path / "t.parquet")
    opened = open_table(tmp_path / "t.parquet")
    opened.check_categories(["count"])
    for name in ("id", "size"):
        with pytest.raises(
            TipcastError,
            match=f"C003.*task.categorical.*at most 10,000 whole .* from 0: not '{name}'",
        ):
            opened.check_categories([name])


GAPS = pd.DataFrame(
    {
        "size": [1.0, None, 5.0, 3.0],
        "count": [1, 2, 3, 4],
        "town": ["b", None, "a", "b"],
        "y": [0.5, 1.5, 2.5, 3.5],
    }
)


def encoded(
    tmp_path: Path, *, categorical: Sequence[str] = (), **wishes: bool
) -> tuple[Any, pd.DataFrame, Any]:
    """Return the table of ``GAPS``, its features as a model with these wishes gets them, and the
    task.
    """
    GAPS.to_parquet(tmp_path / "gaps.parquet")
    opened = open_table(tmp_path / "gaps.parquet")
    opened, asked = opened.encoded(task(opened, "y", categorical=list(categorical)), **wishes)
    x, _ = rows_of(opened, Recipe(opened, asked))
    return opened, x, asked


def test_a_model_that_learns_from_missing_values_gets_them_as_nan(tmp_path: Path) -> None:
    _, x, asked = encoded(tmp_path, takes_missing=True, one_hot=False)
    assert asked.features == ("size", "count", "town")
    np.testing.assert_array_equal(x["size"], [1, np.nan, 5, 3])
    np.testing.assert_array_equal(x["town"], [1, np.nan, 0, 1])


def test_another_model_gets_the_median_and_a_feature_that_says_where(tmp_path: Path) -> None:
    _, x, asked = encoded(tmp_path, takes_missing=False, one_hot=False)
    assert asked.features == ("size", "count", "town", "size is missing")
    assert x["size"].tolist() == [1, 3, 5, 3]
    assert x["size is missing"].tolist() == [0, 1, 0, 0]


def test_a_forest_gets_codes_with_minus_one_for_a_missing_text(tmp_path: Path) -> None:
    _, x, asked = encoded(tmp_path, takes_missing=False, one_hot=False)
    assert asked.categorical == ()
    assert x["town"].tolist() == [1, -1, 0, 1]


def test_texts_are_categories_of_a_model_that_wants_a_column_for_each(tmp_path: Path) -> None:
    _, x, asked = encoded(tmp_path, takes_missing=False, one_hot=True)
    assert asked.categorical == ("town",)
    np.testing.assert_array_equal(x["town"], [1, np.nan, 0, 1])


def test_numbers_that_are_categories_keep_their_gaps(tmp_path: Path) -> None:
    _, x, asked = encoded(tmp_path, categorical=["size"], takes_missing=False, one_hot=True)
    assert asked.categorical == ("size", "town")
    np.testing.assert_array_equal(x["size"], [1, np.nan, 5, 3])


def test_the_table_of_columns_says_how_the_model_gets_them(tmp_path: Path) -> None:
    opened, _, _ = encoded(tmp_path, takes_missing=False, one_hot=True)
    assert {row["column"]: row["given to the model"] for row in opened.report} == {
        "size": "3, the median, where missing; feature 'size is missing' marks these rows",
        "count": "as it is; 2.5, the median, if missing in a new row",
        "town": "a 0/1 column for each of 2 texts; all 0 for a missing or new one",
        "y": "",
    }


def test_nan_of_parquet_that_no_footer_counts_gets_an_indicator(tmp_path: Path) -> None:
    values = pa.table(
        {"size": pa.array([1.0, np.nan, 2.0], from_pandas=False), "y": [1.5, 2.5, 3.5]}
    )
    pq.write_table(values, tmp_path / "nan.parquet")
    opened = open_table(tmp_path / "nan.parquet")
    opened, asked = opened.encoded(task(opened, "y"), takes_missing=False, one_hot=False)
    assert asked.features == ("size", "size is missing")


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.float16()])
@pytest.mark.parametrize("gap", [np.nan, None])
@pytest.mark.parametrize("at", range(6))
def test_a_gap_in_any_of_six_parts_gets_an_indicator(
    tmp_path: Path, at: int, gap: float | None, kind: pa.DataType
) -> None:
    """Medians are those of four parts, which need not have it."""
    for part in range(6):
        sizes = [1.0, gap if part == at else 2.0, 3.0]
        values = {"size": pa.array(sizes, kind), "count": [1, 2, 3], "y": [1.5, 2.5, 3.5]}
        pq.write_table(pa.table(values), tmp_path / f"{part}.parquet")
    opened = open_table(tmp_path)
    _, asked = opened.encoded(task(opened, "y"), takes_missing=False, one_hot=False)
    assert asked.features == ("size", "count", "size is missing")


def test_a_part_with_whole_numbers_may_stand_beside_one_with_a_gap(tmp_path: Path) -> None:
    for part, sizes in enumerate([[1, 2], [3, 4], [1.0, np.nan], [5, 6], [7, 8], [9, 10]]):
        values = {"size": pa.array(sizes, from_pandas=False), "y": [1.5, 2.5]}
        pq.write_table(pa.table(values), tmp_path / f"{part}.parquet")
    opened = open_table(tmp_path)
    _, asked = opened.encoded(task(opened, "y"), takes_missing=False, one_hot=False)
    assert asked.features == ("size", "size is missing")


def test_a_wide_table_is_looked_at_some_columns_at_a_time(tmp_path: Path) -> None:
    names = [f"x{at}" for at in range(40)]
    for part in range(6):
        wide = {name: [1.0, np.nan if part == 2 and name == "x39" else 2.0] for name in names}
        pq.write_table(pa.table({**wide, "y": [1.5, 2.5]}), tmp_path / f"{part}.parquet")
    opened = open_table(tmp_path)
    _, asked = opened.encoded(task(opened, "y"), takes_missing=False, one_hot=False)
    assert asked.features == (*names, "x39 is missing")


def test_an_indicator_takes_no_name_that_a_column_has(tmp_path: Path) -> None:
    GAPS.assign(**{"size is missing": 7.0}).to_parquet(tmp_path / "t.parquet")
    opened = open_table(tmp_path / "t.parquet")
    opened, asked = opened.encoded(task(opened, "y"), takes_missing=False, one_hot=False)
    assert asked.features == ("size", "count", "town", "size is missing", "size is missing_")
    assert opened.needed_columns(asked.features) == ("size", "count", "town", "size is missing")


@pytest.mark.parametrize(
    ("target", "shares"), [("class", None), ("word", None), ("price", [60, 36, 203])]
)
def test_a_random_split_has_exact_shares_and_is_the_same_whatever_holds_the_rows(
    tmp_path: Path, target: str, shares: list[int] | None
) -> None:
    rows = frame().assign(id=range(HOURS))
    found = []
    rows.loc[7, "size"] = np.inf  # of use to no model: the others are drawn as if it were there
    rows.to_parquet(tmp_path / "a.parquet", row_group_size=80)
    rows.to_csv(tmp_path / "a.csv", index=False)
    (tmp_path / "many").mkdir()
    for number, at in enumerate(range(0, HOURS, 23)):
        rows.iloc[at : at + 23].to_parquet(tmp_path / "many" / f"{number:02}.parquet")
    write_dataframe(dask.dataframe.from_pandas(rows, npartitions=12), tmp_path / "frame", "train")
    for name in ("a.parquet", "a.csv", "many", "frame"):
        opened = open_table(tmp_path / name)
        for features in (["id"], ["id", "size"]):
            recipe = Recipe(
                opened, task(opened, target, features=features), draw=Draw(1, 0.2, 0.15)
            )
            parts = opened.scan("train", recipe.columns).parts
            drawn = draw_all([prepare_part(part, CpuFrames(), recipe) for part in parts], recipe)
            sides = [
                [int(row) for splits in drawn for row in splits[side].x["id"]] for side in range(3)
            ]
            assert name == "a.parquet" or len(parts) > 1
            found.append([[row for row in side if row != 7] for side in sides])
            if features == ["id"]:
                counts = rows[target].map(str).where(rows[target].notna()).value_counts()
                expected = {name: round(count * 0.2) for name, count in counts.items()}
                of_class = rows[target].iloc[sides[0]].map(str).value_counts().to_dict()
                assert shares == [*map(len, sides)] if shares else of_class == expected
    assert found == [found[0]] * 8
    assert sorted(sum(found[0], [7])) == rows.index[rows[target].notna()].tolist()


def test_both_sides_are_listed_from_the_one_scan_of_the_training_files(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    frame().to_csv(path, index=False)
    opened = open_table(path, block_bytes=4096)
    path.unlink()
    listings = [opened.scan(which, ("size", "word")) for which in ("train", "test")]
    assert listings[0].parts == listings[1].parts
    assert len(listings[0].parts) > 1


def test_a_time_splits(table: Callable[..., Table]) -> None:
    opened = table(time="at")
    assert opened.test_share == 0
    assert "at" not in opened.features
    recipe = Recipe(opened, task(opened, "class"))
    listings = [opened.scan(which, recipe.columns) for which in ("train", "test")]
    assert listings[0].period[1] == listings[1].period[0]
    extents = [part.extent for listing in listings for part in listing.parts]
    assert len(extents) <= len(table().scan("train", ("class",)).parts) + 1, (
        "one at the border is of both sides"
    )
    rows = [len(rows_of(opened, recipe, which)[0]) for which in ("train", "test")]
    assert sum(rows) == HOURS
    assert rows[1] == pytest.approx(0.2 * HOURS, abs=2)


def test_a_file_without_any_time_is_named_where_times_split(tmp_path: Path) -> None:
    (tmp_path / "months").mkdir()
    empty = pd.Series([None] * 20, dtype="datetime64[us]")
    for name, times in (("a", pd.date_range("2020-01-01", periods=20)), ("b", empty)):
        rows = pd.DataFrame({"at": times, "x": range(20)})
        rows.to_parquet(tmp_path / "months" / f"{name}.parquet")
    opened = open_table(tmp_path / "months", time="at")
    with pytest.raises(
        TipcastError, match=r"^error\[D010\] \S*/b.parquet: column 'at' is empty\. "
    ):
        opened.scan("train", ("x",))


@pytest.mark.parametrize(("texts", "refused"), [(1000, False), (1001, True)])
def test_a_target_of_more_than_a_thousand_texts_is_not_taken_for_classes(
    tmp_path: Path, texts: int, refused: bool
) -> None:
    words = [f"w{row % texts}" for row in range(3 * texts)]
    pd.DataFrame({"word": words, "x": 0.5}).to_parquet(tmp_path / "t.parquet")
    opened = open_table(tmp_path / "t.parquet")
    says = "C003. task.target: column 'word' has 1,001 distinct values, unsuitable for classes"
    with pytest.raises(TipcastError, match=says) if refused else contextlib.nullcontext():
        assert len(opened.target_column("word", None).classes) == 1000


def test_rows_are_read_with_the_codes_and_fillings_of_a_saved_model(
    table: Callable[..., Table],
) -> None:
    known = {
        "word": {"type": "category", "categories": ["fig", "apple"], "fill": -1.0, "indicator": ""}
    }
    known |= {
        "size": {"type": "number", "categories": [], "fill": 7.0, "indicator": "size is missing"}
    }
    known |= {"gone": {"type": "number"}}
    opened = table().as_trained(
        {"columns": [{"name": name, **column} for name, column in known.items()]}
    )
    x, _ = rows_of(
        opened, Recipe(opened, task(opened, "class", features=["word", "size", "count"]))
    )
    assert x["word"].tolist() == frame()["word"].map({"fig": 0, "apple": 1}).fillna(-1).tolist()
    assert x["size"][4] == 7
    assert x["count"].tolist() == frame()["count"].tolist()
