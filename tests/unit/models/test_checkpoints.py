"""A training that goes on from a checkpoint ends as one that was never interrupted."""

import pytest
import xgboost
from distributed import Variable

from tipcast.models import xgboost_callbacks
from tipcast.models.base import Split
from tipcast.models.build import build
from tipcast.models.checkpoints import (
    Checkpoint,
    joined_logs,
    resumes_exactly,
)
from tipcast.models.xgboost_callbacks import KeepCheckpoints, stopping_after

SAMPLED = {"subsample": 0.7, "colsample_bytree": 0.6}
ROUNDS = 24
DONE = 13
"""Rounds before the checkpoint: no multiple of the rounds between two looks at training rows."""

exact = pytest.mark.skipif(
    not resumes_exactly(SAMPLED), reason="this XGBoost draws other rows after a checkpoint"
)


@pytest.fixture(params=[{}, pytest.param(SAMPLED, marks=exact)], ids=["all rows", "sampled"])
def estimator(request, spec):
    """A model that keeps a checkpoint after each of its rounds."""

    def make(rounds: int, stopping: int | None = None):
        fit = {"early_stopping_rounds": stopping, "checkpoint_s": 1e-9}
        params = {"n_estimators": rounds, "max_depth": 3, **request.param}
        return build(spec("xgboost", fit=fit, **params), "cpu")

    return make


@pytest.fixture(params=["on one worker", "distributed"])
def train(request, client, parts, scattered, joined):
    """Fits an estimator in either way."""

    def fit(model):
        if request.param == "distributed":
            rows = Split(*scattered(parts[:3]), validation=Split(*scattered([parts[3]])))
            return model.fit_distributed(client, rows, seed=5)
        rows = Split(*joined(parts[:3]), validation=Split(*parts[3]))
        return client.submit(model.fit, rows, 5, pure=False).result()

    return fit


def kept(client, train, model, checkpoint=b""):
    """Fit a model that goes on from a checkpoint; return the fit and its last checkpoint."""
    variable = Variable(client=client)
    variable.set(b"")
    fitted = train(model.resuming(checkpoint, keep_in=variable.name))
    content = variable.get()
    variable.delete()
    return fitted, content


def test_the_model_is_the_same(client, train, estimator):
    whole, _ = kept(client, train, estimator(ROUNDS))
    _, checkpoint = kept(client, train, estimator(DONE))
    resumed, _ = kept(client, train, estimator(ROUNDS), checkpoint)
    assert resumed.scorer.content == whole.scorer.content


def test_the_curves_are_the_same(client, train, estimator):
    whole, _ = kept(client, train, estimator(ROUNDS))
    _, checkpoint = kept(client, train, estimator(DONE))
    resumed, _ = kept(client, train, estimator(ROUNDS), checkpoint)
    assert resumed.history == whole.history
    assert len(whole.history["validation_logloss"]) == ROUNDS


def test_the_next_checkpoint_has_all_rounds(client, train, estimator):
    _, last = kept(client, train, estimator(ROUNDS))
    _, checkpoint = kept(client, train, estimator(DONE))
    _, resumed_last = kept(client, train, estimator(ROUNDS), checkpoint)
    assert Checkpoint.from_bytes(resumed_last).log == Checkpoint.from_bytes(last).log


def test_early_stopping_ends_in_the_same_round(client, train, estimator):
    whole, _ = kept(client, train, estimator(900, stopping=6))
    stopped = whole.info["rounds"]
    assert stopped < 900
    _, checkpoint = kept(client, train, estimator(stopped - 3, stopping=6))
    resumed, _ = kept(client, train, estimator(900, stopping=6), checkpoint)
    assert resumed.info == whole.info
    assert resumed.scorer.content == whole.scorer.content


def test_a_checkpoint_of_the_last_round_is_the_end(client, train, estimator):
    whole, checkpoint = kept(client, train, estimator(DONE))
    resumed, _ = kept(client, train, estimator(DONE), checkpoint)
    assert resumed.scorer.content == whole.scorer.content


@pytest.mark.parametrize("damage", ["empty", "cut off", "one bit"])
def test_a_damaged_checkpoint_is_none(joined, parts, spec, damage):
    booster = xgboost.train({}, xgboost.DMatrix(*joined(parts[:1])), 3)
    content = Checkpoint.of(booster, {}).to_bytes()
    assert Checkpoint.from_bytes(content) is not None
    damaged = {
        "empty": b"",
        "cut off": content[:-1],
        "one bit": content[:-100] + bytes([content[-100] ^ 1]) + content[-99:],
    }
    assert Checkpoint.from_bytes(damaged[damage]) is None
    estimator = build(spec("xgboost", fit={"checkpoint_s": 60}), "cpu")
    assert estimator.resuming(damaged[damage], keep_in="x").checkpoint is None


