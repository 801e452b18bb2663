"""Through Dask the same booster as XGBoost's own training gives."""

import sys

import numpy as np
import pandas as pd
import pytest
import xgboost

from tipcast.config.errors import TipcastError
from tipcast.models import native
from tipcast.models.base import Split
from tipcast.models.build import build
from tipcast.models.xgboost_callbacks import DEVICE
from tipcast.models.xgboost_fit import to_fitted

SMALL = {"n_estimators": 30, "max_depth": 4}


def test_rows_on_one_worker_equal_bare_training(client, parts, spec, joined, scattered):
    """Also where parts are empty."""
    estimator = build(spec("xgboost", fit={"early_stopping_rounds": None}, **SMALL), "cpu")
    empty = tuple(side.iloc[:0] for side in parts[0])
    held_out_rows = Split(*scattered([empty, parts[3]]))
    rows = Split(*scattered([empty, *parts[:3]]), validation=held_out_rows)
    model = estimator.fit_distributed(client, rows, seed=3)
    whole = xgboost.QuantileDMatrix(*joined(parts[:3]))
    held_out = xgboost.QuantileDMatrix(*parts[3], ref=whole)
    history: dict = {}
    params = {
        "objective": "binary:logistic",
        "max_depth": 4,
        "learning_rate": 0.1,
        "eval_metric": "logloss",
        "seed": 3,
    }
    evals = [(whole, "train"), (held_out, "validation")]
    bare = xgboost.train(params, whole, 30, evals=evals, evals_result=history, verbose_eval=False)
    np.testing.assert_allclose(
        model.scorer.score(parts[3][0]), bare.inplace_predict(parts[3][0]), atol=1e-6
    )
    train, validation = (history[name]["logloss"] for name in ("train", "validation"))
    assert model.history["validation_logloss"] == pytest.approx(
        dict(enumerate(validation)), abs=1e-6
    )
    assert model.history["train_logloss"] == pytest.approx(
        {at: train[at] for at in (0, 10, 20)}, abs=1e-6
    )
    assert model.info == {"device": "cpu", "rounds": 30}


def test_early_stopping_keeps_the_best_rounds(client, parts, spec, scattered):
    x, y = scattered(parts[:3])
    estimator = build(
        spec("xgboost", fit={"early_stopping_rounds": 5}, n_estimators=300, learning_rate=0.5),
        "cpu",
    )
    rows = Split(x, y, validation=Split(*scattered(parts[3:])))
    model = estimator.fit_distributed(client, rows, seed=0)
    losses = list(model.history["validation_logloss"].values())
    assert len(losses) < 300
    assert model.info["best_iteration"] == int(np.argmin(losses))
    assert model.scorer.booster.num_boosted_rounds() == model.info["best_iteration"] + 1
    assert model.scorer.booster.attr(DEVICE) == "cpu"
    with pytest.raises(TipcastError, match="C010.*ran on cpu, not on cuda"):
        to_fitted(
            build(spec("xgboost"), "cuda"), model.scorer.booster, {}, list(parts[0][0].columns)
        )
    forest = build(spec("xgboost_forest", n_estimators=7, max_depth=3), "cpu").fit_distributed(
        client, Split(x, y), 0
    )
    assert forest.scorer.booster.num_boosted_rounds() == 1
    assert len(forest.scorer.booster.get_dump()) == 7
    p = np.clip(model.scorer.score(parts[3][0]), 1e-9, 1)
    labels = parts[3][1].to_numpy()
    assert -np.mean(labels * np.log(p) + (1 - labels) * np.log(1 - p)) == pytest.approx(
        min(losses), abs=1e-5
    )


@pytest.mark.parametrize("reach", ["distributed", "parts", "rows"])
def test_any_name_of_a_feature(client, spec, scattered, tmp_path, reach):
    """The booster has names that XGBoost takes, for which the user's stand in all else."""
    names = ["size [m2]", "size (m2)", "age<30", "a\nb", "$x_{", "", 'ü,"']
    draw = np.random.default_rng(0)
    rows = pd.DataFrame(draw.normal(size=(900, 7)).astype("f4"), columns=names)
    label = (rows["size [m2]"] > 0).astype("int32")
    estimator = build(spec("xgboost", **SMALL), "cpu", ("age<30",))
    rows["age<30"] = (rows["age<30"] > 0).astype("f4")
    x = [rows[:400], rows[400:]]
    y = [label[:400], label[400:]]
    if reach == "distributed":
        model = estimator.fit_distributed(
            client, Split(*scattered(list(zip(x, y, strict=True)))), seed=0
        )
    else:
        model = estimator.fit(Split(x, y) if reach == "parts" else Split(rows, label), seed=0)
    assert list(model.importance) == names
    assert max(model.importance, key=model.importance.get) == "size [m2]"
    booster = xgboost.Booster(model_file=model.save(tmp_path))
    assert (
        booster.feature_names
        == ["size (m2)_", "size (m2)", "age_lt_30", *names[3:]]
        == native.booster_names(names)
    )
    renamed = rows.set_axis(booster.feature_names, axis=1)
    matrix = xgboost.DMatrix(renamed, feature_types=booster.feature_types, missing=-1)
    np.testing.assert_allclose(booster.predict(matrix), model.scorer.score(rows), atol=1e-6)


@pytest.mark.parametrize("reach", ["distributed", "local"])
def test_categories_are_split_as_sets(client, parts, spec, tmp_path, reach, joined, scattered):
    zones = ("PULocationID", "DOLocationID")
    estimator = build(spec("xgboost", **SMALL), "cpu", zones)
    with_missing = [(x.mask(x["pickup_minute"] == 0, -1), y) for x, y in parts]
    if reach == "distributed":
        model = estimator.fit_distributed(client, Split(*scattered(with_missing[:3])), seed=0)
    else:
        model = estimator.fit(Split(*joined(with_missing[:3])), seed=0)
    assert ":{" in model.scorer.booster.get_dump()[0]  # a split on a set of categories
    rows = with_missing[3][0]
    rows = rows.assign(
        PULocationID=np.where(np.arange(len(rows)) % 100 == 1, 500, rows["PULocationID"])
    ).astype("f4")
    scores = native.load(model.save(tmp_path), model.format).score(rows.to_numpy())
    np.testing.assert_array_equal(scores, model.scorer.score(rows))
    types = ["c" if name in zones else "q" for name in rows]
    matrix = xgboost.DMatrix(rows, missing=-1, feature_types=types, enable_categorical=True)
    np.testing.assert_allclose(scores, model.scorer.booster.predict(matrix), atol=1e-6)


def test_an_environment_without_xgboost_is_named(spec, monkeypatch):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(TipcastError, match=r"K007.*xgboost: is not installed.*tipcast\[cpu\]"):
        build(spec("xgboost"), "cpu").check()
