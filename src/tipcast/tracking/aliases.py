"""Aliases of registered versions: which version holds one, and a move that leaves a trace."""

import datetime
import re
from collections.abc import Mapping

from mlflow import MlflowClient

from tipcast.config.errors import TipcastError
from tipcast.tracking.writing import storable_tags

ALIAS = re.compile(r"(?!(?:v\d+|latest)\Z)[a-z_\-][\w\-]{0,254}", re.IGNORECASE)
"""What MLflow takes for an alias."""


def check_alias(alias: str) -> None:
    """Refuse what MLflow takes for no alias; C003."""
    if not ALIAS.fullmatch(alias):
        raise TipcastError("C003", "alias", f"not an alias: {alias!r}", "use a word, as champion")


def alias_holder(store: MlflowClient, name: str, alias: str) -> str | None:
    """Return the version that holds an alias now; None where none does."""
    version = store.get_registered_model(name).aliases.get(alias)
    return None if version is None else str(version)


def move_alias(
    store: MlflowClient,
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
    holder = alias_holder(store, name, alias)
    if holder != before:
        what = (
            f"moved to version {holder} while version {version} was compared "
            f"with {before or 'none'}"
        )
        fix = "promote again: it will be compared with the new holder"
        raise TipcastError("M022", f"models:/{name}@{alias}", what, fix)

    store.set_registered_model_alias(name, alias, version)
    _record_holder(
        store,
        name,
        alias,
        version,
        {"previous": before or "none", **facts, "forced": str(forced).lower()},
    )


def complete_move(store: MlflowClient, name: str, alias: str, version: str) -> None:
    """Write the tags of an alias that a version holds, where a promotion ended before it had
    written them.
    """
    tags = store.get_registered_model(name).tags
    recorded_version = tags.get(f"alias.{alias}.version")
    if recorded_version == version:
        return
    why = "it held the alias already: an earlier promotion was cut off, or something else moved it"
    facts = {
        "previous": recorded_version or "none",
        "why": why,
        "run": "unknown",
        "forced": "unknown",
    }
    _record_holder(store, name, alias, version, facts)


def _record_holder(
    store: MlflowClient, name: str, alias: str, version: str, facts: Mapping[str, str]
) -> None:
    """Tag a registered model with what is known of an alias; the version last, as the sign that all
    are there.
    """
    since = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    tags = {"since": since, **facts, "version": version}
    named_tags = {f"alias.{alias}.{key}": value for key, value in tags.items()}
    for key, value in storable_tags(named_tags).items():
        store.set_registered_model_tag(name, key, value)
