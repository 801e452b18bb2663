"""A job's closing lines: the link to its run is logged as the run begins, and printed with print=json alone."""

import json

import pytest

from tipcast.config.schema import Output
from tipcast.jobs import say

RESULT = {
    "run_id": "abc", "run": "http://link", "tracking_uri": "sqlite:///a", "rows": 12345,
    "metrics": {"test/auc": 0.56563}, "files": ["a", "b"],
    "written": 0, "none": {},
}  # fmt: skip
TEXT = ["run_id   abc", "rows     12,345", "metrics  test/auc 0.5656", "files    a b", "written  0"]


@pytest.mark.parametrize(
    ("form", "lines"), [(Output.json, [json.dumps(RESULT)]), (Output.text, TEXT), (Output.none, [])]
)
def test_a_result_is_printed(form: Output, lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert say(RESULT, form) is RESULT
    assert capsys.readouterr().out.splitlines() == lines
