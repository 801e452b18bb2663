"""`tipcast promote`: who passes the gate, who does not, and what each promotion leaves behind."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.utils.file_utils import local_file_uri_to_path
from tests.jobs.conftest import QUICK, QUICK_TRAIN, TAGS, own_tags, run_job

from tipcast import cli
from tipcast.config.errors import TipcastError
from tipcast.datasets.base import Listing
from tipcast.jobs.promote import Candidate, check_test_rows
from tipcast.measure import origin
from tipcast.tracking.models import Fetched

NAME = "tips"
WORSE, BETTER, OTHER_TARGET, MORE_FEATURES, OTHER_KIND = "1", "2", "3", "4", "5"
MODELS = {
    WORSE: ("model=logistic", "task.features=[PULocationID]"),
    BETTER: ("model=xgboost", "model.params.n_estimators=40"),
    OTHER_TARGET: ("model=logistic", "task.threshold=0.3"),
    MORE_FEATURES: ("model=xgboost", "model.params.n_estimators=40", "task.features=[trip_distance,PULocationID]"),
    OTHER_KIND: ("model=linear", "task=tip_amount"),
}
"""Version -> how it was trained."""
Job = Callable[..., Any]


@pytest.fixture(scope="module")
def versions(store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registered model with versions of known quality; the name of the model."""
    with contextlib.chdir(tmp_path_factory.mktemp("versions")):
        for words in MODELS.values():
            run_job(store, "train", "data.rows=8000", *words, f"tracking.register={NAME}")
        yield NAME


@pytest.fixture
def client(store: str, versions: str) -> Iterator[Any]:
    """The store, and no alias at the end."""
    found = mlflow.MlflowClient(store)
    yield found
    for alias in found.get_registered_model(NAME).aliases:
        found.delete_registered_model_alias(NAME, alias)


@pytest.fixture
def promote(job: Job, client: Any) -> Job:
    """Promote a version."""
    return lambda version, *words: job("promote", f"model_uri=models:/{NAME}/{version}", *words)


def _hold(client: Any, version: str, alias: str = "champion") -> None:
    client.set_registered_model_alias(NAME, alias, version)


def _holder(client: Any, alias: str = "champion") -> str | None:
    found = client.get_registered_model(NAME).aliases.get(alias)
    return None if found is None else str(found)


def _refused(promote: Job, version: str, *words: str, code: str = "M020") -> str:
    """Check that a version is refused; return what is wrong with it."""
    with pytest.raises(TipcastError, match=code) as caught:
        promote(version, *words)
    assert (caught.value.code, caught.value.exit_code) == (code, 6)
    return caught.value.what


def _run_of(client: Any, version: str) -> str:
    return str(client.get_model_version(NAME, version).run_id)


def test_the_first_needs_no_comparison(job: Job, client: Any) -> None:
    _hold(client, WORSE, "challenger")
    said = job("promote", f"model_uri=models:/{NAME}@challenger").said
    assert (said["moved"], said["forced"], said["holder"]) == (True, False, None)
    assert all(check["passed"] for check in said["checks"].values())
    assert said["checks"]["comparison"]["what"] == "there is no champion to compare with"
    assert _holder(client) == WORSE
    tags = client.get_registered_model(NAME).tags
    assert tags["alias.champion.previous"] == "none"
    assert tags["alias.champion.run"] == said["run_id"]
    again = job("promote", f"model_uri=models:/{NAME}/{WORSE}").said
    assert again == {"model_uri": f"models:/{NAME}/{WORSE}", "alias": "champion", "moved": False}


