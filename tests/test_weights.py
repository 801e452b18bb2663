"""Weights of rows: each model fits as its library does with ``sample_weight``."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost
import yaml
from distributed import Client
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.class_weight import compute_sample_weight
from tests.conftest import shipped_model

from tipcast.compute.base import Session
from tipcast.config.conf_files import conf_dir
from tipcast.config.errors import TipcastError
from tipcast.config.schema import ModelSpec
from tipcast.datasets.class_weights import balanced
from tipcast.datasets.counts import Counts
from tipcast.datasets.rows import Rows
from tipcast.models.base import Split
from tipcast.models.build import build, check_weights
from tipcast.models.fit import fit
from tipcast.models.library_class import find_class
from tipcast.tasks.kinds import named

SEED = 7
MODELS = {
    path.stem: yaml.safe_load(path.read_text())
    for path in sorted((conf_dir() / "model").glob("*.yaml"))
}
WITHOUT = ["kmeans_dask", "knn", "linear_dask", "spectral"]
"""Models that take no weights on a processor."""
CELLS = [
    pytest.param(name, kind, id=f"{name}-{kind}")
    for name, shipped in MODELS.items()
    for kind in shipped["kinds"]
    if name not in WITHOUT
]
of_each_model = pytest.mark.parametrize(("name", "kind"), CELLS)
OBJECTIVES = {
    "classification": {"objective": "binary:logistic", "eval_metric": "logloss"},
    "multiclass": {"objective": "multi:softprob", "eval_metric": "mlogloss", "num_class": 3},
    "regression": {"objective": "reg:squarederror", "eval_metric": "rmse"},
}
"""Kind -> XGBoost's parameters for it."""


def table(kind: str, n: int, seed: int) -> tuple[pd.DataFrame, pd.Series, pd.Series]:
    """Features, a target that the third one tells most of, and weights, of which a quarter is 0."""
    draw = np.random.default_rng(seed)
    x = draw.integers(0, 20, (n, 3)).astype(np.float32)
    margin = x[:, 0] + 3 * x[:, 2] + draw.normal(0, 8, n)
    y = {
        "classification": (margin > 40).astype(np.int32),
        "multiclass": np.digitize(margin, [25, 50]).astype(np.int32),
        "regression": np.abs(margin).astype(np.float32),
        "clustering": np.zeros(n, np.int32),
    }[kind]
    weight = draw.integers(0, 4, n) * draw.random(n)
    return (
        pd.DataFrame(x, columns=["a", "b", "c"]),
        pd.Series(y, name="target"),
        pd.Series(weight, name="weight"),
    )


def spec(name: str, fit: dict[str, Any] | None = None, **params: Any) -> ModelSpec:
    """The shipped model, small, with some parameters replaced."""
    small = {**MODELS[name]["tiny"], **params}
    if name == "logistic":
        small["max_iter"] = 100
    return shipped_model(name, fit=fit, **small)


def estimator(model: ModelSpec, kind: str) -> Any:
    """The model's estimator on a processor."""
    return build(model, "cpu", (), named(kind), 3 if kind == "multiclass" else 0)


def split(kind: str, x: Any, y: Any, weight: Any = None, **validation: Any) -> Split:
    """Rows of a kind of task; clusters have no target."""
    if kind == "clustering":
        y = None
    return Split(x, y, weight=weight, **validation)


def theirs(
    model: ModelSpec, kind: str, x: pd.DataFrame, y: pd.Series, weight: pd.Series | None
) -> Any:
    """The library's own model, fitted by its own interface with ``sample_weight``."""
    if model.name.startswith("xgboost"):
        return train_booster(model, kind, x, y, weight)
    if model.name == "random_forest":
        return grow_forest(model, kind, x, y, weight)
    if model.name.startswith("incremental"):
        return learn_by_part(model, kind, x, y, weight)
    return fit_pipeline(model, kind, x, y, weight)


