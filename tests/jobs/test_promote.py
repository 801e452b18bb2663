"""`tipcast promote`: who passes the gate, who does not, and what each promotion leaves behind."""

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.utils.file_utils import local_file_uri_to_path
from tests.jobs.conftest import QUICK_TRAIN, TAGS, own_tags, run_job

from tipcast.commands import compose_jobs
from tipcast.config.errors import TipcastError
from tipcast.datasets.listing import Listing
from tipcast.datasets.taxi.files import TripInfo
from tipcast.jobs.promote_plan import Candidate, check_test_rows
from tipcast.measure import origin
from tipcast.tracking.model_fetch import FetchedModel

NAME = "tips"
WORSE, BETTER, OTHER_TARGET, MORE_FEATURES = "1234"
MODELS = (
    ("model=logistic", "task.features=[PULocationID]"),
    ("model=xgboost", "model.params.n_estimators=40"),
    ("model=logistic", "task.threshold=0.3"),
    ("model=xgboost", "model.params.n_estimators=40", "task.features=[trip_distance,PULocationID]"),
)
"""How the versions were trained, in their order."""
COMMIT = "c" * 40
HIGH_TIPS = "classification of tip_amount / fare_amount"
Job = Callable[..., Any]


@pytest.fixture(scope="module")
def versions(store: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Versions of known quality of a registered model, whose code is in no commit."""
    with (
        contextlib.chdir(tmp_path_factory.mktemp("versions")),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(origin, "project", lambda folder: origin.Source(COMMIT, dirty=True))
        for words in MODELS:
            run_job(
                store,
                "train",
                "data.rows=8000",
                *words,
                f"tracking.register={NAME}",
                "tracking.experiment=trained",
            )


@contextlib.contextmanager
def _no_alias_left(client: Any) -> Iterator[None]:
    """Take all aliases of the registered model away at the end."""
    yield
    for alias in client.get_registered_model(NAME).aliases:
        client.delete_registered_model_alias(NAME, alias)


@pytest.fixture
def client(store: str, versions: None) -> Iterator[Any]:
    """The store, and no alias at the end."""
    store_client = mlflow.MlflowClient(store)
    with _no_alias_left(store_client):
        yield store_client


def _promoting(store: str) -> Job:
    """Return what promotes a version, by its number or by @ and an alias."""
    return lambda version, *words: run_job(
        store, "promote", f"model_uri=models:/{NAME}/{version}".replace("/@", "@"), *words
    )


@pytest.fixture
def promote(store: str, client: Any) -> Job:
    return _promoting(store)


def _hold(client: Any, version: str, alias: str = "champion") -> None:
    client.set_registered_model_alias(NAME, alias, version)


def _holder(client: Any) -> str | None:
    version = client.get_registered_model(NAME).aliases.get("champion")
    return None if version is None else str(version)


def _refused(promote: Job, version: str, *words: str, code: str = "M020") -> str:
    """Check that a version is refused; return what is wrong with it."""
    with pytest.raises(TipcastError, match=code) as caught:
        promote(version, *words)
    assert (caught.value.code, caught.value.exit_code) == (code, 6)
    return caught.value.what


def _trained(client: Any, version: str) -> Any:
    return client.get_run(client.get_model_version(NAME, version).run_id)


@dataclass(frozen=True)
class Step:
    """A promotion, and what its registered model has after it."""

    said: dict[str, Any]
    """Nothing where it was refused."""
    run: Any
    holder: str | None
    tags: dict[str, str]
    """The model's tags of the alias `champion`, without the beginning that they share."""
    refused: str = ""
    """What was wrong with the version."""


@dataclass(frozen=True)
class Story:
    """Promotions of one registered model in their order."""

    first: Step
    """Of a worse version, by its alias `challenger`, while nobody is champion."""
    repeated: Step
    """Of the champion."""
    better: Step
    worse: Step
    forced: Step
    """Of the worse version."""


@pytest.fixture(scope="module")
def story(store: str, versions: None, tmp_path_factory: pytest.TempPathFactory) -> Story:
    client = mlflow.MlflowClient(store)
    promote = _promoting(store)
    experiment = client.get_experiment_by_name("trained").experiment_id

    def after(said: dict[str, Any], run: Any, refused: str = "") -> Step:
        tags = {
            key.removeprefix("alias.champion."): tag
            for key, tag in client.get_registered_model(NAME).tags.items()
        }
        return Step(said, run, _holder(client), tags, refused)

    def promoted(version: str, *words: str) -> Step:
        ended = promote(version, *words)
        return after(ended.said, ended.run)

    def refused(version: str) -> Step:
        what = _refused(promote, version)
        (run,) = client.search_runs([experiment], "tags.job = 'promote'", max_results=1)
        return after({}, run, what)

    with contextlib.chdir(tmp_path_factory.mktemp("story")), _no_alias_left(client):
        _hold(client, WORSE, "challenger")
        first = promoted("@challenger")
        repeated = promoted(WORSE)
        better = promoted(BETTER)
        worse = refused(WORSE)
        forced = promoted(WORSE, "force=true")
    return Story(first, repeated, better, worse, forced)


def test_a_training_of_uncommitted_code_says_so(client: Any) -> None:
    tags = _trained(client, WORSE).data.tags
    assert tags["mlflow.source.git.commit"] == COMMIT
    assert tags["mlflow.source.git.dirty"] == "true"
    assert f"uncommitted changes on commit `{COMMIT}`" in tags["mlflow.note.content"]


def test_a_version_of_uncommitted_code_says_so(client: Any) -> None:
    assert client.get_model_version(NAME, WORSE).tags["git.dirty"] == "true"


def test_an_alias_that_nobody_holds_is_given_without_a_comparison(story: Story) -> None:
    first = story.first
    checks = first.said["checks"]
    assert (first.said["moved"], first.said["forced"]) == (True, False)
    assert (first.said["holder"], first.holder) == (None, WORSE)
    assert all(check["passed"] for check in checks.values())
    assert checks["comparison"]["what"] == "there is no champion to compare with"
    assert (first.tags["previous"], first.tags["run"]) == ("none", first.said["run_id"])


def test_nothing_is_done_where_the_version_has_the_alias(story: Story) -> None:
    assert story.repeated.said == {
        "model_uri": f"models:/{NAME}/{WORSE}",
        "alias": "champion",
        "moved": False,
    }


def test_an_alias_moves_to_what_is_not_worse(story: Story) -> None:
    better = story.better
    assert (better.said["moved"], better.said["forced"]) == (True, False)
    assert (better.said["holder"], better.holder) == (WORSE, BETTER)


def test_both_versions_are_measured_on_the_rows_they_were_tested_on(
    story: Story, client: Any
) -> None:
    metrics = story.better.run.data.metrics
    for side, version in (("challenger", BETTER), ("champion", WORSE)):
        tested = _trained(client, version).data.metrics["test/auc"]
        assert metrics[f"{side}/auc"] == pytest.approx(tested, abs=1e-6)


def test_the_difference_of_two_versions_has_an_interval(story: Story) -> None:
    metrics = story.better.run.data.metrics
    difference = metrics["difference/auc"]
    apart = metrics["challenger/auc"] - metrics["champion/auc"]
    assert difference == pytest.approx(apart, abs=1e-12)
    assert metrics["difference/auc_low"] < difference < metrics["difference/auc_high"]


def test_a_promotion_is_a_run_beside_the_training(story: Story, client: Any) -> None:
    run = story.better.run
    tags = run.data.tags
    assert own_tags(run) == {*TAGS, "model", "promote.moved"}
    assert client.get_experiment(run.info.experiment_id).name == "trained"
    assert run.info.status == "FINISHED"
    assert (tags["job"], tags["promote.moved"]) == ("promote", "true")
    assert [entry.tags[0].value for entry in run.inputs.dataset_inputs] == ["test"]
    assert [file.path for file in client.list_artifacts(run.info.run_id, "plots")] == [
        "plots/roc.png"
    ]


def test_the_note_tells_by_what_the_version_is_better(story: Story) -> None:
    metrics = story.better.run.data.metrics
    difference = f"{metrics['difference/auc']:+.5f}"
    low = f"{metrics['difference/auc_low']:+.5f}"
    assert f"{difference} ({low} to " in story.better.run.data.tags["mlflow.note.content"]


def test_an_alias_tells_why_it_moved(story: Story) -> None:
    difference = f"{story.better.run.data.metrics['difference/auc']:+.5f}"
    assert difference in story.better.tags["why"]


def test_an_alias_tells_who_had_it_before(story: Story) -> None:
    assert story.better.tags["previous"] == WORSE


def test_a_version_has_no_tags_of_its_alias_which_copies_would_keep(
    story: Story, client: Any
) -> None:
    assert story.better.holder == BETTER
    tags = client.get_model_version(NAME, BETTER).tags
    assert not [tag for tag in tags if tag.startswith("alias.")]


def test_an_alias_stays_where_the_challenger_is_worse(story: Story) -> None:
    worse = story.worse
    tags = worse.run.data.tags
    assert re.search(r"comparison: AUC -0\..*at least -0\.001", worse.refused)
    assert (worse.holder, worse.tags) == (BETTER, story.better.tags)
    assert worse.run.info.status == "FINISHED"
    assert (tags["promote.moved"], tags["error.code"]) == ("false", "M020")


def test_force_moves_an_alias_to_a_worse_version(story: Story) -> None:
    forced = story.forced
    assert (forced.said["moved"], forced.said["forced"]) == (True, True)
    assert (forced.holder, forced.tags["forced"]) == (WORSE, "true")
    assert "comparison: AUC -0." in forced.tags["why"]


def test_versions_of_other_features_are_compared(promote: Job, client: Any) -> None:
    _hold(client, MORE_FEATURES)
    metrics = promote(BETTER, "margin=0.5").said["metrics"]
    for side, version in (("challenger", BETTER), ("champion", MORE_FEATURES)):
        tested = _trained(client, version).data.metrics["test/auc"]
        assert metrics[f"{side}/auc"] == pytest.approx(tested, abs=1e-3)


def test_versions_are_compared_on_a_period_that_is_named(promote: Job, client: Any) -> None:
    tested = _trained(client, BETTER).data.metrics["test/auc"]
    _hold(client, WORSE)
    later = promote(BETTER, "data.test=2019-06").said
    assert later["metrics"]["challenger/auc"] != pytest.approx(tested, abs=1e-6)
    assert "2019-06" in client.get_run(later["run_id"]).data.params["test_period"]


def test_versions_are_compared_on_data_that_are_named(promote: Job, client: Any) -> None:
    _hold(client, WORSE)
    other = promote(BETTER, "data=sample", "data.test=2019-06", "data.rows=3000").said
    assert other["metrics"]["test/rows"] == pytest.approx(3000, rel=0.02)


def test_rows_that_a_version_was_trained_on_decide_nothing(promote: Job, client: Any) -> None:
    what = _refused(promote, WORSE, "data.test=2019-03")  # its validation rows among them
    assert (
        "test rows: 2019-03-01..2019-03-31 overlaps the training of version 1 (2019-01-01.." in what
    )
    assert _holder(client) is None
    assert promote(WORSE, "data.test=2019-03", "force=true").said["forced"]
    assert promote(BETTER, "data.test=2018-12", "margin=0.5").said["moved"], (
        "rows before the training are new too"
    )


def candidate(version: str, seed: str = "0", **manifest: Any) -> Candidate:
    task = {"kind": "classification", "classes": ["no", "yes"]}
    facts = {
        "dataset": "taxi",
        "target": HIGH_TIPS.partition(" of ")[2],
        "task": task,
        "colour": "yellow",
        **manifest,
    }
    run: Any = SimpleNamespace(data=SimpleNamespace(params={"seed": seed}))
    return Candidate(FetchedModel(Path(), "", facts, NAME, version, "", None, "", "", ""), run)


def test_rows_that_only_the_holder_was_trained_on() -> None:
    month = 30 * 86_400_000_000

    def of(version: str, colour: str, *trained: int) -> Candidate:
        return candidate(version, colour=colour, trained_from=trained[0], trained_until=trained[1])

    test = Listing((), (2 * month, 3 * month), (), "", "yellow trips", TripInfo())
    new = of("2", "yellow", 0, 2 * month)
    green = of("3", "green", 0, 3 * month)
    assert check_test_rows([new, green], test).passed, (
        "months that touch, and other trips, have no row in common"
    )
    check = check_test_rows([new, of("1", "yellow", month, 3 * month)], test)
    assert (
        check.passed,
        "overlaps the training of version 1 (1970-01-31.." in check.what,
        "version 2" in check.what,
    ) == (
        False,
        True,
        False,
    )
    table = Listing((), None, (), "digest", "rows", {})
    drawn = [
        candidate(version, seed, data_digest="digest") for version, seed in (("2", "0"), ("3", "1"))
    ]
    assert check_test_rows(drawn[:1], table).passed
    problem = "version 2 and version 3 were tested on other rows of the same files"
    assert check_test_rows(drawn, table)[1:] == (False, problem)


def test_another_question_is_not_compared(promote: Job, client: Any) -> None:
    high = f"{HIGH_TIPS} > 0.2"
    for answer, facts in (
        (f"{high}, taxi, colour green", {"target": high.partition(" of ")[2], "colour": "green"}),
        (
            "regression of tip_amount, taxi, colour yellow",
            {"target": "tip_amount", "task": {"kind": "regression"}},
        ),
    ):
        assert candidate("1", **facts).question == answer
    _hold(client, BETTER)
    what = _refused(promote, OTHER_TARGET, "margin=0.5")
    questions = [f"{HIGH_TIPS} > {share}, taxi, colour yellow" for share in (0.2, 0.3)]
    assert f"champion: it predicts something else: {', not '.join(questions)}" in what
    assert _holder(client) == BETTER
    forced = promote(OTHER_TARGET, "force=true").said
    assert forced["moved"]
    assert not [name for name in forced["metrics"] if name.startswith(("difference/", "champion/"))]


def test_what_is_not_as_it_was_registered(promote: Job, client: Any) -> None:
    run = _trained(client, WORSE).info.run_id
    tag = client.get_model_version(NAME, WORSE).tags["sha256.manifest"]
    client.set_terminated(run, "KILLED")
    client.delete_model_version_tag(NAME, WORSE, "sha256.manifest")
    try:
        what = _refused(promote, WORSE)
        assert "run: its run is KILLED" in what
        assert "digests: its tag sha256.manifest is missing" in what
        client.set_model_version_tag(NAME, WORSE, "sha256.manifest", "0" * 64)
        _refused(promote, WORSE, "force=true", code="M003")
        assert _holder(client) is None
    finally:
        client.set_terminated(run, "FINISHED")
        client.set_model_version_tag(NAME, WORSE, "sha256.manifest", tag)


def test_a_holder_whose_file_was_changed(promote: Job, client: Any) -> None:
    """Of the version that is to be moved, tests/unit/tracking/test_model_fetch.py tells."""
    _hold(client, BETTER)
    model = client.get_logged_model(
        client.get_model_version(NAME, BETTER).source.removeprefix("models:/")
    )
    (file,) = (Path(local_file_uri_to_path(model.artifact_location)) / "artifacts").glob("model.*")
    before = file.read_bytes()
    file.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    try:
        assert f"champion: version {BETTER} cannot be compared:" in _refused(promote, WORSE)
        assert promote(WORSE, "force=true").said["moved"]
    finally:
        file.write_bytes(before)


def test_values_that_make_no_sense(promote: Job, job: Job, client: Any) -> None:
    for word in ("alias=v3", "alias=latest", "margin=-0.1", "margin=nan", "model_uri=tips"):
        with pytest.raises(TipcastError, match="C003"):
            promote(WORSE, word)
    with pytest.raises(
        TipcastError, match="M021.*is not a registered version, and an alias needs one"
    ):
        job("promote", f"model_uri={client.get_model_version(NAME, WORSE).source}")


def test_as_a_user_sees_it(promote: Job, client: Any, capsys: pytest.CaptureFixture[str]) -> None:
    _hold(client, BETTER)
    assert _refused(promote, WORSE, "print=text").startswith(
        "does not get champion: comparison: AUC -0."
    )
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert [line.split()[0] for line in lines if "FAILED" in line] == ["comparison"]
    assert {"run passed its run is FINISHED", "alias champion still version 2"} <= {*lines}


@pytest.fixture
def promotion_lines(
    store: str, client: Any, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], list[str]]:
    """Promote a version; return the lines that people see."""

    def lines(version: str) -> list[str]:
        words = [f"model_uri=models:/{NAME}/{version}", "print=text", f"tracking.uri={store}"]
        (composed,) = compose_jobs("promote", [*QUICK_TRAIN, *words])
        composed.run()
        return capsys.readouterr().out.splitlines()

    return lines


