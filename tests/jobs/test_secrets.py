"""Secrets of the environment and of the reader's options never reach the store, its artifacts, or
the screen.
"""

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.jobs.test_repeat import write

from tipcast.commands import compose_jobs

PLACES = (
    "AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN MLFLOW_TRACKING_PASSWORD MLFLOW_TRACKING_TOKEN "
    "key secret token header"
)
CANARIES = {name: f"canary{number}x7Yq" for number, name in enumerate(PLACES.split())}
"""Where a secret is -> the secret."""


def test_no_canary_is_found(
    bucket: Any,
    tables: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: Any,
    caplog: Any,
) -> None:
    """Two months in an object store are trained on and scored."""
    files = "s3://trips/yellow_tripdata_2019-0{}.parquet"
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    for month in ("2019-01", "2019-02"):
        write(tmp_path / "months", month, rows=1500)
        bucket.put(
            str(tmp_path / "months" / f"yellow_{month}.parquet"),
            f"trips/yellow_tripdata_{month}.parquet",
        )
    shutil.rmtree(tmp_path / "months")
    shutil.copy(tables, tmp_path)
    # MLflow keeps stores by address
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    for name, value in CANARIES.items():
        if name.isupper():
            monkeypatch.setenv(name, value)
    words = [
        "data=files",
        f"data.train={files.format(1)}",
        f"data.test={files.format(2)}",
        "data.limits.min_rows=10",
    ]
    words += [
        "print=json",
        "model=logistic",
        "cluster.n_workers=1",
        "tracking.register=tipcast",
        "debug=true",
    ]
    words += ["cluster.performance_report=true"]
    (training,) = compose_jobs("train", words)
    options = {  # as a file in conf/data may set them; the command line refuses secrets
        "key": CANARIES["key"],
        "secret": CANARIES["secret"],
        "client_kwargs": {"endpoint_url": endpoint},
        "token": CANARIES["token"],
        "config_kwargs": {"user_agent_extra": CANARIES["header"]},
    }
    training.config.data.storage_options = options
    with caplog.at_level(logging.WARNING):
        training.run()
        given = [
            "model_uri=models:/tipcast/1",
            f"input={files.format(2)}",
            "output=scored",
            "print=json",
            "debug=true",
        ]
        (scoring,) = compose_jobs(
            "score", [*given, "cluster.n_workers=1", "cluster.processes=false"]
        )
        scoring.config.storage_options = options
        scoring.run()
    shown = capfd.readouterr()
    said = json.loads(shown.out.splitlines()[-1])
    assert said["model_uri"] == "models:/tipcast/1"
    assert (tmp_path / "scored" / "_manifest.json").exists()
    stored = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(stored) > 10
    assert any(path.name == "dask.html" for path in stored)
    for name, canary in CANARIES.items():
        assert canary not in shown.out + shown.err + caplog.text, name
        found = [
            str(path.relative_to(tmp_path))
            for path, content in stored.items()
            if canary.encode() in content
        ]
        assert found == [], name
    assert os.environ["MLFLOW_TRACKING_PASSWORD"] == CANARIES["MLFLOW_TRACKING_PASSWORD"]
