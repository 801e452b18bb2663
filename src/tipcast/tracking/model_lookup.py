"""The lookup of a model by the address that a user names: MLflow's logged model and its files."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import mlflow
from mlflow import MlflowClient
from mlflow.entities import LoggedModel, LoggedModelStatus
from mlflow.entities import Run as MlflowRun
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.utils.file_utils import local_file_uri_to_path

from tipcast.config.errors import TipcastError
from tipcast.config.plain import redact
from tipcast.tracking.failures import ABSENT, absent
from tipcast.tracking.uri_checks import is_loopback

LOCATIONS = ("s3", "gs", "wasbs", "abfss", "mlflow-artifacts", "http", "https")
"""Schemes of artifact stores that files are fetched from, beside this machine's own disks."""
REGISTERED = re.compile(r"models:/([^/:@]+)(?:/(\d+)|@([^/:@]+))")
LOGGED = re.compile(r"models:/(m-[0-9a-f]+)")
OF_RUN = re.compile(r"runs:/([^/]+)/(.+)")
MOST_NAMED = 10
"""Most versions that a message names."""
SEE = "list the models and versions with `mlflow ui`"
"""What to do about a model or version that does not exist."""
NOT_LOGGED = "was registered from files, not from a model that tipcast logged"
"""Message about a version without a logged model."""


def locate(store: MlflowClient, model_uri: str) -> tuple[str, LoggedModel, ModelVersion | None]:
    """Return a model's permanent address, MLflow's logged model, and its version if that is named.

    Raises C003 for an address that is not a model's, M001 if the model does not exist, and M005 if
    tipcast cannot have logged it.
    """
    uri = model_uri
    version = None

    if match := OF_RUN.fullmatch(model_uri):
        model = _find_model_of_run(store, uri, match[1], match[2].rstrip("/"))
        return f"models:/{model.model_id}", model, None

    if match := LOGGED.fullmatch(model_uri):
        model_id = match[1]
    elif match := REGISTERED.fullmatch(model_uri):
        name, number, alias = match.groups()
        version = _find_version(store, uri, name, number, alias)
        uri = f"models:/{name}/{version.version}"
        model_id = _model_id_of(store, uri, version)
    else:
        fix = "use models:/NAME/VERSION, models:/NAME@ALIAS, models:/m-ID or runs:/ID/NAME"
        raise TipcastError("C003", "model_uri", f"not a model URI: {redact(model_uri)}", fix)

    with absent("M001", uri, "no such logged model", SEE):
        return uri, store.get_logged_model(model_id), version


def _find_model_of_run(store: MlflowClient, uri: str, run_id: str, name: str) -> LoggedModel:
    """Return the newest model that a run has logged under a name; M001 if it has logged none."""
    with absent("M001", uri, f"run {run_id} does not exist", SEE):
        run = store.get_run(run_id)

    for model in logged_of(store, run):
        if model.name == name:
            return model

    fix = "use another run, or train first"
    raise TipcastError("M001", uri, f"the run has logged no model {name!r}", fix)


def _find_version(
    store: MlflowClient, uri: str, name: str, number: str | None, alias: str | None
) -> ModelVersion:
    """Return a registered model's version by its number or alias; M001 names those that exist."""
    try:
        if number:
            return store.get_model_version(name, number)
        return store.get_model_version_by_alias(name, alias)
    except MlflowException as problem:
        if problem.error_code not in ABSENT:
            raise
        what = f"no such registered model in {redact(mlflow.get_registry_uri())}"
        with absent("M001", uri, what, SEE):
            aliases = sorted(store.get_registered_model(name).aliases)

        if number:
            what = f"version {number} does not exist; versions: {_version_numbers(store, name)}"
        else:
            what = f"alias {alias} does not exist; aliases: {', '.join(aliases) or 'none'}"
        raise TipcastError("M001", uri, what, SEE) from problem


def _version_numbers(store: MlflowClient, name: str) -> str:
    """Return the numbers of a registered model's newest versions in words, as ``1, 2``."""
    versions = store.search_model_versions(f'name="{name}"')
    numbers = sorted(int(version.version) for version in versions)
    if not numbers:
        return "none"

    newest = ", ".join(str(number) for number in numbers[-MOST_NAMED:])
    if len(numbers) > MOST_NAMED:
        return f"..., {newest}"
    return newest


def _model_id_of(store: MlflowClient, uri: str, version: ModelVersion) -> str:
    """Return the id of a version's logged model; M005 if the version has none.

    A copy has the logged model of its original.
    """
    original = version
    with absent("M001", uri, "the version that it was copied from does not exist", SEE):
        while not original.model_id and (copied := REGISTERED.fullmatch(original.source or "")):
            # MLflow's copy_model_version does not copy model_id.
            original = store.get_model_version(copied[1], copied[2])

    if original.model_id:
        return str(original.model_id)
    if source := LOGGED.fullmatch(original.source or ""):
        return source[1]
    raise TipcastError("M005", uri, NOT_LOGGED, "train and register it again")


def logged_of(store: MlflowClient, run: MlflowRun) -> list[LoggedModel]:
    """Return the complete models that a run has logged, the newest first.

    MLflow itself lists them in no order.
    """
    if not run.outputs:
        return []

    models = [store.get_logged_model(output.model_id) for output in run.outputs.model_outputs]
    ready = (model for model in models if model.status == LoggedModelStatus.READY)
    return sorted(ready, key=lambda model: model.creation_timestamp, reverse=True)


def check_location(store: MlflowClient, uri: str, location: str, root: str | None) -> None:
    """Refuse a place of a model's files that a store on another machine must not choose; T006.

    That is a file of this machine, unless it lies below ``root``, or an address with another scheme
    than those of ``LOCATIONS``.
    """
    scheme = urlsplit(location).scheme.lower()
    if scheme in LOCATIONS:
        return
    if scheme not in {"", "file"}:
        what = f"its files are at {scheme}://, which is not supported"
        raise TipcastError("T006", uri, what, f"use {', '.join(LOCATIONS)}")

    path = Path(local_file_uri_to_path(location)).resolve()
    if root is not None and path.is_relative_to(Path(root).expanduser().resolve()):
        return
    if _is_here(store.tracking_uri) and _is_here(mlflow.get_registry_uri()):
        return

    what = f"the tracking server says that its files are on this machine, at {path}"
    fix = (
        "let the server serve artifacts, or set tracking.artifact_root to the folder that you "
        "share with it"
    )
    raise TipcastError("T006", uri, what, fix)


def _is_here(store_uri: str) -> bool:
    """Tell whether a store is a file or a database of this machine."""
    address = urlsplit(store_uri)
    return address.scheme not in {"http", "https"} and is_loopback(address.hostname or "localhost")
