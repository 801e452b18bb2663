"""The jobs, what is refused before one begins, and how each ends: with a few lines for people, or
one JSON object.
"""

import json
from collections.abc import Mapping
from typing import Any

from tipcast.config import schema
from tipcast.config.errors import TipcastError, incompatible, must_be, unknown
from tipcast.config.schema import Output
from tipcast.config.streams import show
from tipcast.evaluation import ranking
from tipcast.search import MAX_TRIALS
from tipcast.tasks.kinds import named_by

SEARCHES = ("random", "tpe", "grid")


def say(
    result: Mapping[str, Any],
    form: Output,
    *,
    lines: Mapping[str, Any] | None = None,
    problem: Exception | None = None,
) -> Mapping[str, Any]:
    """Print a job's result as aligned lines, as one object on one line, or not at all; return it.

    ``lines`` are printed for people in place of the result; ``problem`` is raised after what is
    printed.
    """
    if form is Output.json:
        show(json.dumps(result))

    if form is Output.text:
        logged = ("run", "tracking_uri")  # as the run began
        shown = lines or {name: value for name, value in result.items() if name not in logged}
        shown = {name: value for name, value in shown.items() if value or value == 0}
        width = max(map(len, shown))
        for name, value in shown.items():
            show(f"{name:<{width}}  {_text(value)}")

    if problem:
        raise problem

    return result


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return "  ".join(f"{name} {_text(item)}" for name, item in value.items())
    if isinstance(value, list):
        return " ".join(str(item) for item in value)
    form = ".4g" if isinstance(value, float) else "," if isinstance(value, int) else ""
    return f"{value:{form}}"


def preflight(config: Any) -> None:
    """Refuse what a job's configuration alone shows to be wrong, before the job's libraries load,
    which takes seconds.

    C003 names that MLflow would refuse, kinds that there are not, and keys that would change
    nothing; see also ``config.schema``.
    """
    if isinstance(config, schema.CheckupConfig):  # which tells all it finds in its table
        return

    if hasattr(config, "data"):
        data = config.data
        unused: tuple[str, ...] = (
            ("train", "test") if isinstance(config, schema.PrepareConfig) else ("months",)
        )
        if isinstance(data, schema.MadeData) or data.source == "tested":
            unused = ("train", "months") if data.source == "tested" else ("train", "test", "months")
        for name in unused:
            if getattr(data, name) is not None:
                what = f"changes nothing with data={data.source} here"
                raise TipcastError("C003", f"data.{name}", what, "leave it out")

    if hasattr(config, "task"):
        named_by(config.task.kind)

    if hasattr(config, "tracking"):
        experiment = config.tracking.experiment
        name = config.tracking.register
        if experiment is not None and not experiment.strip():
            raise TipcastError("C003", "tracking.experiment", "is empty", "name an experiment")
        if name is not None and (
            not name.strip(" .") or name[:2] == ".." or set(name) & set("/:") or len(name) > 256
        ):
            fix = "use a name of at most 256 characters without / and :"
            raise TipcastError("C003", "tracking.register", f"not a model name: {name!r}", fix)

    if (
        isinstance(config, schema.SweepConfig)
        and config.search.trials_per_gpu > 1
        and config.backend.name == "cpu"
    ):
        raise incompatible(
            "search.trials_per_gpu", "backend=cpu, where each thread runs a trial", "leave it out"
        )

    # else the run has task and search of GPUs
    if isinstance(config, schema.SweepConfig) and config.resume is None:
        check_search(config)


def check_search(config: schema.SweepConfig) -> None:
    """Refuse a search that cannot be, whatever the data are."""
    spec = config.search
    if spec.name not in SEARCHES:
        raise unknown("search.name", "search", spec.name, SEARCHES, "C003")
    if (spec.trials or 0) > MAX_TRIALS:
        raise must_be("search.trials", f"at most {MAX_TRIALS:,}", f"{spec.trials:,}")
    if spec.baseline and spec.name == "grid":
        raise incompatible(
            "search.baseline", "search=grid", "add the value to search.space, or use another search"
        )
    if spec.trials is None and spec.name != "grid":
        raise TipcastError(
            "C003", "search.trials", f"{spec.name} needs a number of trials", "set search.trials=32"
        )

    if not config.task.validation:
        raise must_be(
            "task.validation",
            "above 0, to compare trials",
            config.task.validation,
            "hold rows out, as 0.15",
        )

    kind = named_by(config.task.kind)
    if kind is not None:
        ranking(kind, spec.metric, "search.metric")
