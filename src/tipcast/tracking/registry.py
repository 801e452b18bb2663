"""The registry: versions that carry what is known of their model, made in one step or not at all, and their aliases."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import logging
import math
import re
from collections.abc import Mapping
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_MODEL_VERSIONS

from tipcast.config.errors import TipcastError
from tipcast.config.gate import gate
from tipcast.config.plain import redact
from tipcast.tracking.portable import TOLERANCE, Logged, quiet
from tipcast.tracking.run import Run, taken
from tipcast.tracking.store import release

LOG = logging.getLogger("tipcast")

MAX_DESCRIPTION = 5000
"""Characters that MLflow's databases keep of a version's description."""
MANIFEST_TAG = "sha256.manifest"
"""The digest to trust: it is kept apart from the files."""
TRIAL_TAG = "sweep.best"
"""The sweep's trial that a version is of; its run has the same tag."""
SHA256 = re.compile(r"[0-9a-f]{64}")
ALIAS = re.compile(r"[A-Za-z_\-][\w\-]{0,254}")
RESERVED = re.compile(r"v\d+|latest", re.IGNORECASE)
"""What MLflow takes for no alias."""


def register(
    run: Run,
    logged: Logged,
    name: str,
    difference: float,
    metrics: Mapping[str, float],
    description: str,
    *,
    trial: str = "",
) -> Logged:
    """Register a logged model under a name, which is made where it does not exist; return it with the version's URI.

    The version is made with all of its tags and its description in one step. Whatever ends the process in between, no
    version is left that lacks some of them, and no name without a version where the name is new. Nothing is registered
    (M011) whose ``difference``, see ``portable.parity``, is above 1e-5, that has a metric of the test rows that is not
    finite, or whose manifest lacks a digest or the code's origin. The description is Markdown.

    A version that this run has registered of the same ``trial`` of a sweep is used rather than another made: its sweep
    was killed after that, and was resumed.
    """
    _check(name, logged, difference, metrics)
    client = run.client
    with quiet():
        for version in client.search_model_versions(f"run_id='{run.id}'") if trial else ():
            if version.name == name and version.tags.get(TRIAL_TAG) == trial and version.status == "READY":
                model_id = version.model_id or version.source.removeprefix("models:/")  # MLflow's databases keep no id
                _link(client, model_id, name, version.version)  # it may have been killed before it had
                LOG.info("version %s of %s is of the same trial: no other is registered", version.version, name)
                return dataclasses.replace(logged, registered=f"models:/{name}/{version.version}")
        new = not client.search_registered_models(f'name="{name}"')
        try:
            if new:
                with contextlib.suppress(MlflowException):  # another process was faster, or the next step says why
                    client.create_registered_model(name)
            version = client.create_model_version(
                name,
                logged.uri,
                tags=facts(logged, difference, metrics) | ({TRIAL_TAG: trial} if trial else {}),
                description=description[:MAX_DESCRIPTION],
                model_id=logged.model_id,
            )
            gate("version")
            _link(client, logged.model_id, name, version.version)
        except BaseException as problem:
            release(problem)
            with contextlib.suppress(Exception):  # a store that fails now must not hide the first problem
                for version in client.search_model_versions(f"run_id='{run.id}'"):
                    if version.name == name and version.source == logged.uri:
                        client.delete_model_version(name, version.version)
                if new and not client.search_model_versions(f'name="{name}"'):
                    client.delete_registered_model(name)
            raise
    return dataclasses.replace(logged, registered=f"models:/{name}/{version.version}")


def facts(logged: Logged, difference: float, metrics: Mapping[str, float]) -> dict[str, str]:
    """Return what a version's tags say: how it is stored and told apart, of what it was made, how well it does."""
    manifest = logged.manifest
    versions: Mapping[str, str] = manifest.get("versions", {})
    told: dict[str, object] = {
        "format": manifest["format"],
        "sha256": manifest["sha256"]["model"],
        MANIFEST_TAG: logged.manifest_sha256,
        "features": ", ".join(manifest["features"]),
        "target": manifest.get("target"),
        "model": manifest.get("model"),
        "device": manifest.get("trained_on"),
        "data.digest": manifest["data_digest"],
        "data.train_period": manifest.get("train_period"),
        "data.test_period": manifest.get("test_period"),
        "git.commit": manifest.get("git_commit"),
        "git.dirty": "true" if manifest.get("git_dirty") else None,
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "parity": f"{difference:.2g}",
        **{name: f"{value:.6g}" for name, value in metrics.items()},
    }
    return taken({name: value for name, value in told.items() if value})  # the manifest has all features


