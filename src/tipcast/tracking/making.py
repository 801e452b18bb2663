"""Calls that make a run, a logged model or a version.

The answer of a server that goes away may be lost after it has made the thing. A call that is
repeated looks for that first.
"""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, final

from mlflow import MlflowClient

from tipcast.tracking.versions import version_of_model

REQUEST = "tipcast.request"
"""Tag of a run or logged model: the call that made it, by which a repetition or a replay finds it.
"""
SEARCHES = {"create_run": "search_runs", "create_logged_model": "search_logged_models"}
"""Method that makes a thing with tags in an experiment -> method that finds it."""
VERSION = "create_model_version"
METHODS = (*SEARCHES, VERSION)
"""Methods that would make a second thing when they are repeated."""


@final
class Making:
    """A call of one of ``METHODS``, whose tags are given by their keyword."""

    def __init__(self, method: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        self._method = method
        self._arguments = arguments
        self._keywords = dict(keywords)
        self._is_repeated = False
        if method in SEARCHES:
            tags = {REQUEST: uuid.uuid4().hex, **(keywords.get("tags") or {})}
            self._keywords["tags"] = tags

    def make(self, client: MlflowClient) -> Any:
        """Make the thing, or return what an earlier try has made."""
        made = None
        if self._is_repeated:
            made = self._made(client)
        self._is_repeated = True
        return made or getattr(client, self._method)(*self._arguments, **self._keywords)

    def _made(self, client: MlflowClient) -> Any:
        """Return what an earlier try has made; None if it has made nothing."""
        if self._method == VERSION:
            name, source, run_id = self._arguments
            return version_of_model(client, run_id, name, source.removeprefix("models:/"))

        condition = f"tags.`{REQUEST}` = '{self._keywords['tags'][REQUEST]}'"
        search = getattr(client, SEARCHES[self._method])
        return next(iter(search([self._arguments[0]], condition)), None)