def test_a_better_one_passes(promote: Job, client: Any) -> None:
    _hold(client, WORSE)
    ended = promote(BETTER)
    said, metrics = ended.said, ended.run.data.metrics
    assert said["moved"]
    assert said["holder"] == WORSE
    assert _holder(client) == BETTER
    for side, version in (("challenger", BETTER), ("champion", WORSE)):
        trained = client.get_run(_run_of(client, version)).data.metrics
        assert metrics[f"{side}/auc"] == pytest.approx(trained["test/auc"], abs=1e-6), "the rows it was tested on"
    assert metrics["difference/auc"] == pytest.approx(metrics["challenger/auc"] - metrics["champion/auc"], abs=1e-12)
    assert metrics["difference/auc_low"] < metrics["difference/auc"] < metrics["difference/auc_high"]
    assert ended.run.info.status == "FINISHED"
    tags = ended.run.data.tags
    assert own_tags(ended.run) == {*TAGS, "model", "promote.moved"}
    assert tags["job"] == "promote"
    assert tags["promote.moved"] == "true"
    note = tags["mlflow.note.content"]
    assert f"{metrics['difference/auc']:+.5f} ({metrics['difference/auc_low']:+.5f} to " in note
    (entry,) = ended.run.inputs.dataset_inputs
    assert entry.tags[0].value == "test"
    files = {file.path for file in client.list_artifacts(said["run_id"], "plots")}
    assert files == {"plots/roc.png"}
    tags = client.get_registered_model(NAME).tags
    assert tags["alias.champion.previous"] == WORSE
    assert f"{metrics['difference/auc']:+.5f}" in tags["alias.champion.why"]
    assert not [tag for tag in client.get_model_version(NAME, BETTER).tags if tag.startswith("alias.")], (
        "copies keep them"
    )


def test_a_worse_one_does_not_unless_forced(promote: Job, client: Any) -> None:
    _hold(client, BETTER)
    before = client.get_registered_model(NAME).tags
    assert re.search(r"comparison: AUC -0\..*at least -0\.001", _refused(promote, WORSE))
    assert _holder(client) == BETTER
    (run,) = client.search_runs(
        [client.get_experiment_by_name("tipcast").experiment_id], "tags.job = 'promote'", max_results=1
    )
    assert run.info.status == "FINISHED"
    assert run.data.tags["error.code"] == "M020"
    assert run.data.tags["promote.moved"] == "false"
    assert client.get_registered_model(NAME).tags == before
    ended = promote(WORSE, "force=true")
    assert (ended.said["moved"], ended.said["forced"]) == (True, True)
    assert _holder(client) == WORSE
    tags = client.get_registered_model(NAME).tags
    assert tags["alias.champion.forced"] == "true"
    assert "comparison: AUC -0." in tags["alias.champion.why"]


def test_models_of_other_features_meet_on_the_same_rows(promote: Job, client: Any) -> None:
    _hold(client, MORE_FEATURES)
    ended = promote(BETTER, "margin=0.5")
    for side, version in (("challenger", BETTER), ("champion", MORE_FEATURES)):
        trained = client.get_run(_run_of(client, version)).data.metrics
        assert ended.said["metrics"][f"{side}/auc"] == pytest.approx(trained["test/auc"], abs=1e-3)


def test_other_rows(promote: Job, client: Any) -> None:
    _hold(client, WORSE)
    later = promote(BETTER, "data.test=2019-06").said
    assert later["metrics"]["challenger/auc"] != pytest.approx(
        client.get_run(_run_of(client, BETTER)).data.metrics["test/auc"], abs=1e-6
    )
    assert "2019-06" in client.get_run(later["run_id"]).data.params["test_period"]
    _hold(client, WORSE)
    other = promote(BETTER, "data=sample", "data.test=2019-06", "data.rows=3000").said
    assert other["metrics"]["test/rows"] == pytest.approx(3000, rel=0.02)


def test_rows_that_a_version_was_trained_on_decide_nothing(promote: Job, client: Any) -> None:
    what = _refused(promote, WORSE, "data.test=2019-03")  # its validation rows among them
    assert "test rows: not all of 2019-03-01..2019-03-31 is new: version 1 was trained on 2019-01-01.." in what
    assert _holder(client) is None
    assert promote(WORSE, "data.test=2019-03", "force=true").said["forced"]
    assert promote(BETTER, "data.test=2018-12", "margin=0.5").said["moved"], "rows before the training are new too"


def test_rows_that_only_the_holder_was_trained_on() -> None:
    month = 30 * 86_400_000_000

    def candidate(version: str, colour: str, *trained: int) -> Candidate:
        manifest = {"colour": colour, "trained_from": trained[0], "trained_until": trained[1]}
        return Candidate(Fetched(Path(), "", manifest, NAME, version, "", None, "", "", ""), None)

    test = Listing((), (2 * month, 3 * month), (), "", "yellow trips", {"colour": "yellow"})
    new, green = candidate("2", "yellow", 0, 2 * month), candidate("3", "green", 0, 3 * month)
    assert check_test_rows([new, green], test).passed, (
        "months that touch have no moment in common; green trips are other ones"
    )
    found = check_test_rows([new, candidate("1", "yellow", month, 3 * month)], test)
    assert not found.passed
    assert "version 1 was trained on" in found.what
    assert "version 2" not in found.what


