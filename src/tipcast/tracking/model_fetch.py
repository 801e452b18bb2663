"""Models fetched from MLflow: only manifest and native file, with digests checked, and no loader
run.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from mlflow import MlflowClient
from mlflow.entities import LoggedModelInput
from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from tipcast.config.errors import TipcastError
from tipcast.config.plain import redact
from tipcast.datasets.parts import Period
from tipcast.datasets.registry import dataset_of
from tipcast.models import native
from tipcast.tasks.kinds import Kind, named
from tipcast.tracking.failures import first_line
from tipcast.tracking.lasting_client import calling
from tipcast.tracking.model_lookup import check_location, locate
from tipcast.tracking.model_package import MANIFEST_VERSION, digest
from tipcast.tracking.patience import Outage
from tipcast.tracking.portable_model import MANIFEST_TAG
from tipcast.tracking.run import Run
from tipcast.tracking.uri_checks import check_not_moved

AGAIN = "train and register it again"
"""What to do about a model that cannot be used."""
PARSE_LIMIT_S = 120.0
"""Seconds that the parse of a native file may take."""
EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception)\b")
"""Beginning of a traceback's last line, which libraries print more lines after."""


@dataclass(frozen=True)
class FetchedModel:
    """A model on this machine's disk, ready for ``native.load`` of its path and format."""

    path: Path
    format: str
    manifest: Mapping[str, Any]
    """The manifest that was written when the model was logged, see ``portable_model.log_model``."""
    name: str | None
    """Name of the registered model; None if the model is only logged."""
    version: str | None
    """Version of the registered model; None if the model is only logged."""
    uri: str
    """``models:/name/version``, or ``models:/m-...`` for a model that is only logged: never an
    alias, which may move.
    """
    run_id: str | None
    """Id of the run that trained the model."""
    sha256: str
    """Digest of the native file."""
    model_id: str
    """Id of MLflow's logged model."""
    manifest_sha256: str
    """Digest of the manifest."""

    @property
    def kind(self) -> Kind:
        """Kind of the task; C003 if this version of tipcast has no such kind."""
        return named(str(self.manifest.get("task", {}).get("kind", "")))

    def seen(self, info: Mapping[str, object]) -> Period | None:
        """Return the period of the training and validation rows.

        None if the manifest has no period, or if the model was trained on another kind of rows.
        ``info`` describes the rows that it is compared with, see ``FileInfo.to_manifest``.
        """
        until = self.manifest.get("trained_until")
        is_alike = all(self.manifest.get(name, value) == value for name, value in info.items())
        if until is None or not is_alike:
            return None
        return int(self.manifest.get("trained_from", 0)), int(until)


def fetch(
    store: MlflowClient,
    model_uri: str,
    folder: Path,
    *,
    root: str | None = None,
    parse: bool = True,
) -> FetchedModel:
    """Fetch a model of tipcast into a folder, and check it.

    Only ``MLmodel`` (read as data), the manifest and the native file are downloaded. No code and no
    pickle of the model is opened, whatever its flavours. The manifest of a version must be the one
    that the registry knows: write access to the artifact store is not enough to exchange the model.

    ``model_uri`` is ``models:/name/3``, ``models:/name@alias``, ``models:/m-...`` or
    ``runs:/id/NAME``. ``root`` is a folder under which a server on another machine may name files
    of this one. Without ``parse`` call ``check_parses`` before the file is loaded. Errors are C003,
    M001 to M005, M007, T006 and T007.
    """
    uri, model, version = locate(store, model_uri)
    check_location(store, uri, model.artifact_location, root)
    check_not_moved(model.artifact_location, store.tracking_uri, "T007")
    repository = get_artifact_repository(model.artifact_location, store.tracking_uri)
    files = _ModelFiles(uri, store, repository, folder)

    sha256 = files.manifest_digest()
    if version:  # a writer of the artifact store can change MLmodel, but not the registry
        files.check_digest("the manifest", sha256, version.tags.get(MANIFEST_TAG, sha256))
    manifest = _manifest(files.download("artifacts/manifest.json", sha256).read_bytes(), uri)
    native_sha256 = manifest["sha256"]["model"]

    fetched = FetchedModel(
        path=files.download(f"artifacts/{manifest['file']}", str(native_sha256)),
        format=manifest["format"],
        manifest=manifest,
        name=None,
        version=None,
        uri=uri,
        run_id=model.source_run_id,
        sha256=native_sha256,
        model_id=model.model_id,
        manifest_sha256=sha256,
    )
    if version:
        fetched = replace(fetched, name=version.name, version=str(version.version))
    if parse:
        check_parses(fetched)
    return fetched


