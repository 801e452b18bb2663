"""The ladder: one training on several rungs, a child run each, and what the parent says of them."""

import contextlib
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
from tests.jobs.conftest import console_lines

import tipcast
from tipcast import TipcastError, commands
from tipcast.compute import gpus
from tipcast.config.compose import compose, to_object
from tipcast.config.schema import LocalCluster
from tipcast.jobs.ladder_plan import Rung, choose_rungs
from tipcast.jobs.ladder_record import Clusters, RungResult, compare_results
from tipcast.tasks.kinds import named_by

pytestmark = pytest.mark.usefixtures("forked_workers")


@dataclass(frozen=True)
class Climbed:
    """What a ladder has left."""

    result: tipcast.Result
    lines: str
    """What it logged."""
    client: Any
    parent: Any
    rungs: dict[str, Any]
    """Name -> run."""

    def table(self) -> list[dict[str, Any]]:
        """Return the rows of the parent's table."""
        path = self.client.download_artifacts(self.result.run_id, "tables/ladder.json")
        table = json.loads(Path(path).read_text())
        return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]


@pytest.fixture(scope="module")
def climbed(store: str, forked_workers: None, tmp_path_factory: pytest.TempPathFactory) -> Climbed:
    """A training on one core and on two, and not on GPUs that are not there."""
    with contextlib.chdir(tmp_path_factory.mktemp("ladder")), console_lines() as lines:
        result = tipcast.ladder(
            model={"name": "xgboost", "params": {"n_estimators": 20}},
            data={"rows": 6000},
            cores=[1, 2],
            gpus=[16],
            seed=3,
            tracking={"uri": store, "system_metrics": False},
        )
    client = mlflow.MlflowClient(store)
    parent = client.get_run(result.run_id)
    below = client.search_runs(
        [parent.info.experiment_id], f"tags.mlflow.parentRunId = '{parent.info.run_id}'"
    )
    rungs = {run.info.run_name: run for run in below}
    assert len(rungs) == len(below)
    return Climbed(result, "\n".join(lines), client, parent, rungs)


def test_each_rung_is_a_run(climbed: Climbed) -> None:
    assert climbed.rungs.keys() == {"1 core", "2 cores"}
    assert {run.info.status for run in climbed.rungs.values()} == {"FINISHED"}


def test_the_run_of_a_ladder_has_its_verdict(climbed: Climbed) -> None:
    assert climbed.parent.data.tags["ladder.verdict"] == "equal"


def test_the_run_of_a_ladder_has_its_plot(climbed: Climbed) -> None:
    plots = climbed.client.list_artifacts(climbed.result.run_id, "plots")
    assert [file.path for file in plots] == ["plots/ladder.png"]


def test_all_rungs_learn_from_the_same_rows(climbed: Climbed) -> None:
    digests = {run.inputs.dataset_inputs[0].dataset.digest for run in climbed.rungs.values()}
    rows = {run.data.metrics["train/rows"] for run in climbed.rungs.values()}
    assert (len(digests), len(rows)) == (1, 1)


@pytest.mark.parametrize("at", [0, 1], ids=["1 core", "2 cores"])
def test_a_row_of_the_table_has_the_figures_of_its_rung(climbed: Climbed, at: int) -> None:
    row = climbed.table()[at]
    metrics = climbed.rungs[row["rung"]].data.metrics
    seconds = [metrics[f"seconds/{name}"] for name in ("read", "fit", "evaluate")]
    speed_up = climbed.parent.data.metrics[f"speedup/cores_{row['rung'][0]}"]
    assert row["auc"] == metrics["test/auc"]
    assert row["fit_s"] == pytest.approx(metrics["seconds/fit"])
    assert row["job_s"] == pytest.approx(sum(seconds))
    assert row["verdict"] == "equal"
    assert speed_up == pytest.approx(row["speed_up"])


def test_a_rung_that_the_machine_has_not_is_named(climbed: Climbed) -> None:
    assert climbed.result.details["not_run"].keys() == {"16 GPUs"}
    assert "- 16 GPUs not run: " in climbed.parent.data.tags["mlflow.note.content"]


def test_every_rung_is_warmed_up(climbed: Climbed) -> None:
    assert "no warm-up" not in climbed.lines


def test_the_command_of_a_rung_repeats_its_training(climbed: Climbed) -> None:
    words = shlex.split(climbed.rungs["2 cores"].data.tags["command"])
    (composed,) = commands.compose_jobs(words[1], words[2:])
    cluster = composed.config.cluster
    assert words[:2] == ["tipcast", "train"]
    assert (cluster.n_workers, cluster.threads_per_worker, cluster.kind) == (2, 1, "local")
    assert composed.config.backend.name == "cpu"
    assert (composed.config.data.rows, composed.config.seed) == (6000, 3)


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


