"""Child runs of a sweep that is stopped at any moment."""

from __future__ import annotations

import pytest

from tipcast.config.schema import TrackingSpec
from tipcast.tracking.children import Children
from tipcast.tracking.run import open_run


def test_what_is_open_is_closed_also_what_was_just_made(spec: TrackingSpec) -> None:
    with open_run(spec, name="xgboost", tags={"job": "sweep"}, params={}) as run:
        children = Children(run)
        with pytest.raises(KeyboardInterrupt), children.closed("the sweep was stopped"):
            for number in range(3):
                children.begin(number, f"key{number}", 1, {"max_depth": number})
            children.end(0, params={}, metrics={}, tags={}, curves={})
            del children.open[2]  # a signal came before its id did
            raise KeyboardInterrupt
        assert [child.status for child in children.found()] == ["FINISHED", "KILLED", "KILLED"]
        assert {child.tags.get("error.message") for child in children.found()} == {None, "the sweep was stopped"}
        assert not children.open
