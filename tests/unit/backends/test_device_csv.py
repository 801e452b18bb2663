"""CSV parsed by array operations: bit by bit what the CPU's parser gives, or declined."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tipcast.backends import device_csv
from tipcast.backends.cpu import NULL_TIME, CpuFrames
from tipcast.data import csv as text
from tipcast.data import schema

HEADER = ("time", "a", "b", "c")
WANTED = ("time", "a", "b")


def both(block: bytes, header: tuple[str, ...] = HEADER, wanted: tuple[str, ...] = WANTED) -> tuple[dict, dict]:
    times = tuple(name for name in wanted if "time" in name)
    ours = device_csv.parse(block, header, wanted, times, np)
    assert ours is not None, "declined"
    return ours, CpuFrames().read_csv(block, header, wanted, times)


def same(ours: dict, theirs: dict) -> None:
    assert list(ours) == list(theirs)
    for name in theirs:
        assert ours[name].dtype == theirs[name].dtype
        np.testing.assert_array_equal(ours[name].view(np.int64), theirs[name].view(np.int64), err_msg=name)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_random_cells(end: str) -> None:
    draw = np.random.default_rng(0)
    lines = []
    for _ in range(5000):
        at = np.datetime64(int(draw.integers(-2_000_000_000, 4_000_000_000)), "s")
        digits = int(draw.integers(0, 15))
        a, b = (f"{draw.normal() * 10 ** int(draw.integers(-2, 4)):.{decimals}f}" for decimals in (digits, 2))
        cells = [
            str(at).replace("T", draw.choice([" ", "T"])),
            a if len(a) <= 16 else "007.50",
            b,
            "what \N{EURO SIGN}",
        ]
        cells[int(draw.integers(0, 3))] = "" if draw.random() < 0.1 else cells[1]
        lines.append(",".join([cells[0] if len(cells[0]) in (0, 19) else "", *cells[1:]]))
    same(*both(end.join(lines).encode() + end.encode()))


def test_negative_zero_and_a_last_line_without_an_end() -> None:
    ours, theirs = both(b",-0,-0.0,x\n2016-02-29 23:59:59,000012.50,999999999999999,")
    same(ours, theirs)
    assert np.signbit(ours["a"][0])
    assert ours["time"][0] == NULL_TIME


@pytest.mark.parametrize(
    "line",
    [
        b'2019-02-01 18:30:00,1,2,"x"',
        b"2019-02-01 18:30:00,1,2",
        b"2019-02-01 18:30:00,1,2,3,4",
        b"",
        b"2019-02-01 18:30:00,1e3,2,",
        b"2019-02-01 18:30:00,-,2,",
        b"2019-02-01 18:30:00,+1,2,",
        b"2019-02-01 18:30:00,.5,2,",
        b"2019-02-01 18:30:00,5.,2,",
        b"2019-02-01 18:30:00,1.2.3,2,",
        b"2019-02-01 18:30:00, 1,2,",
        b"2019-02-01 18:30:00,NaN,2,",
        b"2019-02-01 18:30:00,1234567890.123456,2,",
        b"2019-02-01 18:30:00,1,2,\r3",
        b"2019-02-30 18:30:00,1,2,",
        b"2019-02-01 24:00:00,1,2,",
        b"2019-13-01 18:30:00,1,2,",
        b"2019-02-01 18:30,1,2,",
        b"2019-02-01 18:30:00 UTC,1,2,",
        b"2019/02/01 18:30:00,1,2,",
        b"2019-02-01 18:30:0x,1,2,",
        b"0000-02-01 18:30:00,1,2,",
    ],
)
def test_anything_but_plain_cells_is_declined(line: bytes) -> None:
    good = b"2019-02-01 18:30:00,1,2,3\n"
    assert device_csv.parse(good * 2, HEADER, WANTED, ("time",), np) is not None
    assert device_csv.parse(good + line + b"\n" + good, HEADER, WANTED, ("time",), np) is None


def test_what_is_not_wanted_may_say_anything() -> None:
    ours, theirs = both(b"never,1.5,2,3\nnever,2.5,,\n", wanted=("a", "b"))
    same(ours, theirs)


def test_every_month_of_four_centuries() -> None:
    days = np.arange(np.datetime64("1900-01-01"), np.datetime64("2100-01-01"), 13)
    block = "".join(f"{day} 01:02:03,1,1,1\n" for day in days).encode()
    ours, theirs = both(block, wanted=("time",))
    same(ours, theirs)


def test_real_files(taxi: Path) -> None:
    read = 0
    for path in sorted(taxi.rglob("*.csv")):
        raw = path.read_bytes()
        try:
            head = text.read_head(raw, path.name)
            columns = schema.map_columns(head.names, path.name, ("pickup", "fare_amount", "tip_amount", *schema.ZONES))
        except Exception:  # files of old eras and other vendors, which no reader sees
            continue
        header, wanted = head.header, tuple(columns.values())
        block = raw[head.start : raw.rfind(b"\n") + 1]
        ours = device_csv.parse(block, header, wanted, (columns["pickup"],), np)
        if ours is None:
            continue
        same(ours, CpuFrames().read_csv(block, header, wanted, (columns["pickup"],)))
        read += 1
    assert read >= 3
