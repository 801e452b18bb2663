"""Aliases: names that are refused, moves and the tags that they leave."""

from __future__ import annotations

import contextlib
import datetime
import sqlite3
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import mlflow
import pytest
from mlflow.exceptions import MlflowException

from tipcast.config.errors import TipcastError
from tipcast.tracking.models import alias_holder, check_alias, move_alias
from tipcast.tracking.portable import register


@pytest.fixture
def client(saved: Any) -> Iterator[Any]:
    """A store with three versions of one model."""
    one = saved["skops"]
    mlflow.set_tracking_uri(one.run.store)
    mlflow.set_registry_uri(one.run.store)
    for _ in range(3):
        register(one.run, one.logged, "moved", 0.0, {}, "")
    yield one.run.client
    one.run.client.delete_registered_model("moved")


@pytest.mark.parametrize("alias", ["", "v3", "V12", "latest", "a b", "é!", "a" * 256, "a/b"])
def test_names_that_are_none(alias: str) -> None:
    with pytest.raises(TipcastError, match="C003"):
        check_alias(alias)
    check_alias("blue-green_2")


def test_moving_leaves_a_trace(client: Any) -> None:
    assert alias_holder(client, "moved", "champion") is None
    move_alias(client, "moved", "champion", "1", before=None, facts={"why": "first"}, forced=False)
    assert alias_holder(client, "moved", "champion") == "1"
    first = client.get_model_version("moved", "1").tags
    assert (first["alias.champion.after"], first["alias.champion.why"]) == ("none", "first")
    since = datetime.datetime.fromisoformat(first["alias.champion.since"])
    assert abs((datetime.datetime.now(datetime.UTC) - since).total_seconds()) < 60
    assert first["alias.champion.forced"] == "false"

    move_alias(client, "moved", "champion", "2", before="1", facts={"why": "because"}, forced=True)
    assert str(client.get_model_version_by_alias("moved", "champion").version) == "2"
    assert client.get_model_version("moved", "2").tags["alias.champion.forced"] == "true"
    assert client.get_registered_model("moved").tags["alias.champion.previous"] == "1"

    move_alias(client, "moved", "champion", "1", before="2", facts={"why": "back"}, forced=False)
    first = client.get_model_version("moved", "1").tags
    assert (first["alias.champion.after"], first["alias.champion.why"]) == ("2", "back")

    client.set_registered_model_alias("moved", "champion", "2")  # by who may write to the registry
    assert client.get_registered_model("moved").tags["alias.champion.version"] == "1"


def _tags(client: Any) -> list[dict[str, str]]:
    versions = [client.get_model_version("moved", version) for version in "123"]
    return [dict(each.tags) for each in (client.get_registered_model("moved"), *versions)]


def test_an_alias_that_moved_meanwhile_stays_there(client: Any) -> None:
    move_alias(client, "moved", "champion", "2", before=None, facts={"why": "first"}, forced=True)
    move_alias(client, "moved", "champion", "3", before="2", facts={}, forced=False)
    earlier = _tags(client)
    with pytest.raises(TipcastError, match="M022"):
        move_alias(client, "moved", "champion", "2", before="1", facts={"why": "x"}, forced=False)
    assert alias_holder(client, "moved", "champion") == "3"
    assert _tags(client) == earlier


@contextlib.contextmanager
def refusing(client: Any, table: str, row: str) -> Iterator[None]:
    """Let the database itself refuse to write such rows."""
    with contextlib.closing(sqlite3.connect(urlsplit(client.tracking_uri).path)) as database:
        for verb in ("INSERT", "UPDATE"):
            told = "BEGIN SELECT RAISE(ABORT, 'it is refused'); END"
            database.execute(f"CREATE TRIGGER refuse_{verb} BEFORE {verb} ON {table} WHEN {row} {told}")
        try:
            yield
        finally:
            for verb in ("INSERT", "UPDATE"):
                database.execute(f"DROP TRIGGER refuse_{verb}")


def test_an_alias_that_cannot_be_moved(client: Any) -> None:
    earlier = _tags(client)
    with pytest.raises(MlflowException, match="it is refused"), refusing(client, "registered_model_aliases", "1"):
        move_alias(client, "moved", "champion", "1", before=None, facts={"why": "x"}, forced=False)
    assert alias_holder(client, "moved", "champion") is None
    assert _tags(client) == earlier


def test_an_alias_that_has_moved_though_a_tag_is_refused(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    move_alias(client, "moved", "champion", "1", before=None, facts={}, forced=False)
    with refusing(client, "model_version_tags", "NEW.key LIKE '%.forced'"):
        move_alias(client, "moved", "champion", "2", before="1", facts={"why": "x"}, forced=False)
    assert alias_holder(client, "moved", "champion") == "2"
    assert client.get_model_version("moved", "2").tags["alias.champion.why"] == "x"
    assert "version 2 holds champion, but not all tags say so" in caplog.text
