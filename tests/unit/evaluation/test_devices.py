"""The evaluation on a GPU gives the CPU's numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tipcast.compute.base import Session
from tipcast.evaluation.classification import Classification

pytestmark = pytest.mark.gpu


def spread(session: Session, values: np.ndarray, parts: int = 5) -> list[Any]:
    """Put an array on the workers' devices in uneven partitions."""

    def place(part: np.ndarray, frames: Any) -> Any:  # nested, so that it travels by value
        return frames.xp.asarray(part)

    cuts = np.sort(np.random.default_rng(len(values)).integers(0, len(values) + 1, parts - 1))
    return [session.client.submit(place, part, session.frames, pure=False) for part in np.split(values, cuts)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("rows", "digits"), [(60_000, 3), (60_000, 9), (12, 9)])
def test_a_gpu_evaluates_as_the_cpu_does(
    cpu_session: Session, gpu_session: Session, dtype: type, rows: int, digits: int
) -> None:
    draw = np.random.default_rng(3)
    scores = np.round(draw.random(rows), digits).astype(dtype)
    labels = (draw.random(rows) < scores).astype(np.int32)
    labels[:2] = 0, 1
    found = []
    for session in (cpu_session, gpu_session):
        spreads = [spread(session, values) for values in (scores, labels)]
        found.append(Classification().evaluate(session.client, *spreads, threshold=None))
    cpu, gpu = found
    assert gpu.metrics == pytest.approx(cpu.metrics, abs=1e-12, rel=1e-12)
    assert gpu.threshold == cpu.threshold
    assert gpu.confusion == cpu.confusion
    for curve in ("roc", "precision_recall", "calibration", "histogram"):
        for field in dataclasses.fields(getattr(cpu, curve)):
            one, other = (getattr(getattr(each, curve), field.name) for each in (cpu, gpu))
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12, err_msg=f"{curve}.{field.name}")
