"""`tipcast compare`: columns of what differs, models on the same test rows, curves over each other."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import pytest
from matplotlib.image import imread
from mlflow.utils.file_utils import local_file_uri_to_path

from tipcast import cli
from tipcast.config.arguments import to_overrides
from tipcast.config.compose import compose, to_object
from tipcast.jobs import train

QUICK = (
    "cluster.processes=false", "cluster.n_workers=1", "cluster.threads_per_worker=2", "print=json",
    "cluster.performance_report=false", "tracking.system_metrics=false", "data.rows=3000",
)  # fmt: skip
MODELS = {
    "boosted": ("model=xgboost", "model.params.n_estimators=30"),
    "zones": ("model=logistic", "task.features=[PULocationID]"),
    "plain": ("model=logistic",),
    "other_rows": ("model=logistic", "data.seed=3"),
    "numbers": ("model=linear", "task=tip_amount"),
    "more_numbers": ("model=xgboost", "model.params.n_estimators=10", "task=tip_amount"),
}
Compared = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def runs(store: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the ids of some trainings by their names."""
    found = {}
    with contextlib.chdir(tmp_path_factory.mktemp("runs")):
        for name, words in MODELS.items():
            (composed,) = compose("train", to_overrides([*QUICK, *words, f"tracking.uri={store}"]))
            with contextlib.redirect_stdout(io.StringIO()):
                found[name] = train.run(to_object(composed.config), "tipcast train")["run_id"]
    return found


@pytest.fixture
def compared(store: str, runs: dict[str, str], capsys: pytest.CaptureFixture[str]) -> Compared:
    """Compare runs by their names here."""

    def compare(*names: str, words: tuple[str, ...] = ()) -> dict[str, Any]:
        arguments = [*(runs[name] for name in names), *QUICK[:4], "replicates=200", f"tracking.uri={store}", *words]
        capsys.readouterr()
        assert cli.main(["compare", *arguments]) == 0, capsys.readouterr().err
        found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return found

    return compare


def auc(store: str, run_id: str, name: str = "test/auc") -> float:
    return float(mlflow.MlflowClient(store).get_run(run_id).data.metrics[name])


def test_models_on_the_same_rows(compared: Compared, runs: dict[str, str], store: str) -> None:
    found = compared("zones", "boosted", "plain")
    assert found["runs"] == [runs[name] for name in ("zones", "boosted", "plain")]
    assert found["configuration"]["model.name"] == ["logistic", "xgboost", "logistic"]
    paired = found["paired"]
    assert paired["metric"] == "auc"
    assert paired["values"] == pytest.approx([auc(store, run_id) for run_id in found["runs"]], abs=1e-6)
    for value, difference in zip(paired["values"][1:], paired["differences"], strict=True):
        assert difference["value"] == pytest.approx(value - paired["values"][0], abs=1e-9)
        assert difference["low"] < difference["value"] < difference["high"]
    alone = auc(store, runs["boosted"], "test/auc_high") - auc(store, runs["boosted"], "test/auc_low")
    assert paired["differences"][0]["high"] - paired["differences"][0]["low"] < 2 * alone


def test_numbers_by_their_rmse(compared: Compared, tmp_path: Path) -> None:
    out = tmp_path / "values.png"
    found = compared("numbers", "more_numbers", words=(f"out={out}",))
    assert found["paired"]["metric"] == "rmse"
    assert found["figure"] == str(out)
    assert imread(out).shape[0] == imread(out).shape[1]


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (("boosted", "other_rows"), "not the same test files"),
        (("boosted", "plain", "numbers"), "not the same target"),
    ],
)
def test_why_there_is_no_paired_difference(
    names: tuple[str, ...], why: str, compared: Compared, runs: dict[str, str]
) -> None:
    found = compared(*names)
    assert found["paired"] is None
    assert why in found["why"]
    assert f"run {runs[names[-1]]}'s differs" in found["why"]
    assert found["metrics"]


