"""Child runs of a sweep that is stopped at any moment."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

from tipcast.config.schema import TrackingSpec
from tipcast.tracking import process
from tipcast.tracking.children import Children
from tipcast.tracking.run import open_run


def test_what_is_open_is_closed_also_what_was_just_made(spec: TrackingSpec) -> None:
    with open_run(spec, name="xgboost", tags={"job": "sweep"}, params={}) as run:
        children = Children(run)
        with pytest.raises(KeyboardInterrupt), children.closed("the sweep was stopped"):
            for number in range(3):
                children.begin(number, f"key{number}", 1, {"max_depth": number})
            children.end(0, params={}, metrics={}, tags={}, curves={})
            del children.open[2]  # a signal came before its id did
            raise KeyboardInterrupt
        assert [child.status for child in children.found()] == ["FINISHED", "KILLED", "KILLED"]
        assert {child.tags.get("error.message") for child in children.found()} == {None, "the sweep was stopped"}
        assert not children.open


def test_a_locked_database_is_waited_for_once_for_all_of_them(
    spec: TrackingSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec.wait_s = 0.2
    path = str(spec.uri).removeprefix("sqlite:///")
    killed: list[int] = []
    with (
        contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database,
        open_run(spec, name="xgboost", tags={"job": "sweep"}, params={}) as run,
    ):
        children = Children(run)
        kill = children.kill
        monkeypatch.setattr(children, "kill", lambda number, why: (killed.append(number), kill(number, why)))
        with pytest.raises(KeyboardInterrupt), children.closed("the sweep was stopped"):
            for number in range(3):
                children.begin(number, f"key{number}", 1, {"max_depth": number})
            database.execute("BEGIN IMMEDIATE")
            raise KeyboardInterrupt
        database.execute("ROLLBACK")
        assert killed == [0]
        tags = [run.client.get_run(run_id).data.tags for run_id in children.open.values()]
        assert [process.HOST in each for each in tags] == [True] * 3, "the next command closes them"


def test_a_trial_that_is_opened_again_names_this_process(spec: TrackingSpec) -> None:
    with open_run(spec, name="xgboost", tags={"job": "sweep"}, params={}) as run:
        children = Children(run)
        run_id = children.begin(0, "key0", 1, {})
        children.end(0, params={}, metrics={}, tags={}, curves={})
        run.client.set_tag(run_id, process.PROCESS, "another's")
        children.reopen(0, run_id)
        assert run.client.get_run(run_id).data.tags[process.PROCESS] == process.tags()[process.PROCESS]
        children.rest(0)
