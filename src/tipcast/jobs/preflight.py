"""Errors that a job's configuration alone shows.

They are raised before the job's libraries load, which takes seconds.
"""

from tipcast.config import data_schema, schema
from tipcast.config.errors import TipcastError, incompatible, must_be, unknown
from tipcast.evaluation import ranking
from tipcast.search import MAX_TRIALS, TREES
from tipcast.tasks.kinds import named_by

BALANCED = "balanced"
"""The one value of ``task.class_weight``."""
SEARCHES = ("random", "tpe", "grid", "halving")
SAMPLERS = ("random", "tpe")
"""Searches that propose the trials of search=halving."""
MAX_MODEL_NAME = 256
"""Most characters of a registered model's name."""


def check(config: schema.JobConfig) -> None:
    """Refuse values of a job's configuration that contradict each other or change nothing.

    Raises C003 for names that MLflow would refuse, for unknown kinds of tasks, and for keys that
    would change nothing; see also ``config.schema``.
    """
    if isinstance(config, schema.DoctorConfig):  # doctor shows in its table what it finds
        return

    if hasattr(config, "data"):
        check_unused_data(config, config.data)
    if hasattr(config, "task"):
        check_folds(config.task)
        check_class_weight(config.task)
    if hasattr(config, "tracking"):
        check_names(config.tracking)

    if isinstance(config, schema.LadderConfig) and config.task.folds:
        what = "a ladder times one fit, and folds would add more fits"
        raise TipcastError("C003", "task.folds", what, "leave it out")
    if isinstance(config, schema.SweepConfig):
        if config.search.trials_per_gpu > 1 and config.backend.name == "cpu":
            excluded = "backend=cpu, where each thread runs a trial"
            raise incompatible("search.trials_per_gpu", excluded, "leave it out")
        if config.resume is None:  # otherwise the sweep has the task and the search of its run
            check_search(config)


def check_class_weight(task: schema.TaskSpec) -> None:
    """Refuse (C003) class weights other than balanced ones."""
    if task.class_weight not in (None, BALANCED):
        raise must_be("task.class_weight", f"{BALANCED} or null", repr(task.class_weight))


def check_unused_data(config: schema.JobConfig, data: data_schema.DataSpec) -> None:
    """Refuse keys of a job's data that would change nothing."""
    unused = ["months"]
    if isinstance(config, schema.PrepareConfig):
        unused = ["train", "test"]
    if data.source == "tested":
        unused = ["train", "months"]
    elif isinstance(data, data_schema.MadeData):
        unused = ["train", "test", "months"]

    for name in unused:
        if getattr(data, name) is not None:
            what = f"has no effect with data={data.source} here"
            raise TipcastError("C003", f"data.{name}", what, "leave it out")


def check_folds(task: schema.TaskSpec) -> None:
    """Refuse a single fold."""
    if task.folds == 1:
        raise must_be("task.folds", "0 or at least 2", 1, "use task.folds=5")


def check_names(tracking: schema.TrackingSpec) -> None:
    """Refuse names of an experiment and of a registered model that MLflow would refuse."""
    experiment = tracking.experiment
    if experiment is not None and not experiment.strip():
        raise TipcastError(
            "C003", "tracking.experiment", "is empty", "set the name of an experiment"
        )

    name = tracking.register
    if name is None:
        return
    empty = not name.strip(" .") or name.startswith("..")
    if empty or set(name) & set("/:") or len(name) > MAX_MODEL_NAME:
        fix = f"use a name of at most {MAX_MODEL_NAME} characters without / and :"
        raise TipcastError("C003", "tracking.register", f"not a model name: {name!r}", fix)


def check_halving(spec: schema.SearchSpec) -> None:
    """Refuse another search for the trials of the first rung, and a space of trees."""
    if spec.sampler not in SAMPLERS:
        raise unknown("search.sampler", "search", spec.sampler, SAMPLERS, "C003")
    if spec.space.get(TREES) is not None:
        fix = f"set model.params.{TREES}, the trees of the last rung"
        raise TipcastError("C003", f"search.space.{TREES}", "halving sets it itself", fix)


def check_search(config: schema.SweepConfig) -> None:
    """Refuse a search that is impossible for any data."""
    spec = config.search
    if spec.name not in SEARCHES:
        raise unknown("search.name", "search", spec.name, SEARCHES, "C003")
    if (spec.trials or 0) > MAX_TRIALS:
        raise must_be("search.trials", f"at most {MAX_TRIALS:,}", f"{spec.trials:,}")
    if spec.baseline and spec.name == "grid":
        fix = "add the value to search.space, or use another search"
        raise incompatible("search.baseline", "search=grid", fix)
    if spec.trials is None and spec.name != "grid":
        what = f"{spec.name} needs a number of trials"
        raise TipcastError("C003", "search.trials", what, "set search.trials=32")
    if spec.name == "halving":
        check_halving(spec)

    validation = config.task.validation
    if not validation and not config.task.folds:
        rule = "above 0, to compare trials"
        raise must_be("task.validation", rule, validation, "hold out a share of rows, such as 0.15")

    kind = named_by(config.task.kind)
    if kind is not None:
        ranking(kind, spec.metric, "search.metric")