def train_booster(
    model: ModelSpec, kind: str, x: pd.DataFrame, y: pd.Series, weight: pd.Series | None
) -> xgboost.Booster:
    params = {name: value for name, value in model.params.items() if value is not None}
    trees = params.pop("n_estimators")
    rounds = model.fit.get("num_boost_round") or trees
    settings = {"num_parallel_tree": trees // rounds, "seed": SEED, "nthread": 1}
    rows = xgboost.QuantileDMatrix(x, y, weight=weight)
    return xgboost.train({**params, **OBJECTIVES[kind], **settings}, rows, rounds)


def grow_forest(
    model: ModelSpec, kind: str, x: pd.DataFrame, y: pd.Series, weight: pd.Series | None
) -> Any:
    params = {name: value for name, value in model.params.items() if value is not None}
    cls = RandomForestRegressor if kind == "regression" else RandomForestClassifier
    return cls(**params, random_state=SEED).fit(x.to_numpy(), y.to_numpy(), sample_weight=weight)


def fit_pipeline(
    model: ModelSpec, kind: str, x: pd.DataFrame, y: pd.Series, weight: pd.Series | None
) -> Pipeline:
    cls = find_class(model.classes[kind]["cpu"]["local"])
    last = cls(**model.params)
    if "random_state" in last.get_params():
        last.set_params(random_state=SEED)
    if "folds" in model.fit:
        last = CalibratedClassifierCV(last, cv=model.fit["folds"], ensemble=False)

    dtype = np.float32
    z = x.to_numpy(dtype)
    steps: list[tuple[str, Any]] = [("model", last)]
    if model.fit.get("standardize"):
        dtype = np.float64
        scaler = StandardScaler().fit(x.to_numpy(dtype))
        # Column by column: a library's sums of rows in another order have other last digits.
        z = np.asfortranarray(scaler.transform(x.to_numpy(dtype)))
        steps.insert(0, ("scaler", scaler))

    if kind == "clustering":
        last.fit(z, sample_weight=weight)
    else:
        target = y.to_numpy(dtype) if kind == "regression" else y.to_numpy()
        last.fit(z, target, sample_weight=weight)
    return Pipeline(steps)


def learn_by_part(
    model: ModelSpec, kind: str, x: pd.DataFrame, y: pd.Series, weight: pd.Series | None
) -> Pipeline:
    """All rows are one part; values are learnt as differences from their weighted mean."""
    scaler = StandardScaler().fit(x.to_numpy(float))
    z = scaler.transform(x.to_numpy(float))
    sgd = find_class(model.classes[kind]["cpu"]["local"])(**model.params, random_state=SEED)
    mean = 0.0
    settings: dict[str, Any] = {"classes": np.unique(y)}
    if kind == "regression":
        mean = np.average(y.astype(float), weights=weight)
        settings = {}

    for _ in range(2 if model.fit["passes"] == 2 else 50):
        sgd.partial_fit(z, y.to_numpy() - mean if mean else y, sample_weight=weight, **settings)
    sgd.intercept_ = sgd.intercept_ + mean
    return Pipeline([("scaler", scaler), ("model", sgd)])


def predictions(model: Any, kind: str, x: pd.DataFrame) -> np.ndarray:
    """What tipcast's scorer returns, by the library's own interface."""
    if isinstance(model, xgboost.Booster):
        return model.inplace_predict(x)
    if kind == "regression":
        return model.predict(x.to_numpy(float))
    if kind == "clustering":
        distances = model.transform(x.to_numpy(float))
        return np.column_stack([model.predict(x.to_numpy(float)), distances.min(axis=1)])
    found = model.predict_proba(x.to_numpy(float))
    return found[:, 1] if kind == "classification" else found


HELD_OUT = table("regression", 150, 1)[0]


@of_each_model
def test_a_model_fits_as_its_library_does_with_sample_weight(name: str, kind: str) -> None:
    model = spec(name)
    x, y, weight = table(kind, 400, 0)
    found = estimator(model, kind).fit(split(kind, x, y, weight), SEED)

    expected = predictions(theirs(model, kind, x, y, weight), kind, HELD_OUT)
    exact = name.startswith("xgboost")
    scores = found.scorer.score(HELD_OUT.to_numpy())
    np.testing.assert_allclose(scores, expected, rtol=0, atol=0 if exact else 1e-9)


@of_each_model
def test_weights_change_a_model(name: str, kind: str) -> None:
    model = estimator(spec(name), kind)
    x, y, weight = table(kind, 400, 0)
    weighted, plain = (
        model.fit(split(kind, x, y, given), SEED).scorer.score(HELD_OUT.to_numpy())
        for given in (weight, None)
    )
    assert np.abs(weighted - plain).max() > 1e-3


def rows_on(
    client: Client, kind: str, parts: list[tuple[pd.DataFrame, pd.Series, pd.Series]]
) -> Rows:
    """Parts on a client's workers in turn."""
    workers = sorted(client.nthreads())
    x, y, weight = (
        [
            client.scatter(side, workers=[workers[at % len(workers)]], hash=False)
            for at, side in enumerate(sides)
        ]
        for sides in zip(*parts, strict=True)
    )
    sizes = tuple(len(part[0]) for part in parts)
    counts = Counts(sum(sizes), sum(sizes), {})
    return Rows(x, [] if kind == "clustering" else y, counts, sizes, weight=weight)


@pytest.mark.parametrize("workers", ["client", "pair"])
@of_each_model
def test_workers_fit_as_one_process_does(
    request: pytest.FixtureRequest, name: str, kind: str, workers: str
) -> None:
    """One worker has all rows, or two have some each."""
    client = request.getfixturevalue(workers)
    parts = [table(kind, n, seed) for seed, n in enumerate((200, 120, 180))]
    # Each worker draws its own rows: with a subsample the forest would be another one.
    params = {"subsample": 1.0} if name == "xgboost_forest" else {}
    model = estimator(spec(name, **params), kind)
    found = fit(client, model, rows_on(client, kind, parts), None, SEED)

    x, y, weight = map(list, zip(*parts, strict=True))
    here = model.fit(split(kind, x, y, weight), SEED)
    # Workers' sums are in another order.
    tolerance = 1e-5 if name.startswith("xgboost") or kind == "clustering" else 1e-9
    rows = HELD_OUT.to_numpy()
    np.testing.assert_allclose(found.scorer.score(rows), here.scorer.score(rows), atol=tolerance)


@pytest.mark.parametrize("workers", ["client", "pair"])
def test_validation_rows_count_by_their_own_weights(
    request: pytest.FixtureRequest, workers: str
) -> None:
    client = request.getfixturevalue(workers)
    kind = "classification"
    train, held_out = table(kind, 400, 0), table(kind, 200, 1)
    model = spec("xgboost", n_estimators=40, learning_rate=0.5, max_depth=4)
    halves = [tuple(side[half] for side in train) for half in (slice(200), slice(200, None))]
    ours = fit(
        client,
        estimator(model, kind),
        rows_on(client, kind, halves),
        rows_on(client, kind, [held_out]),
        SEED,
    )

    rows = xgboost.QuantileDMatrix(train[0], train[1], weight=train[2])
    judged = xgboost.QuantileDMatrix(held_out[0], held_out[1], weight=held_out[2], ref=rows)
    log: dict[str, dict[str, list[float]]] = {}
    params = {"max_depth": 4, "learning_rate": 0.5, "seed": SEED, **OBJECTIVES[kind]}
    xgboost.train(
        params,
        rows,
        40,
        evals=[(judged, "validation")],
        early_stopping_rounds=20,
        evals_result=log,
        verbose_eval=False,
    )
    losses = log["validation"]["logloss"]
    assert len(losses) < 40
    assert ours.info["best_iteration"] == int(np.argmin(losses))
    assert list(ours.history["validation_logloss"].values()) == pytest.approx(losses, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "kind", "params"),
    [
        ("linear", "regression", {}),
        ("ridge", "regression", {}),
        ("poisson", "regression", {"max_iter": 1000}),
        ("logistic", "classification", {"tol": 1e-8}),
    ],
)
def test_a_weight_of_two_is_a_row_twice(name: str, kind: str, params: dict[str, Any]) -> None:
    """Not of standardised features: their scale does not depend on weights."""
    model = estimator(spec(name, {"standardize": False}, **params), kind)
    x, y, _ = table(kind, 300, 0)
    x = x / 20
    times = np.random.default_rng(2).integers(0, 4, len(x))
    at = np.repeat(np.arange(len(x)), times)
    weighted = model.fit(Split(x, y, weight=pd.Series(times.astype(float))), SEED)
    repeated = model.fit(Split(x.iloc[at], y.iloc[at]), SEED)

    rows = (HELD_OUT / 20).to_numpy()
    np.testing.assert_allclose(
        weighted.scorer.score(rows), repeated.scorer.score(rows), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("name", ["extra_trees", "xgboost"])
def test_a_weight_of_zero_leaves_a_row_out(name: str) -> None:
    kind = "classification"
    model = estimator(spec(name), kind)
    x, y, _ = table(kind, 400, 0)
    counts = np.arange(len(x)) % 4 > 0
    wrong = y.where(counts, 1 - y)
    weighted = model.fit(Split(x, wrong, weight=pd.Series(counts.astype(float))), SEED)
    without = model.fit(Split(x[counts], y[counts]), SEED)

    rows = HELD_OUT.to_numpy()
    np.testing.assert_allclose(weighted.scorer.score(rows), without.scorer.score(rows), atol=1e-6)


def test_a_fitted_forest_does_not_keep_the_weights() -> None:
    kind = "classification"
    x, y, weight = table(kind, 400, 0)
    for name in ("random_forest", "extra_trees"):
        fitted = estimator(spec(name), kind).fit(Split(x, y, weight=weight), SEED)
        assert fitted.scorer.model._sample_weight is None


REFUSED = [
    ("knn", "cpu", "classification", "knn does not support weights", "use model=logistic"),
    ("knn", "cpu", "regression", "knn does not support weights", "use model=ridge"),
    ("spectral", "cpu", "clustering", "spectral does not support weights", "use model=kmeans"),
    (
        "kmeans_dask",
        "cpu",
        "clustering",
        "kmeans_dask does not support weights",
        "use model=kmeans",
    ),
    (
        "linear_dask",
        "cpu",
        "regression",
        "linear_dask does not support weights",
        "use model=linear",
    ),
    (
        "random_forest",
        "gpu",
        "multiclass",
        "random_forest does not support weights on GPUs",
        "use backend=cpu, or model=xgboost_forest",
    ),
]


@pytest.mark.parametrize(("name", "device", "kind", "what", "fix"), REFUSED)
def test_a_model_without_weights_is_refused(
    name: str, device: str, kind: str, what: str, fix: str
) -> None:
    with pytest.raises(TipcastError) as refused:
        check_weights(spec(name), device, named(kind), "task.weight")
    assert str(refused.value) == f"error[C003] task.weight: {what}. Fix: {fix}"


def test_a_model_that_is_proposed_takes_weights() -> None:
    for _, _, kind, _, fix in REFUSED:
        check_weights(spec(fix.rpartition("=")[2]), "cpu", named(kind), "task.weight")


def weighted_multipliers(y: Any, weight: Any) -> Any:
    """Return (rows,) multipliers, as ``compute_class_weight`` of scikit-learn 1.9."""
    sums = np.bincount(y, weight)
    return (sums.sum() / (len(sums) * sums))[y]


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("kind", ["classification", "multiclass"])
def test_balanced_weights_are_those_of_scikit_learn(
    cpu_session: Session, kind: str, weighted: bool
) -> None:
    """From the sums of the rows' own weights, if they have some."""
    client = cpu_session.client
    parts = [table(kind, n, seed) for seed, n in enumerate((200, 1, 99))]
    rows = rows_on(client, kind, parts)
    y = pd.concat([part[1] for part in parts])
    own = pd.concat([part[2] for part in parts]).to_numpy()
    counts = Counts(len(y), len(y), {}, classes=tuple(np.bincount(y).tolist()))
    if weighted:
        sums = tuple(np.bincount(y, own).tolist())
        counts = dataclasses.replace(counts, weight=float(own.sum()), class_weights=sums)
    rows = Rows(rows.x, rows.y, counts, rows.part_rows, weight=rows.weight if weighted else [])

    found = pd.concat(client.gather(balanced(cpu_session, rows).weight))
    expected = compute_sample_weight("balanced", y)
    if weighted:
        expected = own * weighted_multipliers(y, own)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    of_class = np.bincount(y, found)
    np.testing.assert_allclose(of_class, of_class[0])
