"""Aliases of registered models: who holds one, and moving it with a trace of from where, when and why."""

from __future__ import annotations

import contextlib
import datetime
import re
from collections.abc import Mapping
from typing import Any

from tipcast.config.errors import TipcastError

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

    The model's tag ``alias.ALIAS.previous`` keeps the former holder, to go back to. Moving the alias is the last step
    that counts: stopped before it, nothing has changed.

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
    prefix = f"alias.{alias}"
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    tags = {"since": now, "after": before or "none", **facts} | ({"forced": "true"} if forced else {})
    try:
        for key, value in tags.items():
            client.set_model_version_tag(name, version, f"{prefix}.{key}", value)
        if not forced and f"{prefix}.forced" in client.get_model_version(name, version).tags:  # of an earlier time
            client.delete_model_version_tag(name, version, f"{prefix}.forced")
        if before:
            client.set_registered_model_tag(name, f"{prefix}.previous", before)
        found = holder(client, name, alias)
        if found != before:
            raise TipcastError(
                "M022",
                f"models:/{name}@{alias}",
                f"moved to version {found} while version {version} was compared with {before or 'none'}",
                "promote again: it will be compared with the new holder",
            )
        client.set_registered_model_alias(name, alias, version)
    except BaseException:
        with contextlib.suppress(Exception):
            if holder(client, name, alias) != version:
                for key in tags:
                    client.delete_model_version_tag(name, version, f"{prefix}.{key}")
        raise
    if before:
        client.set_model_version_tag(name, before, f"{prefix}.until", now)
        client.set_model_version_tag(name, before, f"{prefix}.followed_by", version)
