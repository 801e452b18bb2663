"""Kinds of installed packages are named beside those that come with tipcast, before any is used."""

from pathlib import Path

import pytest

from tipcast.config.errors import TipcastError
from tipcast.config.schema import TaskSpec
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.tasks import kinds
from tipcast.tasks.make import make_task

ENTRIES = "[tipcast.kinds]\ncounts = counting:Counts\nbroken = nowhere:Kind\n"
MODULE = """
from tipcast.tasks.kinds import Regression

class Counts(Regression):
    name = "counts"
"""


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package with a kind, and with one that does not load."""
    (tmp_path / "counting.py").write_text(MODULE)
    package = tmp_path / "counting-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: counting\nVersion: 1\n")
    (package / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(kinds, "KINDS", dict(kinds.KINDS))


def test_an_unknown_kind_lists_those_of_packages() -> None:
    with pytest.raises(TipcastError, match="C003.*unknown kind 'ranking'.*clustering,.* counts$"):
        kinds.named("ranking")


def test_a_kind_that_is_nearly_named_is_suggested_before_it_is_loaded() -> None:
    with pytest.raises(TipcastError, match="C003.*did you mean counts?"):
        kinds.named("count")


def test_a_function_without_a_kind_lists_the_kinds_with_a_target_that_load() -> None:
    spec = TaskSpec(name="minutes", function="duration", columns=["pickup", "dropoff"])
    says = "C004. task.kind: needs a value. Fix: set it to classification, .*regression, counts$"
    with pytest.raises(TipcastError, match=says):
        make_task(spec, Taxi())
