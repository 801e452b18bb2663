"""The evaluation on each device gives NumPy's numbers."""

import dataclasses
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from distributed import Client
from tests.conftest import spread
from tests.unit.evaluation import test_classification
from tests.unit.evaluation.test_base import ROWS

from tipcast.compute.base import Session
from tipcast.evaluation import evaluator_of
from tipcast.evaluation.classification import Classification
from tipcast.evaluation.sums import PartedColumns
from tipcast.tasks.kinds import KINDS


def placed(session: Session, values: np.ndarray, cuts: tuple[int, ...] = (0, 1, 1000)) -> list[Any]:
    """Put an array on the workers' devices in uneven parts."""
    frames = session.frames
    # travels by value
    return spread(session.client, values, cuts, lambda part: frames.xp.asarray(part))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("rows", "digits"), [(60_000, 3), (60_000, 9), (12, 9)])
def test_a_gpu_evaluates_as_the_cpu_does(
    cpu_session: Session, gpu_session: Session, dtype: type, rows: int, digits: int
) -> None:
    draw = np.random.default_rng(3)
    scores = np.round(draw.random(rows), digits).astype(dtype)
    labels = (draw.random(rows) < scores).astype(np.int32)
    labels[:2] = 0, 1
    cpu, gpu = (
        Classification().evaluate(session.client, placed(session, scores), placed(session, labels))
        for session in (cpu_session, gpu_session)
    )
    assert gpu.metrics == pytest.approx(cpu.metrics, abs=1e-12, rel=1e-12)
    assert gpu.threshold == cpu.threshold
    np.testing.assert_array_equal(gpu.sums.confusion, cpu.sums.confusion)
    np.testing.assert_array_equal(gpu.sums.bins, cpu.sums.bins)
    for one, other in ((cpu.roc, gpu.roc), (cpu.calibration, gpu.calibration)):
        for name, values in one.items():
            np.testing.assert_allclose(values, other[name], rtol=1e-12, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_an_evaluation_is_the_same_on_each_device(
    backend: Session, client: Client, kind: str
) -> None:
    columns = ROWS[kind]()
    evaluator = evaluator_of(KINDS[kind])
    found = evaluator.evaluate(backend.client, *(placed(backend, values) for values in columns))
    expected = evaluator.evaluate(client, *(spread(client, values) for values in columns))
    assert found.metrics == pytest.approx(expected.metrics, rel=1e-8)
    for field in dataclasses.fields(expected.sums):
        one, other = (getattr(evaluation.sums, field.name) for evaluation in (found, expected))
        np.testing.assert_allclose(one, other, rtol=1e-6, err_msg=field.name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_weighted_evaluation_is_the_same_on_each_device(
    backend: Session, client: Client, kind: str
) -> None:
    columns = ROWS[kind]()
    weights = np.random.default_rng(0).lognormal(0, 1, len(columns[0])).astype(np.float32)
    weights[::7] = 0
    evaluator = evaluator_of(KINDS[kind])
    found = evaluator.evaluate(
        backend.client,
        *(placed(backend, values) for values in columns),
        weights=placed(backend, weights),
    )
    expected = evaluator.evaluate(
        client, *(spread(client, values) for values in columns), weights=spread(client, weights)
    )
    assert found.metrics == pytest.approx(expected.metrics, rel=1e-8)
    assert found.interval == pytest.approx(expected.interval, rel=1e-8)


def test_weighted_scores_to_be_compared_may_be_on_a_device(backend: Session) -> None:
    first, labels = test_classification.rows(500)
    second, _ = test_classification.rows(500, seed=1)
    weights = np.random.default_rng(0).lognormal(0, 1, 500).astype(np.float32)
    rows = (first, second, labels, weights)
    here = [Classification().evaluate_here(scores, labels, weights) for scores in (first, second)]
    columns = [placed(backend, values, (123,)) for values in rows]
    _, interval = Classification().difference(PartedColumns(columns, backend.client), here)
    parts = PartedColumns([[values] for values in rows])
    _, expected = Classification().difference(parts, here)
    assert interval == pytest.approx(expected, rel=1e-8)


def test_scores_to_be_compared_may_be_on_a_device(backend: Session) -> None:
    (first, labels), (second, _) = (
        test_classification.rows(500),
        test_classification.rows(500, seed=1),
    )
    columns = [placed(backend, values, (123,)) for values in (first, second, labels)]
    here = [Classification().evaluate_here(scores, labels) for scores in (first, second)]
    binned = [
        replace(evaluation, sums=replace(evaluation.sums, kept_scores=np.zeros((2, 0))))
        for evaluation in here
    ]
    value, interval = Classification().difference(PartedColumns(columns, backend.client), binned)
    assert value == here[0].headline_value - here[1].headline_value
    assert interval.low < value < interval.high
