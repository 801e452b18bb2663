"""The portable model on its way into MLflow: logged, held against the estimator, registered, and
given an alias.
"""

import dataclasses
import datetime
import json
import logging
import resource
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import mlflow
import numpy as np
import pandas as pd
import pytest
import yaml
from mlflow.exceptions import MlflowException
from mlflow.utils.file_utils import local_file_uri_to_path
from tests.unit.tracking.conftest import FACTS

from tipcast.config.errors import TipcastError
from tipcast.config.schema import TrackingSpec
from tipcast.datasets.base import Dataset
from tipcast.datasets.listing import FileInfo, Listing
from tipcast.datasets.taxi import features
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.datasets.taxi.files import TripInfo
from tipcast.measure.progress import logging_to_stderr
from tipcast.models import native
from tipcast.tracking import model_package, portable_model
from tipcast.tracking.aliases import alias_holder, check_alias, complete_move, move_alias
from tipcast.tracking.lifecycle import open_run
from tipcast.tracking.model_fetch import fetch
from tipcast.tracking.portable_model import MAX_DESCRIPTION, quiet, register

FORMATS = tuple(native.NEEDS)
FEATURES = list(features.BASE_FEATURES)


class Tall(Dataset):
    """A dataset of no files, whose models need a number of it."""

    name = "tall"
    code = features
    features = features.BASE_FEATURES

    def scan(self, which: str, columns: Sequence[str], optional: Sequence[str] = ()) -> Listing:
        return Listing((), None, (), which, "rows")

    def to_manifest(self) -> dict[str, Any]:
        return {"height": 3}


def test_the_manifest_has_what_a_dataset_of_no_files_needs(natives: Any) -> None:
    file, _ = natives["xgboost-ubj"]
    saved_package = model_package.Package(file, "xgboost-ubj", FACTS, Tall(), FileInfo())
    assert saved_package.manifest()["height"] == 3


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_logged(saved: Any, natives: Any, format: str) -> None:
    folder = saved[format].folder
    file = natives[format][0]
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert {
        "MLmodel",
        "model.py",
        "requirements.txt",
        "artifacts/features.py",
        "artifacts/native.py",
    } <= files.keys()
    assert files[f"artifacts/{file.name}"] == file.read_bytes()
    assert files["artifacts/features.py"] == Path(str(features.__file__)).read_bytes()
    of_library = {"xgboost-ubj": {"xgboost"}, "skops": {"sklearn"}}.get(format, set())
    flavors = yaml.safe_load(files["MLmodel"])["flavors"]
    assert flavors.keys() - {"python_function"} == of_library
    assert "python_model" not in flavors["python_function"]
    for name, content in files.items():
        assert not name.endswith((".pkl", ".pickle", ".joblib", ".cloudpickle", ".dill"))
        # the first byte of every pickle since protocol 2
        assert not content.startswith(b"\x80"), name


def test_labels_are_the_targets_own_values() -> None:
    """Of texts, and of what a task's function makes of a row, tests/jobs tell."""
    task = {"classes": ["2", "2.5", "7"], "function": None, "values": [2.0, 2.5, 7.0]}
    assert model_package._labels(task) == [2, 2.5, 7]


@pytest.mark.parametrize("format", FORMATS)
def test_a_logged_model_scores_as_the_estimator(
    current: Any, trips: pd.DataFrame, format: str
) -> None:
    one = current[format]
    assert portable_model.parity(one.run, one.logged, trips, one.expected) <= 1e-6
    wrong = one.expected.copy()
    wrong[17] += 0.25
    assert portable_model.parity(one.run, one.logged, trips, wrong) == pytest.approx(0.25, abs=1e-6)
    wrong[17] = np.nan
    assert np.isnan(portable_model.parity(one.run, one.logged, trips, wrong))
    if format == "skops":  # has the flavor of scikit-learn, too
        folder = str(one.folder)
        x = (
            mlflow.pyfunc.load_model(folder)
            .predict(trips, params={"output": "features"})
            .to_numpy()
        )
        np.testing.assert_allclose(
            mlflow.sklearn.load_model(folder).predict_proba(x)[:, 1], one.expected, atol=1e-12
        )


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ({"name": "high_tip", "function": "high_tip", "columns": ["tip"]}, "xgboost-high_tip"),
        ({"name": "target", "function": "", "columns": ["price"]}, "xgboost-price"),
        ({"name": "clusters", "function": "", "columns": []}, "xgboost-clusters"),
    ],
)
def test_a_logged_model_is_called_after_its_task_or_target(task: dict[str, Any], name: str) -> None:
    assert portable_model.logged_name({"model": "xgboost", "task": task}) == name


