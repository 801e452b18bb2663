"""What a cell in a column of numbers means is the same by every way, as the page on data tells."""

import io
import json
import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from mlflow.exceptions import MlflowException
from mlflow.types.schema import AnyType, ColSpec, Schema
from tests.unit.datasets.conftest import open_table

from tipcast.compute.frames import CpuFrames
from tipcast.config.errors import TipcastError
from tipcast.datasets import delimited
from tipcast.datasets.base import ScanRequest
from tipcast.datasets.table import Table

PAGE = Path(__file__).resolve().parents[3] / "docs" / "data.md"
BEGIN, END = "<!-- cells: tests/unit/datasets/test_cells.py -->\n\n", "\n\n<!-- end of cells -->"
CELLS = {
    "empty": "", "one blank": " ", "two blanks": "  ", "a tab": "\t", "a no-break space": "\u00a0",
    "`NA`": "NA", "`null`": "null", "`nan`": "nan", "`NAN`": "NAN", "`-`": "-", "`?`": "?", "`.`": ".",
    "`007`": "007", "`+5`": "+5", "`1e5`": "1e5", "` 12 `": " 12 ", "` NA `": " NA ", "`true`": "true",
    "`1,5`": "1,5", "`1_000`": "1_000", "`0x10`": "0x10", "`\u0661`": "\u0661",
    "`inf`": "inf", "`-inf`": "-inf", "`1e400`": "1e400",
}  # fmt: skip
NUMBERS = [f"{at % 9}.5" for at in range(39)]


def meaning(read: Callable[[], float]) -> str:
    """Return what became of a cell."""
    try:
        value = read()
    except (TipcastError, MlflowException):
        return "refused"
    if math.isnan(value):
        return "missing"
    return "no score" if math.isinf(value) else f"{value:g}"


def trained(folder: Path, cells: list[str]) -> Table:
    """Open a table whose column holds numbers and some cells."""
    texts = [*cells, *NUMBERS]
    pd.DataFrame({"a": texts, "b": ["x", "y"] * (len(texts) // 2)}).to_csv(folder / "t.csv", index=False)
    return open_table(folder / "t.csv", block_bytes=1 << 20)


def ways(table: Table, cell: str, folder: Path) -> dict[str, str]:
    """Return way to score -> what a cell means there to a model of a table."""
    from tipcast.tracking.model_code.model import _numbers, _read_csv

    rows = pd.DataFrame({"a": ["1", cell], "b": ["x", "x"]}, dtype=object)
    rows.to_csv(folder / "new.csv", index=False)
    rows.to_parquet(folder / "new.parquet")
    known = next(column for column in table.columns if column.name == "a")
    column = {"fill": None, "missing": known.missing, "booleans": known.booleans, "largest": None}
    sent = json.dumps({"columns": ["a", "b"], "data": rows.to_numpy().tolist()})

    def of_file(name: str) -> float:
        (part,) = table.scan_file(str(folder / name), ScanRequest(("a",))).fragments
        return float(table.read(part, CpuFrames(), ("a",))["a"][1])

    def of_rows(frame: pd.DataFrame) -> float:
        return float(_numbers(frame["a"], "a", column, delimited.MISSING)[1])

    def of_csv() -> pd.DataFrame:
        schema = Schema([ColSpec(AnyType(), "a")])
        return _read_csv(None, io.StringIO(rows.to_csv(index=False)), schema)

    return {
        "`score`, CSV": meaning(lambda: of_file("new.csv")),
        "`score`, Parquet": meaning(lambda: of_file("new.parquet")),
        "DataFrame": meaning(lambda: of_rows(rows)),
        "server, JSON": meaning(lambda: of_rows(pd.DataFrame(**json.loads(sent)))),
        "server, CSV": meaning(lambda: of_rows(of_csv())),
    }


@pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning")  # MLflow's, of its own classes, at import
def test_a_cell_means_the_same_by_every_way(tmp_path: Path) -> None:
    plain, lines = trained(tmp_path, ["40.5"]), []
    for shown, cell in CELLS.items():
        table = trained(tmp_path, [cell])
        known = next(column for column in table.columns if column.name == "a")
        training = "category"
        if known.type == "number":
            (part,) = table.scan("train", ("a",)).fragments
            training = meaning(lambda table=table, part=part: table.read(part, CpuFrames(), ("a",))["a"][0])  # type: ignore[misc]
            assert set(ways(table, cell, tmp_path).values()) == {training}, f"{cell!r}, which training has"
        others = ways(plain, cell, tmp_path)
        assert len(set(others.values())) == 1, f"{cell!r}: {others}"
        lines.append([shown, training.replace("no score", "row left out"), *others.values()])
    names = ["cell", "training", *others]
    rows = [names, ["---"] * len(names), *lines]
    page = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    assert PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0] == page


@pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning")
def test_files_and_models_know_the_same_numbers_and_zones() -> None:
    from tipcast.tracking.model_code import model

    assert model.NUMBERS.pattern == delimited.NUMBER
    assert model.ZONE_OF_UTC == delimited.ZONE_OF_UTC
