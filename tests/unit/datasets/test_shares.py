"""Workers get equal shares of the rows, and the rows keep their order."""

import dataclasses
import time

import numpy as np
import pandas as pd
import pytest
from distributed import Client

from tipcast.compute.base import Session
from tipcast.compute.frames import CpuFrames
from tipcast.datasets import shares
from tipcast.datasets.counts import Counts
from tipcast.datasets.rows import Rows
from tipcast.datasets.shares import cut, in_equal_shares


def pieces(
    part_rows: list[int], homes: str, room: dict[str, int]
) -> list[tuple[int, int, int, str]]:
    found = list(cut(part_rows, homes, room))
    assert all(piece.is_whole == (piece.rows == part_rows[piece.part]) for piece in found)
    return [(piece.part, piece.start, piece.stop, piece.home) for piece in found]


@pytest.mark.parametrize(
    ("part_rows", "homes", "room", "expected"),
    [
        pytest.param([5, 5], "ab", {"a": 5, "b": 5}, [(0, 0, 5, "a"), (1, 0, 5, "b")], id="equal"),
        pytest.param(
            [6, 2],
            "ab",
            {"a": 4, "b": 4},
            [(0, 0, 4, "a"), (0, 4, 6, "b"), (1, 0, 2, "b")],
            id="the end of a part moves",
        ),
        pytest.param(
            [4, 5, 1],
            "aab",
            {"a": 5, "b": 5},
            [(0, 0, 4, "a"), (1, 0, 1, "a"), (1, 1, 5, "b"), (2, 0, 1, "b")],
            id="the second part is cut",
        ),
        pytest.param(
            [9, 0, 0],
            "abc",
            {"a": 3, "b": 3, "c": 3},
            [(0, 0, 3, "a"), (0, 3, 6, "b"), (0, 6, 9, "c")],
            id="one part for three",
        ),
        pytest.param(
            [2, 4, 2],
            "aab",
            {"a": 2, "b": 6},
            [(0, 0, 2, "a"), (1, 0, 4, "b"), (2, 0, 2, "b")],
            id="a whole part moves",
        ),
    ],
)
def test_pieces(
    part_rows: list[int],
    homes: str,
    room: dict[str, int],
    expected: list[tuple[int, int, int, str]],
) -> None:
    assert pieces(part_rows, homes, room) == expected


def placed_rows(client: Client, sizes: list[int]) -> Rows:
    """Numbered rows: all parts on the first worker, but for the last."""
    first, second = sorted(client.nthreads())
    homes = [first] * (len(sizes) - 1) + [second]
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    numbers = [
        pd.Series(range(start, start + size), name="target")
        for start, size in zip(starts, sizes, strict=True)
    ]
    y = [
        client.scatter(part, workers=[home], hash=False)
        for part, home in zip(numbers, homes, strict=True)
    ]
    x = [
        client.scatter(part.to_frame("x"), workers=[home], hash=False)
        for part, home in zip(numbers, homes, strict=True)
    ]
    return Rows(x, y, Counts(sum(sizes), sum(sizes), {}), tuple(sizes))


def on_both(client: Client) -> Session:
    """Return a session whose two workers are to hold rows."""
    return Session(client, "cpu", CpuFrames(), 2, 2)


def held(client: Client, rows: Rows) -> list[int]:
    """Return how many rows each worker holds."""
    client.gather(client.map(len, rows.x, pure=False))
    holders = client.who_has(rows.x)
    return [
        sum(
            size
            for part, size in zip(rows.x, rows.part_rows, strict=True)
            if holders[part.key] == (worker,)
        )
        for worker in sorted(client.nthreads())
    ]


def test_each_worker_holds_its_share(pair: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "LEAST_ROWS", 1)
    rows = placed_rows(pair, [300, 500, 100])
    assert held(pair, rows) == [800, 100]

    equal = in_equal_shares(on_both(pair), rows)
    assert held(pair, equal) == [450, 450]
    assert equal.part_rows == (300, 150, 350, 100)
    for before, after in ((rows.x, equal.x), (rows.y, equal.y)):
        expected = pd.concat(pair.gather(before), ignore_index=True)
        found = pd.concat(pair.gather(after), ignore_index=True)
        assert found.equals(expected)


def test_one_large_part_is_shared_out(pair: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "LEAST_ROWS", 1)
    _, worker = sorted(pair.nthreads())
    part = pd.DataFrame({"x": range(900)})
    x = [pair.scatter(part, workers=[worker], hash=False)]
    rows = Rows(x, [], Counts(900, 900, {}), (900,))
    assert held(pair, in_equal_shares(on_both(pair), rows)) == [450, 450]


def test_rows_of_one_worker_alone_stay_there(pair: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "LEAST_ROWS", 1)
    rows = placed_rows(pair, [300, 500, 100])
    session = dataclasses.replace(on_both(pair), homes=1)
    assert in_equal_shares(session, rows) is rows


def test_rows_that_are_still_read_are_waited_for(
    pair: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "LEAST_ROWS", 1)
    first, second = sorted(pair.nthreads())
    x = [
        pair.submit(read_slowly, size, workers=[home], pure=False)
        for size, home in ((800, first), (100, second))
    ]
    rows = Rows(x, [], Counts(900, 900, {}), (800, 100))
    assert held(pair, in_equal_shares(on_both(pair), rows)) == [450, 450]


def read_slowly(size: int) -> pd.DataFrame:
    time.sleep(0.3)
    return pd.DataFrame({"x": range(size)})


def test_a_piece_keeps_no_other_rows_in_memory() -> None:
    part = pd.DataFrame({"x": range(1000)})
    piece = shares._rows_between(part, 10, 20)
    assert piece["x"].tolist() == list(range(10, 20))
    assert not np.shares_memory(piece["x"].to_numpy(), part["x"].to_numpy())


@pytest.mark.parametrize(
    ("sizes", "least"),
    [
        pytest.param([300, 500, 800], 1, id="equal already"),
        pytest.param([305, 500, 800], 1, id="nearly equal"),
        pytest.param([300, 500, 100], 1000, id="few rows"),
    ],
)
def test_rows_stay(
    pair: Client, monkeypatch: pytest.MonkeyPatch, sizes: list[int], least: int
) -> None:
    monkeypatch.setattr(shares, "LEAST_ROWS", least)
    rows = placed_rows(pair, sizes)
    assert in_equal_shares(on_both(pair), rows) is rows