def test_code_that_is_in_no_commit_is_told(job: Job, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "c" * 40
    monkeypatch.setattr(origin, "source", lambda: origin.Source(commit, dirty=True))
    trained = job("train", "data.rows=8000", "model=logistic", "tracking.register=changed")
    tags = trained.run.data.tags
    assert (tags["mlflow.source.git.commit"], tags["mlflow.source.git.dirty"]) == (commit, "true")
    assert f"uncommitted changes on commit `{commit}`" in tags["mlflow.note.content"]
    assert client.get_model_version("changed", "1").tags["git.dirty"] == "true"


@pytest.mark.parametrize(
    ("version", "question"),
    [
        (OTHER_TARGET, "classification of tip_amount / fare_amount > 0.3"),
        (OTHER_KIND, "regression of tip_amount"),
    ],
)
def test_another_question_is_not_compared(promote: Job, client: Any, version: str, question: str) -> None:
    _hold(client, BETTER)
    what = _refused(promote, version, "margin=0.5")
    other = "classification of tip_amount / fare_amount > 0.2, taxi, colour yellow"
    assert f"champion: it answers another question: {question}, taxi, colour yellow against {other}" in what
    assert _holder(client) == BETTER
    forced = promote(version, "force=true").said
    assert forced["moved"]
    assert not [name for name in forced["metrics"] if name.startswith(("difference/", "champion/"))]


def test_a_run_that_did_not_end_well(promote: Job, client: Any) -> None:
    run_id = _run_of(client, WORSE)
    client.set_terminated(run_id, "KILLED")
    try:
        assert "run: its run is KILLED" in _refused(promote, WORSE)
        assert _holder(client) is None
    finally:
        client.set_terminated(run_id, "FINISHED")


def test_a_digest_that_the_registry_does_not_know(promote: Job, client: Any) -> None:
    before = client.get_model_version(NAME, WORSE).tags["sha256.manifest"]
    client.delete_model_version_tag(NAME, WORSE, "sha256.manifest")
    try:
        assert "digests: its tag sha256.manifest is not there" in _refused(promote, WORSE)
        client.set_model_version_tag(NAME, WORSE, "sha256.manifest", "0" * 64)
        _refused(promote, WORSE, "force=true", code="M003")
    finally:
        client.set_model_version_tag(NAME, WORSE, "sha256.manifest", before)


def _files(client: Any, version: str) -> Path:
    found = client.get_logged_model(client.get_model_version(NAME, version).source.removeprefix("models:/"))
    return Path(local_file_uri_to_path(found.artifact_location)) / "artifacts"


def test_a_changed_file_passes_by_no_force(promote: Job, client: Any) -> None:
    (file,) = _files(client, WORSE).glob("model.*")
    before = file.read_bytes()
    file.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    try:
        _refused(promote, WORSE, "force=true", code="M003")
        assert _holder(client) is None
    finally:
        file.write_bytes(before)


def test_a_holder_that_cannot_be_read(promote: Job, client: Any) -> None:
    _hold(client, BETTER)
    (file,) = _files(client, BETTER).glob("model.*")
    before = file.read_bytes()
    file.write_bytes(before[: len(before) // 2])
    try:
        assert f"champion: version {BETTER} cannot be compared with" in _refused(promote, WORSE)
        assert promote(WORSE, "force=true").said["moved"]
        assert _holder(client) == WORSE
    finally:
        file.write_bytes(before)


def test_what_is_not_named_by_a_version(job: Job, client: Any) -> None:
    uri = client.get_model_version(NAME, WORSE).source
    with pytest.raises(TipcastError) as caught:
        job("promote", f"model_uri={uri}")
    assert "is not the address of a version, which an alias names" in str(caught.value)
    assert caught.value.code == "M021"


@pytest.mark.parametrize("word", ["alias=v3", "alias=latest", "margin=-0.1", "margin=nan", "model_uri=tips"])
def test_a_value_that_makes_no_sense(job: Job, store: str, word: str) -> None:
    with pytest.raises(TipcastError) as caught:
        job("promote", f"model_uri=models:/{NAME}/1", word)
    assert caught.value.code == "C003"


def test_as_a_user_sees_it(
    promote: Job, client: Any, store: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _hold(client, BETTER)
    capsys.readouterr()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    uri = f"model_uri=models:/{NAME}/{WORSE}"
    words = ["promote", uri, *QUICK_TRAIN[1:], *QUICK[1:]]
    assert cli.main(words) == 6
    shown = capsys.readouterr()
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert lines[0].startswith("test rows passed ")
    assert [line.split()[0] for line in lines if "FAILED" in line] == ["comparison"]
    assert "run passed its run is FINISHED" in lines
    assert "champion still version 2" in lines
    assert any(line.startswith("metrics difference/auc -0.") for line in lines)
    refused = f"error[M020] models:/{NAME}/{WORSE}: does not get champion: comparison: AUC -0."
    assert shown.err.splitlines()[-1].startswith(refused)
    assert cli.main([*words, "force=true", "print=json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["forced"] is True


def test_another_kind_of_taxi_is_not_compared(job: Job, promote: Job, client: Any) -> None:
    _hold(client, BETTER)
    words = ("model=logistic", "data.rows=8000", "data.colour=green", f"tracking.register={NAME}")
    run = job("train", *words).said["run_id"]
    (version,) = (found.version for found in client.search_model_versions(f"name='{NAME}'") if found.run_id == run)
    assert "taxi, colour green against classification" in _refused(promote, version, "margin=1")
    assert _holder(client) == BETTER
    client.delete_model_version(NAME, version)


@pytest.fixture(scope="module")
def numbers(store: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A registered regression of a table that is split at random: too few trees, enough, and another split."""
    folder = tmp_path_factory.mktemp("numbers")
    r = np.random.default_rng(0)
    columns = {name: r.normal(0, 1, 4000) for name in ("a", "b", "c")}
    columns["y"] = 3 * columns["a"] + columns["b"] * columns["c"] + r.normal(0, 0.5, 4000)
    pd.DataFrame(columns).to_parquet(folder / "numbers.parquet")
    words = ["data=table", f"data.train={folder / 'numbers.parquet'}", "task=target", "task.target=y", "model=xgboost"]
    with contextlib.chdir(folder):
        for trees, seed in ((3, 0), (60, 0), (60, 1)):
            own = [f"model.params.n_estimators={trees}", f"seed={seed}", "tracking.register=numbers"]
            run_job(store, "train", *words, *own)
    return "numbers"


def test_numbers_are_compared_by_their_rmse(job: Job, store: str, numbers: str) -> None:
    def promote(version: int, *words: str) -> Any:
        return job("promote", f"model_uri=models:/{numbers}/{version}", *words)

    client = mlflow.MlflowClient(store)
    first = promote(1)
    tested = client.get_run(client.get_model_version(numbers, "1").run_id).data.metrics
    assert first.said["metrics"]["challenger/rmse"] == pytest.approx(tested["test/rmse"]), "the rows it was tested on"
    ended = promote(2)
    metrics = ended.run.data.metrics
    assert ended.said["moved"]
    assert metrics["difference/rmse"] == pytest.approx(metrics["challenger/rmse"] - metrics["champion/rmse"])
    assert metrics["difference/rmse_low"] < metrics["difference/rmse"] < metrics["difference/rmse_high"] < 0
    files = {Path(file.path).name for file in client.list_artifacts(ended.said["run_id"], "plots")}
    assert files == {"predicted.png"}
    assert "Scored on the same rows of " in ended.run.data.tags["mlflow.note.content"]
    with pytest.raises(TipcastError, match=r"comparison: RMSE \+\d\.\d+ .*, at most 0.001"):
        promote(1)
    with pytest.raises(TipcastError, match="test rows: version 3 and version 2 were tested on other rows"):
        promote(3)
    assert str(client.get_model_version_by_alias(numbers, "champion").version) == "2"


def test_clusterings_have_nothing_to_be_compared_by(job: Job, store: str) -> None:
    for clusters in (3, 5):
        words = ["data=blobs", "data.rows=3000", "data.test_rows=500", "task=clusters", "model=kmeans"]
        job("train", *words, f"model.params.n_clusters={clusters}", "tracking.register=clusters")
    assert job("promote", "model_uri=models:/clusters/1").said["moved"]
    with pytest.raises(TipcastError, match="comparison: there is no target that both could be compared by"):
        job("promote", "model_uri=models:/clusters/2")
    ended = job("promote", "model_uri=models:/clusters/2", "force=true")
    assert (ended.said["moved"], ended.said["forced"]) == (True, True)
    assert ended.run.data.metrics["challenger/inertia"] < ended.run.data.metrics["champion/inertia"]
