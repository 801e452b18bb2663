"""The gate before an alias: what is known of the challenger, how it compares with the champion, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tipcast.config.schema import Limits
from tipcast.datasets import split
from tipcast.datasets.base import Listing
from tipcast.datasets.registry import dataset_of
from tipcast.datasets.rows import Recipe
from tipcast.evaluation.base import SHOWN, Evaluation, Evaluator, bounds, evaluator
from tipcast.evaluation.paired import Difference
from tipcast.tracking.models import Fetched
from tipcast.tracking.portable import TOLERANCE
from tipcast.tracking.registry import MANIFEST_TAG

HUGE = 1e300
"""MLflow stores an infinite metric as the largest number there is."""


@dataclass(frozen=True)
class Candidate:
    """A registered version, and what the store says of it."""

    fetched: Fetched
    status: str
    """Of the run that trained it."""
    metrics: Mapping[str, float]
    """Of that run."""
    tags: Mapping[str, str]
    """Of the version."""
    params: Mapping[str, str]
    """Of that run."""

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"version {self.fetched.version}"

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What the model says of itself."""
        return self.fetched.manifest


@dataclass(frozen=True)
class Check:
    """One question of the gate and its answer."""

    name: str
    passed: bool
    what: str


@dataclass(frozen=True)
class Comparison:
    """A version and the champion, which holds the alias, whatever that is called, on rows that both score."""

    candidates: tuple[Candidate, ...]
    """The challenger, and the champion if there is one that can be compared."""
    before: str | None
    """Version that holds the alias, compared with or not."""
    checks: tuple[Check, ...]
    test: Listing
    recipe: Recipe
    limits: Limits
    evaluations: tuple[Evaluation, ...] = ()
    """Of the candidates, once they have scored."""
    difference: Difference | None = None
    """Challenger less champion; None where there is no champion to compare with, or it cannot be."""

    @property
    def challenger(self) -> Candidate:
        """The version that is to get the alias."""
        return self.candidates[0]

    @property
    def judge(self) -> Evaluator:
        """What predictions are judged by."""
        return evaluator(self.challenger.fetched.kind)

    @property
    def period(self) -> str:
        """Of the test rows, in words."""
        return "all times" if self.test.period is None else split.describe(self.test.period)

    @property
    def passed(self) -> bool:
        """Whether every answer is yes."""
        return all(check.passed for check in self.checks)

    @property
    def why(self) -> str:
        """One line: what failed, or how the versions compare."""
        failed = [f"{check.name}: {check.what}" for check in self.checks if not check.passed]
        return "; ".join(failed) or self.checks[-1].what

    @property
    def metrics(self) -> dict[str, float]:
        """The difference first."""
        found: dict[str, float] = {}
        if self.difference:
            key = f"difference/{self.judge.headline.name}"
            found = {key: self.difference.value, **bounds(self.difference.interval, key)}
        for side, each in zip(("challenger", "champion"), self.evaluations, strict=False):
            found |= {f"{side}/{name}": value for name, value in list(each.shown().items())[:SHOWN]}
        return {**found, "test/rows": float(self.evaluations[0].rows)}


def known(candidate: Candidate) -> list[Check]:
    """Check what training and registering have left, and the files' digests against what the registry has kept."""
    fetched, tags = candidate.fetched, candidate.tags
    tests = {name: value for name, value in candidate.metrics.items() if name.startswith("test/")}
    odd = [name for name, value in tests.items() if not math.isfinite(value) or abs(value) > HUGE]
    headline = f"test/{evaluator(fetched.kind).headline.name}"
    finite = f"{odd[0]} is not finite" if odd else f"{len(tests)} test metrics are finite"
    if headline not in tests:
        finite = f"there is no {headline}"
    parity = candidate.metrics.get("parity/max_abs_diff", math.nan)
    apart = f"scores differ from the estimator's by {parity:.2g}, {TOLERANCE:g} may be"
    digests = {"sha256": fetched.sha256, MANIFEST_TAG: fetched.manifest_sha256}
    wrong = [name for name, value in digests.items() if tags.get(name) != value]
    lacking = [name for name in ("data_digest", "data_test_digest") if not candidate.manifest.get(name)]
    same = f"no {lacking[0]} in its manifest" if lacking else "model file and manifest are as registered"
    if wrong:
        same = f"its tag {wrong[0]} is {tags.get(wrong[0], 'not there')[:16]}, its file's {digests[wrong[0]][:16]}"
    return [
        Check("run", candidate.status == "FINISHED", f"its run is {candidate.status}"),
        Check("metrics", headline in tests and not odd, finite),
        Check("parity", parity <= TOLERANCE, apart),
        Check("digests", not wrong and not lacking, same),
    ]


def target(candidates: Sequence[Candidate]) -> Check:
    """Check that both versions answer the same question."""
    found = dict.fromkeys(str(each.manifest.get("target")) for each in candidates)
    return Check("target", len(found) == 1, " against ".join(found))


def data(candidates: Sequence[Candidate], test: Listing) -> Check:
    """Check that both versions are of the same dataset, and of such rows of it: on others a model is a guess."""
    one, other = (
        {"dataset": dataset_of(each.manifest).name} | {name: str(each.manifest.get(name)) for name in test.facts}
        for each in candidates
    )
    if one == other:
        return Check("data", True, "both of " + ", ".join(f"{name} {value}" for name, value in one.items()))
    return Check(
        "data", False, "; ".join(f"{one[name]} against {other[name]}" for name in one if one[name] != other[name])
    )


def unseen(candidates: Sequence[Candidate], test: Listing) -> Check:
    """Check that no version was trained or validated on the test rows: it has learnt their labels.

    Of rows without a time all must be trained on other files, or have held out the same rows of these.
    """
    if test.period is None:
        trained = [each for each in candidates if each.manifest["data_digest"] == test.digest]
        draws = {tuple(each.params.get(name) for name in ("seed", "data.test_share")) for each in trained}
        what = "held out by the same draw" if trained else "of other files than what was trained"
        if len(draws) > 1:
            what = f"{' and '.join(each.name for each in trained)} were tested on other rows of the same files"
        return Check("test rows", len(draws) < 2, what)
    periods = [(each.name, each.fetched.seen(test.facts)) for each in candidates]
    seen = [
        f"{name} was trained on {split.describe(period)}"
        for name, period in periods
        if period is not None and split.overlap(period, test.period)
    ]
    what = f"not all of {split.describe(test.period)} is new: {', '.join(seen)}" if seen else "new to what was trained"
    return Check("test rows", not seen, what)


def compared(comparison: Comparison, margin: float, *, certain: bool) -> Check:
    """Check that the challenger is not worse than the champion by more than the margin."""
    found, headline = comparison.difference, comparison.judge.headline
    if len(comparison.candidates) == 1:
        return Check("comparison", True, "there is no champion to compare with")
    if found is None:
        return Check("comparison", False, "there is no target that both could be compared by")
    limit = f"at least {-margin:g}" if headline.maximize else f"at most {margin:g}"
    what = f"{headline.title} {found.value:+.5f} ({found.interval.low:+.5f} to {found.interval.high:+.5f}), {limit}"
    passed = found.gain(headline.maximize, certain=certain) >= -margin
    return Check("comparison", passed, f"{what} with its whole interval" if certain else what)