def test_requirements_are_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    common = [f"{name}=={version(name)}" for name in ("mlflow", "numpy", "pandas")]
    learn, tree, skops = (
        f"{name}=={version(name)}" for name in ("scikit-learn", "treelite", "skops")
    )
    assert model_package.requirements("skops") == [*common, learn, skops]
    assert model_package.requirements("treelite") == [*common, tree, learn]
    (build,) = model_package.requirements("xgboost-ubj")[3:]
    assert build.partition("==")[0] in {"xgboost-cpu", "xgboost"}
    monkeypatch.setitem(native.NEEDS, "new", (("no-such-package-1", "no-such-package-2"),))
    with pytest.raises(TipcastError, match="M012"):
        model_package.requirements("new")


LIMIT = 3_000_000


@pytest.mark.parametrize("says", ["T005.*File too large.*bytes free", "T005"])
def test_what_does_not_fit(
    spec: TrackingSpec, natives: Any, trips: pd.DataFrame, tmp_path: Path, says: str
) -> None:
    """An artifact and a model, where this process may write no file of more than 3 MB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    large = tmp_path / "model.tl"
    # what follows the trees is not read
    large.write_bytes(natives["treelite"][0].read_bytes() + bytes(LIMIT))
    try:
        with (
            pytest.raises(TipcastError, match=says),
            open_run(spec, name="n", tags={}, params={}) as run,
        ):
            resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, before[1]))
            run.log_bytes(b"kept", "plots/kept.png")
            if says == "T005":
                portable_model.log_model(
                    run, large, "treelite", FACTS, Taxi(), TripInfo(), trips.head(5)
                )
            run.log_text("x" * (LIMIT + 1), "plots/large.txt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    ended = run.store.get_run(run.id).info
    assert ended.status == "FAILED"
    assert [
        path.name for path in Path(local_file_uri_to_path(ended.artifact_uri), "plots").iterdir()
    ] == ["kept.png"]
    assert "READY" not in [
        model.status for model in run.store.search_logged_models([run.experiment_id])
    ]
    with pytest.raises(TipcastError, match="M001.*has logged no model"):
        fetch(run.store, f"runs:/{run.id}/model", tmp_path)


# Registered versions and aliases

WHOLE = {
    "features": ["a"],
    "format": "x",
    "sha256": {"model": "0" * 64},
    "data_digest": "d",
    "git_commit": "c",
}


def test_a_version_carries_what_is_known(current: Any) -> None:
    one = current["skops"]
    portable_model.link_metrics(one.run, one.logged, {"test": ("rows", "7" * 64)})
    register(one.run, one.logged, "tips", 1e-9, {"test/auc": 0.654321987}, "# One")
    second = register(
        one.run, one.logged, "tips", portable_model.TOLERANCE, {"test/a (b)": 1.0}, "x" * 6000
    )
    assert (second.uri, second.registered) == (one.logged.uri, "models:/tips/2")
    about = one.run.store.get_registered_model("tips").description
    assert "tipcast promote model_uri=models:/tips/VERSION" in about
    first, other = (one.run.store.get_model_version("tips", version) for version in "12")
    assert (first.description, len(other.description), first.run_id) == (
        "# One",
        MAX_DESCRIPTION,
        one.run.id,
    )
    expected = {
        "test/auc": "0.654322",
        "sha256.manifest": one.logged.manifest_sha256,
        "data.digest": FACTS["data_digest"],
        "git.commit": FACTS["git_commit"],
        "tipcast.version": FACTS["versions"]["tipcast"],
    }
    assert expected.items() <= first.tags.items()
    assert len(first.tags) <= 8, "a page of MLflow's shows so many at a glance"
    assert len(one.run.store.get_metric_history(one.run.id, "test/auc")) == 1, (
        "the run's own point, not a second one"
    )
    model = one.run.store.get_logged_model(one.logged.model_id)
    assert [(metric.key, metric.dataset_name) for metric in model.metrics] == [("test/auc", "rows")]
    assert model.params["seed"] == "3"
    noted = json.loads(model.tags["mlflow.modelVersions"])
    assert [int(entry["version"]) for entry in noted if entry["name"] == "tips"] == [1, 2]


@pytest.mark.parametrize("difference", [1.1e-5, float("nan")])
def test_a_doubtful_model_is_not_registered(saved: Any, difference: float) -> None:
    run = saved["skops"].run
    logged = portable_model.PortableModel("models:/m-1", manifest=WHOLE)
    with pytest.raises(TipcastError, match=f"M011.*differ by {difference:.2g}"):
        register(run, logged, "doubtful", difference, {"test/auc": 0.6}, "")
    assert list(run.store.search_registered_models("name = 'doubtful'")) == []


def test_a_version_is_kept_for_its_trial_alone(current: Any) -> None:
    one = current["xgboost-ubj"]
    register(one.run, one.logged, "resumed", 0.0, {}, "", trial="5f-0001")
    kept = portable_model.kept_version(one.run, "resumed", "5f-0001")
    assert str(kept.version) == "1"
    assert portable_model.kept_version(one.run, "resumed", "5f-0002") is None


def test_a_kept_model_gets_another_name_with_its_page(current: Any) -> None:
    one = current["xgboost-ubj"]
    page = f"load {one.logged.uri}"
    register(one.run, one.logged, "named", 0.0, {"test/auc": 0.6}, page, trial="7c-0001")
    first = portable_model.version_of_run(one.run, "named", "7c-0001")
    portable_model.kept_version(one.run, "renamed", "7c-0001")
    other = one.run.store.get_model_version("renamed", "1")
    assert (other.description, other.tags) == ("load models:/renamed/1", first.tags)
    assert portable_model.logged_id(other) == one.logged.model_id


def test_each_version_of_a_model_is_described_by_its_own_address(current: Any) -> None:
    one = current["xgboost-ubj"]
    page = f'load_model("{one.logged.uri}")'
    for _ in range(2):
        register(one.run, one.logged, "addressed", 0.0, {}, page)
    descriptions = [
        one.run.store.get_model_version("addressed", number).description for number in "12"
    ]
    assert descriptions == [
        'load_model("models:/addressed/1")',
        'load_model("models:/addressed/2")',
    ]


def test_what_fails_on_the_way_makes_no_version(current: Any) -> None:
    one = current["xgboost-ubj"]
    missing = dataclasses.replace(one.logged, uri="models:/m-00000000000000000000000000000000")
    with pytest.raises(MlflowException):
        register(one.run, missing, "nothing", 0.0, {}, "")
    assert one.run.store.search_model_versions("name = 'nothing'") == []


def test_a_promotion_that_was_cut_off_is_completed_by_a_repeat(current: Any) -> None:
    one = current["skops"]
    client = one.run.store
    for _ in range(2):
        register(one.run, one.logged, "cut", 0.0, {}, "")
    move_alias(
        client,
        "cut",
        "champion",
        "1",
        before=None,
        trace={"why": "first", "run": "r"},
        forced=False,
    )
    complete_move(client, "cut", "champion", "1")
    assert client.get_registered_model("cut").tags["alias.champion.why"] == "first", (
        "nothing is missing"
    )
    client.set_registered_model_alias("cut", "champion", "2")
    client.set_registered_model_tag("cut", "alias.champion.since", "just now")
    complete_move(client, "cut", "champion", "2")
    tags = client.get_registered_model("cut").tags
    assert (tags["alias.champion.version"], tags["alias.champion.previous"]) == ("2", "1")
    assert "interrupted" in tags["alias.champion.why"]


def test_an_alias_that_does_not_move(current: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = current["skops"]
    client, move = one.run.store, partial(move_alias, one.run.store, "moved", "champion")
    for _ in range(3):
        register(one.run, one.logged, "moved", 0.0, {}, "")

    def tags() -> dict[str, str]:
        return dict(client.get_registered_model("moved").tags)

    for alias in ("", "v3", "V12", "latest", "a b", "é!", "a" * 256, "a/b"):
        with pytest.raises(TipcastError, match="C003"):
            check_alias(alias)
    check_alias("blue-green_2")
    move("2", before=None, trace={"why": "first"}, forced=True)
    since = datetime.datetime.fromisoformat(tags()["alias.champion.since"])
    assert abs((datetime.datetime.now(datetime.UTC) - since).total_seconds()) < 60
    move("3", before="2", trace={}, forced=False)
    earlier = tags()
    with pytest.raises(TipcastError, match="M022"):
        move("2", before="1", trace={"why": "x"}, forced=False)
    monkeypatch.setattr(
        client, "set_registered_model_alias", Mock(side_effect=MlflowException("it is refused"))
    )
    with pytest.raises(MlflowException, match="it is refused"):
        move("1", before="3", trace={"why": "x"}, forced=False)
    assert alias_holder(client, "moved", "champion") == "3"
    assert tags() == earlier


def test_mlflow_alone_is_kept_off_the_console(capsys: pytest.CaptureFixture[str]) -> None:
    """While a model is logged, the user is told that the store does not answer."""
    with logging_to_stderr(logging.INFO), quiet():
        logging.getLogger("mlflow").warning("a warning of MLflow's")
        logging.getLogger("tipcast").warning("the store does not answer")

    assert capsys.readouterr().err == "WARNING tipcast: the store does not answer\n"
