"""Examples run as they are."""

import json
import re
import runpy
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from tests import warm
from tests.conftest import python

import tipcast

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # MLflow's, of its own classes, at import
    import mlflow.pyfunc

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
DEVICES = ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)]


def run_example(folder: Path, script: str, *words: str, code: int = 0, **variables: str) -> str:
    """Run an example in a process that has its libraries; return its standard output."""
    ended = warm.start(
        [str(EXAMPLES / script), *words], folder, warm.environment() | variables
    ).wait(280)
    assert ended == code, (folder / "stderr").read_text()
    return (folder / "stdout").read_text()


def functions_of(script: str) -> dict[str, Any]:
    """Return the functions of an example."""
    return runpy.run_path(str(EXAMPLES / script))


def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    """As a script, which needs no kernel: what a cell would show is evaluated all the same."""
    notebook = json.loads((EXAMPLES / "quickstart.ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not [cell for cell in code if cell["outputs"] or cell["execution_count"]], (
        "no outputs are kept"
    )
    program = (
        "\n".join("".join(cell["source"]) for cell in code)
        + "\nassert best.metrics['test/auc'] > 0.5\n"
    )
    (tmp_path / "quickstart.py").write_text(program)
    assert run_example(tmp_path, str(tmp_path / "quickstart.py")) == ""
    assert {path.name for path in tmp_path.iterdir()} >= {"mlflow.db", "trips", "scored"}


WITHOUT_TORCH = """
import runpy, sys

class Hidden:
    def find_spec(self, name, *_):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name=name)

sys.meta_path.insert(0, Hidden())
runpy.run_path(sys.argv[1])
"""


def test_a_network_without_pytorch_says_what_to_install(tmp_path: Path) -> None:
    ended = python(tmp_path, "-c", WITHOUT_TORCH, EXAMPLES / "network_ddp.py")
    assert (ended.returncode, ended.stderr) == (
        1,
        "torch is not installed. Fix: pip install 'tipcast[torch]'\n",
    )


def test_a_network_learns_in_two_processes_as_in_one(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed (the extra torch)")
    reached = []
    for processes in ("1", "2"):
        (tmp_path / processes).mkdir()
        words = [
            "torch.distributed.run",
            "--nproc-per-node",
            processes,
            EXAMPLES / "network_ddp.py",
        ]
        ended = python(
            tmp_path / processes, "-m", *words, "data.rows=200000", "data.block_rows=50000"
        )
        assert ended.returncode == 0, ended.stderr
        line = rf"{processes} x cpu: ([\d,]+) rows, fit [\d.]+ s, test/auc (0\.\d+)"
        said = re.fullmatch(line, ended.stdout.strip())
        assert said, ended.stdout
        reached.append((said[1], float(said[2])))
    (rows, one), (other_rows, two) = reached
    assert rows == other_rows
    assert min(one, two) > 0.53
    assert one == pytest.approx(two, abs=0.02)


def searched(folder: Path, *words: str) -> list[tuple[Any, list[Any]]]:
    """Run the grid search; return its runs, the first model's first, with their child runs."""
    uri = f"sqlite:///{folder}/mlflow.db"
    run_example(folder, "grid_search.py", *words, MLFLOW_TRACKING_URI=uri)
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("grid_search")
    below: dict[str, list[Any]] = {"": []}
    for run in client.search_runs([experiment.experiment_id], order_by=["attributes.start_time"]):
        below.setdefault(run.data.tags.get("mlflow.parentRunId", ""), []).append(run)
    return [(run, below[run.info.run_id]) for run in below[""]]


def test_a_grid_search_finds_what_scikit_learn_finds(
    tmp_path: Path, tables: Path, pair: Client
) -> None:
    """Of a table with a column of texts and a row that lacks a value, searched without Dask in this
    process.
    """
    shutil.copy(tables, tmp_path)
    example = functions_of("grid_search.py")
    values, labels = example["read_table"](None, "")
    frame = values[:120].assign(text="a", kind=np.where(labels[:120] == 1, "yes", "no"))
    file = tmp_path / "rows.csv"
    pd.concat([frame, frame[:1].assign(x0=np.nan)]).to_csv(file, index=False)
    x, y = example["read_table"](str(file), "kind")
    np.testing.assert_allclose(x, values[:120])
    np.testing.assert_array_equal(y, labels[:120])
    runs = searched(
        tmp_path, "--data", "rows.csv", "--target", "kind", "--scheduler", pair.scheduler.address
    )
    for (run, children), model in zip(runs, ["svc", "xgboost"], strict=True):
        search = example["make_search"](model, "cpu").fit(x, y)
        expected = {
            frozenset((name, str(value)) for name, value in params.items()): score
            for params, score in zip(
                search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True
            )
        }
        assert {child.info.status for child in children} == {"FINISHED"}
        scores = {
            frozenset(child.data.params.items()): child.data.metrics["mean_test_score"]
            for child in children
        }
        assert len(children) == len(scores)
        assert scores == pytest.approx(expected, abs=1e-12)
        best = {name: str(value) for name, value in search.best_params_.items()}
        device = {"device": "cpu"} if model == "xgboost" else {}
        assert run.data.params == {**best, **device, "rows": "120"}
        (output,) = run.outputs.model_outputs
        client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
        folder = client.get_logged_model(output.model_id).artifact_location.removeprefix("file://")
        assert not [
            path
            for path in Path(folder).rglob("*")
            if path.suffix in {".pkl", ".pickle", ".joblib"}
        ]
        np.testing.assert_array_equal(
            mlflow.pyfunc.load_model(folder).predict(x), search.predict(x)
        )


@pytest.mark.gpu
def test_a_grid_search_on_a_gpu(tmp_path: Path) -> None:
    ((run, children),) = searched(tmp_path, "--models", "xgboost", "--device", "gpu")
    assert run.data.params["device"].startswith("cuda")
    assert len(children) == 6


def test_monitoring_sees_the_column_that_moved(
    tmp_path: Path, tables: Path, monkeypatch: pytest.MonkeyPatch, small_pictures: None
) -> None:
    """Scores of a month whose pickups are all in one zone are held against the months that the
    model learnt from.
    """
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{shutil.copy(tables, tmp_path)}"
    shared: dict[str, Any] = {"cluster": {"processes": False, "n_workers": 1}}
    tipcast.prepare(data={"months": "2019-01..2019-04", "rows": 8000}, out="months", **shared)
    first, second, third, last = sorted((tmp_path / "months").glob("*.parquet"))
    pd.read_parquet(last).assign(PULocationID=132).to_parquet(last)
    shared["tracking"] = {"uri": uri, "system_metrics": False}
    trained = tipcast.train(
        data={"source": "files", "train": [str(first), str(second)], "test": str(third)},
        model={"params": {"n_estimators": 4}},
        **shared,
    )
    tipcast.score(trained.model_uri, str(last), "scored", **shared)
    run_example(tmp_path, "monitoring.py", "scored", code=3, MLFLOW_TRACKING_URI=uri)
    client = mlflow.MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("monitoring").experiment_id])
    assert run.data.metrics["columns_moved"] == 1
    path = client.download_artifacts(run.info.run_id, "drift.json", str(tmp_path))
    table = pd.read_json(path, orient="split").set_index("column")
    assert table.index[table["moved"]].tolist() == ["PULocationID"]
    assert {"trip_distance", "payment_type", "tip_amount"} < set(table.index)
    assert not {"probability", "model_name", "tpep_pickup_datetime"} & set(table.index)


