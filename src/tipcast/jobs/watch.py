"""`tipcast watch`: score new rows, hold them against the model's training, and replace it where limits are passed."""

from __future__ import annotations

import dataclasses
import json
import logging
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tipcast.config.compose import compose, to_object
from tipcast.config.errors import TipcastError
from tipcast.config.job_schemas import PromoteConfig, TrainConfig, WatchConfig
from tipcast.config.plain import redact, retrained, to_plain
from tipcast.config.schema import DataSpec, FilesData, MadeData, Output, SampleData, TableData, TlcData
from tipcast.datasets import address
from tipcast.datasets.base import ScanRequest
from tipcast.datasets.listing import expand, patterns
from tipcast.datasets.registry import open_dataset
from tipcast.evaluation.drift import SOME
from tipcast.jobs import closing, score
from tipcast.scoring.output_folder import Manifest, write_manifest
from tipcast.scoring.plan import look_into
from tipcast.scoring.watch import UNLIKE, Findings, find
from tipcast.tasks.base import make_task
from tipcast.tracking.store import failures, open_store, resolve

LOG = logging.getLogger("tipcast")

PROMOTED, NOT_PROMOTED = 10, 11
"""Exit codes where a limit is passed; docs/errors.md has all."""
KEY = "watch"
"""Of the scores' manifest: what was found of them, of which run, and what came of it."""
WATCHED = "watched"
"""What stands for the watched files among those to train on."""
CHAMPION = "champion"
"""The alias of a model that is watched by its version."""
OF, RETRAIN, PARENT = "watch.of", "watch.retrain", "mlflow.parentRunId"
"""Tags of the runs that a watch's run has led to: its id, and what it was asked to train on."""


