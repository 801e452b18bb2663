"""What a journal keeps of the calls of MLflow's client."""

import ast
import re
from pathlib import Path

from mlflow import MlflowClient

import tipcast
from tipcast.tracking.journal import FILES, VALUES
from tipcast.tracking.lasting_client import ON_SERVER

WRITES = re.compile(
    "(?:add|copy|create|delete|end|finalize|link|log|record|register|remove|rename|restore|set|start"
    "|transition|unlink|update)_"
)
"""Beginning of the names of methods that write."""
NOT_KEPT = {
    "create_experiment": "the journal keeps what the store has of it",
    "create_run": "the journal keeps the run that it returns",
    "create_logged_model": "the journal keeps the model that it returns",
    "create_registered_model": "a version that is made offline makes it",
    "create_model_version": "what was registered is on the server",
    "update_model_version": "a replay names the version in its description",
    "delete_run": "the doctor alone deletes, and its run outlives no server",
    "log_artifacts": "a replay alone uploads by it",
    "log_table": "Run.log_table, which calls log_artifact",
    "log_text": "Run.log_text, which calls log_artifact; the doctor's run outlives no server",
}
"""Method that the package calls -> why the journal need not keep its calls."""


def test_the_journal_keeps_every_call_that_writes() -> None:
    kept = {*VALUES, *FILES}
    assert _used() - kept - set(ON_SERVER) == set(NOT_KEPT)
    assert kept <= _used()


def _used() -> set[str]:
    """Return the methods of MLflow's client that the package names and that write."""
    return {
        node.attr
        for path in Path(tipcast.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and WRITES.match(node.attr)
        and callable(getattr(MlflowClient, node.attr, None))
    }
