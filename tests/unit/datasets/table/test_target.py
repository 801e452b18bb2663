"""A column that cannot be the target is refused with what helps."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.unit.datasets.conftest import open_table

from tipcast.config.errors import TipcastError
from tipcast.datasets.table.dataset import Table
from tipcast.tasks.kinds import named_by

AN_IDENTIFIER = r"task.target: .* Fix: use a column with fewer values .*an identifier names rows"


def opened(folder: Path, values: Any, **settings: Any) -> Table:
    """Open a table whose column ``a`` has some values."""
    pd.DataFrame({"a": values, "x": 0.5}).to_parquet(folder / "rows.parquet")
    return open_table(folder / "rows.parquet", **settings)


def test_a_text_of_more_values_than_classes_may_be_an_identifier(tmp_path: Path) -> None:
    table = opened(tmp_path, [f"w{row % 1001}" for row in range(3003)])
    with pytest.raises(TipcastError, match=AN_IDENTIFIER + ".*for regression one of numbers"):
        table.target_column("a", None)


def test_a_text_of_more_values_than_categories_may_be_an_identifier(tmp_path: Path) -> None:
    table = opened(tmp_path, [f"w{row}" for row in range(10_001)])
    with pytest.raises(TipcastError, match=AN_IDENTIFIER):
        table.target_column("a", None)


@pytest.mark.parametrize(
    ("values", "kind", "says"),
    [
        (
            ["a", "b", "c"],
            "regression",
            "unsuitable for regression. Fix: .*use a column of numbers",
        ),
        (["a", "b", "c"], "classification", "3 distinct values.* Fix: leave task.kind out$"),
        ([1, 2, 3], "classification", "Fix: leave task.kind out, or use regression$"),
        (
            range(3000),
            "multiclass",
            "more than 1,000 distinct.* for regression leave task.kind out$",
        ),
        (
            [f"{price},50" for price in range(3000)],
            "multiclass",
            "3,000 distinct.* Fix: if the comma is the decimal sign, set data.decimal=,$",
        ),
    ],
)
def test_a_kind_that_does_not_fit_says_what_does(
    tmp_path: Path, values: Any, kind: str, says: str
) -> None:
    rows = list(values) * (1 if len(values) > 1000 else 20)
    table = opened(tmp_path, rows)
    with pytest.raises(TipcastError, match=rf"C003. task.kind: column 'a' has .*{says}"):
        table.target_column("a", named_by(kind))


@pytest.mark.parametrize("ending", ["csv", "parquet", "text"])
def test_a_column_of_empty_times_is_empty_in_every_format(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"rows.{'csv' if ending == 'csv' else 'parquet'}"
    kind = "string" if ending == "text" else "datetime64[us]"
    rows = pd.DataFrame({"at": pd.Series([None] * 60, dtype=kind), "x": range(60)})
    rows.to_csv(path, index=False) if ending == "csv" else rows.to_parquet(path)
    with pytest.raises(TipcastError) as caught:
        open_table(path, time="at")
    assert str(caught.value) == f"error[D010] {path}: column 'at' is empty. Fix: check data.time"
