"""The plan of a promotion: the versions, the rows that they score, and the checks that need no
score.
"""

import dataclasses
import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tipcast.config.data_schema import DataSpec, Limits
from tipcast.config.errors import TipcastError
from tipcast.config.plain import tested
from tipcast.config.schema import FILE_OPTIONS, PromoteConfig
from tipcast.datasets import periods
from tipcast.datasets.base import Dataset, as_trained
from tipcast.datasets.find_files import identical
from tipcast.datasets.group_split import GroupDraw
from tipcast.datasets.listing import Listing
from tipcast.datasets.prepare import Recipe
from tipcast.datasets.random_split import Draw
from tipcast.datasets.registry import dataset_of, open_dataset
from tipcast.jobs.run_context import given_keys
from tipcast.jobs.train_plan import make_draw
from tipcast.tasks.base import from_manifest
from tipcast.tracking.aliases import alias_holder
from tipcast.tracking.artifacts import config_text
from tipcast.tracking.model_fetch import FetchedModel, fetch
from tipcast.tracking.portable_model import MANIFEST_TAG

if TYPE_CHECKING:
    from tipcast.tracking.mlflow_types import MlflowClient, MlflowRun

LOG = logging.getLogger("tipcast")
TESTED = "tested"
"""Source that stands for the source of the version's run."""


@dataclass(frozen=True)
class Candidate:
    """A registered version, with MLflow's run that trained it."""

    fetched: FetchedModel
    run: "MlflowRun"

    @property
    def title(self) -> str:
        """Its name in messages and figures."""
        return f"version {self.fetched.version}"

    @property
    def question(self) -> str:
        """The target and the dataset: a model says little about rows of another dataset."""
        manifest = self.fetched.manifest
        target = f"{self.fetched.kind} of {manifest['target']}"
        facts = [f"{name} {manifest[name]}" for name in FILE_OPTIONS if manifest.get(name)]
        return ", ".join([target, dataset_of(manifest).name, *facts])


class Check(NamedTuple):
    """A check of the gate."""

    name: str
    passed: bool
    what: str


@dataclass(frozen=True)
class Move:
    """An alias of a registered model, the version that asks for it, and the one that holds it."""

    name: str
    """Name of the registered model."""
    alias: str
    version: str
    holder: str | None
    """Version that has the alias; None if no version has it."""
    uri: str
    """URI of the version that asks for the alias."""

    @property
    def is_done(self) -> bool:
        """Whether the version holds the alias already."""
        return self.holder == self.version


@dataclass(frozen=True)
class PromotePlan:
    """The versions and the rows that they score."""

    candidates: Sequence[Candidate]
    """The challenger, and the champion if there is one that can be compared."""
    checks: Sequence[Check]
    """Results of the checks that need no score."""
    test: Listing
    recipes: Sequence[Recipe]
    """How each candidate's features are computed, with its own codes and fill values."""
    limits: Limits
    period: str
    """Period of the test rows, in words."""


def fetch_candidate(
    store: "MlflowClient", config: PromoteConfig, uri: str, folder: Path
) -> Candidate:
    """Fetch a registered version and its run; M021 for a model that is no registered version."""
    folder.mkdir()
    fetched = fetch(store, uri, folder, root=config.tracking.artifact_root)
    if fetched.name is None or fetched.version is None:
        what = "is not a registered version, and an alias needs one"
        fix = "use models:/NAME/VERSION, which tracking.register=NAME makes"
        raise TipcastError("M021", uri, what, fix)
    return Candidate(fetched, store.get_run(fetched.run_id))


def plan_move(store: "MlflowClient", challenger: Candidate, alias: str) -> Move:
    """Look up which version holds the alias that the challenger asks for."""
    name = str(challenger.fetched.name)
    version = str(challenger.fetched.version)
    return Move(name, alias, version, alias_holder(store, name, alias), challenger.fetched.uri)


def plan_comparison(
    store: "MlflowClient",
    config: PromoteConfig,
    command: str,
    challenger: Candidate,
    holder: str | None,
    folder: Path,
) -> PromotePlan:
    """Fetch the champion, list the rows that both are tested on, and check what needs no score.

    If they cannot be compared, as when they answer different questions, the challenger is scored
    alone.
    """
    data = choose_test_data(store, config, command, challenger.fetched)
    checks = [check_run(challenger), check_digests(store, challenger)]
    candidates = [challenger]

    if holder is not None:
        champion, check = fetch_champion(store, config, challenger, holder, folder / "champion")
        checks.append(check)
        if champion:
            candidates.append(champion)

    dataset = open_dataset(data)
    seed = int(challenger.run.data.params.get("seed", 0))
    draw = make_draw(dataset, seed, splits=("test",))
    recipes = test_recipes(dataset, [candidate.fetched.manifest for candidate in candidates], draw)
    test = list_test_rows(dataset, recipes)

    checks.insert(0, check_test_rows(candidates, test))  # a refusal names it first
    period = period_in_words(test, draw)
    return PromotePlan(candidates, checks, test, recipes, data.limits, period)


def period_in_words(test: Listing, draw: Draw | GroupDraw) -> str:
    """Return the period of the test rows; for rows without a time, their share of the files'."""
    if draw.test:
        return f"{draw.test:.0%} at random"
    if test.period is None:
        return "all rows"
    return periods.describe(test.period)


