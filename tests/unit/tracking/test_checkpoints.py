"""Checkpoints among a run's artifacts: kept in turn, read by another process, then removed."""

import pytest

from tipcast.config.errors import TipcastError
from tipcast.tracking.checkpoints import RunCheckpoints
from tipcast.tracking.lifecycle import open_run


@pytest.fixture
def run(spec):
    with open_run(spec, name="xgboost", tags={"job": "train"}, params={}) as run:
        yield run


def paths(run):
    return [file.path for file in run.store.list_artifacts(run.id, "checkpoint")]


def test_the_two_newest_are_kept(run):
    checkpoints = RunCheckpoints(run, "abc")
    for content in (b"1", b"2", b"3"):
        checkpoints.keep(content)
    assert paths(run) == ["checkpoint/abc-0", "checkpoint/abc-1"]
    assert sorted(RunCheckpoints(run, "abc").stored()) == [b"2", b"3"]


def test_a_run_without_checkpoints_has_none_stored(run):
    assert RunCheckpoints(run, "abc").stored() == []


def test_those_of_other_data_are_refused(run):
    RunCheckpoints(run, "abc").keep(b"1")
    RunCheckpoints(run, "abc").check()
    with pytest.raises(TipcastError, match="S003.*its data or its configuration are not what"):
        RunCheckpoints(run, "abd").check()


@pytest.mark.parametrize(("newest", "left"), [(b"2", [b"2", b"4"]), (b"3", [b"3", b"4"])])
def test_a_process_that_goes_on_spares_the_newest(run, newest, left):
    """Which one that is, its reader says: the other may be cut off."""
    earlier = RunCheckpoints(run, "abc")
    for content in (b"1", b"2", b"3"):
        earlier.keep(content)
    resumed = RunCheckpoints(run, "abc")
    resumed.stored()
    resumed.spare(newest)
    resumed.keep(b"4")
    assert sorted(RunCheckpoints(run, "abc").stored()) == left


def test_they_are_removed_when_training_has_ended(run):
    checkpoints = RunCheckpoints(run, "abc")
    checkpoints.keep(b"1")
    checkpoints.remove()
    assert paths(run) == []


def test_a_process_that_goes_on_removes_those_of_the_killed_one(run):
    RunCheckpoints(run, "abc").keep(b"1")
    RunCheckpoints(run, "abc").remove()
    assert paths(run) == []


def test_nothing_else_is_removed(run):
    run.log_bytes(b"kept", "other/file")
    RunCheckpoints(run, "abc").remove()
    assert [file.path for file in run.store.list_artifacts(run.id)] == ["other"]


def test_a_store_that_fails_is_said_once(run, monkeypatch, caplog):
    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run.store, "log_artifact", refuse)
    checkpoints = RunCheckpoints(run, "abc")
    checkpoints.keep(b"1")
    checkpoints.keep(b"2")
    assert caplog.text.count("a checkpoint could not be stored: ") == 1
