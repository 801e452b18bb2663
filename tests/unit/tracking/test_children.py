"""Child runs of a sweep that is stopped at any moment."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

from tipcast.config.schema import TrackingSpec
from tipcast.tracking import process
from tipcast.tracking.children import Children
from tipcast.tracking.run import open_run


def test_what_is_open_is_closed(spec: TrackingSpec) -> None:
    with open_run(spec, name="xgboost", tags={"job": "sweep"}, params={}) as run:
        children = Children(run)
        with pytest.raises(KeyboardInterrupt), children.closed("the sweep was stopped"):
            runs = [children.begin(number, f"key{number}", 1, {"max_depth": number}) for number in range(3)]
            children.end(runs[0], params={}, metrics={}, tags={}, curves={})
            raise KeyboardInterrupt
        assert [child.status for child in children.found()] == ["FINISHED", "KILLED", "KILLED"]
        assert {child.tags.get("error.message") for child in children.found()} == {None, "the sweep was stopped"}


def test_a_locked_database_is_waited_for_once_for_all_of_them(
    spec: TrackingSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec.wait_s = 0.2
    path = str(spec.uri).removeprefix("sqlite:///")
    killed: list[str] = []
    with (
        contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database,
        open_run(spec, name="xgboost", tags={"job": "sweep"}, params={}) as run,
    ):
        children = Children(run)
        kill = children.kill
        monkeypatch.setattr(children, "kill", lambda run_id, why: (killed.append(run_id), kill(run_id, why)))
        with pytest.raises(KeyboardInterrupt), children.closed("the sweep was stopped"):
            runs = [children.begin(number, f"key{number}", 1, {"max_depth": number}) for number in range(3)]
            database.execute("BEGIN IMMEDIATE")
            raise KeyboardInterrupt
        database.execute("ROLLBACK")
        assert killed == runs[:1]
        tags = [run.client.get_run(run_id).data.tags for run_id in runs]
        assert [process.HOST in each for each in tags] == [True] * 3, "the next command closes them"
