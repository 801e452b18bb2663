"""Datasets of a user's own, known by name."""

from collections.abc import Sequence

import pytest

from tipcast.config.errors import TipcastError
from tipcast.datasets import registry
from tipcast.datasets.base import Dataset, Scorable, Tabular
from tipcast.datasets.listing import Listing
from tipcast.datasets.table import features as table_features


class Waves(Dataset):
    """A dataset with what each needs, and no more."""

    name = "waves"
    code = table_features
    features = ("phase",)

    def scan(self, which: str, columns: Sequence[str], optional: Sequence[str] = ()) -> Listing:
        return Listing((), None, (), which, "waves")


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "BY_SOURCE", dict(registry.BY_SOURCE))
    monkeypatch.setattr(registry, "BY_NAME", dict(registry.BY_NAME))


@pytest.mark.parametrize(
    ("method", "kind"),
    [("test_share", Tabular), ("raw_columns", Scorable), ("as_trained", Scorable)],
)
def test_a_method_that_nothing_would_call_is_refused(method: str, kind: type[Dataset]) -> None:
    halves = type("Halves", (Waves,), {method: 0.5})
    with pytest.raises(TipcastError, match=rf"C003.*Halves\.{method}.*{kind.__name__}"):
        registry.register("halves", halves)
    assert "halves" not in registry.BY_NAME


def test_what_a_saved_model_needs_may_be_said_by_any_dataset() -> None:
    tall = type("Tall", (Waves,), {"to_manifest": lambda self: {"height": 3}})
    registry.register("tall", tall)
    assert registry.BY_NAME["tall"] is tall
