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

    @property
    def features(self) -> list[str]:
        """In the model's order."""
        return list(self.manifest["features"])


@dataclass(frozen=True)
class Check:
    """One question of the gate and its answer."""

    name: str
    passed: bool
    what: str


@dataclass(frozen=True)
class Contest:
    """A version and the champion, which holds the alias, whatever that is called, on rows that both score."""

    entrants: tuple[Entrant, ...]
    """The challenger, and the champion if there is one that can be compared."""
    before: str | None
    """Version that holds the alias, compared with or not."""
    checks: tuple[Check, ...]
    test: Listing
    recipe: Recipe
    limits: Limits
    evaluations: tuple[Evaluation, ...] = ()
    """Of the entrants, once they have scored."""
    difference: Difference | None = None
    """Challenger less champion; None where there is no champion to compare with, or it cannot be."""

    @property
    def challenger(self) -> Entrant:
        """The version that is to get the alias."""
        return self.entrants[0]

    @property
    def champion(self) -> Entrant | None:
        """None where there is none, or none that can be compared."""
        return self.entrants[1] if len(self.entrants) > 1 else None

    @property
    def judge(self) -> Evaluator:
        """What predictions are judged by."""
        return evaluator(str(self.challenger.manifest["task"]["kind"]))

    @property
    def period(self) -> str:
        """Of the test rows, in words."""
        return described(self.test)

    @property
    def passed(self) -> bool:
        """Whether every answer is yes."""
        return all(check.passed for check in self.checks)

    @property
    def why(self) -> str:
        """One line: what failed, or how the versions compare."""
        failed = [f"{check.name}: {check.what}" for check in self.checks if not check.passed]
        return "; ".join(failed) if failed else self.checks[-1].what

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


def described(test: Listing) -> str:
    """Return the period of rows in words."""
    return "all times" if test.period is None else split.describe(test.period)


def known(entrant: Entrant) -> list[Check]:
    """Check what training and registering have left, and the files' digests against what the registry has kept."""
    tests = {name: value for name, value in entrant.metrics.items() if name.startswith("test/")}
    odd = [name for name, value in tests.items() if not math.isfinite(value) or abs(value) > HUGE]
    headline = f"test/{evaluator(str(entrant.manifest['task']['kind'])).headline.name}"
    finite = f"{odd[0]} is not finite" if odd else f"{len(tests)} test metrics are finite"
    if headline not in tests:
        finite = f"there is no {headline}"
    parity = entrant.metrics.get(PARITY, math.nan)
    apart = f"scores differ from the estimator's by {parity:.2g}, {TOLERANCE:g} may be"
    fetched, tags = entrant.fetched, entrant.tags
    digests = {"sha256": fetched.sha256, MANIFEST_TAG: fetched.manifest_sha256}
    wrong = [name for name, value in digests.items() if tags.get(name) != value]
    lacking = [name for name in ("data_digest", "data_test_digest") if not entrant.manifest.get(name)]
    if wrong:
        said = f"its tag {wrong[0]} is {tags.get(wrong[0], 'not there')[:16]}, its file's {digests[wrong[0]][:16]}"
    else:
        said = f"no {lacking[0]} in its manifest" if lacking else "model file and manifest are as registered"
    return [
        Check("run", entrant.status == "FINISHED", f"its run is {entrant.status}"),
        Check("metrics", headline in tests and not odd, finite),
        Check("parity", parity <= TOLERANCE, apart),
        Check("digests", not wrong and not lacking, said),
    ]


def target(entrants: Sequence[Entrant]) -> Check:
    """Check that both versions answer the same question."""
    found = list(dict.fromkeys(str(entrant.manifest.get("target")) for entrant in entrants))
    return Check("target", len(found) == 1, " against ".join(found))


def data(challenger: Entrant, champion: Entrant, test: Listing) -> Check:
    """Check that both versions are of the same dataset, and of such rows of it: on others a model is a guess."""
    names = ("dataset", *test.facts)
    one, other = (
        [dataset_of(entrant.manifest).name, *(str(entrant.manifest.get(name)) for name in test.facts)]
        for entrant in (challenger, champion)
    )
    told = "both of " + ", ".join(f"{name} {value}" for name, value in zip(names, one, strict=True))
    if one != other:
        told = "; ".join(f"{a} against {b}" for a, b in zip(one, other, strict=True) if a != b)
    return Check("data", one == other, told)


def unseen(entrants: Sequence[Entrant], test: Listing) -> Check:
    """Check that no version was trained or validated on rows of the test period: it has learnt their labels."""
    if test.period is None:
        return _unseen_draw(entrants, test)
    found = {entrant.name: entrant.fetched.seen(test.facts) for entrant in entrants}
    told = [
        f"{name} was trained on {split.describe(period)}"
        for name, period in found.items()
        if period is not None and split.overlap(period, test.period)
    ]
    said = f"not all of {described(test)} is new: {', '.join(told)}" if told else "new to what was trained"
    return Check("test rows", not told, said)


def _unseen_draw(entrants: Sequence[Entrant], test: Listing) -> Check:
    """Check, of rows without a time, that all were trained on other files or held out the same rows of these."""
    trained = [entrant for entrant in entrants if entrant.manifest["data_digest"] == test.digest]
    draws = {tuple(entrant.params.get(name) for name in ("seed", "data.test_share")) for entrant in trained}
    said = "held out by the same draw" if trained else "of other files than what was trained"
    if len(draws) > 1:
        said = f"{' and '.join(entrant.name for entrant in trained)} were tested on other rows of the same files"
    return Check("test rows", len(draws) < 2, said)


def compared(contest: Contest, margin: float, *, certain: bool) -> Check:
    """Check that the challenger is not worse than the champion by more than the margin."""
    found, headline = contest.difference, contest.judge.headline
    if contest.champion is None:
        return Check("comparison", True, "there is no champion to compare with")
    if found is None:
        return Check("comparison", False, "there is no target that both could be compared by")
    limit = f"at least {-margin:g}" if headline.maximize else f"at most {margin:g}"
    said = f"{headline.title} {found.value:+.5f} ({found.interval.low:+.5f} to {found.interval.high:+.5f}), {limit}"
    passed = found.gain(headline.maximize, certain=certain) >= -margin
    return Check("comparison", passed, f"{said} with its whole interval" if certain else said)