def _check(name: str, logged: Logged, difference: float, metrics: Mapping[str, float]) -> None:
    """Refuse (M011) a model that is not what was trained, or of which too little is known."""
    if not difference <= TOLERANCE:
        what = f"the logged model's scores differ by {difference:.2g}, more than {TOLERANCE:g}"
        raise TipcastError("M011", name, what, "report this with the run's artifacts; nothing was registered")
    for metric, value in metrics.items():
        if not math.isfinite(value):
            raise TipcastError("M011", name, f"{metric} is {value}", "nothing was registered; look at the run")
    manifest = logged.manifest
    digests = {"model": "", **manifest.get("sha256", {}), "manifest": logged.manifest_sha256}
    lacking = [f"SHA-256 of {file}" for file, found in digests.items() if not SHA256.fullmatch(str(found))]
    if not manifest.get("data_digest"):
        lacking.append("digest of the training data")
    if not (manifest.get("git_commit") or manifest.get("versions", {}).get("tipcast")):
        lacking.append("git commit or tipcast's version")
    if lacking:
        raise TipcastError("M011", name, f"the model has no {', no '.join(lacking)}", "train it with `tipcast train`")


def _link(client: Any, model_id: str, name: str, version: str) -> None:
    """Note at the logged model under what it is registered, as ``mlflow.register_model`` does: pages show it."""
    known = json.loads(client.get_logged_model(model_id).tags.get(MLFLOW_MODEL_VERSIONS, "[]"))
    if (entry := {"name": name, "version": version}) not in known:
        client.set_logged_model_tags(model_id, {MLFLOW_MODEL_VERSIONS: json.dumps([*known, entry])})


def check_alias(alias: str) -> None:
    """Refuse what MLflow takes for no alias; C003."""
    if not ALIAS.fullmatch(alias) or RESERVED.fullmatch(alias):
        raise TipcastError("C003", "alias", f"not an alias: {alias!r}", "use a word, as champion")


def alias_holder(client: Any, name: str, alias: str) -> str | None:
    """Return the version that holds an alias now; None where none does."""
    found = client.get_registered_model(name).aliases.get(alias)
    return None if found is None else str(found)


def move_alias(
    client: Any, name: str, alias: str, version: str, *, before: str | None, facts: Mapping[str, str], forced: bool
) -> None:
    """Move an alias from the version that held it ``before``; M022 where it has another holder by now.

    Tags ``alias.ALIAS.*`` of the version say since when, after which version, and the ``facts``, as why; the model's
    tags ``alias.ALIAS.version`` and ``.previous`` keep the holder, so that a move by other means shows, and the former
    one, to go back to. MLflow moves an alias whoever holds it: looking first makes it unlikely that two promotions
    pass each other, not impossible.
    """
    found, of = alias_holder(client, name, alias), f"alias.{alias}"
    if found != before:
        what = f"moved to version {found} while version {version} was compared with {before or 'none'}"
        fix = "promote again: it will be compared with the new holder"
        raise TipcastError("M022", f"models:/{name}@{alias}", what, fix)
    client.set_registered_model_alias(name, alias, version)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    told = {"since": now, "after": before or "none", **facts, "forced": str(forced).lower()}
    try:
        for key, value in taken({f"{of}.{key}": value for key, value in told.items()}).items():
            client.set_model_version_tag(name, version, key, value)
        client.set_registered_model_tag(name, f"{of}.version", version)
        if before:
            client.set_registered_model_tag(name, f"{of}.previous", before)
    except Exception as problem:  # the alias has moved, and that is what counts
        said = redact(str(problem).partition("\n")[0])
        LOG.warning("version %s holds %s, but not all tags say so: %s", version, alias, said)
