"""Texts in two Unicode forms are one value; what is in one form already stays as it is."""

import unicodedata
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.datasets.conftest import open_table

from tipcast.compute.frames import CpuFrames
from tipcast.config.errors import TipcastError
from tipcast.datasets.listing import ScanRequest
from tipcast.datasets.table import features as table_features
from tipcast.datasets.text_form import column_in_one_form

TOWNS = ["Köln", "Bonn", "Nîmes"]
FORMS = ("NFC", "NFD")


def in_form(form: str, texts: list[str]) -> list[str]:
    return [unicodedata.normalize(form, text) for text in texts]


def test_texts_of_two_forms_become_one() -> None:
    texts = [*in_form("NFD", TOWNS), None, *in_form("NFC", TOWNS)]
    column = pa.chunked_array([texts, texts[1:]])
    assert column_in_one_form(column).to_pylist() == [
        *TOWNS,
        None,
        *TOWNS,
        *TOWNS[1:],
        None,
        *TOWNS,
    ]


@pytest.mark.parametrize("texts", [["Bonn", None], TOWNS, [], [None]])
def test_a_column_of_one_form_is_not_copied(texts: list[str]) -> None:
    column = pa.chunked_array([pa.array(texts, pa.string())])
    assert column_in_one_form(column) is column


def test_rows_of_a_slice_alone_decide() -> None:
    column = pa.chunked_array([pa.array([*in_form("NFD", TOWNS), "Ulm"]).slice(3)])
    assert column_in_one_form(column) is column


@pytest.mark.parametrize("ending", ["csv", "parquet", "dictionary"])
def test_two_forms_of_a_text_are_one_category(tmp_path: Path, ending: str) -> None:
    texts = [text for form in FORMS for text in in_form(form, TOWNS)] * 10
    rows = pd.DataFrame({"town": texts, "y": range(60)})
    path = tmp_path / f"rows.{'csv' if ending == 'csv' else 'parquet'}"
    if ending == "csv":
        rows.to_csv(path, index=False)
    else:
        table = pa.Table.from_pandas(rows, preserve_index=False)
        if ending == "dictionary":
            table = table.set_column(0, "town", table["town"].dictionary_encode())
        pq.write_table(table, path)

    dataset = open_table(path)
    assert dataset.target_column("town", None).classes == tuple(sorted(TOWNS))
    (part,) = dataset.scan("train", ("town",)).parts
    codes = dataset.read(part, CpuFrames(), ("town",))["town"]
    assert np.array_equal(codes, np.resize([1, 0, 2], 60))


def test_a_text_for_nothing_among_numbers_has_two_forms(tmp_path: Path) -> None:
    texts = [f"{number}.5" for number in range(60)]
    texts[::10] = ["künftig"] * 6
    pd.DataFrame({"a": texts, "y": range(60)}).to_csv(tmp_path / "rows.csv", index=False)
    dataset = open_table(tmp_path / "rows.csv")
    new = pd.DataFrame({"a": in_form("NFD", ["künftig"]), "y": 0})
    new.to_csv(tmp_path / "new.csv", index=False)
    (part,) = dataset.scan_file(str(tmp_path / "new.csv"), ScanRequest(("a",))).parts
    assert np.isnan(dataset.read(part, CpuFrames(), ("a",))["a"]).tolist() == [True]


@pytest.mark.parametrize("saved", FORMS)
@pytest.mark.parametrize("sent", FORMS)
def test_rows_for_a_model_have_either_form(saved: str, sent: str) -> None:
    codes = table_features.codes(in_form(sent, TOWNS), in_form(saved, TOWNS))
    assert codes == [0, 1, 2]


def test_a_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    offsets = pa.array(range(61), pa.int32()).buffers()[1]
    texts = pa.Array.from_buffers(pa.string(), 60, [None, offsets, pa.py_buffer(b"\xffa" * 30)])
    pq.write_table(pa.table({"town": texts, "y": range(60)}), tmp_path / "rows.parquet")
    with pytest.raises(TipcastError, match=r"D016.*rows.parquet: column 'town' contains text that"):
        open_table(tmp_path / "rows.parquet")
