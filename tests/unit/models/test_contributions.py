"""Contributions of features sum to XGBoost's own margin, on every device."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost
from distributed import Client

from tipcast.compute.base import Session
from tipcast.models import fit as fits
from tipcast.models import native

ROWS = 1500
NAMES = ["first", "second", "town", "third"]
OBJECTIVES: dict[str, dict[str, Any]] = {
    "classification": {"objective": "binary:logistic"},
    "multiclass": {"objective": "multi:softprob", "num_class": 3},
    "regression": {"objective": "reg:squarederror"},
    "forest": {
        "objective": "binary:logistic",
        "num_parallel_tree": 20,
        "subsample": 0.6,
        "learning_rate": 1,
    },
}


def rows() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return features, one of them a category with missing values, and a target of each kind."""
    r = np.random.default_rng(2)
    x = r.normal(0, 1, (ROWS, 4)).astype(np.float32)
    x[:, 2] = r.integers(-1, 6, ROWS)
    value = 2 * x[:, 0] + (x[:, 2] == 3) + r.normal(0, 0.5, ROWS)
    two = (value > 0).astype(int)
    return x, {
        "classification": two,
        "forest": two,
        "regression": value,
        "multiclass": np.digitize(value, [-1, 1]),
    }


def booster(kind: str) -> xgboost.Booster:
    x, targets = rows()
    types = ["q", "q", "c", "q"]
    matrix = xgboost.QuantileDMatrix(
        x, targets[kind], feature_types=types, enable_categorical=True, missing=-1.0
    )
    found = xgboost.train(
        {"max_depth": 5, **OBJECTIVES[kind]}, matrix, 1 if kind == "forest" else 15
    )
    found.set_attr(**{native.MISSING_ATTRIBUTE: "-1.0"})
    return found


LAST = {"multiclass": 2}
"""Kind -> the class that contributions are to."""


def margin(found: xgboost.Booster, x: np.ndarray) -> np.ndarray:
    """Return (rows,) margins; with several classes, of the last one."""
    margins: np.ndarray = found.inplace_predict(x, missing=-1.0, predict_type="margin")
    if margins.ndim == 1:
        return margins
    last: np.ndarray = margins[:, -1]
    return last


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_sum_to_the_margin(backend: Session, kind: str) -> None:
    x, _ = rows()
    found = booster(kind)
    expected = margin(found, x)
    last = LAST.get(kind)

    # nested, so that it travels by value
    def explained(raw: bytearray, device: str, frames: Any) -> Any:
        from tipcast.models import fit, native

        scorer = native.load(bytes(raw), "xgboost-ubj", device)
        held = frames.frame(frames.xp.asarray(x), NAMES)
        assert len(scorer.contributions(held.iloc[:0])) == 0
        _, added = fit._explain_part(held, 0, scorer, 1, 2 if device == "cpu" else 1, last)
        return added

    task = backend.client.submit(
        explained, found.save_raw("ubj"), backend.device, backend.frames, pure=False
    )
    added = task.result()
    assert added.shape == (ROWS, 5)
    assert np.abs(added.sum(axis=1, dtype=np.float64) - expected).max() < 1e-5
    of_target, others = (np.abs(added[:, columns]).mean() for columns in ([0, 2], [1, 3]))
    assert of_target > 10 * others > 0


def test_a_sample_of_the_parts(client: Client) -> None:
    x, _ = rows()
    found = booster("classification")
    parts = [pd.DataFrame(part, columns=NAMES) for part in np.split(x, [10, 11])]
    held = [client.submit(lambda part: part, part, pure=False) for part in parts]
    scorer = client.submit(native.load, bytes(found.save_raw("ubj")), "xgboost-ubj", pure=False)
    values, added = fits.contributions(client, scorer, held, [len(part) for part in parts], 215)
    taken = pd.concat(parts)[::7].to_numpy()
    assert values.tolist() == taken.tolist()
    assert np.abs(added.sum(axis=1) - margin(found, taken)).max() < 1e-5
