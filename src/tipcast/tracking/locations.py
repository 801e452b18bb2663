"""Where a model of MLflow is: versions, aliases, logged models and runs, each told to the one place of its files."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mlflow.exceptions import MlflowException
from mlflow.utils.file_utils import local_file_uri_to_path

from tipcast.config.errors import TipcastError
from tipcast.tracking.credentials import is_loopback, redact

LOCATIONS = ("s3", "gs", "wasbs", "abfss", "mlflow-artifacts", "http", "https")
"""Schemes of artifact stores that files are fetched from, beside this machine's own disks."""
_VERSION = re.compile(r"models:/([^/:@]+)/(\d+)")
_ALIAS = re.compile(r"models:/([^/:@]+)@([^/:@]+)")
_LOGGED = re.compile(r"models:/(m-[0-9a-f]+)")
_RUN = re.compile(r"runs:/([^/]+)/(.+)")


@dataclass(frozen=True)
class Located:
    """A logged model, and the version it was found by."""

    uri: str
    """``models:/name/version`` or ``models:/m-...``: what an alias or a run stands for now."""
    location: str
    """Address of its folder in an artifact store."""
    name: str | None = None
    version: str | None = None
    run_id: str | None = None
    model_id: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    """Of the version."""


def locate(client: Any, model_uri: str) -> Located:
    """Find a model by its address.

    Raises
    ------
    TipcastError
        C003 no address of a model, M001 no such model, version, alias or run, M005 one that tipcast cannot have logged.

    """
    if match := _LOGGED.fullmatch(model_uri):
        return _logged(client, match[1], model_uri)
    if match := _VERSION.fullmatch(model_uri):
        name, number = match.groups()
        _registered(client, name)
        return _version(client, _found(lambda: client.get_model_version(name, number), model_uri, "no such version"))
    if match := _ALIAS.fullmatch(model_uri):
        name, alias = match.groups()
        aliases = _registered(client, name).aliases
        if alias not in aliases:
            there = ", ".join(sorted(aliases)) or "none"
            raise TipcastError(
                "M001", model_uri, f"no such alias; there are: {there}", "use a version, or set the alias"
            )
        gone = f"the version that it stands for, {aliases[alias]}, is not there"  # older servers keep such aliases
        return _version(client, _found(lambda: client.get_model_version_by_alias(name, alias), model_uri, gone))
    if match := _RUN.fullmatch(model_uri):
        return _of_run(client, match[1], match[2].rstrip("/"), model_uri)
    raise TipcastError(
        "C003",
        "model_uri",
        f"no address of a model: {redact(model_uri)}",
        "use models:/NAME/VERSION, models:/NAME@ALIAS, models:/m-ID or runs:/ID/model",
    )


def _registered(client: Any, name: str) -> Any:
    what = f"no such registered model in {redact(client._registry_uri)}"
    return _found(lambda: client.get_registered_model(name), f"models:/{name}", what)


def _version(client: Any, version: Any) -> Located:
    uri = f"models:/{version.name}/{version.version}"
    match = _LOGGED.fullmatch(version.source or "")
    if model_id := version.model_id or (match and match[1]):
        logged = _logged(client, model_id, uri)
        return dataclasses.replace(logged, uri=uri, name=version.name, version=str(version.version), tags=version.tags)
    raise TipcastError(
        "M005", uri, "was registered from files, not from a model that tipcast logged", "train and register it again"
    )


def _logged(client: Any, model_id: str, uri: str) -> Located:
    model = _found(lambda: client.get_logged_model(model_id), uri, "no such logged model")
    return Located(uri, model.artifact_location, None, None, model.source_run_id, model_id)


def _of_run(client: Any, run_id: str, name: str, uri: str) -> Located:
    run = _found(lambda: client.get_run(run_id), uri, "no such run")
    outputs = run.outputs.model_outputs if run.outputs else []
    for model in (client.get_logged_model(output.model_id) for output in outputs):
        if model.name == name:
            return Located(f"models:/{model.model_id}", model.artifact_location, None, None, run_id, model.model_id)
    raise TipcastError("M001", uri, f"the run has logged no model {name!r}", "name another run, or train first")


def _found(ask: Callable[[], Any], where: str, what: str) -> Any:
    """Ask the store; what it does not have is told in our words, and only that."""
    try:
        return ask()
    except MlflowException as problem:
        if problem.error_code not in {"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "NOT_FOUND"}:
            raise
        raise TipcastError("M001", where, what, "see the models and versions there are with `mlflow ui`") from problem


def check_location(client: Any, found: Located, root: str | None) -> None:
    """Refuse what a store on another machine must not choose: this machine's files, and odd ways to reach others.

    Parameters
    ----------
    client
        Whose stores named the location.
    found
        The model.
    root
        Folder of this machine that a server may name all the same; None: there is none.

    Raises
    ------
    TipcastError
        T006.

    """
    scheme = urlsplit(found.location).scheme.lower()
    if scheme in LOCATIONS:
        return
    if scheme not in {"", "file"}:
        raise TipcastError(
            "T006", found.uri, f"its files are at {scheme}://, which is not fetched from", f"use {', '.join(LOCATIONS)}"
        )
    if not any(_is_remote(store) for store in (client.tracking_uri, client._registry_uri)):
        return
    path = Path(local_file_uri_to_path(found.location)).resolve()
    if root is None or not path.is_relative_to(Path(root).expanduser().resolve()):
        raise TipcastError(
            "T006",
            found.uri,
            f"the tracking server says that its files are on this machine, at {path}",
            "let the server serve artifacts, or set tracking.artifact_root to the folder that you share with it",
        )


def _is_remote(store: str) -> bool:
    parts = urlsplit(store)
    return parts.scheme in {"http", "https"} or not (parts.hostname is None or is_loopback(parts.hostname))
