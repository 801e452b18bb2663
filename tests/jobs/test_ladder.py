"""The ladder: one training on several rungs, a child run each, and what the parent says of them."""

import json
import re
import shlex
from pathlib import Path

import mlflow
import numpy as np
import pytest

import tipcast
from tipcast import TipcastError, api
from tipcast.config.schema import LocalCluster
from tipcast.jobs.ladder_plan import Rung
from tipcast.jobs.ladder_record import Clusters, RungResult, compare_results

pytestmark = pytest.mark.usefixtures("forked_workers")


def test_each_rung_is_a_run_and_the_parent_compares_them(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = {"name": "xgboost", "params": {"n_estimators": 20}}
    result = tipcast.ladder(
        model=model,
        data={"rows": 6000},
        cores=[1, 2],
        gpus=[16],
        seed=3,
        tracking={"uri": store, "system_metrics": False},
    )
    assert "not warmed up" not in caplog.text
    client = mlflow.MlflowClient(store)
    parent = client.get_run(result.run_id)
    assert result.details["not_run"].keys() == {"16 GPUs"}
    assert parent.data.tags["ladder.verdict"] == "equal"
    below = client.search_runs(
        [parent.info.experiment_id], f"tags.mlflow.parentRunId = '{parent.info.run_id}'"
    )
    children = {run.info.run_name: run for run in below}
    assert children.keys() == {"1 core", "2 cores"}
    assert {run.info.status for run in below} == {"FINISHED"}
    assert (
        len(
            {
                (run.inputs.dataset_inputs[0].dataset.digest, run.data.metrics["train/rows"])
                for run in below
            }
        )
        == 1
    )
    table = json.loads(
        Path(client.download_artifacts(result.run_id, "tables/ladder.json")).read_text()
    )
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    for row in rows:
        metrics = children[row["rung"]].data.metrics
        assert row["auc"] == metrics["test/auc"]
        assert row["fit_s"] == pytest.approx(metrics["seconds/fit"])
        assert row["job_s"] == pytest.approx(
            sum(metrics[f"seconds/{name}"] for name in ("read", "fit", "evaluate"))
        )
        assert row["verdict"] == "equal"
        assert parent.data.metrics[f"speedup/cores_{row['rung'][0]}"] == pytest.approx(
            row["speed_up"]
        )
    assert "- 16 GPUs not run: " in parent.data.tags["mlflow.note.content"]
    assert [file.path for file in client.list_artifacts(result.run_id, "plots")] == [
        "plots/ladder.png"
    ]
    words = shlex.split(children["2 cores"].data.tags["command"])
    (composed,) = api.compose_jobs(words[1], words[2:])
    assert words[:2] == ["tipcast", "train"]
    again = composed.config
    assert (again.cluster.n_workers, again.cluster.threads_per_worker) == (2, 1)
    assert (again.backend.name, again.cluster.kind, again.data.rows, again.seed) == (
        "cpu",
        "local",
        6000,
        3,
    )


def test_clusters_are_held_against_the_groups_that_rows_were_made_of(store: str) -> None:
    blobs = {"source": "blobs", "rows": 4000, "test_rows": 1000, "centers": 5, "cluster_std": 0.3}
    result = tipcast.ladder(
        model={"name": "kmeans", "params": {"n_clusters": 5}},
        data=blobs,
        cores=[1, 2],
        gpus=[],
        tracking={"uri": store, "system_metrics": False},
    )
    parent = mlflow.MlflowClient(store).get_run(result.run_id)
    assert [row["adjusted_rand"] for row in result.details["rungs"]] == [1.0, 1.0]
    assert (
        parent.data.metrics["adjusted_rand/cores_1"]
        == parent.data.metrics["adjusted_rand/cores_2"]
        == 1.0
    )
    assert parent.data.tags["ladder.verdict"] == "equal"
    assert "adjusted_rand |" in parent.data.tags["mlflow.note.content"]
    paths = {
        file.path for file in mlflow.MlflowClient(store).list_artifacts(result.run_id, "plots")
    }
    assert {"plots/centroids.png", "plots/ladder.png"} <= paths


def test_speed_up_efficiency_and_agreement() -> None:
    def climbed(
        device: str, size: int, fit_s: float, auc: float, rand: float | None = None
    ) -> RungResult:
        seconds = {"cluster": 3.0, "read": 1.0, "fit": fit_s, "evaluate": 1.0}
        rung = Rung(device, size, LocalCluster("local"))
        clusters = None if rand is None else Clusters(np.zeros((1, 1)), rand)
        return RungResult(rung, "a", seconds, auc, clusters)

    rungs = [("cpu", 1, 18, 0.8), ("cpu", 4, 6, 0.79), ("gpu", 1, 2, 0.8), ("gpu", 2, 0, 0.81)]
    rows = compare_results([climbed(*rung) for rung in rungs], "auc", tolerance=0.0126)
    assert [row["rung"] for row in rows] == ["1 core", "4 cores", "1 GPU", "2 GPUs"]
    assert [row["job_s"] for row in rows] == [20, 8, 4, 2]
    assert [row["speed_up"] for row in rows] == [1, 2.5, 5, 10]
    assert [row["efficiency"] for row in rows] == [1, 0.625, 1, 1]
    assert [row["difference"] for row in rows] == pytest.approx([0, 0.0125, 0, 0.0125])
    assert {row["verdict"] for row in rows} == {"equal"}
    apart = compare_results([climbed("cpu", 1, 1, 0.5), climbed("cpu", 2, 1, 0.6)], "auc", 0.1)
    assert [row["verdict"] for row in apart] == ["equal", "NOT equal"]
    clusters = [
        climbed("cpu", size, 1, 0.5, rand) for size, rand in ((1, 1.0), (2, 0.995), (4, 0.9))
    ]
    assert [row["verdict"] for row in compare_results(clusters, "auc", 0.01)] == [
        "equal",
        "equal",
        "NOT equal",
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["cores=[0]"], "must be at least 1, got 0"),
        (["cores=[]", "gpus=[]"], "nothing to run: both are empty"),
        (["cores=[100000]", "gpus=[]"], "nothing to run: the machine has"),
        (["cluster=scheduler", "cluster.address=tcp://127.0.0.1:1"], "not on cluster=scheduler"),
    ],
)
def test_a_ladder_that_cannot_be(words: list[str], told: str) -> None:
    with pytest.raises(TipcastError, match=f"C003.*{re.escape(told)}"):
        tipcast.ladder(overrides=words)
