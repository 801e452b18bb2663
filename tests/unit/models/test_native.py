"""Saved models score like the models they were saved from, without tipcast."""

import pickle
import struct

import numpy as np
import pytest
import treelite
import xgboost
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder

from tipcast.models import native
from tipcast.models.base import Split
from tipcast.models.build import build


def test_threads_change_no_digit_of_a_forest(parts, spec, tmp_path):
    saved = (
        build(spec("random_forest", n_estimators=50), "cpu")
        .fit(Split(*parts[0]), seed=1)
        .save(tmp_path)
    )
    x = np.tile(parts[3][0].to_numpy(), (20, 1))
    one, several, all_cores = (native.load(saved, "treelite", threads=count) for count in (1, 3, 0))
    for scorer in (several, several, all_cores):
        np.testing.assert_array_equal(scorer.score(x), one.score(x))


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(ValueError, match="pickle"):
        native.load(tmp_path / "model.pkl", "pickle")


def test_a_device_that_is_not_here_is_refused(monkeypatch):
    monkeypatch.setattr(native, "gpus", lambda: 0)
    with pytest.raises(
        ValueError, match="score treelite on cuda; a CPU needs treelite and scikit-learn"
    ):
        native.load(b"", "treelite", device="cuda")


def test_a_scorer_of_a_gpu_waits_for_rows(parts, spec, monkeypatch):
    """A process without the GPU may hold it, and pass it on while another thread scores."""
    fitted = build(spec("xgboost"), "cpu").fit(Split(*parts[0]), seed=0)
    monkeypatch.setattr(xgboost, "Booster", None)
    scorer = pickle.loads(pickle.dumps(native.XGBoostScorer(fitted.scorer.content, 2, "cuda")))
    assert (scorer.threads, scorer.device) == (2, "cuda")
    assert scorer.content == fitted.scorer.content


def test_a_forest_of_a_newer_treelite_is_loaded_without_a_word(spec, parts, tmp_path, capfd):
    """A warning is an error in tests; one of another major release is refused."""
    fitted = build(spec("random_forest", n_estimators=3), "cpu").fit(Split(*parts[0]), seed=1)
    saved = fitted.save(tmp_path)
    content = saved.read_bytes()
    major, minor, patch = struct.unpack_from("<3i", content)
    saved.write_bytes(struct.pack("<3i", major, minor + 1, patch) + content[12:])
    x = parts[3][0]
    for way in native.available("treelite"):
        scores = native.load(saved, "treelite", through=way).score(x)
        np.testing.assert_allclose(scores, fitted.scorer.score(x), atol=1e-6)
    assert capfd.readouterr() == ("", "")
    saved.write_bytes(struct.pack("<3i", major + 1, minor, patch) + content[12:])
    with pytest.raises(treelite.TreeliteError, match="different major"):
        native.load(saved, "treelite")


class Rows(RegressorMixin, BaseEstimator):
    """Notes how many rows it is asked for at a time."""

    def fit(self, values, targets=None):
        self.asked_ = ()
        return self

    def predict(self, values):
        self.asked_ = (*self.asked_, values.shape[0])
        return values[:, [0]].sum(axis=1)


def _encoded(model, rows, dense):
    """The model behind an encoder of the first feature, as tipcast saves it."""
    codes = [np.unique(rows[:, 0])]
    encode = OneHotEncoder(categories=codes, handle_unknown="ignore", sparse_output=not dense)
    steps = ColumnTransformer(
        [("categories", encode, [0])], remainder="passthrough", sparse_threshold=0.0 if dense else 1
    )
    return Pipeline([("encoder", steps.fit(rows)), ("model", model)])


CODES = np.column_stack([np.arange(90) % 9, np.linspace(0, 1, 90)]).astype(np.float32)


@pytest.mark.parametrize(("dense", "expected"), [(True, (20, 20, 20, 20, 10)), (False, (90,))])
def test_dense_columns_of_categories_are_made_of_some_rows_at_a_time(monkeypatch, dense, expected):
    monkeypatch.setattr(native, "DENSE_VALUES", 200)  # of 10 columns
    pipeline = _encoded(Rows().fit(CODES), CODES, dense)
    scores = native.SklearnScorer(pipeline).score(CODES)
    assert pipeline[-1].asked_ == expected
    np.testing.assert_array_equal(scores, CODES[:, 0] == 0)


@pytest.mark.parametrize("dense", [True, False])
def test_rows_to_judge_clusters_by_are_dense_where_a_slice_is_taken(dense):
    pipeline = _encoded(Rows().fit(CODES), CODES, dense)
    encoded = native.SklearnScorer(pipeline).one_hot_rows(CODES)
    expected = np.column_stack([CODES[:, [0]] == np.arange(9), CODES[:, 1]])
    assert encoded.shape == (len(encoded), 10) == expected.shape
    np.testing.assert_array_equal(encoded[5:40], expected[5:40])
    np.testing.assert_array_equal(encoded[::7], expected[::7])
