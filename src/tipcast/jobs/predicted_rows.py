"""Predictions of rows on the workers, beside what they are compared with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from tipcast.datasets.rows import Rows
from tipcast.evaluation.base import Evaluator
from tipcast.models.fit import evaluation_targets, predict

if TYPE_CHECKING:
    from distributed import Client, Future

    from tipcast.models.native import Scorer


@dataclass(frozen=True)
class PredictedRows:
    """Futures of predictions, targets and weights of the same parts."""

    predictions: Sequence[Any]
    """What ``Scorer.score`` returned for each part."""
    targets: Sequence[Any]
    """The target of each part; the features if nothing is predicted."""
    weights: Sequence[Any]
    """The weights of each part; empty where all rows count the same."""

    @classmethod
    def of(cls, client: "Client", scorer: "Future[Scorer]", rows: Rows) -> Self:
        """Start to score rows where they lie."""
        return cls(
            predict(client, scorer, rows.x),
            evaluation_targets(client, scorer, rows),
            rows.weight,
        )

    @classmethod
    def joined(cls, several: "Sequence[PredictedRows]") -> Self:
        """Return all parts of several."""
        return cls(
            [part for rows in several for part in rows.predictions],
            [part for rows in several for part in rows.targets],
            [part for rows in several for part in rows.weights],
        )

    def evaluate(
        self, client: "Client", evaluator: Evaluator, *, threshold: float | None, where: str
    ) -> Any:
        """Evaluate the predictions, see ``Evaluator.evaluate``."""
        return evaluator.evaluate(
            client,
            self.predictions,
            self.targets,
            weights=self.weights or None,
            threshold=threshold,
            where=where,
        )
