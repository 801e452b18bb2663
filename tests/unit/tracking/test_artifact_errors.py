"""Artifacts that do not fit: the system's own error, in one line, and nothing half written counts."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from mlflow.utils.file_utils import local_file_uri_to_path

from tipcast.config.errors import TipcastError
from tipcast.config.schema import TrackingSpec
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.tracking import portable
from tipcast.tracking.models import fetch
from tipcast.tracking.run import open_run

LIMIT = 3_000_000


@contextlib.contextmanager
def small_files() -> Iterator[None]:
    """Let this process write no file of more than 3 MB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("as_text", [False, True])
def test_an_artifact_that_does_not_fit(spec: TrackingSpec, tmp_path: Path, as_text: bool) -> None:
    large = tmp_path / "large.bin"
    large.write_bytes(bytes(LIMIT + 1))
    with pytest.raises(TipcastError) as caught, open_run(spec, name="n", tags={}, params={}) as run, small_files():
        run.log_bytes(b"kept", "plots/kept.png")
        if as_text:
            run.log_text("x" * (LIMIT + 1), "plots/large.bin")
        run.log_file(large, "plots")
    assert caught.value.code == "T005"
    assert "File too large" in str(caught.value)
    assert "bytes free" in str(caught.value)
    assert as_text or "plots/large.bin" in str(caught.value)
    folder = Path(local_file_uri_to_path(run.client.get_run(run.id).info.artifact_uri))
    assert [path.name for path in (folder / "plots").iterdir()] == ["kept.png"]
    assert run.client.get_run(run.id).info.status == "FAILED"


def test_a_model_that_does_not_fit(
    spec: TrackingSpec, natives: Any, trips: pd.DataFrame, facts: dict[str, Any], tmp_path: Path
) -> None:
    large = tmp_path / "model.tl"
    large.write_bytes(natives["treelite"][0].read_bytes() + bytes(LIMIT))  # what follows the trees is not read
    with pytest.raises(TipcastError, match="T005"), open_run(spec, name="n", tags={}, params={}) as run, small_files():
        portable.log_model(run, large, "treelite", facts, Taxi(), {"colour": "yellow"}, trips.head(5))
    client = run.client
    (model,) = client.search_logged_models([run.experiment_id])
    assert model.status == "FAILED"
    with pytest.raises(TipcastError, match="M001.*has logged no model"):
        fetch(client, f"runs:/{run.id}/model", tmp_path)
