"""`tipcast watch`: score new rows, hold them against the model's training, and replace it where limits are passed."""

from __future__ import annotations

import dataclasses
import logging
import shlex
from collections.abc import Mapping
from typing import Any

from tipcast.config.compose import compose, to_object
from tipcast.config.errors import TipcastError
from tipcast.config.job_schemas import PromoteConfig, TrainConfig, WatchConfig
from tipcast.config.plain import retrained, to_plain
from tipcast.config.schema import DataSpec, FilesData, Output, SampleData, TableData, TlcData
from tipcast.datasets.base import ScanRequest
from tipcast.datasets.listing import expand, patterns
from tipcast.datasets.registry import open_dataset
from tipcast.datasets.rows import Recipe
from tipcast.jobs import closing, score
from tipcast.scoring.output_folder import Manifest
from tipcast.scoring.watch import Findings, check_limits, find
from tipcast.tasks.base import make_task

LOG = logging.getLogger("tipcast")

PROMOTED, NOT_PROMOTED = 10, 11
"""Exit codes where a limit is passed; docs/errors.md has all."""
KEY = "watch"
"""Of the scores' manifest: what was found of them, of which run, and what came of it."""
WATCHED = "watched"
"""What stands for the watched files among those to train on."""
CHAMPION = "champion"
"""The alias of a model that is watched by its version."""
OF, PARENT = "watch.of", "mlflow.parentRunId"
"""Tags of the runs that a watch's run has led to: its id."""
BEST = "sweep.best."