def test_headlines_and_why_come_before_what_differs(
    store: str, runs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["compare", runs["boosted"], runs["numbers"], *QUICK[:3], f"tracking.uri={store}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["run", "test/auc", "test/rmse", "paired"]
    assert float(lines[2].split()[1]) == pytest.approx(auc(store, runs["boosted"]), abs=1e-6)
    assert lines[2].split()[2] == lines[3].split()[1] == "-"
    assert f"run {runs['numbers']}'s differs" in lines[4]


def test_files_that_have_gone_are_told(store: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import pandas as pd

    table = tmp_path / "rows.csv"
    pd.DataFrame({"x": range(400), "y": [at % 2 for at in range(400)]}).to_csv(table, index=False)
    words = [*QUICK[:-1], "data=table", f"data.train={table}", "task.target=y", "model=logistic"]
    ids = []
    for seed in ("model.params.C=1", "model.params.C=2"):
        capsys.readouterr()
        assert cli.main(["train", *words, seed, f"tracking.uri={store}"]) == 0
        ids.append(json.loads(capsys.readouterr().out.splitlines()[-1])["run_id"])
    same = ["compare", *ids, *QUICK[:4], f"tracking.uri={store}"]
    assert cli.main(same) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["paired"]["rows"] == auc(store, ids[0], "test/rows")
    table.write_text(table.read_text() + "400,0\n")
    assert cli.main(same) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["why"] == "the test files are not what they were"
    table.unlink()
    assert cli.main(same) == 0
    assert "rows.csv" in json.loads(capsys.readouterr().out.splitlines()[-1])["why"]


def test_a_model_that_was_changed_ends_the_comparison(
    runs: dict[str, str], store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    client = mlflow.MlflowClient(store)
    (output,) = client.get_run(runs["numbers"]).outputs.model_outputs
    folder = local_file_uri_to_path(client.get_logged_model(output.model_id).artifact_location)
    manifest = Path(folder) / "artifacts" / "manifest.json"
    content = manifest.read_bytes()
    manifest.write_bytes(content + b" ")
    try:
        assert cli.main(["compare", runs["numbers"], runs["more_numbers"], f"tracking.uri={store}"]) == 6
    finally:
        manifest.write_bytes(content)
    assert "error[M003]" in capsys.readouterr().err


def test_three_in_columns_and_their_curves(
    runs: dict[str, str], store: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ids = [runs[name] for name in ("boosted", "plain", "zones")]
    out = tmp_path / "curves.png"
    words = ["replicates=200", "cluster.processes=false", f"out={out}", f"tracking.uri={store}"]
    assert cli.main(["compare", *(run_id[:12] for run_id in ids), *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["run", *ids]
    assert lines[2].startswith("paired, on the same")
    (row,) = [line for line in lines if line.split()[:1] == ["auc"]]
    assert [float(value) for value in row.split()[1:]] == pytest.approx(
        [auc(store, run_id) for run_id in ids], abs=1e-6
    )
    (row,) = [line for line in lines if "less the first's" in line]
    assert row.count(" to ") == 2
    assert lines[-1] == f"figure: {out}"
    assert out.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "exit_code", "told"),
    [
        (["out=curves.jpg"], 2, "error[C003] out: curves.jpg does not end in .png"),
        (["out=nowhere/curves.png"], 2, "error[C003] out: there is no folder "),
        (["replicates=5"], 2, "error[C003] replicates"),
    ],
)
def test_mistakes(
    words: list[str], exit_code: int, told: str, runs: dict[str, str], store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert cli.main(["compare", runs["boosted"], runs["plain"], f"tracking.uri={store}", *words]) == exit_code
    assert told in capsys.readouterr().err.splitlines()[-1]


def test_curves_of_two_kinds_are_not_drawn(
    runs: dict[str, str], store: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = [runs["boosted"], runs["numbers"], f"tracking.uri={store}", f"out={tmp_path / 'both.png'}"]
    assert cli.main(["compare", *words]) == 2
    assert "not all of the runs have a curve of one kind" in capsys.readouterr().err
    assert not (tmp_path / "both.png").exists()


def test_a_training_lays_its_curve_where_mlflow_compares(runs: dict[str, str], store: str) -> None:
    client = mlflow.MlflowClient(store)
    points = client.get_metric_history(runs["boosted"], "roc/true_positive_rate")
    assert [point.step for point in points] == list(range(0, 101, 4))
    values = [point.value for point in points]
    assert values == sorted(values)
    assert values[0] < 0.2
    assert values[-1] == 1.0
    area = sum((low + high) / 2 / 25 for low, high in zip(values, values[1:], strict=False))
    assert area == pytest.approx(auc(store, runs["boosted"]), abs=0.01)
    roots = {
        name: {file.path for file in client.list_artifacts(runs[name])} for name in ("boosted", "plain", "numbers")
    }
    assert "roc.png" in roots["boosted"] & roots["plain"], "MLflow's compare page shows what both have at their root"
    assert "predicted.png" in roots["numbers"]
