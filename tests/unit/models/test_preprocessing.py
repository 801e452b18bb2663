"""What a library's class is given, held against scikit-learn's own steps on the same rows."""

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from tipcast.models.preprocessing import Preprocessing, moments

DRAW = np.random.default_rng(0)
ROWS = pd.DataFrame({"size": DRAW.normal(50, 20, 600), "town": DRAW.integers(0, 6, 600)}).astype(
    np.float32
)
PARTS = [ROWS[:100], ROWS[100:100], ROWS[100:]]


def steps(*, standardize: bool = True, dense: bool = True) -> Preprocessing:
    """Learn from all parts, of which the second has no rows."""
    return Preprocessing.of_parts(
        [moments(part, [1]) for part in PARTS], [1], standardize=standardize, dense=dense
    )


def theirs() -> np.ndarray:
    """Return the rows as scikit-learn prepares them."""
    prepare = ColumnTransformer(
        [
            ("towns", OneHotEncoder(sparse_output=False), ["town"]),
            ("sizes", StandardScaler(), ["size"]),
        ]
    )
    return prepare.fit_transform(ROWS.astype(float))


def test_rows_of_all_parts_become_what_scikit_learn_makes_of_them() -> None:
    prepared = steps().transform(ROWS.to_numpy(float))
    np.testing.assert_allclose(prepared, theirs(), rtol=1e-6, atol=1e-6)


def test_many_columns_stay_sparse_where_the_library_takes_that() -> None:
    prepared = steps(dense=False).transform(ROWS.to_numpy(float))
    np.testing.assert_allclose(prepared.toarray(), theirs(), rtol=1e-6, atol=1e-6)


def test_few_columns_are_dense_so_that_ridge_is_solved_exactly() -> None:
    few = ROWS.assign(town=ROWS["town"] % 3, age=ROWS["size"] ** 2)
    learnt = Preprocessing.of_parts([moments(few, [1])], [1], standardize=True, dense=False)
    rows = learnt.transform(few.to_numpy(float))

    towns = OneHotEncoder(sparse_output=False).fit_transform(few[["town"]].astype(float))
    numbers = StandardScaler().fit_transform(few[["size", "age"]].astype(float))
    theirs = np.hstack([towns, numbers])
    target = DRAW.normal(size=len(few))

    assert isinstance(rows, np.ndarray)
    predictions = Ridge().fit(rows, target).predict(rows)
    expected = Ridge().fit(theirs, target).predict(theirs)
    np.testing.assert_allclose(predictions, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("code", [np.nan, 77.0, -1.0])
def test_a_value_that_training_lacks_is_in_none_of_the_columns(code: float) -> None:
    prepared = steps(standardize=False).transform(np.array([[10.0, code]]))
    assert prepared.tolist() == [[0, 0, 0, 0, 0, 0, 10.0]]


def test_missing_values_of_the_training_rows_get_no_column() -> None:
    gaps = ROWS.assign(town=ROWS["town"].where(ROWS["town"] > 0))
    learnt = Preprocessing.of_parts([moments(gaps, [1])], [1], standardize=False, dense=True)
    assert learnt.transform(np.array([[10.0, 1.0]])).tolist() == [[1, 0, 0, 0, 0, 10.0]]


def test_the_pipeline_does_what_was_done_to_the_training_rows() -> None:
    learnt = steps()
    model = LinearRegression().fit(learnt.transform(ROWS.to_numpy(float)), ROWS["size"])
    expected = model.predict(theirs())
    np.testing.assert_allclose(
        learnt.pipeline(model).predict(ROWS.to_numpy(float)), expected, rtol=1e-4
    )


def test_a_category_weighs_as_much_as_its_coefficients_vary_over_the_rows() -> None:
    coefficients = np.array([[3.0, -1.0, 0.5, 0.0, 2.0, 2.0, 1.5]])
    spread = steps().spread(coefficients)
    of_towns = theirs()[:, :6] @ coefficients[0, :6]
    np.testing.assert_allclose(spread, [1.5, of_towns.std()], rtol=1e-6)


@pytest.mark.parametrize("order", ["C", "F"])
def test_columns_of_a_gpu_are_those_of_the_encoder_in_the_order_asked_for(order: str) -> None:
    """The same function makes them of NumPy's arrays."""
    learnt = steps(standardize=False)
    rows = np.asarray(ROWS.to_numpy(float), order="F")
    rows[:3, 1] = [np.nan, 77.0, -1.0]
    dense = learnt.dense(rows, order)
    np.testing.assert_array_equal(dense, learnt.encoder.transform(rows))
    assert dense.flags[f"{order}_CONTIGUOUS"]