def run(config: WatchConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says.

    Raises
    ------
    TipcastError
        C003 limits or files that cannot be; as scoring, training and promoting; S010 when some files were refused,
        after all else was done.

    """
    _check(config)
    said, refused, files = score.perform(config, command, _beside(config))
    manifest = score.present(config) or Manifest({}, {})
    state = manifest.about[KEY]
    findings, outcome = Findings.read(state["findings"]), state["outcome"]
    passed = findings.passed(config.limit)
    for name, how in passed.items():
        LOG.warning("limit.%s is passed: %s", name, how)
    wanted = to_plain(config.retrain)
    if passed and wanted is not None and (outcome is None or outcome["retrain"] != wanted):
        outcome = {"retrain": wanted, **_replaced(config, command, manifest, labelled=findings.labelled > 0)}
        _keep(config, state["run_id"], outcome)
    told = outcome if passed and outcome else {}
    said = {
        **said,
        "watch_run_id": state["run_id"],
        "metrics": findings.metrics,
        "passed": passed,
        "challenger": told.get("challenger"),
        "promoted": told.get("promoted", False),
        "why": told.get("why"),
        "exit_code": (PROMOTED if told.get("promoted") else NOT_PROMOTED) if passed else 0,
    }
    closing.say(said, config.print)
    if refused:
        raise score.problem_of(refused, files)
    return said


def _check(config: WatchConfig) -> None:
    """Refuse what no store and no worker is needed to refuse."""
    check_limits(config.limit)
    if config.retrain is not None:
        patterns(config.retrain, "retrain")
        if not config.model_uri.startswith("models:/") or config.model_uri.startswith("models:/m-"):
            what = f"{config.model_uri} is not registered, so nothing can take its place"
            raise TipcastError("C003", "retrain", what, "watch models:/NAME@ALIAS or models:/NAME/VERSION")


def _beside(config: WatchConfig) -> score.Beside:
    """Return what is done beside the scoring: all numbers come of its sums."""

    def findings(record: Any, account: Any) -> tuple[Mapping[str, Any], str]:
        found = find(account, record.fetched.manifest.get("profile"))
        passed = found.passed(config.limit)
        record.run.log_metrics(found.metrics)
        record.run.set_tags({"watch.passed": ", ".join(passed) or "none"})
        if found.then is None:
            LOG.warning("nothing is estimated: the model does not tell how good it was. Train and register it again")
        return {KEY: {"findings": found.plain(), "run_id": record.run.id, "outcome": None}}, found.note(passed)

    return score.Beside("watch", ("limit", "retrain"), lambda manifest: KEY in manifest.about, findings)


def _keep(config: WatchConfig, run_id: str, outcome: Mapping[str, Any]) -> None:
    """Let the scores' manifest say what came of a watch, unless other scores are there by now."""
    output, manifest = score.recovered(config)
    if manifest and manifest.about.get(KEY, {}).get("run_id") == run_id:
        about = {**manifest.about, KEY: {**manifest.about[KEY], "outcome": dict(outcome)}}
        score.rewrite(output, Manifest(manifest.files, about), config.storage_options)


# Another model in place of the one that is watched


def _replaced(config: WatchConfig, command: str, manifest: Manifest, *, labelled: bool) -> dict[str, Any]:
    """Train a challenger, unless one of this watch is registered, and let the gate decide."""
    from tipcast.jobs import promote
    from tipcast.tracking.store import open_store

    client = open_store(config.tracking)
    name, run_id = manifest.about["model"]["name"], manifest.about[KEY]["run_id"]
    tracking = dataclasses.replace(config.tracking, tags={**config.tracking.tags, OF: run_id, PARENT: run_id})
    owned = dataclasses.replace(config, tracking=tracking)
    uri = _earlier(client, name, run_id) or _trained(client, owned, command, manifest, labelled=labelled)
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


def _earlier(client: Any, name: str, run_id: str) -> str | None:
    """Return the version that a watch's run has led to before it was stopped."""
    experiment = client.get_run(run_id).info.experiment_id
    for found in client.search_runs([experiment], f"tags.`{OF}` = '{run_id}' and tags.job = 'train'"):
        for version in client.search_model_versions(f"run_id = '{found.info.run_id}'"):
            if version.name == name:
                return f"models:/{name}/{version.version}"
    return None


def _trained(client: Any, config: WatchConfig, command: str, manifest: Manifest, *, labelled: bool) -> str:
    """Train on newer files as the watched version was trained; return the new version."""
    from tipcast.jobs import train
    from tipcast.tracking.facts import config_text

    model = manifest.about["model"]
    trained = client.get_model_version(model["name"], model["version"]).run_id
    text = config_text(client, trained, "train a challenger with tipcast train, and promote it")
    tags = client.get_run(trained).data.tags
    best = {key.removeprefix(BEST): value for key, value in tags.items() if key.startswith(BEST)}
    found = retrained(text, config, model["name"], best, f"run {trained}")
    found = dataclasses.replace(found, data=_newer(config, found, labelled=labelled))
    return str(train.run(found, command)["model_uri"])


def _newer(config: WatchConfig, found: TrainConfig, *, labelled: bool) -> DataSpec:
    """Return the files to train on and to test on: of files with a period those of the last one test."""
    request = ScanRequest((), storage=dict(config.storage_options))
    watched = [uri for pattern in patterns(config.input, "input") for uri in expand(pattern, request)]
    named: list[str] = []
    for pattern in patterns(config.retrain, "retrain"):
        named += [] if pattern == WATCHED else expand(pattern, request)
    uris = [uri for uri in dict.fromkeys([*named, *watched]) if labelled or uri not in watched]
    if not uris:
        fix = "name files that have them: retrain='months/*.parquet'"
        raise TipcastError("C003", "retrain", "the watched files have no answers to learn from", fix)
    data = found.data
    if isinstance(data, SampleData | TlcData):
        data = FilesData("files", limits=data.limits, block_bytes=config.block_bytes)
    if isinstance(data, FilesData | TableData):
        data = dataclasses.replace(data, storage_options=dict(config.storage_options))
    data = dataclasses.replace(data, train=uris, test=None, months=None)
    if isinstance(data, TableData):
        return data
    dataset = open_dataset(data)
    listing = dataset.scan("train", Recipe(dataset, make_task(found.task, dataset)).columns)
    periods = {part.uri: part.period for part in listing.fragments if part.period is not None}
    last = max((start for start, _ in periods.values()), default=0)
    test = [uri for uri, period in periods.items() if period[1] > last]
    train = [uri for uri in periods if uri not in test]
    if not train:
        what = "all files are of one period, and a challenger is tested on a later one than it is trained on"
        raise TipcastError("C003", "retrain", what, "name earlier files too: retrain='months/*.parquet'")
    return dataclasses.replace(data, train=train, test=test)
