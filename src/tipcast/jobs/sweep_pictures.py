"""The pictures of a sweep: scores in the order of the trials, and what parameters do to them."""

from collections.abc import Iterator, Sequence

from tipcast.evaluation import plots
from tipcast.jobs.sweep_plan import SweepPlan
from tipcast.search.proposals import importance, inside, is_logarithmic
from tipcast.search.trial import TrialResult


def pictures(
    plan: SweepPlan, metric: str, ranked: Sequence[TrialResult]
) -> Iterator[tuple[str, bytes]]:
    """Yield path and PNG of each picture that can be drawn; the best trial comes first in
    ``ranked``.

    The importance of parameters needs some trials whose scores differ.
    """
    config = plan.config
    subtitle = f"{config.model.name}, {config.search.name} search, {len(ranked)} trials"

    scores = {trial.number: trial.score for trial in ranked}
    maximize = plan.objective.maximize
    yield (
        "sweep/history.png",
        plots.history(scores, subtitle, metric=metric, maximize=maximize),
    )

    shares = _importance(plan, ranked)
    # The parameters that matter most come first.
    names = sorted(plan.space, key=lambda name: -shares.get(name, 0))
    yield (
        "sweep/parameters.png",
        plots.parameter_scores(
            {name: [trial.params.get(name) for trial in ranked] for name in names},
            [trial.score for trial in ranked],
            f"{subtitle}; ring: best trial",
            metric=metric,
            logarithmic=[name for name in names if is_logarithmic(plan.space[name])],
        ),
    )

    if shares:
        yield (
            "sweep/parameter_importance.png",
            plots.importance(
                shares, subtitle, kind="variance of the score", title="Parameter importance"
            ),
        )


def _importance(plan: SweepPlan, ranked: Sequence[TrialResult]) -> dict[str, float]:
    """Return parameter -> share of the scores' variance; empty if it cannot be computed."""
    # The baseline may lie outside the space. By halving, the first rung has all trials, with as
    # many trees.
    rungs = plan.objective.rungs
    points = [
        trial
        for trial in ranked
        if inside(plan.space, trial.params) and not (rungs and rungs.of(trial.number))
    ]
    if not points:
        return {}
    return importance(points, plan.space, plan.objective)
