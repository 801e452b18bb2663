"""Checkpoints among a run's artifacts: kept in turn, read by another process, then removed."""

from pathlib import Path

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


def greatest(contents):
    """Return the newest checkpoint, where a number is a whole one."""
    return max((content for content in contents if content.isdigit()), default=b"")


def contents(run):
    return [Path(run.store.download_artifacts(run.id, path)).read_bytes() for path in paths(run)]


def test_the_two_newest_are_kept(run):
    checkpoints = RunCheckpoints(run, "abc")
    for content in (b"1", b"2", b"3"):
        checkpoints.keep(content)
    assert paths(run) == ["checkpoint/abc-0", "checkpoint/abc-1"]
    assert sorted(contents(run)) == [b"2", b"3"]


def test_whether_a_run_has_a_checkpoint_is_known(run):
    """Also to a process that resumes the run, before it reads the checkpoint."""
    checkpoints = RunCheckpoints(run, "abc")
    assert not checkpoints.kept
    checkpoints.keep(b"1")
    assert checkpoints.kept

    resumed = RunCheckpoints(run, "abc")
    resumed.check()
    assert resumed.kept
    assert resumed.newest(lambda _: b"") == b""
    assert not resumed.kept, "it is damaged"

    checkpoints.remove()
    assert not checkpoints.kept


def test_those_of_other_data_are_refused(run):
    RunCheckpoints(run, "abc").keep(b"1")
    RunCheckpoints(run, "abc").check()
    with pytest.raises(TipcastError, match="S003.*its data or configuration have changed"):
        RunCheckpoints(run, "abd").check()


@pytest.mark.parametrize(
    ("written", "newest", "left"),
    [
        pytest.param([b"1", b"2", b"3"], b"3", [b"3", b"4"], id="both are whole"),
        pytest.param([b"1", b"2", b"cut"], b"2", [b"2", b"4"], id="the later one is cut off"),
        pytest.param([b"1", b"cut"], b"1", [b"1", b"4"], id="the second one is cut off"),
        pytest.param([b"cut", b"cut"], b"", [b"4", b"cut"], id="none is whole"),
    ],
)
def test_a_process_that_goes_on_spares_the_newest(run, written, newest, left, caplog):
    earlier = RunCheckpoints(run, "abc")
    for content in written:
        earlier.keep(content)
    resumed = RunCheckpoints(run, "abc")
    assert resumed.newest(greatest) == newest
    assert caplog.text.count("a checkpoint cannot be read") == (b"cut" in written)
    resumed.keep(b"4")
    assert sorted(contents(run)) == left


@pytest.mark.parametrize(
    ("unreachable", "newest", "goes_on"),
    [
        (["abc-1"], b"1", "training continues from the other one: checkpoint/abc-1: Connection"),
        (["abc-0", "abc-1"], b"", "training starts again: checkpoint/abc-0: Connection"),
    ],
)
def test_one_that_cannot_be_fetched_is_as_good_as_none(
    run, monkeypatch, caplog, unreachable, newest, goes_on
):
    checkpoints = RunCheckpoints(run, "abc")
    checkpoints.keep(b"1")
    checkpoints.keep(b"2")
    download = run.store.download_artifacts

    def refuse(run_id, path, folder):
        if Path(path).name in unreachable:
            raise OSError("Connection\nreset")
        return download(run_id, path, folder)

    monkeypatch.setattr(run.store, "download_artifacts", refuse)
    assert RunCheckpoints(run, "abc").newest(greatest) == newest
    assert f"a checkpoint cannot be read, so {goes_on} reset" in caplog.text
    assert len(caplog.records) == 1


@pytest.mark.parametrize("name", ["notes.txt", "abc", "abc-x", "abc-7", "my-0", "abc-0/inner"])
def test_a_file_of_another_name_is_no_checkpoint(run, name):
    run.log_bytes(b"9", f"checkpoint/{name}")
    checkpoints = RunCheckpoints(run, "abc")
    checkpoints.check()
    assert checkpoints.newest(greatest) == b""


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


def test_a_run_without_checkpoints_says_that_it_starts_again(run, caplog):
    caplog.set_level("INFO", "tipcast")
    assert RunCheckpoints(run, "abc").newest(greatest) == b""
    assert "the run has no checkpoint, so training starts again" in caplog.text


def test_a_store_that_fails_is_said_once(run, monkeypatch, caplog):
    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run.store, "log_artifact", refuse)
    checkpoints = RunCheckpoints(run, "abc")
    checkpoints.keep(b"1")
    checkpoints.keep(b"2")
    assert caplog.text.count("a checkpoint could not be stored: ") == 1
