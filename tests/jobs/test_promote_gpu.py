"""`tipcast promote backend=gpu`: the same verdict as on the CPU, for models of other features and libraries."""

from collections.abc import Callable
from typing import Any

import mlflow
import pytest

MODELS = (
    (("model=random_forest", "task.features=[trip_distance,PULocationID]"), ("model=xgboost",)),
    (
        ("model=svc",),
        ("model=knn",),
    ),
)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("pair", MODELS, ids=["trees", "neighbours"])
def test_a_gpu_says_what_the_cpu_does(
    job: Callable[..., Any], store: str, pair: tuple[tuple[str, ...], ...], request: pytest.FixtureRequest
) -> None:
    name = f"promoted_{request.node.callspec.id}"
    for words in pair:
        job("train", "backend=gpu", "data.rows=20000", f"tracking.register={name}", *words)
    client = mlflow.MlflowClient(store)
    found = {}
    for device in ("gpu", "cpu"):
        client.set_registered_model_alias(name, "champion", "1")
        found[device] = job("promote", f"backend={device}", f"model_uri=models:/{name}/2", "margin=0.5").said
        assert found[device]["moved"]
    for metric, value in found["cpu"]["metrics"].items():
        assert found["gpu"]["metrics"][metric] == pytest.approx(value, abs=1e-4), metric
