"""Models out of MLflow: manifest and native file alone, digests checked, no loader run; and the
aliases of versions.
"""

import datetime
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import mlflow
import yaml
from mlflow.entities import LoggedModelInput, LoggedModelStatus
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.utils.file_utils import local_file_uri_to_path

from tipcast.config.errors import TipcastError
from tipcast.config.plain import redact
from tipcast.datasets.parts import Period
from tipcast.datasets.registry import dataset_of
from tipcast.models import native
from tipcast.tasks.kinds import Kind, named
from tipcast.tracking.portable import MANIFEST_TAG, MANIFEST_VERSION, digest
from tipcast.tracking.run import Run, taken
from tipcast.tracking.store import absent, check_not_moved, first_line, is_loopback

AGAIN = "train and register it again"
PARSE_LIMIT_S = 120.0
"""How long the parse of a native file may take."""
EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception)\b")
"""How the last line of a traceback begins; libraries add more lines."""
LOCATIONS = ("s3", "gs", "wasbs", "abfss", "mlflow-artifacts", "http", "https")
"""Schemes of artifact stores that files are fetched from, beside this machine's own disks."""
REGISTERED = re.compile(r"models:/([^/:@]+)(?:/(\d+)|@([^/:@]+))")
LOGGED = re.compile(r"models:/(m-[0-9a-f]+)")
OF_RUN = re.compile(r"runs:/([^/]+)/(.+)")
ALIAS = re.compile(r"(?!(?:v\d+|latest)\Z)[a-z_\-][\w\-]{0,254}", re.IGNORECASE)
"""What MLflow takes for an alias."""
SEE = "see the models and versions there are with `mlflow ui`"


@dataclass(frozen=True)
class Fetched:
    """A model on this machine's disk, ready for ``native.load`` of its path and format."""

    path: Path
    format: str
    manifest: Mapping[str, Any]
    """What was written when it was logged, see ``portable.log_model``."""
    name: str | None
    """Of the registered model; None, as the version, for one that is only logged."""
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
        """Of the task; C003 where the manifest holds none that is known."""
        return named(str(self.manifest.get("task", {}).get("kind", "")))

    def seen(self, facts: Mapping[str, Any]) -> Period | None:
        """Return the period of the training and validation rows; None where it is not known or of
        other rows.

        ``facts`` are those of the rows that it is held against, see ``FileInfo.to_manifest``.
        """
        until = self.manifest.get("trained_until")
        alike = all(self.manifest.get(name, value) == value for name, value in facts.items())
        return (
            (int(self.manifest.get("trained_from", 0)), int(until))
            if until is not None and alike
            else None
        )


