"""Results of acting: one file's, and those of all files of a plan."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from tipcast.config.errors import TipcastError
from tipcast.evaluation import evaluator_of
from tipcast.evaluation.sums import Sums
from tipcast.scoring.folder import ManifestEntry
from tipcast.scoring.plan import ScorePlan


@dataclass(frozen=True)
class ScoredFile:
    """A file that is scored, and its scores written."""

    name: str
    """Name of the file of scores, below the output folder."""
    entry: ManifestEntry
    """The manifest's entry for the scores."""
    sums: Sums
    """The evaluator's sums over all rows."""


@dataclass(frozen=True)
class RefusedFile:
    """A file that could not be scored."""

    name: str
    error: TipcastError


@dataclass(frozen=True)
class ScoringResult:
    """Results of all files of a plan."""

    entries: Mapping[str, ManifestEntry]
    """Name -> entry of new scores."""
    refused: Mapping[str, TipcastError]
    """Name -> error: files that the plan refused, then files that could not be scored."""
    sums: Sums
    """The evaluator's sums over all rows that were scored."""
    peak_bytes: Mapping[str, int] = field(default_factory=dict)
    """Process -> its peak memory."""

    @property
    def rows(self) -> int:
        """Rows that were scored."""
        return sum(entry.rows for entry in self.entries.values())

    @property
    def unscored(self) -> dict[str, int]:
        """Reason -> rows whose prediction is null."""
        rows = Counter[str]()
        for entry in self.entries.values():
            rows.update(entry.unscored)
        return dict(+rows)  # reasons without a row are left out


def nothing_scored(plan: ScorePlan) -> ScoringResult:
    """Return the results of a plan in which no file is due."""
    return ScoringResult({}, plan.refused, evaluator_of(plan.task.kind).total([]))
