"""What features contribute to the predictions of test rows, as a picture."""

from typing import TYPE_CHECKING

from tipcast.datasets.base import Published, Scorable
from tipcast.datasets.rows import Rows
from tipcast.evaluation.base import Evaluation
from tipcast.jobs.train_plan import Plan
from tipcast.models.fit import contributions

if TYPE_CHECKING:
    from distributed import Client, Future

    from tipcast.models.native import Scorer


def draw_contributions(
    client: "Client",
    scorer: "Future[Scorer]",
    plan: Plan,
    rows: Rows,
    evaluation: Evaluation,
    *,
    model: str,
    most: int,
) -> bytes:
    """Draw what each feature contributes to the predictions of at most ``most`` test rows, at even
    distances; with several classes to the margin of the class that is predicted most.

    ``evaluation`` is that of all test ``rows``, and ``model`` the model's name. Returns the PNG.
    """
    from tipcast.evaluation import plots  # a thread has loaded Matplotlib ahead

    task = plan.task
    predicted_most = None
    of_class = ""
    if task.kind.column_per_class:
        predicted_most = int(evaluation.sums.histogram.argmax())
        of_class = task.classes[predicted_most]

    values, added = contributions(
        client, scorer, rows.x, rows.part_rows, most, of_class=predicted_most
    )
    subtitle = f"{model}, {len(values):,} of {evaluation.rows:,} test rows"
    if of_class:
        subtitle += ", the class predicted most"

    return plots.contributions(
        values,
        added[:, :-1],  # without the bias
        task.features,
        subtitle,
        of_class=of_class,
        categories=categories_of(plan),
    )


def categories_of(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Return each feature that is a category -> the names of its codes, empty if these have
    none.
    """
    task = plan.task
    coded = plan.dataset.coded if isinstance(plan.dataset, Published) else ()
    names: dict[str, tuple[str, ...]] = dict.fromkeys((*coded, *task.categorical), ())
    if not isinstance(plan.dataset, Scorable):
        return names

    columns = plan.dataset.raw_columns(task.features, plan.train.info)
    return names | {column.name: column.categories for column in columns if column.categories}
