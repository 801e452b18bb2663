"""Registered versions: what they carry, what is refused, and that stopped or failed ones are not left half made."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException

from tipcast.config.errors import TipcastError
from tipcast.config.schema import TrackingSpec
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.tracking import portable
from tipcast.tracking.portable import MAX_DESCRIPTION, register
from tipcast.tracking.run import open_run
from tipcast.tracking.store import open_store

WHOLE = {"features": ["a"], "format": "x", "sha256": {"model": "0" * 64}, "data_digest": "d", "git_commit": "c"}


def _use(saved: Any) -> None:
    mlflow.set_tracking_uri(saved.run.store)
    mlflow.set_registry_uri(saved.run.store)


def test_a_version_carries_what_is_known(
    spec: TrackingSpec, natives: Any, trips: pd.DataFrame, facts: dict[str, Any]
) -> None:
    file, expected = natives["skops"]
    with open_run(spec, name="n", tags={}, params={"seed": 3}) as run:
        run.log_metrics({"test/auc": 0.654321987})
        logged = portable.log_model(run, file, "skops", facts, Taxi(), {"colour": "yellow"}, trips.head(5))
        run.log_metrics({"seconds/fit": 3.0})
        portable.link_metrics(run, logged, {"test": ("rows", "7" * 64)})
        difference = portable.parity(logged, trips, expected)
        first = register(run, logged, "tips", difference, {"test/auc": 0.654321987}, "# One")
        many = {**logged.manifest, "features": [f"ENSG{at:011d}" for at in range(7000)]}
        second = register(
            run, dataclasses.replace(logged, manifest=many), "tips", portable.TOLERANCE, {"test/a (b)": 1.0}, "x" * 6000
        )
    assert (first.registered, second.registered) == ("models:/tips/1", "models:/tips/2")
    assert first.uri == logged.uri
    client = open_store(spec)
    made = client.get_model_version("tips", "1")
    assert made.description == "# One"
    assert made.run_id == run.id
    assert len(client.get_model_version("tips", "2").description) == MAX_DESCRIPTION
    assert client.get_model_version("tips", "2").tags["features"].startswith("ENSG00000000000, ENSG00000000001, ")
    tags = made.tags
    assert tags["test/auc"] == "0.654322"
    assert tags["format"] == "skops"
    assert tags["sha256"] == portable.digest(file)
    assert tags["sha256.manifest"] == logged.manifest_sha256
    assert tags["features"].split(", ") == facts["features"]
    assert tags["data.digest"] == facts["data_digest"]
    assert tags["git.commit"] == facts["git_commit"]
    assert f"numpy {np.__version__}" in tags["versions"]
    assert float(tags["parity"]) <= 1e-9
    model = client.get_logged_model(logged.model_id)
    assert model.params["seed"] == "3"
    (metric,) = model.metrics
    assert (metric.key, metric.value, metric.dataset_name) == ("test/auc", 0.654321987, "rows")
    assert len(client.get_metric_history(run.id, "test/auc")) == 1, "the run's own point, not a second one"
    noted = json.loads(model.tags["mlflow.modelVersions"])
    assert [(entry["name"], int(entry["version"])) for entry in noted] == [("tips", 1), ("tips", 2)]
    loaded = mlflow.pyfunc.load_model("models:/tips/1")
    assert loaded.metadata.signature is not None
    assert loaded.input_example is not None
    np.testing.assert_allclose(loaded.predict(trips), expected, atol=1e-9)


@pytest.mark.parametrize(
    ("difference", "metrics", "changes", "says"),
    [
        (1.1e-5, {"test/auc": 0.6}, {}, "differ by 1.1e-05"),
        (float("nan"), {"test/auc": 0.6}, {}, "differ by nan"),
        (0.0, {"test/auc": 0.6, "test/log_loss": float("inf")}, {}, "test/log_loss is inf"),
        (0.0, {"test/auc": float("nan")}, {}, "test/auc is nan"),
        (0.0, {}, {"data_digest": ""}, "no digest of the training data"),
        (0.0, {}, {"git_commit": None}, "no git commit or tipcast's version"),
    ],
)
def test_a_doubtful_model_is_not_registered(
    saved: Any, difference: float, metrics: Any, changes: Any, says: str
) -> None:
    run, logged = saved["skops"].run, portable.Logged("models:/m-1", manifest={**WHOLE, **changes})
    with pytest.raises(TipcastError, match=says) as caught:
        register(run, logged, "doubtful", difference, metrics, "")
    assert caught.value.code == "M011"
    assert list(run.client.search_registered_models("name = 'doubtful'")) == []


def test_a_resumed_sweep_uses_the_version_that_its_run_has(saved: Any) -> None:
    one = saved["xgboost-ubj"]
    _use(one)
    register(one.run, one.logged, "resumed", 0.0, {}, "", trial="5f-0001")
    refitted = saved["skops"].logged
    again = register(one.run, refitted, "resumed", 0.0, {}, "", trial="5f-0001")
    assert (again.uri, again.registered) == (refitted.uri, "models:/resumed/1")
    assert register(one.run, refitted, "resumed", 0.0, {}, "", trial="5f-0002").registered == "models:/resumed/2"
    assert register(one.run, refitted, "other", 0.0, {}, "", trial="5f-0001").registered == "models:/other/1"


def test_what_fails_on_the_way_leaves_nothing(saved: Any) -> None:
    one = saved["treelite"]
    _use(one)
    client = one.run.client
    missing = dataclasses.replace(one.logged, uri="models:/m-00000000000000000000000000000000")
    with pytest.raises(MlflowException):
        register(one.run, missing, "nothing", 0.0, {}, "")
    assert [model.name for model in client.search_registered_models("name = 'nothing'")] == []
    register(one.run, one.logged, "there", 0.0, {}, "")
    with pytest.raises(MlflowException):
        register(one.run, missing, "there", 0.0, {}, "")
    assert [version.version for version in client.search_model_versions("name = 'there'")] == [1]
