"""Numbers that stand for groups: the same for equal values in whatever type they are stored."""

import pyarrow as pa
import pytest

from tipcast.config.errors import TipcastError
from tipcast.datasets.table.groups import check_type, groups_of

SEVEN = groups_of(pa.chunked_array([[7]]))[0]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([7.0]),
        pa.array([7.0], pa.float32()),
        pa.array(["7"]),
        pa.array(["7.0"]),
        pa.array([" +007.00 "]),
        pa.array(["7"]).dictionary_encode(),
        pa.array([7], pa.uint8()),
    ],
    ids=str,
)
def test_equal_numbers_are_one_group(values: pa.Array) -> None:
    assert groups_of(pa.chunked_array([values]))[0] == SEVEN


def test_other_values_are_other_groups() -> None:
    values = ["a", "A", "7.5", "70", "-7", "0", "", "1e3", "c 7", "12345678901234567890123"]
    assert len({*groups_of(pa.chunked_array([values])).tolist(), int(SEVEN)}) == len(values) + 1


def test_large_numbers_are_told_apart() -> None:
    large = [1_234_567_890_123_456, 1_234_567_890_123_457]
    of_integers = groups_of(pa.chunked_array([large])).tolist()
    assert len(set(of_integers)) == 2
    assert groups_of(pa.chunked_array([[str(value) for value in large]])).tolist() == of_integers
    assert groups_of(pa.chunked_array([[float(value) for value in large]])).tolist() == of_integers


def test_rows_without_a_value_are_one_group() -> None:
    texts = groups_of(pa.chunked_array([["a", None], [None, "b"]]))
    floats = groups_of(pa.chunked_array([pa.array([1.5, None])]))
    assert texts[1] == texts[2] == floats[1]
    assert len({*texts.tolist(), *floats.tolist()}) == 4


def test_lists_are_refused() -> None:
    with pytest.raises(TipcastError, match="list<") as caught:
        check_type("owner", pa.list_(pa.int64()), "t.parquet")
    assert caught.value.code == "D008"
