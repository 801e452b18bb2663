"""The gate before an alias: what is known of the challenger, and how it compares with the champion."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tipcast.data import split
from tipcast.data.base import Listing, timed
from tipcast.evaluation.base import Evaluation, Metric, evaluator
from tipcast.evaluation.paired import Difference
from tipcast.tracking.models import Fetched
from tipcast.tracking.portable import TOLERANCE
from tipcast.tracking.registry import MANIFEST_TAG

PARITY = "parity/max_abs_diff"
HUGE = 1e300
"""MLflow stores an infinite metric as the largest number there is."""


@dataclass(frozen=True)
class Entrant:
    """A registered version, and what the store says of it."""

    fetched: Fetched
    status: str
    """Of the run that trained it."""
    metrics: Mapping[str, float]
    """Of that run."""
    tags: Mapping[str, str]
    """Of the version."""

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"version {self.fetched.version}"

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What the model says of itself."""
        return self.fetched.manifest

    @property
    def kind(self) -> str:
        """Of its task."""
        return str(self.manifest["task"]["kind"])

    @property
    def headline(self) -> Metric:
        """What it is compared by."""
        return evaluator(self.kind).headline

    @property
    def features(self) -> list[str]:
        """In the model's order."""
        return list(self.manifest["features"])


@dataclass(frozen=True)
class Rescored:
    """Both versions on the same rows."""

    challenger: Evaluation
    champion: Evaluation | None
    difference: Difference | None
    """Challenger less champion; None where there is no champion to compare with."""


@dataclass(frozen=True)
class Check:
    """One question of the gate and its answer."""

    name: str
    passed: bool
    what: str


def known(entrant: Entrant) -> list[Check]:
    """Check what training and registering have left."""
    tests = {name: value for name, value in entrant.metrics.items() if name.startswith("test/")}
    odd = [name for name, value in tests.items() if not math.isfinite(value) or abs(value) > HUGE]
    parity = entrant.metrics.get(PARITY, math.nan)
    return [
        Check("run", entrant.status == "FINISHED", f"its run is {entrant.status}"),
        Check(
            "metrics",
            f"test/{entrant.headline.name}" in tests and not odd,
            f"{odd[0]} is not finite"
            if odd
            else f"{len(tests)} test metrics are finite"
            if tests
            else "there are none",
        ),
        Check(
            "parity", parity <= TOLERANCE, f"scores differ from the estimator's by {parity:.2g}, {TOLERANCE:g} may be"
        ),
        _digests(entrant),
    ]


def _digests(entrant: Entrant) -> Check:
    """Hold the files' digests, which were checked when they were fetched, against what the registry has kept."""
    fetched, tags = entrant.fetched, entrant.tags
    found = {"sha256": fetched.sha256, MANIFEST_TAG: fetched.manifest_sha256}
    wrong = [name for name, value in found.items() if tags.get(name) != value]
    lacking = [name for name in ("data_digest", "data_test_digest") if not entrant.manifest.get(name)]
    if wrong:
        said = f"its tag {wrong[0]} is {tags.get(wrong[0], 'not there')[:16]}, its file's {found[wrong[0]][:16]}"
    else:
        said = f"no {lacking[0]} in its manifest" if lacking else "model file and manifest are as registered"
    return Check("digests", not wrong and not lacking, said)


def target(entrants: Sequence[Entrant]) -> Check:
    """Check that both versions answer the same question."""
    found = list(dict.fromkeys(str(entrant.manifest.get("target")) for entrant in entrants))
    return Check("target", len(found) == 1, " against ".join(found))


def taxis(challenger: Entrant, champion: Entrant) -> Check:
    """Check that both versions are of the same kind of taxi: on the other's trips a model is no better than a guess."""
    found = [str(entrant.manifest.get("colour")) for entrant in (challenger, champion)]
    told = " against ".join(dict.fromkeys(found))
    return Check("taxis", len(set(found)) == 1, f"both of {told} ones" if len(set(found)) == 1 else told)


def unseen(entrants: Sequence[Entrant], test: Listing) -> Check:
    """Check that no version was trained or validated on rows of the test period: it has learnt their labels."""
    found = {entrant.name: entrant.fetched.seen(test.facts) for entrant in entrants}
    tested = timed(test.period)
    told = [
        f"{name} was trained on {split.describe(period)}"
        for name, period in found.items()
        if period is not None and split.overlap(period, tested)
    ]
    said = f"not all of {split.describe(tested)} is new: {', '.join(told)}" if told else "new to what was trained"
    return Check("test rows", not told, said)


def compared(headline: Metric, rescored: Rescored, margin: float, *, certain: bool) -> Check:
    """Check that the challenger is not worse than the champion by more than the margin."""
    found = rescored.difference
    if found is None:
        return Check("comparison", True, "there is no champion to compare with")
    limit = f"at least {-margin:g}" if headline.maximize else f"at most {margin:g}"
    said = f"{headline.title} {found.value:+.5f} ({found.interval.low:+.5f} to {found.interval.high:+.5f}), {limit}"
    passed = found.gain(headline.maximize, certain=certain) >= -margin
    return Check("comparison", passed, f"{said} with its whole interval" if certain else said)