def test_lines_are_the_same_with_a_holder_as_without(
    promotion_lines: Callable[[str], list[str]],
) -> None:
    """The check of the champion has its line beside that of the alias of this name."""
    without = [line.split("  ")[0] for line in promotion_lines(WORSE)]
    names = [line.split("  ")[0] for line in promotion_lines(BETTER)]
    assert names == [*without[:3], "champion", *without[3:]]
    assert without[2:5] == ["digests", "comparison", "alias"]


def test_a_version_that_holds_the_alias_is_said_in_words(
    promotion_lines: Callable[[str], list[str]], client: Any
) -> None:
    _hold(client, BETTER)
    assert promotion_lines(BETTER) == ["alias  champion is already version 2"]


def test_clusterings_have_nothing_to_be_compared_by(job: Job) -> None:
    words = ["data=blobs", "data.rows=3000", "data.test_rows=500", "task=clusters", "model=kmeans"]
    for clusters in (3, 5):
        job("train", *words, f"model.params.n_clusters={clusters}", "tracking.register=clusters")
    assert job("promote", "model_uri=models:/clusters/1").said["moved"]
    with pytest.raises(
        TipcastError, match="comparison: without a target the two cannot be compared"
    ):
        job("promote", "model_uri=models:/clusters/2")
    metrics = job("promote", "model_uri=models:/clusters/2", "force=true").run.data.metrics
    assert metrics["challenger/inertia"] < metrics["champion/inertia"]


def test_versions_are_tested_on_the_groups_that_they_held_out(store: str, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    owner = draw.integers(0, 50, 600)
    size = draw.normal(size=600)
    value = size + draw.normal(size=50)[owner] + draw.normal(size=600)
    frame = pd.DataFrame({"owner": owner, "size": size, "value": value})
    frame.to_parquet(tmp_path / "grouped.parquet")
    words = ["data=table", f"data.train={tmp_path}/grouped.parquet", "task.target=value"]
    named = "tracking.register=grouped"
    trained = run_job(store, "train", "model=ridge", *words, "data.group=owner", named).said

    said = run_job(store, "promote", "model_uri=models:/grouped/1", "alias=champion").said
    metrics = said["metrics"]
    assert metrics["challenger/rmse"] == pytest.approx(trained["metrics"]["test/rmse"], abs=1e-9)

    run_job(store, "train", "model=ridge", *words, named)  # other test rows, without groups
    with pytest.raises(TipcastError, match="tested on other rows"):
        run_job(store, "promote", "model_uri=models:/grouped/2", "alias=champion")