def choose_test_data(
    store: "MlflowClient", config: PromoteConfig, command: str, fetched: FetchedModel
) -> DataSpec:
    """Return the configured data, or the data that the version's run was tested on, with limits
    from the command line.
    """
    data = config.data
    if data.source != TESTED:
        return data

    text = config_text(store, fetched.run_id, "give the test rows: data=... data.test=...")
    trained = tested(text, data, f"run {fetched.run_id}")
    limits = {
        name: getattr(data.limits, name)
        for section, _, name in (key.rpartition(".") for key in given_keys(command))
        if section == "data.limits"
    }
    return dataclasses.replace(trained, limits=dataclasses.replace(trained.limits, **limits))


def check_run(challenger: Candidate) -> Check:
    """Check that the run that trained a version has ended well."""
    status = challenger.run.info.status
    return Check("run", status == "FINISHED", f"its run is {status}")


def check_digests(store: "MlflowClient", challenger: Candidate) -> Check:
    """Check that a version has the tag that only a checked registration writes; versions made by
    MLflow's own calls lack it.
    """
    fetched = challenger.fetched
    if MANIFEST_TAG in store.get_model_version(fetched.name, fetched.version).tags:
        return Check("digests", True, "model file and manifest are as registered")
    return Check("digests", False, f"its tag {MANIFEST_TAG} is missing")


def fetch_champion(
    store: "MlflowClient", config: PromoteConfig, challenger: Candidate, holder: str, folder: Path
) -> tuple[Candidate | None, Check]:
    """Fetch the version that holds the alias, and check that it answers the challenger's question.

    None comes in its place if it cannot be read (M-errors) or answers another question: metrics of
    different questions cannot be compared.
    """
    question = challenger.question

    try:
        uri = f"models:/{challenger.fetched.name}/{holder}"
        champion = fetch_candidate(store, config, uri, folder)
        champion_question = champion.question
    except TipcastError as problem:
        if problem.code[0] != "M":
            raise
        what = f"version {holder} cannot be compared: {problem.what}"
        return None, Check("champion", False, what)

    if champion_question != question:
        what = f"it predicts something else: {champion_question}, not {question}"
        return None, Check("champion", False, what)

    return champion, Check("champion", True, question)


def test_recipes(
    dataset: Dataset, manifests: Sequence[Mapping[str, Any]], draw: Draw | GroupDraw
) -> list[Recipe]:
    """Return a recipe for the test rows of each version.

    Versions with equal datasets get one recipe, with the features of all of them.
    """
    question = manifests[0]
    drawn = draw if draw.test else None
    datasets = [as_trained(dataset, manifest) for manifest in manifests]
    recipes = []

    for version_dataset in datasets:
        same = [
            manifest
            for manifest, trained_dataset in zip(manifests, datasets, strict=True)
            if trained_dataset == version_dataset
        ]
        features = dict.fromkeys(feature for manifest in same for feature in manifest["features"])
        task = from_manifest(question["task"], tuple(features), question["target"])
        recipes.append(Recipe(version_dataset, task, draw=drawn))

    return recipes


def list_test_rows(dataset: Dataset, recipes: Sequence[Recipe]) -> Listing:
    """List the files of the test rows, with the columns of all recipes; log the listing's notes."""
    columns = dict.fromkeys(name for recipe in recipes for name in recipe.columns)
    optional = dict.fromkeys(name for recipe in recipes for name in recipe.optional)
    test = dataset.scan("test", tuple(columns), tuple(optional))

    for note in (*test.notes, *identical(test.parts)):
        LOG.warning(note)

    return test


def check_test_rows(candidates: Sequence[Candidate], test: Listing) -> Check:
    """Check that no version was trained or validated on the test rows, whose labels it would know.

    If rows have no time, all versions must be trained on other files, or have held out the same
    rows of these files.
    """
    if test.period is None:
        return _check_drawn_rows(candidates, test)

    overlaps = []
    for candidate in candidates:
        period = candidate.fetched.seen(test.info.to_manifest())
        if period is not None and periods.overlap(period, test.period):
            overlaps.append(f"{candidate.title} ({periods.describe(period)})")

    if not overlaps:
        return Check("test rows", True, "no version was trained or validated on them")

    trained = " and ".join(overlaps)
    what = f"{periods.describe(test.period)} overlaps the training of {trained}"
    return Check("test rows", False, what)


def _check_drawn_rows(candidates: Sequence[Candidate], test: Listing) -> Check:
    """Check that versions of the same files have held out the same rows of them."""
    trained = [
        candidate
        for candidate in candidates
        if candidate.fetched.manifest["data_digest"] == test.digest
    ]
    if not trained:
        return Check("test rows", True, "from other files than the training rows")

    if len(set(map(_draw_key, trained))) > 1:
        names = " and ".join(candidate.title for candidate in trained)
        what = f"{names} were tested on other rows of the same files"
        return Check("test rows", False, what)

    return Check("test rows", True, "held out by the same draw")


def _draw_key(candidate: Candidate) -> Hashable:
    """Return all that decides which rows of its files a version has held out."""
    task = candidate.fetched.manifest["task"]
    params = candidate.run.data.params
    classes = sorted(task.get("classes") or ())
    keys = ("seed", "data.test_share", "data.group")
    return (task["kind"], *classes, *(params.get(key) for key in keys))
