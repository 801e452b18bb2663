"""A job's closing lines."""

from __future__ import annotations

import json

import pytest

from tipcast.config.schema import Output
from tipcast.jobs.closing import say

RESULT = {
    "run_id": "abc",
    "rows": 12345,
    "metrics": {"test/auc": 0.56563},
    "files": ["a", "b"],
    "written": 0,
    "none": {},
}


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    say(RESULT, Output.json)
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == RESULT


def test_text_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    say(RESULT, Output.text)
    assert capsys.readouterr().out.splitlines() == [
        "run_id   abc",
        "rows     12,345",
        "metrics  test/auc 0.5656",
        "files    a b",
        "written  0",
    ]


def test_none_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    result = {"run_id": "a"}
    assert say(result, Output.none) is result
    assert capsys.readouterr().out == ""