def a_rung(
    device: str, size: int, fit_s: float, auc: float, rand: float | None = None
) -> RungResult:
    """Make the result of a rung; all but fitting takes 5 seconds."""
    seconds = {"cluster": 3.0, "read": 1.0, "fit": fit_s, "evaluate": 1.0}
    rung = Rung(device, size, LocalCluster("local"))
    clusters = None if rand is None else Clusters(np.zeros((1, 1)), rand)
    return RungResult(rung, "a", seconds, auc, clusters)


def verdicts(*results: RungResult, tolerance: float) -> list[str]:
    """Return what is said of each rung's agreement with the first."""
    return [row["verdict"] for row in compare_results(list(results), "auc", tolerance)]


@pytest.fixture
def compared() -> list[dict[str, Any]]:
    """Rows of a table of rungs on cores and on GPUs, whose scores are nearly the same."""
    rungs = [("cpu", 1, 18, 0.8), ("cpu", 4, 6, 0.79), ("gpu", 1, 2, 0.8), ("gpu", 2, 0, 0.81)]
    return compare_results([a_rung(*rung) for rung in rungs], "auc", tolerance=0.0126)


def test_a_rung_is_called_by_what_it_has(compared: list[dict[str, Any]]) -> None:
    assert [row["rung"] for row in compared] == ["1 core", "4 cores", "1 GPU", "2 GPUs"]


def test_the_time_of_a_rung_leaves_out_its_cluster(compared: list[dict[str, Any]]) -> None:
    assert [row["job_s"] for row in compared] == [20, 8, 4, 2]


def test_the_speed_up_of_a_rung_is_over_the_first(compared: list[dict[str, Any]]) -> None:
    assert [row["speed_up"] for row in compared] == [1, 2.5, 5, 10]


def test_the_efficiency_of_a_rung_is_over_the_first_of_its_device(
    compared: list[dict[str, Any]],
) -> None:
    assert [row["efficiency"] for row in compared] == [1, 0.625, 1, 1]


def test_the_difference_of_a_rung_is_that_of_its_score(compared: list[dict[str, Any]]) -> None:
    assert [row["difference"] for row in compared] == pytest.approx([0, 0.0125, 0, 0.0125])


def test_rungs_whose_scores_are_near_are_equal(compared: list[dict[str, Any]]) -> None:
    assert {row["verdict"] for row in compared} == {"equal"}


def test_rungs_whose_scores_are_apart_are_not_equal() -> None:
    rows = (a_rung("cpu", 1, 1, 0.5), a_rung("cpu", 2, 1, 0.6))
    assert verdicts(*rows, tolerance=0.1) == ["equal", "NOT equal"]


def test_rungs_that_cluster_otherwise_are_not_equal() -> None:
    rows = [
        a_rung("cpu", size, 1, 0.5, rand=rand) for size, rand in ((1, 1.0), (2, 0.995), (4, 0.9))
    ]
    assert verdicts(*rows, tolerance=0.01) == ["equal", "equal", "NOT equal"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cores=[0]"], "must be at least 1, got 0"),
        (["cores=[]", "gpus=[]"], "nothing to run: both are empty"),
        (["cores=[100000]", "gpus=[]"], "nothing to run: the machine has"),
        (["task.folds=3"], "task.folds: a ladder times one fit"),
        (["cluster=scheduler", "cluster.address=tcp://127.0.0.1:1"], "not on cluster=scheduler"),
    ],
)
def test_a_ladder_that_cannot_be(words: list[str], message: str) -> None:
    with pytest.raises(TipcastError, match=f"C003.*{re.escape(message)}"):
        tipcast.ladder(overrides=words)


def test_a_rung_whose_gpu_has_no_room_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = gpus.Gpu("NVIDIA H0", 80 << 30, 1 << 30, "600.1", "GPU-0")
    monkeypatch.setattr(gpus, "visible", lambda: [busy])
    monkeypatch.setattr(gpus, "missing_packages", list)
    config = to_object(compose("ladder", ["backend=gpu", "cores=[1]", "gpus=[1]"])[0].config)
    rungs, missing = choose_rungs(config, named_by(config.task.kind))
    assert [rung.device for rung in rungs] == ["cpu"]
    assert "GPU-0 has only 1.1 GB free" in missing["1 GPU"]
