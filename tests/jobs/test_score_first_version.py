"""Models that were registered by the first version, whose manifests name no dataset and no columns, still score.

`first_version/` has what that version wrote: a model of 3 trees, its manifest, and 300 trips as it scored them.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from tipcast.config.schema import TrackingSpec
from tipcast.tracking.registry import MANIFEST_TAG
from tipcast.tracking.run import open_run

FILES = Path(__file__).parent / "first_version"
STAMP = ["model_name", "model_version"]
RECORDED = {
    "labelled/auc": 0.5191774596682572,
    "labelled/auc_low": 0.45310251918462613,
    "labelled/log_loss": 0.6870806182127538,
    "labelled/rows": 298,
    "score/mean": 0.5551625417669614,
    "score/predicted_rate": 0.7933333333333333,
}
"""What that version recorded of the same scoring, beside its drift."""


@pytest.fixture
def registered(store: str) -> str:
    """Register the model's files as they are; return the version's address."""
    digest = hashlib.sha256((FILES / "manifest.json").read_bytes()).hexdigest()
    spec = TrackingSpec(uri=store, experiment="first", system_metrics=False)
    with open_run(spec, name="first", tags={}, params={}) as run:
        client = run.client
        model = client.create_logged_model(run.experiment_id, name="model", source_run_id=run.id)
        folder = Path(model.artifact_location.removeprefix("file://"))
        (folder / "artifacts").mkdir(parents=True)
        for name in ("manifest.json", "model.ubj"):
            shutil.copy(FILES / name, folder / "artifacts")
        described = {"metadata": {"tipcast": {"manifest_sha256": digest}}}
        (folder / "MLmodel").write_text(yaml.safe_dump(described), encoding="utf-8")
        client.finalize_logged_model(model.model_id, "READY")
        client.create_registered_model("first")
        made = client.create_model_version(
            "first", f"models:/{model.model_id}", run.id, tags={MANIFEST_TAG: digest}, model_id=model.model_id
        )
    return f"models:/first/{made.version}"


def test_scores_and_records_as_that_version_did(job: Callable[..., Any], registered: str, tmp_path: Path) -> None:
    before = pq.read_table(FILES / "scored.parquet")
    trips = tmp_path / "yellow_tripdata_2019-04.parquet"
    pq.write_table(before, trips)  # its scores are left out, as those of any earlier scoring
    ended = job("score", f"model_uri={registered}", f"input={trips}", f"output={tmp_path}/scored")
    now = pq.read_table(tmp_path / "scored" / trips.name)
    assert now.schema.names == before.schema.names
    assert now.drop(STAMP).equals(before.drop(STAMP).replace_schema_metadata(None))
    metrics = ended.run.data.metrics
    assert {name: metrics[name] for name in RECORDED} == pytest.approx(RECORDED, abs=1e-9)
    words = [f"model_uri={registered}", f"input={trips}", f"output={tmp_path}/watched"]
    told = job("watch", *words).said["metrics"]
    assert told["watch/auc"] == pytest.approx(RECORDED["labelled/auc"], abs=1e-9)
    assert not {name for name in told if "reference" in name or "estimated" in name}, "it tells of no test rows"