def test_the_checkpoint_of_the_most_rounds_is_the_newest(joined, parts, spec):
    rows = xgboost.DMatrix(*joined(parts[:1]))
    contents = [
        Checkpoint.of(xgboost.train({}, rows, rounds), {}).to_bytes() for rounds in (2, 5, 3)
    ]
    estimator = build(spec("xgboost", fit={"checkpoint_s": 60}), "cpu")
    assert estimator.newest_checkpoint(contents) == contents[1]
    assert estimator.newest_checkpoint([contents[0], contents[1][:-1]]) == contents[0]
    assert estimator.newest_checkpoint([b"cut"]) == b""
    assert build(spec("random_forest"), "cpu").newest_checkpoint(contents) == b""


def test_the_variable_of_a_driver_that_is_gone_is_not_made_again(
    client, joined, parts, monkeypatch
):
    monkeypatch.setattr(xgboost_callbacks, "PRESENT_S", 0.05)
    rows = xgboost.DMatrix(*joined(parts[:1]))
    keeping = KeepCheckpoints("deleted", 0.0, {})
    xgboost.train({}, rows, 2, callbacks=[keeping])
    assert "deleted" not in client.cluster.scheduler.extensions["variables"].variables


def test_a_model_without_checkpoints_stays_as_it_is(spec):
    model = build(spec("xgboost", fit={"checkpoint_s": None}), "cpu")
    assert model.resuming(b"", keep_in="x") is model
    forest = build(spec("random_forest"), "cpu")
    assert forest.resuming(b"", keep_in="x") is forest


def test_early_stopping_that_begins_has_seen_nothing():
    stopping = stopping_after(3, None)
    assert stopping.rounds == 3
    assert stopping.stopping_history == {}


def test_logs_are_joined_by_rows_and_metric():
    earlier = {"validation": {"logloss": [0.5, 0.4]}}
    later = {"train": {"logloss": [0.2]}, "validation": {"logloss": [0.3]}}
    assert joined_logs(earlier, later) == {
        "validation": {"logloss": [0.5, 0.4, 0.3]},
        "train": {"logloss": [0.2]},
    }


def test_an_older_xgboost_says_that_it_draws_other_rows(monkeypatch, caplog, spec, joined, parts):
    monkeypatch.setattr(xgboost, "__version__", "3.2.0")
    booster = xgboost.train({}, xgboost.DMatrix(*joined(parts[:1])), 3)
    content = Checkpoint.of(booster, {}).to_bytes()
    fit = {"checkpoint_s": 60}
    build(spec("xgboost", fit=fit), "cpu").resuming(content, keep_in="x")
    assert "samples other rows" not in caplog.text
    build(spec("xgboost", fit=fit, subsample=0.5), "cpu").resuming(content, keep_in="x")
    assert "XGBoost 3.2.0 samples other rows after a checkpoint" in caplog.text


@pytest.fixture
def matrices(joined, parts, spec):
    """Binned rows, as the trials of a sweep share them."""
    return build(spec("xgboost"), "cpu").prepared(
        Split(*joined(parts[:3]), validation=Split(*parts[3])), 1
    )


def in_rungs(model, matrices, rungs):
    """Fit with more trees from rung to rung; return the fits."""
    fits = []
    state = None
    for rounds in rungs:
        fits.append(model(rounds).continue_fit(matrices, 5, state))
        state = fits[-1].state
    return fits


def test_a_fit_of_more_trees_is_that_of_one_go(matrices, estimator):
    *_, last = in_rungs(estimator, matrices, (4, 11, ROUNDS))
    whole = estimator(ROUNDS).fit(matrices, 5)
    assert last.content(last.scorer) == whole.content(whole.scorer)
    assert last.history == whole.history


def test_a_fit_of_more_trees_tells_how_many_are_new(matrices, estimator):
    fits = in_rungs(estimator, matrices, (4, 11, ROUNDS))
    assert [fitted.info["grown_trees"] for fitted in fits] == [4, 7, 13]


@pytest.mark.parametrize("after", [-1, 0, 1])
def test_a_fit_that_stopped_early_grows_no_more_trees(matrices, estimator, after):
    """Also if it stopped in the last round of its rung."""
    whole = estimator(900, stopping=6).fit(matrices, 5)
    rung = int(whole.info["rounds"]) + after
    _, last = in_rungs(lambda rounds: estimator(rounds, stopping=6), matrices, (rung, 900))
    assert last.info["grown_trees"] == max(-after, 0)
    assert last.info["rounds"] == whole.info["rounds"]
    assert last.content(last.scorer) == whole.content(whole.scorer)


def test_an_older_xgboost_that_samples_begins_again(monkeypatch, matrices, spec):
    monkeypatch.setattr(xgboost, "__version__", "3.2.0")

    def sampled(rounds):
        return build(spec("xgboost", n_estimators=rounds, **SAMPLED), "cpu")

    *_, last = in_rungs(sampled, matrices, (4, ROUNDS))
    whole = sampled(ROUNDS).fit(matrices, 5)
    assert last.info["grown_trees"] == ROUNDS
    assert last.content(last.scorer) == whole.content(whole.scorer)


def test_a_round_of_several_trees_does_not_continue(spec):
    assert build(spec("xgboost"), "cpu").continues
    assert not build(spec("xgboost_forest"), "cpu").continues
