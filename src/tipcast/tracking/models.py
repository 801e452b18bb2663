"""Models out of MLflow: manifest and native file alone, digests checked, no loader run."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
from tipcast.tracking.addresses import check_not_moved
from tipcast.tracking.failures import first_line
from tipcast.tracking.locating import check_location, locate
from tipcast.tracking.package import MANIFEST_VERSION, digest
from tipcast.tracking.portable import MANIFEST_TAG
from tipcast.tracking.run import Run

AGAIN = "train and register it again"
PARSE_LIMIT_S = 120.0
"""How long the parse of a native file may take."""
EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception)\b")
"""How the last line of a traceback begins; libraries add more lines."""


@dataclass(frozen=True)
class Fetched:
    """A model on this machine's disk, ready for ``native.load`` of its path and format."""

    path: Path
    format: str
    manifest: Mapping[str, Any]
    """What was written when it was logged, see ``portable.log_model``."""
    name: str | None
    """Name of the registered model; None, like the version, if the model is only logged."""
    version: str | None
    uri: str
    """``models:/name/version``, or ``models:/m-...`` for one that is only logged: never an alias,
    which may move.
    """
    run_id: str | None
    """The run that trained it."""
    sha256: str
    """Digest of the native file."""
    model_id: str
    manifest_sha256: str

    @property
    def kind(self) -> Kind:
        """Kind of the task; C003 if the manifest names none that is known."""
        return named(str(self.manifest.get("task", {}).get("kind", "")))

    def seen(self, facts: Mapping[str, Any]) -> Period | None:
        """Return the period of the training and validation rows; None where it is not known or of
        other rows.

        ``facts`` are those of the rows that it is held against, see ``FileInfo.to_manifest``.
        """
        until = self.manifest.get("trained_until")
        alike = all(self.manifest.get(name, value) == value for name, value in facts.items())
        if until is None or not alike:
            return None
        return int(self.manifest.get("trained_from", 0)), int(until)


def fetch(
    store: MlflowClient,
    model_uri: str,
    folder: Path,
    *,
    root: str | None = None,
    parse: bool = True,
) -> Fetched:
    """Fetch a model of tipcast's into a folder, and check it.

    What is downloaded is ``MLmodel`` (read as data), the manifest and the native file. No code and
    no pickle of the model is opened, whatever its flavours. Of a version the manifest must be the
    one that the registry knows, so that who may write to the artifact store alone cannot exchange
    the model.

    ``model_uri`` is ``models:/name/3``, ``models:/name@alias``, ``models:/m-...`` or
    ``runs:/id/NAME``; ``root`` a folder under which a server on another machine may name files of
    this one. Without ``parse`` call ``check_parses`` before the file is loaded. Errors are C003,
    M001 to M005, M007, T006 and T007.
    """
    uri, model, version = locate(store, model_uri)
    check_location(store, uri, model.artifact_location, root)
    check_not_moved(model.artifact_location, store.tracking_uri, "T007")
    repository = get_artifact_repository(model.artifact_location, store.tracking_uri)
    files = _ModelFiles(uri, repository, folder)

    sha256 = files.manifest_digest()
    if version:  # a writer of the artifact store can change MLmodel, but not the registry
        files.check_digest("the manifest", sha256, version.tags.get(MANIFEST_TAG, sha256))
    manifest = _manifest(files.download("artifacts/manifest.json", sha256).read_bytes(), uri)

    fetched = Fetched(
        path=files.download(f"artifacts/{manifest['file']}", str(manifest["sha256"]["model"])),
        format=manifest["format"],
        manifest=manifest,
        name=version.name if version else None,
        version=str(version.version) if version else None,
        uri=uri,
        run_id=model.source_run_id,
        sha256=manifest["sha256"]["model"],
        model_id=model.model_id,
        manifest_sha256=sha256,
    )
    if parse:
        check_parses(fetched)
    return fetched