def test_a_month_with_answers_calibrates_the_next(tmp_path: Path) -> None:
    """Scores that are too low for rows paid by card, as after a price has changed."""
    r = np.random.default_rng(0)
    for month, rows in (("may", 20_000), ("june", 8000)):
        score = r.beta(4, 4, rows)
        paid = r.integers(1, 3, rows)
        tip = (r.random(rows) < 3 * score / (1 + 2 * score)) & (paid == 1)
        frame = pd.DataFrame({"probability": score, "paid": paid, "tip": tip.astype(float)})
        frame.loc[0, "probability"] = None  # not scored
        (tmp_path / month).mkdir()
        frame.to_parquet(tmp_path / month / "0.parquet")
    said = run_example(
        tmp_path, "recalibrate.py", "may", "june", "--rows", "paid == 1", "--answer", "tip > 0.5"
    )
    before, after = (float(line.split()[-1]) for line in said.splitlines()[:2])
    assert before > 0.15
    assert after < 0.02
    assert set(pd.read_parquet(tmp_path / "june.calibrated.parquet")["paid"]) == {1}
    assert (
        run_example(tmp_path, "recalibrate.py", "may", "june", "--answer", "tips > 0", code=2) == ""
    )


@pytest.mark.parametrize("device", DEVICES)
def test_neighbours_of_all_workers_are_those_of_one_index(
    request: pytest.FixtureRequest, tmp_path: Path, device: str
) -> None:
    words = ["--device", device]
    if device == "cpu":
        words += ["--scheduler", request.getfixturevalue("pair").scheduler.address]
    said = run_example(tmp_path, "knn_distributed.py", *words)
    line = (
        r"accuracy (0\.\d+), r2 (0\.\d+)\nof partitions as of files: True; as merged: "
        r"([01]\.\d+)\s*$"
    )
    (found,) = re.findall(line, said)
    accuracy, r2, alike = map(float, found)
    example = functions_of("knn_distributed.py")
    kept = example["make_rows"](15_000, 0)
    test = example["make_rows"](5_000, 1)
    x, asked = (rows.filter(like="x") for rows in (kept, test))
    classes = KNeighborsClassifier(example["K"]).fit(x, kept["label"]).predict(asked)
    assert accuracy == pytest.approx((classes == test["label"]).mean(), abs=1e-3)
    values = KNeighborsRegressor(example["K"]).fit(x, kept["value"])
    assert r2 == pytest.approx(values.score(asked, test["value"]), abs=1e-3)
    assert alike > 0.999
    files = [pd.read_parquet(tmp_path / "knn" / f"part.{at}.scored")["class"] for at in range(4)]
    np.testing.assert_array_equal(np.concatenate(files), classes)


