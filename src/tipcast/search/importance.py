"""How much each parameter of a search mattered."""

from __future__ import annotations

from collections.abc import Sequence

from tipcast.search.proposals import as_optuna, direction, distributions
from tipcast.search.space import Space
from tipcast.search.trial import Objective, Trial

FEWEST = 8
"""Trials below which nothing can be said of it."""


def importance(trials: Sequence[Trial], space: Space, objective: Objective) -> dict[str, float]:
    """Return parameter -> share of the differences among the scores that it explains; empty for too few trials.

    The trials are all inside the space.

    Hutter, Hoos and Leyton-Brown (2014), An Efficient Approach for Assessing Hyperparameter Importance, ICML.
    """
    if len(trials) < FEWEST or len({trial.score for trial in trials}) == 1:
        return {}
    import optuna

    searched = distributions(space)
    study = optuna.create_study(direction=direction(objective))
    study.add_trials(
        optuna.create_trial(
            params={name: as_optuna(axis, trial.params[name]) for name, axis in space.items()},
            distributions=searched,
            value=trial.score,
        )
        for trial in trials
    )
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(share) for name, share in shares.items()}