@dataclass(frozen=True)
class _ModelFiles:
    """The files of a logged model, fetched one by one into a folder and held against digests."""

    uri: str
    """What messages call the model."""
    repository: ArtifactRepository
    folder: Path

    def download(self, path: str, sha256: str | None = None) -> Path:
        """Return the path of a file on this machine; T007 if it cannot be fetched, M003 if its
        digest is another.
        """
        try:
            file = Path(self.repository.download_artifacts(path, dst_path=str(self.folder)))
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
        """Return the manifest's digest, by the model's description; M005 for a model of others."""
        try:
            described = yaml.safe_load(self.download("MLmodel").read_bytes())
            return str(described["metadata"]["tipcast"]["manifest_sha256"])
        except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError) as problem:
            what = "is not a model that tipcast logged"
            fix = "score with a model that tipcast trained"
            raise TipcastError("M005", self.uri, what, fix) from problem


def check_parses(fetched: Fetched) -> None:
    """Parse the native file in a child process, score two rows there, and hold its features against
    the manifest's.

    M002 other features than the manifest's, M007 a file that does not parse or crashes its library.
    """
    features = list(fetched.manifest["features"])
    parsed = _parsed(fetched.path, fetched.format, fetched.uri)
    has_names = fetched.format == "xgboost-ubj"  # the other formats know no names

    if parsed["number"] != len(features) or (
        has_names and parsed["names"] != native.booster_names(features)
    ):
        raise TipcastError(
            "M002", fetched.uri, "its file has other features than its manifest", AGAIN
        )


def _parsed(path: Path, format: str, where: str) -> dict[str, Any]:
    """Return ``native.describe_model`` of a file, from a process that a damaged one may crash."""
    # -P: beside it is a file xgboost.py
    words = [sys.executable, "-P", native.__file__, str(path.resolve()), format]
    try:
        ended = subprocess.run(  # noqa: S603 - fixed words
            words, capture_output=True, text=True, timeout=PARSE_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as problem:
        what = f"its {format} file was not parsed within {PARSE_LIMIT_S:g} s"
        raise TipcastError("M007", where, what, AGAIN) from problem

    if ended.returncode:
        errors = [line for line in ended.stderr.splitlines() if EXCEPTION.match(line)]
        how = errors[-1] if errors else f"exit code {ended.returncode}, below 0 a signal"
        raise TipcastError("M007", where, f"its {format} file does not parse: {how}", AGAIN)

    return dict(json.loads(ended.stdout.splitlines()[-1]))


def start_check(fetched: Fetched) -> Callable[[], None]:
    """Begin ``check_parses`` beside what else is to be done; return what waits for its end and
    raises its errors.
    """
    thread = ThreadPoolExecutor(1, "first parse")
    parsed = thread.submit(check_parses, fetched)
    thread.shutdown(wait=False)
    return parsed.result


def _manifest(content: bytes, where: str) -> dict[str, Any]:
    """Return a manifest that this version knows how to follow; M002, M004 or M005 for another."""
    try:
        manifest: dict[str, Any] = json.loads(content)
        _check_manifest(manifest, where)
        return manifest
    # The file may hold anything, of any type.
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise TipcastError(
            "M005", where, f"its manifest cannot be used: {problem!r}", AGAIN
        ) from problem


def _check_manifest(manifest: Mapping[str, Any], where: str) -> None:
    """Refuse a manifest of another version, format, folder or dataset; errors of Python's for one
    of other types.
    """
    version = manifest["version"]
    format = manifest["format"]
    file = manifest["file"]
    features = list(manifest["features"])
    _ = manifest["sha256"]["model"]

    if version != MANIFEST_VERSION:
        what = f"its manifest is of version {version}"
        raise TipcastError("M004", where, what, "use the tipcast that logged it")

    if format not in native.PATHS:
        what = f"its format {format!r} is not read"
        raise TipcastError("M004", where, what, f"use {', '.join(native.PATHS)}")

    if Path(file).name != file or file == "..":
        what = f"its manifest names a file outside the model: {file!r}"
        raise TipcastError("M005", where, what, AGAIN)

    repeated = len(set(features)) < len(features)
    if not features or repeated or set(features) - set(dataset_of(manifest).features):
        what = "its features are not known here, or named twice"
        raise TipcastError(
            "M002", where, what, "use the tipcast that trained it, or train it again"
        )


def used_by(run: Run, fetched: Fetched) -> None:
    """Let a run's page, and the model's, say that the run used the model."""
    run.store.log_inputs(run.id, models=[LoggedModelInput(fetched.model_id)])
