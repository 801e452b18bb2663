"""The paragraphs of a training's note on what was learnt: from which columns and which rows."""

from tipcast.compute.base import count
from tipcast.config.schema import TrainConfig
from tipcast.datasets.base import group_of
from tipcast.datasets.counts import Counts, total
from tipcast.evaluation import report
from tipcast.jobs.train_plan import Plan, Splits


def learnt_in_words(config: TrainConfig, plan: Plan, splits: Splits) -> str:
    """Say what is predicted from which columns, how rows count, and which were dropped."""
    columns = report.learnt(plan.target_in_words, plan.task.features, plan.left_out)
    rows = " ".join([*weights_in_words(config), *groups_in_words(plan)])
    dropped = dropped_in_words(total([of_split.counts for of_split in splits.values()]))
    return "\n\n".join(part for part in (columns, rows, dropped) if part)


def weights_in_words(config: TrainConfig) -> list[str]:
    """Return a sentence on the weights of rows, and one on those of classes, if there are some."""
    sentences = []
    if config.task.weight is not None:
        sentences.append(f"Rows are weighted by `{config.task.weight}`.")
    if config.task.class_weight is not None:
        sentences.append("All classes count the same in the fit.")
    return sentences


def groups_in_words(plan: Plan) -> list[str]:
    """Return a sentence on where the rows of a group are, in a list; an empty list if rows have no
    groups or are not divided.
    """
    group = group_of(plan.dataset)
    draw = plan.recipe.draw
    if group is None or draw is None:
        return []

    places = []
    if draw.test or draw.validation:
        places.append("on one side of the split")
    if draw.folds:
        places.append("in one fold")
    return [f"Rows with the same `{group}` are {', and '.join(places)}."]


def dropped_in_words(counts: Counts) -> str:
    """Say how many rows were dropped for which reason; empty if none were."""
    reasons = [f"{count(rows, 'row')} (`{name}`)" for name, rows in counts.dropped.items() if rows]
    if not reasons:
        return ""
    return f"Dropped: {', '.join(reasons)}."