@dataclass(frozen=True)
class _ModelFiles:
    """Files of a logged model, fetched one by one into a folder and checked by their digests."""

    uri: str
    """Address of the model in messages."""
    store: MlflowClient
    repository: ArtifactRepository
    folder: Path

    def download(self, path: str, sha256: str | None = None) -> Path:
        """Fetch a file and return its path; T007 if that fails, M003 if it has another digest."""
        try:
            download = partial(self.repository.download_artifacts, path, dst_path=str(self.folder))
            file = Path(calling(self.store, download, offline=False))
        except Outage:
            raise
        except Exception as problem:  # each store's client raises its own
            what = f"{path} cannot be fetched: {redact(first_line(problem))}"
            fix = "check the artifact store and the access to it"
            raise TipcastError("T007", self.uri, what, fix) from None

        if sha256 is not None:
            self.check_digest(file.name, digest(file), sha256)
        return file

    def check_digest(self, name: str, actual: str, sha256: str) -> None:
        """Refuse (M003) a file whose digest is not the one that was recorded."""
        if actual != sha256:
            what = (
                f"{name} is not the file that was logged: SHA-256 {actual[:16]}..., "
                f"not {sha256[:16]}..."
            )
            raise TipcastError("M003", self.uri, what, AGAIN)

    def manifest_digest(self) -> str:
        """Return the manifest's digest from ``MLmodel``; M005 if tipcast did not log the model."""
        try:
            described = yaml.safe_load(self.download("MLmodel").read_bytes())
            return str(described["metadata"]["tipcast"]["manifest_sha256"])
        except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError) as problem:
            what = "is not a model that tipcast logged"
            fix = "score with a model that tipcast trained"
            raise TipcastError("M005", self.uri, what, fix) from problem


def check_parses(fetched: FetchedModel) -> None:
    """Parse the native file in a child process, score two rows there, and compare its features with
    those of the manifest.

    Raises M002 for other features, and M007 if the file does not parse or crashes its library.
    """
    features = list(fetched.manifest["features"])
    parsed = _parsed(fetched.path, fetched.format, fetched.uri)

    is_alike = parsed["number"] == len(features)
    if fetched.format == "xgboost-ubj":  # the other formats have no names of features
        is_alike = is_alike and parsed["names"] == native.booster_names(features)
    if not is_alike:
        what = "its file has other features than its manifest"
        raise TipcastError("M002", fetched.uri, what, AGAIN)


def _parsed(path: Path, format: str, where: str) -> dict[str, Any]:
    """Return ``native.describe_model`` of a file from a child process, which it may crash."""
    # -P keeps out the folder of native.py, which has a file xgboost.py.
    words = [sys.executable, "-P", native.__file__, str(path.resolve()), format]
    try:
        ended = subprocess.run(  # noqa: S603 - fixed words
            words, capture_output=True, text=True, timeout=PARSE_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as problem:
        what = f"its {format} file was not parsed in {PARSE_LIMIT_S:g} s"
        raise TipcastError("M007", where, what, AGAIN) from problem

    if ended.returncode:
        errors = [line for line in ended.stderr.splitlines() if EXCEPTION.match(line)]
        ending = f"exit code {ended.returncode}, below 0 a signal"
        reason = [ending, *errors][-1]
        raise TipcastError("M007", where, f"its {format} file cannot be parsed: {reason}", AGAIN)

    return dict(json.loads(ended.stdout.splitlines()[-1]))


def start_check(fetched: FetchedModel) -> Callable[[], None]:
    """Begin ``check_parses`` in a thread; return a function that waits for it and raises its
    errors.
    """
    thread = ThreadPoolExecutor(1, "first parse")
    parsed = thread.submit(check_parses, fetched)
    thread.shutdown(wait=False)
    return parsed.result


def _manifest(content: bytes, where: str) -> dict[str, Any]:
    """Return a manifest that this version of tipcast can use; else raise M002, M004 or M005."""
    try:
        manifest: dict[str, Any] = json.loads(content)
        _check_manifest(manifest, where)
        return manifest
    # The file may hold anything, of any type.
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        what = f"its manifest cannot be used: {problem!r}"
        raise TipcastError("M005", where, what, AGAIN) from problem


def _check_manifest(manifest: Mapping[str, Any], where: str) -> None:
    """Refuse a manifest with another version, a format that is not read, a file elsewhere, or
    features that its dataset does not have.

    Values of other types than a manifest has raise Python's own errors.
    """
    version = manifest["version"]
    format = manifest["format"]
    file = manifest["file"]
    features = list(manifest["features"])
    _ = manifest["sha256"]["model"]

    if version != MANIFEST_VERSION:
        what = f"its manifest has version {version}"
        raise TipcastError("M004", where, what, "use the tipcast that logged it")

    if format not in native.PATHS:
        what = f"its format {format!r} is not supported"
        raise TipcastError("M004", where, what, f"use {', '.join(native.PATHS)}")

    if Path(file).name != file or file == "..":
        what = f"its manifest names a file outside the model: {file!r}"
        raise TipcastError("M005", where, what, AGAIN)

    repeated = len(set(features)) < len(features)
    if not features or repeated or set(features) - set(dataset_of(manifest).features):
        what = "its features are unknown here, or listed twice"
        fix = "use the tipcast that trained it, or train it again"
        raise TipcastError("M002", where, what, fix)


def used_by(run: Run, fetched: FetchedModel) -> None:
    """Record that a run used a model, which the pages of both then show."""
    run.store.log_inputs(run.id, models=[LoggedModelInput(fetched.model_id)])
