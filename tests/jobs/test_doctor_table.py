"""The doctor's table in narrow and wide terminals, with and without colours."""

from __future__ import annotations

import json
import re

import pytest

from tipcast.config.errors import Finding, State, TipcastError, failed, ok, warning
from tipcast.jobs.doctor_table import Table, counted, plain, table

ADDRESS = "https://a-long-name-of-a-server.example/a/long/path/to/the/months/of/yellow_tripdata_2019-01.parquet"
FINDINGS = {
    "python": ok("3.11.7 on Linux"),
    "temp folder": warning("/tmp: 1.0 GiB free of 10.0 GiB: little", "free some room"),
    "data.train": failed(TipcastError("D022", ADDRESS, "does not answer", "check the network " * 8)),
}


def rows(columns: int, coloured: bool = False) -> list[str]:
    made = Table(tuple(FINDINGS), columns, coloured)
    return [made.heading, *"\n".join(made.row(name, finding) for name, finding in FINDINGS.items()).splitlines()]


def test_the_form() -> None:
    assert rows(120)[:4] == [
        "check        state    found",
        "python       ok       3.11.7 on Linux",
        "temp folder  warning  /tmp: 1.0 GiB free of 10.0 GiB: little",
        "                      fix: free some room",
    ]


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_lines_fit_but_addresses_stay_whole(columns: int) -> None:
    lines = rows(columns)
    assert all(len(line) <= columns for line in lines if ADDRESS not in line)
    assert sum(ADDRESS in line for line in lines) == 1
    assert all(line == line.rstrip() for line in lines)
    assert any("[D022]" in line for line in lines)


def test_colours_change_nothing_else() -> None:
    coloured = rows(80, coloured=True)
    assert "\033[31mfail   \033[0m" in "\n".join(coloured)
    assert [re.sub(r"\033\[\d+m", "", line) for line in coloured] == rows(80)


def test_standard_output_decides(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for columns, expected in (("80", 80), ("300", 120), ("20", 60)):
        monkeypatch.setenv("COLUMNS", columns)
        assert table(FINDINGS).columns == expected
    assert not table(FINDINGS).coloured, "it is captured, so no terminal"


def test_a_check_may_find_nothing_to_say() -> None:
    assert Table(("x",), 80, False).row("x", Finding(State.ok, "")).split() == ["x", "ok"]


def test_counts_and_json() -> None:
    assert counted(FINDINGS) == "1 ok, 1 warning, 1 fail"
    listed = json.loads(json.dumps(plain(FINDINGS)))
    assert [row["state"] for row in listed] == ["ok", "warning", "fail"]
    assert listed[0] == {"check": "python", "state": "ok", "found": "3.11.7 on Linux", "fix": "", "code": ""}
    assert listed[2]["code"] == "D022"
