"""Aliases of registered models: who holds one, and moving it with a trace of from where, when and why."""

from __future__ import annotations

import contextlib
import datetime
import logging
import re
from collections.abc import Mapping
from typing import Any

from tipcast.config.errors import TipcastError
from tipcast.tracking.store import redact, release

LOG = logging.getLogger("tipcast")
NAME = re.compile(r"[A-Za-z_\-][\w\-]{0,254}")
RESERVED = re.compile(r"v\d+|latest", re.IGNORECASE)


def check_alias(alias: str) -> None:
    """Refuse what MLflow takes for no alias.

    Raises
    ------
    TipcastError
        C003.

    """
    if not NAME.fullmatch(alias) or RESERVED.fullmatch(alias):
        raise TipcastError("C003", "alias", f"no name of an alias: {alias!r}", "use a word, as champion")


def holder(client: Any, name: str, alias: str) -> str | None:
    """Return the version that holds an alias now; None where none does."""
    found = client.get_registered_model(name).aliases.get(alias)
    return None if found is None else str(found)


def move(
    client: Any, name: str, alias: str, version: str, *, before: str | None, facts: Mapping[str, str], forced: bool
) -> None:
    """Move an alias, and leave tags ``alias.ALIAS.*`` that say since when, after which version and why.

    The model's tag ``alias.ALIAS.previous`` keeps the former holder, to go back to. Where the alias cannot be moved,
    the tags are those of before. MLflow moves an alias whoever holds it: looking first makes it unlikely that two
    promotions pass each other, not impossible.

    Parameters
    ----------
    client
        What ``store.open_store`` returns.
    name, alias, version
        What is moved where.
    before
        The holder that the version was compared with; None: there was none.
    facts
        What else the tags say, as ``why``.
    forced
        Whether it is moved against the gate's word.

    Raises
    ------
    TipcastError
        M022 where the alias has another holder by now.

    """
    found = holder(client, name, alias)
    if found != before:
        raise TipcastError(
            "M022",
            f"models:/{name}@{alias}",
            f"moved to version {found} while version {version} was compared with {before or 'none'}",
            "promote again: it will be compared with the new holder",
        )
    now, of = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), f"alias.{alias}"
    begins: dict[str, str | None] = {"since": now, "after": before or "none", **facts}
    begins["forced"] = "true" if forced else None
    earlier = client.get_model_version(name, version).tags
    try:
        _tag(client, name, version, of, begins)
        client.set_registered_model_alias(name, alias, version)
    except BaseException as problem:
        release(problem)
        with contextlib.suppress(Exception):
            if holder(client, name, alias) != version:
                _tag(client, name, version, of, {key: earlier.get(f"{of}.{key}") for key in begins})
        raise
    try:
        _tag(client, name, version, of, {"until": None, "followed_by": None})  # of an earlier time
        if before:
            client.set_registered_model_tag(name, f"{of}.previous", before)
            _tag(client, name, before, of, {"until": now, "followed_by": version})
    except Exception as problem:  # the alias has moved, and that is what counts
        told = redact(str(problem).partition("\n")[0])
        LOG.warning("version %s holds %s, but not all tags say so: %s", version, alias, told)


def _tag(client: Any, name: str, version: str, of: str, tags: Mapping[str, str | None]) -> None:
    """Set a version's tags of an alias, and remove those whose value is None."""
    for key, value in tags.items():
        if value is None:
            client.delete_model_version_tag(name, version, f"{of}.{key}")
        else:
            client.set_model_version_tag(name, version, f"{of}.{key}", value)
