"""What a watch finds of rows that were scored, which limits they pass, and how that is told and kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tipcast.config.job_schemas import WatchLimits
from tipcast.evaluation import drift
from tipcast.evaluation.estimate import Estimated, estimated, measured, of_known
from tipcast.evaluation.report import table

if TYPE_CHECKING:  # MLflow takes longer to load than a look at files that have not changed
    from tipcast.scoring.record import Account

ALIKE = 0.95
"""Share of rows that must have had an answer at training for rows without any to be held against those."""
UNLIKE = "no limit, for training had rows with an answer only, and here none is known"
MOST = 3
"""Features that a line names; the run's tables have all."""


@dataclass(frozen=True)
class Findings:
    """Numbers alone, which a folder of scores keeps: a later run judges by them without scoring anything."""

    headline: str
    title: str
    maximize: bool
    rows: int
    """Scored."""
    labelled: int
    """Of which the answer is known: then all that follows is of these."""
    then: float | None
    """The headline of the training's test rows; None of a model that does not tell."""
    estimated: Estimated | None
    """What the headline is expected to be."""
    real: Estimated | None
    """What it is; None where no answer is known."""
    alike: bool
    """Whether these rows are such as the model was trained on, as far as that can be told."""
    drifts: Sequence[tuple[str, float, float]]
    """Feature or ``score``, its stability index, and what 95 of 100 samples of unmoved rows stay below."""

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Findings:
        """Return what ``plain`` has written."""
        told = {name: None if plain[name] is None else Estimated(**plain[name]) for name in ("estimated", "real")}
        return cls(**{**plain, **told, "drifts": tuple(map(tuple, plain["drifts"]))})

    def plain(self) -> dict[str, Any]:
        """Return all of it, fit for JSON."""
        return asdict(self)

    @property
    def moved(self) -> list[tuple[str, float, float]]:
        """What has moved by more than chance, the most moved first."""
        return sorted((each for each in self.drifts if each[1] > each[2]), key=lambda each: -each[1])

    @property
    def metrics(self) -> dict[str, float]:
        """What is logged."""
        found: dict[str, float] = {"watch/labelled_rows": self.labelled}
        if self.then is not None:
            found[f"watch/reference_{self.headline}"] = self.then
        for prefix, each in (("estimated_", self.estimated), ("", self.real)):
            if each is None:
                continue
            found[f"watch/{prefix}{self.headline}"] = each.value
            if each.low is not None and each.high is not None:
                found[f"watch/{prefix}{self.headline}_low"] = each.low
                found[f"watch/{prefix}{self.headline}_high"] = each.high
            found |= {f"watch/{prefix}{name}": value for name, value in each.details.items()}
        if self.drifts:
            found["watch/psi_max"] = max(psi for _, psi, _ in self.drifts)
        return found

    def passed(self, limits: WatchLimits) -> dict[str, str]:
        """Return limit -> in words how it was passed; what chance explains passes none."""
        found = {}
        if line := self._worse(limits):
            found["auc_drop" if self.maximize else "loss_rise"] = line
        if limits.psi is not None and self.alike:
            moved = [f"{name} {psi:.3g}" for name, psi, _ in self.moved if psi >= limits.psi]
            if moved:
                more = f" and {len(moved) - MOST} more" if len(moved) > MOST else ""
                found["psi"] = ", ".join(moved[:MOST]) + more
        return found

    def _worse(self, limits: WatchLimits) -> str:
        """Return how far the headline is from the training's, where that is too far; the real one where it is known."""
        now = self.real or self.estimated
        limit = limits.auc_drop if self.maximize else limits.loss_rise
        if now is None or self.then is None or limit is None:
            return ""
        if self.maximize:
            by_chance = now.high is not None and now.high >= self.then
            worse = self.then - now.value >= limit
        else:
            by_chance = now.low is not None and now.low <= self.then
            worse = now.value >= self.then * (1 + limit)
        how = "is" if self.real else "is estimated at"
        told = f"{self.title} {how} {now.value:.4g}, of the training's test rows {self.then:.4g}"
        return told if worse and not by_chance else ""

    def note(self, passed: Mapping[str, str]) -> str:
        """Return a paragraph of Markdown for the run's note."""
        lines = [["training's test rows", "" if self.then is None else f"{self.then:.4g}", ""]]
        for name, each in (("estimated, without answers", self.estimated), ("real", self.real)):
            if each is not None:
                bounds = "" if each.low is None else f" ({each.low:.4g} to {each.high:.4g})"
                details = ", ".join(f"{key.replace('_', ' ')} {value:.4g}" for key, value in each.details.items())
                lines.append([name, f"{each.value:.4g}{bounds}", details])
        of = f"{self.labelled:,} rows whose answer is known" if self.labelled else f"all {self.rows:,} rows"
        if self.drifts:
            name, most, _ = max(self.drifts, key=lambda each: each[1])
            lines.append(["largest stability index", f"{most:.3g}", name if self.alike else f"{name}; {UNLIKE}"])
        verdict = "; ".join(f"{name}: {how}" for name, how in passed.items())
        return "\n\n".join(
            [
                f"**Limits passed: {verdict}.**" if passed else "No limit is passed.",
                f"Of {of}. An estimate cannot see that the same rows have other answers than before.",
                table([self.title, "value", ""], lines),
            ]
        )


def find(account: Account, profile: Mapping[str, Any] | None) -> Findings:
    """Hold rows that were scored against a model's training, as ``profile`` of its manifest tells of it.

    A model is trained and tested on rows that have an answer, and of some tasks these are of another kind than others:
    where new rows have one, they alone are held against the training, and all rows otherwise.
    """
    judge, total, told = account.judge, account.total, profile or {}
    known = of_known(total.predictions)
    sums = total.predictions if known is None else known
    moved: list[drift.Drift] = []
    if profile:
        counts = {name: each.sum(axis=0) if known is None else each[1] for name, each in total.values.items()}
        moved = drift.drifts(profile, counts, judge.histogram(sums))
    real = None if account.labelled is None else measured(account.labelled)
    return Findings(
        headline=judge.headline.name,
        title=judge.headline.title,
        maximize=judge.headline.maximize,
        rows=account.rows,
        alike=known is not None or told.get("answered", 1.0) >= ALIKE,
        labelled=0 if known is None else real.rows if real else int(judge.histogram(sums).sum()),
        then=told.get("reference", {}).get("value"),
        estimated=estimated(told, sums),
        real=real,
        drifts=tuple((each.name, each.psi, each.chance) for each in moved),
    )