@dataclass(frozen=True)
class Inspected:
    """What examples/dask_tools.py says of a cluster of two workers, without Graphviz."""

    output: str
    tasks: str
    """First line of the graph's text."""
    needs: dict[str, str]
    """Task -> the tasks that it needs."""

    def matched(self, line: str) -> list[str]:
        """Return the lines on each worker that a pattern matches."""
        return re.findall(rf"^tcp://127\.0\.0\.1:\d+: {line}$", self.output, re.MULTILINE)


@pytest.fixture(scope="module")
def inspected(tmp_path_factory: pytest.TempPathFactory) -> Inspected:
    folder = tmp_path_factory.mktemp("dask_tools")
    (folder / "own_code.py").write_text("ANSWER = 42\n")
    output = run_example(folder, "dask_tools.py", "--upload", "own_code.py", PATH="")
    tasks, *lines = (folder / "graph.txt").read_text().splitlines()
    return Inspected(output, tasks, dict(line.split(" <- ") for line in lines))


def test_dask_tells_what_each_worker_has(inspected: Inspected) -> None:
    assert len(inspected.matched(r"cores \d+, memory [\d.]+ [GM]iB")) == 2, inspected.output


def test_dask_sends_a_module_to_each_worker(inspected: Inspected) -> None:
    assert len(inspected.matched(r"imports \S+own_code\.py")) == 2, inspected.output


def test_dask_tells_what_each_worker_holds(inspected: Inspected) -> None:
    assert len(inspected.matched(r"partitions 1, [\d.]+ kiB")) == 2, inspected.output


def test_dask_fits_the_line_of_all_rows(inspected: Inspected) -> None:
    line = re.search(r"^line: \[(.*)\]$", inspected.output, re.MULTILINE)
    assert line, inspected.output
    rows = pd.concat(map(functions_of("dask_tools.py")["read_part"], range(2)))
    expected = np.polyfit(rows["group"], rows["value"], 1)
    assert list(map(float, line[1].split(", "))) == pytest.approx(expected.tolist(), abs=1e-4)


def test_the_tools_of_dask_print_what_is_alike_together(inspected: Inspected) -> None:
    """Three times a line of each worker, then those of the graph and of the fit."""
    lines = "".join(
        rf"(?:tcp://127\.0\.0\.1:\d+: {what} .*\n){{2}}"
        for what in ("cores", "imports", "partitions")
    )
    lines += r"graph: graph\.txt\nline: \[.*\]\n"
    assert re.fullmatch(lines, inspected.output), inspected.output


def test_a_graph_is_a_text_without_graphviz(inspected: Inspected) -> None:
    needs = inspected.needs
    assert inspected.tasks == f"{len(needs)} tasks"
    assert {key for key in needs if needs[key] == "nothing"} == {
        key for key in needs if "read_part" in key
    }


@pytest.mark.parametrize("device", DEVICES)
def test_frames_of_each_library_train_alike(tmp_path: Path, device: str) -> None:
    frames = ["pandas", "dask", *(["cudf", "dask_cudf", "to_backend"] if device == "gpu" else [])]
    first, *lines = run_example(tmp_path, "frames.py").splitlines()
    assert first.startswith("no GPU" if device == "cpu" else "cupy: True, back: True")
    reached = dict(re.findall(r"(\w+): test/auc (0\.\d+)", "\n".join(lines)))
    assert list(reached) == frames
    assert [float(auc) for auc in reached.values()] == pytest.approx([0.96] * len(frames), abs=0.02)
    assert reached["dask"] == reached["pandas"], "the same rows are tested on"


def test_a_graph_is_a_picture_with_graphviz(tmp_path: Path) -> None:
    pytest.importorskip("graphviz", reason="Graphviz's Python package is not installed")
    if shutil.which("dot") is None:
        pytest.skip("Graphviz (dot) is not installed")
    example = functions_of("dask_tools.py")
    rows = dd.from_map(example["read_part"], range(2))
    drawn = example["write_graph"](example["fit_line"](rows), tmp_path / "graph.svg")
    assert drawn.read_text().count('class="node"') >= 20