def run(config: WatchConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says. S010 when some files were refused, after all else was done."""
    _check(config)
    said, refused, files = score.perform(config, command, _beside(config))
    manifest = look_into(config).manifest
    state = manifest.about[KEY]
    findings, outcome = Findings.read(state["findings"]), state["outcome"]
    passed = findings.passed(config.limit)
    if not findings.alike and config.limit.psi is not None:
        LOG.warning("drift passes %s", UNLIKE)
    for name, how in passed.items():
        LOG.warning("limit.%s is passed: %s", name, how)
    wanted = to_plain(config.retrain)
    if passed and wanted is not None and (outcome is None or outcome["retrain"] != wanted):
        with failures(resolve(config.tracking)):
            outcome = {"retrain": wanted, **_replaced(config, command, manifest, labelled=findings.labelled > 0)}
        _keep(config, state["run_id"], outcome)
    told = outcome if passed and outcome else {}
    said = {
        **said,
        "drift": {name: psi for name, psi, _ in findings.moved if psi >= SOME},
        "watch_run_id": state["run_id"],
        "metrics": findings.metrics,
        "passed": passed,
        "challenger": told.get("challenger"),
        "promoted": told.get("promoted"),
        "why": told.get("why"),
        "exit_code": (PROMOTED if told.get("promoted") else NOT_PROMOTED) if passed else 0,
    }
    closing.say(said, config.print)
    if refused:
        raise score.problem_of(refused, files)
    return said


def _check(config: WatchConfig) -> None:
    """Refuse what no store and no worker is needed to refuse."""
    if config.retrain is not None:
        for uri in _named(config):
            address.size(uri, address.storage(uri, config.storage_options))  # D001 where it is not there
        if not config.model_uri.startswith("models:/") or config.model_uri.startswith("models:/m-"):
            what = f"{config.model_uri} is not registered, so nothing can take its place"
            raise TipcastError("C003", "retrain", what, "watch models:/NAME@ALIAS or models:/NAME/VERSION")


def _beside(config: WatchConfig) -> score.Beside:
    """Return what is done beside the scoring: all numbers come of its sums."""

    def findings(record: Any, account: Any) -> tuple[Mapping[str, Any], str]:
        if not account.rows and _told(record.plan.present.manifest):  # files were only removed, or refused
            return {KEY: record.plan.present.manifest.about[KEY]}, ""
        found = find(account, record.fetched.manifest.get("profile"))
        passed = found.passed(config.limit)
        record.run.log_metrics(found.metrics)
        record.run.set_tags({"watch.passed": ", ".join(passed) or "none"})
        if found.then is None:
            LOG.warning("nothing is estimated: the model does not tell how good it was. Train and register it again")
        return {KEY: {"findings": found.plain(), "run_id": record.run.id, "outcome": None}}, found.note(passed)

    return score.Beside("watch", ("limit", "retrain"), _told, findings)


def _told(manifest: Manifest) -> bool:
    return KEY in manifest.about


def _keep(config: WatchConfig, run_id: str, outcome: Mapping[str, Any]) -> None:
    """Let the scores' manifest say what came of a watch, unless other scores are there by now."""
    present = look_into(config)
    manifest = present.manifest
    if manifest.about.get(KEY, {}).get("run_id") == run_id:
        about = {**manifest.about, KEY: {**manifest.about[KEY], "outcome": dict(outcome)}}
        write_manifest(present.folder, Manifest(manifest.files, about), config.storage_options)


# Another model in place of the one that is watched


def _replaced(config: WatchConfig, command: str, manifest: Manifest, *, labelled: bool) -> dict[str, Any]:
    """Train a challenger, unless one of this watch is registered, and let the gate decide."""
    from tipcast.jobs import promote

    client = open_store(config.tracking)
    name, run_id = manifest.about["model"]["name"], manifest.about[KEY]["run_id"]
    tags = {OF: run_id, PARENT: run_id, RETRAIN: json.dumps(to_plain(config.retrain))}
    tracking = dataclasses.replace(config.tracking, tags={**config.tracking.tags, **tags})
    owned = dataclasses.replace(config, tracking=tracking)
    uri = _earlier(client, name, tags) or _trained(client, owned, command, manifest, labelled=labelled)
    _, _, alias = config.model_uri.partition("@")
    words = [f"model_uri={uri}", f"alias={alias or CHAMPION}"]
    gate: PromoteConfig = to_object(compose("promote", words)[0].config)
    gate = dataclasses.replace(
        gate, backend=config.backend, cluster=config.cluster, tracking=tracking, print=Output.none, debug=config.debug
    )
    promoted, why = True, "passed the gate"
    try:
        said = promote.run(gate, shlex.join(["tipcast", "promote", *words]))
        why = said.get("checks", {}).get("comparison", {}).get("what", why)
    except TipcastError as problem:
        if problem.code != "M020":
            raise
        promoted, why = False, problem.what
    LOG.info("%s %s: %s", uri, "is promoted" if promoted else "is not promoted", why)
    outcome = {"challenger": uri, "promoted": promoted, "why": why}
    for key, value in outcome.items():
        client.set_tag(run_id, f"watch.{key}", str(value).lower() if key == "promoted" else value)
    return outcome


def _earlier(client: Any, name: str, tags: Mapping[str, str]) -> str | None:
    """Return the version that a watch's run has led to before it was stopped."""
    experiment = client.get_run(tags[OF]).info.experiment_id
    for found in client.search_runs([experiment], f"tags.`{OF}` = '{tags[OF]}' and tags.job = 'train'"):
        for version in client.search_model_versions(f"run_id = '{found.info.run_id}'"):
            if version.name == name and found.data.tags.get(RETRAIN) == tags[RETRAIN]:
                return f"models:/{name}/{version.version}"
    return None


def _trained(client: Any, config: WatchConfig, command: str, manifest: Manifest, *, labelled: bool) -> str:
    """Train on newer files as the watched version was trained; return the new version."""
    from tipcast.jobs import train
    from tipcast.tracking.facts import best_of, config_text

    model = manifest.about["model"]
    trained = client.get_model_version(model["name"], model["version"]).run_id
    text = config_text(client, trained, "train a challenger with tipcast train, and promote it")
    found = retrained(text, config, model["name"], best_of(client.get_run(trained)), f"run {trained}")
    scored = {entry.input for entry in manifest.files.values()} if labelled else set()
    found = dataclasses.replace(found, data=_newer(config, found, scored))
    return str(train.run(found, command)["model_uri"])


def _named(config: WatchConfig) -> list[str]:
    """Return the files that ``retrain`` names, without those that are watched."""
    return _expanded(config, [named for named in patterns(config.retrain, "retrain") if named != WATCHED])


def _expanded(config: WatchConfig, named: Sequence[str]) -> list[str]:
    request = ScanRequest((), storage=dict(config.storage_options))
    return [uri for pattern in named for uri in expand(pattern, request)]


def _newer(config: WatchConfig, found: TrainConfig, scored: Collection[str]) -> DataSpec:
    """Return the files to train on and to test on: of files with a period those of the last one test.

    Of those that are watched only the ``scored`` ones are used: none where no answers are known.
    """
    from tipcast.datasets.rows import Recipe

    watched = _expanded(config, patterns(config.input, "input"))
    uris = [uri for uri in dict.fromkeys([*_named(config), *watched]) if uri not in watched or redact(uri) in scored]
    if not uris:
        fix = "name files that have them: retrain='months/*.parquet'"
        raise TipcastError("C003", "retrain", "the watched files have no answers to learn from", fix)
    data = found.data
    if isinstance(data, MadeData):
        what = f"data={data.source} are made, and not read from files"
        raise TipcastError("C003", "retrain", what, "train a challenger with tipcast train, and promote it")
    if isinstance(data, SampleData | TlcData):
        data = FilesData("files", limits=data.limits, block_bytes=config.block_bytes)
    if isinstance(data, FilesData | TableData):
        columns = config.columns or data.columns
        data = dataclasses.replace(data, storage_options=dict(config.storage_options), columns=columns)
    data = dataclasses.replace(data, train=uris, test=None, months=None)
    if isinstance(data, TableData):
        return data
    dataset = open_dataset(data)
    listing = Recipe(dataset, make_task(found.task, dataset)).scan("train")
    periods = {part.uri: part.period for part in listing.fragments if part.period is not None}
    last = max((start for start, _ in periods.values()), default=0)
    test = [uri for uri, period in periods.items() if period[1] > last]
    train = [uri for uri in periods if uri not in test]
    if not train:
        what = "all files are of one period, and a challenger is tested on a later one than it is trained on"
        raise TipcastError("C003", "retrain", what, "name earlier files too: retrain='months/*.parquet'")
    return dataclasses.replace(data, train=train, test=test)