def fetch(
    client: Any, model_uri: str, folder: Path, *, root: str | None = None, parse: bool = True
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
    uri, model, version = locate(client, model_uri)
    _check_location(client, uri, model.artifact_location, root)
    check_not_moved(model.artifact_location, client.tracking_uri, "T007")
    repository = get_artifact_repository(model.artifact_location, client.tracking_uri)

    def get(path: str, sha256: str | None = None) -> Path:
        try:
            file = Path(repository.download_artifacts(path, dst_path=str(folder)))
        except Exception as problem:  # every store's client has its own
            what = f"{path} cannot be fetched: {redact(first_line(problem))}"
            raise TipcastError(
                "T007", uri, what, "check the artifact store and the access to it"
            ) from None
        if sha256 is not None:
            same(file.name, digest(file), sha256)
        return file

    def same(name: str, actual: str, sha256: str) -> None:
        if actual != sha256:
            what = (
                f"{name} is not the file that was logged: SHA-256 {actual[:16]}..., "
                f"not {sha256[:16]}..."
            )
            raise TipcastError("M003", uri, what, AGAIN)

    try:
        described = yaml.safe_load(get("MLmodel").read_bytes())["metadata"]["tipcast"]
        sha256 = str(described["manifest_sha256"])
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError) as problem:
        what = "is not a model that tipcast logged"
        fix = "score with a model that tipcast trained"
        raise TipcastError("M005", uri, what, fix) from problem
    if version:  # who may write to the artifact store can make MLmodel fit, and not the registry
        same("the manifest", sha256, version.tags.get(MANIFEST_TAG, sha256))
    manifest = _manifest(get("artifacts/manifest.json", sha256).read_bytes(), uri)
    fetched = Fetched(
        path=get(f"artifacts/{manifest['file']}", str(manifest["sha256"]["model"])),
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


def check_parses(fetched: Fetched) -> None:
    """Parse the native file in a child process, score two rows there, and hold its features against
    the manifest's.

    M002 other features than the manifest's, M007 a file that does not parse or crashes its library.
    """
    features = list(fetched.manifest["features"])
    facts = _parsed(fetched.path, fetched.format, fetched.uri)
    named = fetched.format == "xgboost-ubj"  # the other formats know no names

    if facts["number"] != len(features) or (
        named and facts["names"] != native.booster_names(features)
    ):
        raise TipcastError(
            "M002", fetched.uri, "its file has other features than its manifest", AGAIN
        )


def _parsed(path: Path, format: str, where: str) -> dict[str, Any]:
    """Return ``native.facts`` of a file, from a process that a damaged one may crash."""
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
    beside = ThreadPoolExecutor(1, "first parse")
    parsed = beside.submit(check_parses, fetched)
    beside.shutdown(wait=False)
    return parsed.result


def _manifest(content: bytes, where: str) -> dict[str, Any]:
    """Return a manifest that this version knows how to follow."""
    try:
        manifest: dict[str, Any] = json.loads(content)
        version = manifest["version"]
        format = manifest["format"]
        file = manifest["file"]
        names = list(manifest["features"])
        _ = manifest["sha256"]["model"]
        if version != MANIFEST_VERSION:
            raise TipcastError(
                "M004",
                where,
                f"its manifest is of version {version}",
                "use the tipcast that logged it",
            )

        if format not in native.PATHS:
            raise TipcastError(
                "M004",
                where,
                f"its format {format!r} is not read",
                f"use {', '.join(native.PATHS)}",
            )

        if Path(file).name != file or file == "..":
            raise TipcastError(
                "M005", where, f"its manifest names a file outside the model: {file!r}", AGAIN
            )

        if (
            not names
            or len(set(names)) < len(names)
            or set(names) - set(dataset_of(manifest).features)
        ):
            what = "its features are not known here, or named twice"
            raise TipcastError(
                "M002", where, what, "use the tipcast that trained it, or train it again"
            )

        return manifest
    # it may hold anything of any type
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise TipcastError(
            "M005", where, f"its manifest cannot be used: {problem!r}", AGAIN
        ) from problem


def used_by(run: Run, fetched: Fetched) -> None:
    """Let a run's page, and the model's, say that the run used the model."""
    run.client.log_inputs(run.id, models=[LoggedModelInput(fetched.model_id)])


def locate(client: Any, model_uri: str) -> tuple[str, Any, Any]:
    """Return the address that stays, MLflow's logged model, and the version that it was found by,
    or None.

    C003 no address of a model, M001 what is not there, M005 what tipcast cannot have logged.
    """
    uri = model_uri
    version = None
    if match := OF_RUN.fullmatch(model_uri):
        with absent("M001", uri, f"run {match[1]} is not there", SEE):
            run = client.get_run(match[1])
        for model in logged_of(client, run):
            if model.name == match[2].rstrip("/"):
                return f"models:/{model.model_id}", model, None
        raise TipcastError(
            "M001",
            uri,
            f"the run has logged no model {match[2]!r}",
            "name another run, or train first",
        )

    if match := LOGGED.fullmatch(model_uri):
        model_id = match[1]
    elif match := REGISTERED.fullmatch(model_uri):
        name, number, alias = match.groups()
        what = (
            "no such registered model "
            f"or {'version' if number else 'alias'} in {redact(mlflow.get_registry_uri())}"
        )
        with absent("M001", uri, what, SEE):
            ask = client.get_model_version if number else client.get_model_version_by_alias
            version = ask(name, number or alias)

        uri = f"models:/{name}/{version.version}"
        original = version
        with absent("M001", uri, "the version that it is a copy of is not there", SEE):
            while not original.model_id and (copied := REGISTERED.fullmatch(original.source or "")):
                # copy_model_version copies no model_id
                original = client.get_model_version(copied[1], copied[2])

        source = LOGGED.fullmatch(original.source or "")
        model_id = original.model_id or (source[1] if source else "")
        if not model_id:
            raise TipcastError(
                "M005",
                uri,
                "was registered from files, not from a model that tipcast logged",
                AGAIN,
            )
    else:
        fix = "use models:/NAME/VERSION, models:/NAME@ALIAS, models:/m-ID or runs:/ID/NAME"
        raise TipcastError("C003", "model_uri", f"not a model URI: {redact(model_uri)}", fix)

    with absent("M001", uri, "no such logged model", SEE):
        return uri, client.get_logged_model(model_id), version


def logged_of(client: Any, run: Any) -> list[Any]:
    """Return the models that a run has logged whole, the newest first: MLflow lists them in no
    order.
    """
    outputs = run.outputs.model_outputs if run.outputs else []
    models = [client.get_logged_model(output.model_id) for output in outputs]
    ready = (model for model in models if model.status == LoggedModelStatus.READY)
    return sorted(ready, key=lambda model: model.creation_timestamp, reverse=True)


def _check_location(client: Any, uri: str, location: str, root: str | None) -> None:
    """Refuse (T006) what a store elsewhere must not choose: this machine's files, and odd ways to
    reach others.
    """
    scheme = urlsplit(location).scheme.lower()
    if scheme in LOCATIONS:
        return
    if scheme not in {"", "file"}:
        what = f"its files are at {scheme}://, which is not fetched from"
        raise TipcastError("T006", uri, what, f"use {', '.join(LOCATIONS)}")

    path = Path(local_file_uri_to_path(location)).resolve()
    shared = root is not None and path.is_relative_to(Path(root).expanduser().resolve())
    stores = [urlsplit(store) for store in (client.tracking_uri, mlflow.get_registry_uri())]

    if shared or all(
        store.scheme not in {"http", "https"} and is_loopback(store.hostname or "localhost")
        for store in stores
    ):
        return

    what = f"the tracking server says that its files are on this machine, at {path}"
    fix = (
        "let the server serve artifacts, or set tracking.artifact_root to the folder that you "
        "share with it"
    )
    raise TipcastError("T006", uri, what, fix)


def check_alias(alias: str) -> None:
    """Refuse what MLflow takes for no alias; C003."""
    if not ALIAS.fullmatch(alias):
        raise TipcastError("C003", "alias", f"not an alias: {alias!r}", "use a word, as champion")


def alias_holder(client: Any, name: str, alias: str) -> str | None:
    """Return the version that holds an alias now; None where none does."""
    version = client.get_registered_model(name).aliases.get(alias)
    return None if version is None else str(version)


def move_alias(
    client: Any,
    name: str,
    alias: str,
    version: str,
    *,
    before: str | None,
    facts: Mapping[str, str],
    forced: bool,
) -> None:
    """Move an alias from the version that held it ``before``; M022 where it has another holder by
    now.

    The registered model's tags ``alias.ALIAS.*`` say which version holds it, so that a move by
    other means shows, since when, the ``previous`` one, to go back to, and the ``facts``, as why; a
    version has none, for MLflow copies its tags with it. MLflow moves an alias whoever holds it:
    looking first makes it unlikely that two promotions pass each other, not impossible.
    """
    holder = alias_holder(client, name, alias)
    if holder != before:
        what = (
            f"moved to version {holder} while version {version} was compared "
            f"with {before or 'none'}"
        )
        fix = "promote again: it will be compared with the new holder"
        raise TipcastError("M022", f"models:/{name}@{alias}", what, fix)

    client.set_registered_model_alias(name, alias, version)
    _record_holder(
        client,
        name,
        alias,
        version,
        {"previous": before or "none", **facts, "forced": str(forced).lower()},
    )


def complete_move(client: Any, name: str, alias: str, version: str) -> None:
    """Write the tags of an alias that a version holds, where a promotion ended before it had
    written them.
    """
    tags = client.get_registered_model(name).tags
    known = tags.get(f"alias.{alias}.version")
    if known == version:
        return
    why = "it held the alias already: an earlier promotion was cut off, or something else moved it"
    facts = {"previous": known or "none", "why": why, "run": "unknown", "forced": "unknown"}
    _record_holder(client, name, alias, version, facts)


def _record_holder(
    client: Any, name: str, alias: str, version: str, facts: Mapping[str, str]
) -> None:
    """Tag a registered model with what is known of an alias; the version last, as the sign that all
    are there.
    """
    since = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    tags = {"since": since, **facts, "version": version}
    for key, value in taken({f"alias.{alias}.{key}": value for key, value in tags.items()}).items():
        client.set_registered_model_tag(name, key, value)
