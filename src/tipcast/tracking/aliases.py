"""Aliases of registered versions: the version that holds an alias, and moves that leave a trace."""

import datetime
import re
from collections.abc import Mapping

from mlflow import MlflowClient

from tipcast.config.errors import TipcastError
from tipcast.tracking.batches import storable_tags

ALIAS = re.compile(r"(?!(?:v\d+|latest)\Z)[a-z_\-][\w\-]{0,254}", re.IGNORECASE)
"""An alias that MLflow accepts."""


def check_alias(alias: str) -> None:
    """Refuse an alias that MLflow would not accept; C003."""
    if not ALIAS.fullmatch(alias):
        raise TipcastError(
            "C003", "alias", f"not an alias: {alias!r}", "use a word such as champion"
        )


def alias_holder(store: MlflowClient, name: str, alias: str) -> str | None:
    """Return the version that holds an alias now; None if no version does."""
    version = store.get_registered_model(name).aliases.get(alias)
    if version is None:
        return None
    return str(version)


def move_alias(
    store: MlflowClient,
    name: str,
    alias: str,
    version: str,
    *,
    before: str | None,
    trace: Mapping[str, str],
    forced: bool,
) -> None:
    """Move an alias from the version that held it ``before``; M022 if another version holds it now.

    Tags ``alias.ALIAS.*`` of the registered model record the version, so that a move by other means
    shows, the time, the ``previous`` version, to go back to, and the ``trace``, such as the reason.
    They are not tags of the version, as MLflow copies these with it. MLflow moves an alias whoever
    holds it: two promotions at once are unlikely to both succeed, but it is possible.
    """
    holder = alias_holder(store, name, alias)
    if holder != before:
        what = (
            f"moved to version {holder} while version {version} was compared "
            f"with {before or 'none'}"
        )
        fix = "promote again: it will be compared with the new holder"
        raise TipcastError("M022", f"models:/{name}@{alias}", what, fix)

    store.set_registered_model_alias(name, alias, version)
    whole_trace = {"previous": before or "none", **trace, "forced": str(forced).lower()}
    _record_holder(store, name, alias, version, whole_trace)


def complete_move(store: MlflowClient, name: str, alias: str, version: str) -> None:
    """Write the tags of an alias that a version holds, if a promotion was cut off before that."""
    tags = store.get_registered_model(name).tags
    recorded_version = tags.get(f"alias.{alias}.version")
    if recorded_version == version:
        return
    why = (
        "it already held the alias: an earlier promotion was interrupted, or something else "
        "moved it"
    )
    trace = {
        "previous": recorded_version or "none",
        "why": why,
        "run": "unknown",
        "forced": "unknown",
    }
    _record_holder(store, name, alias, version, trace)


def _record_holder(
    store: MlflowClient, name: str, alias: str, version: str, trace: Mapping[str, str]
) -> None:
    """Tag a registered model with the holder and the trace of an alias.

    The version comes last: it is the sign that the tags are complete.
    """
    since = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    tags = {"since": since, **trace, "version": version}
    named_tags = {f"alias.{alias}.{key}": value for key, value in tags.items()}
    for key, value in storable_tags(named_tags).items():
        store.set_registered_model_tag(name, key, value)
