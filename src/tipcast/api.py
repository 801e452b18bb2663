"""Jobs as functions: `tipcast.train(model="xgboost", data={"rows": 100_000})` does what `tipcast
train ...` does.
"""

import contextlib
import importlib
import logging
import os
import shlex
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tipcast.compute.forkserver import waiting
from tipcast.config.errors import TipcastError, failed_to, incompatible, must_be

CHECK_THEMSELVES = ("doctor", "ladder")
"""Jobs that check their clusters themselves: one tells it in its table, the other has one for each
rung.
"""
STAND_INS = {"train": "FRAME", "test": "TEST_FRAME"}
"""What a command has in place of the file of a DataFrame."""
_ONE_AT_A_TIME = threading.RLock()
"""MLflow's current store and the environment are the process's: jobs that several threads ask for
run in turn.
"""


@dataclass(frozen=True)
class Composed:
    """A job with its checked configuration, ready to run."""

    job: str
    config: Any  # an instance of the job's schema
    command: str  # what a shell repeats it with
    many: Sequence[Any] = ()  # the trainings of ``--multirun``, which share one cluster and one run

    def run(self) -> Mapping[str, Any]:
        """Run the job and return its details."""
        from tipcast.config import dask_settings

        checked = hasattr(self.config, "cluster") and self.job not in CHECK_THEMSELVES
        if checked:
            from tipcast.compute import gpus

            # before seconds go by loading libraries
            gpus.check(self.config.backend, self.config.cluster)
        dask_settings.check()
        module = importlib.import_module(f"tipcast.jobs.{'multirun' if self.many else self.job}")
        if checked:
            from tipcast.compute import session

            session.check(self.config.backend, self.config.cluster)
        trainings: Any = [(training.config, training.command) for training in self.many]
        details: Mapping[str, Any] = module.run(trainings or self.config, self.command)
        return details


def compose_jobs(job: str, arguments: Sequence[str]) -> list[Composed]:
    """Compose and check what follows a job's name; nothing comes of flags that show.

    With ``--multirun`` the trainings are one job, of other jobs there is one for each
    configuration.
    """
    from tipcast.config.arguments import HELP, MULTIRUN, REPEAT, as_given, to_overrides
    from tipcast.config.compose import compose, to_object
    from tipcast.config.plain import redact
    from tipcast.jobs import preflight

    def command(words: Iterable[str]) -> str:
        return shlex.join(["tipcast", job, *map(redact, words)])

    overrides = to_overrides(arguments)
    recorded = None
    repeated = [word for word in overrides if word.startswith(REPEAT) and word != f"{REPEAT}null"]
    if repeated and job in ("train", "sweep") and not HELP & set(overrides):
        from tipcast.jobs.repeat import resolved

        overrides, recorded = resolved(repeated[-1], overrides)
    jobs: list[Composed] = []
    for composed in compose(job, overrides, recorded):
        config = to_object(composed.config)
        preflight(config)
        jobs.append(Composed(job, config, command(map(as_given, composed.overrides))))
    if not jobs or job != "train" or not MULTIRUN & set(arguments):
        return jobs
    run = jobs[0].config.repeat  # its whole id: what is the last one now is another soon
    words = (f"from={run}" if word.startswith(("from=", REPEAT)) else word for word in arguments)
    return [Composed(job, jobs[0].config, command(words), jobs)]


@dataclass(frozen=True)
class Result:
    """What a job has done; None is what it has not."""

    run_id: str | None  # of the run in MLflow that records it
    experiment_id: str | None
    metrics: Mapping[str, float]  # the headline metrics, as ``test/auc``
    model_uri: str | None  # of the model that was logged, registered, promoted or scored with
    tracking_uri: str | None  # of the store that has the run
    command: str  # what repeats the job in a shell; FRAME stands for a file of a DataFrame
    details: Mapping[str, Any] = field(repr=False)  # all that the command says with ``print=json``

    def load(self) -> Any:
        """Load the model as a ``PyFuncModel``, whose ``predict`` takes raw rows as a DataFrame;
        M001 no model.
        """
        if self.model_uri is None:
            raise TipcastError(
                "M001", "model_uri", "this job has no model", "load the one of a training"
            )
        with _ONE_AT_A_TIME, _kept():
            from tipcast.tracking.store import load_model

            return load_model(self.model_uri, self.tracking_uri)


def train(
    *, target: str | None = None, test: Any = None, overrides: Sequence[str] = (), **settings: Any
) -> Result:
    """Fit a model on one period, test it on a later one, log it, and register it where
    ``tracking.register`` asks.

    A mistake raises the TipcastError that the command ends with, see docs/errors.md. Runs of
    several threads are made one after another. Nothing is printed to standard output; progress goes
    to the logger ``tipcast``.

    Parameters
    ----------
    target, test
        Where ``data`` is a pandas, cuDF or Dask DataFrame: its column to predict (None: there is
        none, and ``task`` says what to do) and the rows to test on (None: a fifth of ``data``, at
        random).
    overrides
        As on the command line: ``["model=xgboost", "data.rows=20000"]``.
    **settings
        Groups and keys of conf/train.yaml: an option's name (``model="random_forest"``), a value
        (``seed=1``), or a mapping of values (``data={"rows": 100_000}``), which may name its option
        too (``model={"name": "random_forest", "params": {"max_depth": 4}}``). ``config_dir`` is a
        folder with options of one's own, as ``task/mine.yaml``. ``repeat`` is the id of a run that
        is trained again, ``from`` of the command.

    """
    return _call("train", overrides, settings, target, test)


def sweep(
    *, target: str | None = None, test: Any = None, overrides: Sequence[str] = (), **settings: Any
) -> Result:
    """Try many parameters in parallel, fit the best again and log it; parameters and errors as of
    :func:`train`.

    ``details`` have ``best``, the number, score and parameters of the best trial, and ``trials``,
    how many ended how.
    """
    return _call("sweep", overrides, settings, target, test)


def ladder(
    *, target: str | None = None, test: Any = None, overrides: Sequence[str] = (), **settings: Any
) -> Result:
    """Train the same on one core, all cores, one GPU and all GPUs; parameters and errors as of
    :func:`train`.
    """
    return _call("ladder", overrides, settings, target, test)


def score(
    model_uri: str, input: Any, output: str, *, overrides: Sequence[str] = (), **settings: Any
) -> Result:
    """Score files with a model that is logged or registered; the rest as of :func:`train`.

    The model is ``models:/name/3``, ``models:/name@alias``, ``models:/m-...`` or
    ``runs:/id/MODEL-TASK``; ``input`` is a path, a glob, a folder, an address or a list of them;
    ``output`` is the folder or s3:// prefix of the scores.
    """
    return _call(
        "score", overrides, {"model_uri": model_uri, "input": input, "output": output, **settings}
    )


def promote(model_uri: str, *, overrides: Sequence[str] = (), **settings: Any) -> Result:
    """Move an alias, as champion, to a registered version that is not worse than its holder; else
    as :func:`train`.
    """
    return _call("promote", overrides, {"model_uri": model_uri, **settings})


def prepare(*, overrides: Sequence[str] = (), **settings: Any) -> Result:
    """Write a dataset as Parquet months that spread over workers; parameters and errors as of
    :func:`train`.
    """
    return _call("prepare", overrides, settings)


def _written(frame: Any, path: Path, side: str) -> str:
    """Write a DataFrame as Parquet, one of Dask's as a folder of files; intervals and periods
    become their texts.

    D008 a name that is no text, a column that Parquet does not hold.
    """
    where = f"data ({side})"
    dask = hasattr(frame, "npartitions")
    if odd := [name for name in frame.columns if not isinstance(name, str)]:
        raise must_be(
            where,
            "named by texts",
            repr(odd[0]),
            "rename the columns: map(str, frame.columns)",
            "D008",
        )

    kinds = {
        name: getattr(getattr(kind, "categories", None), "dtype", kind)
        for name, kind in frame.dtypes.items()
    }
    try:
        for name in [
            name for name, kind in kinds.items() if str(kind).startswith(("interval", "period"))
        ]:
            texts = (
                frame[name]
                .astype(object)
                .map(str, "ignore", **({"meta": (name, "string")} if dask else {}))
            )
            frame = frame.assign(**{name: texts})
        frame.to_parquet(str(path), **{"write_index" if dask else "index": False})
    except OSError:  # as of a full disk
        raise
    except Exception as problem:  # pandas, cuDF and pyarrow have many
        fix = (
            "make each column one type that Parquet has, as by astype(str), and each name "
            "unique, or leave it out"
        )
        raise failed_to("written as Parquet", where, problem, fix, "D008") from problem

    return str(path)


def _call(
    job: str,
    overrides: Sequence[str],
    settings: Mapping[str, Any],
    target: str | None = None,
    test: Any = None,
) -> Result:
    """Run a job; DataFrames become a table of Parquet files, which are gone when it has ended."""
    if flags := [word for word in overrides if word.startswith("-")]:
        raise TipcastError(
            "C005", flags[0], "is a flag of the command line", "name keys and values, as 'seed=1'"
        )
    keys = dict(settings)
    frame = settings.get("data")
    for key, rows in (("data", frame), ("test", test)):
        if not (
            rows is None
            or hasattr(rows, "to_parquet")
            or (key == "data" and isinstance(rows, str | Mapping))
        ):
            raise must_be(
                key,
                "a DataFrame of pandas, cuDF or Dask",
                type(rows).__name__,
                "make one of it",
                "C003",
            )
    frames = {"train": frame, "test": test} if hasattr(frame, "to_parquet") else {}
    if not frames and (target is not None or test is not None):
        raise TipcastError(
            "C003", "target", "belongs to a DataFrame", "pass data=FRAME, or task={'target': ...}"
        )
    if target is not None:
        task = keys.get("task", {})
        if not isinstance(task, Mapping) or task.get("name", "target") != "target":
            raise incompatible("task", "target")
        keys["task"] = {**task, "name": "target", "target": target}
    from tipcast.config import arguments
    from tipcast.config.disk import temporary_folder
    from tipcast.config.schema import Output

    with _ONE_AT_A_TIME, _kept(), temporary_folder() as place:
        # before any OpenMP library is loaded; inherited by the workers
        os.environ.update(waiting())
        given = {side: rows for side, rows in frames.items() if rows is not None}
        files = {
            side: _written(rows, place / f"{side}.parquet", side) for side, rows in given.items()
        }
        if files:
            keys["data"] = {"source": "table", **files}
        folder = keys.pop("config_dir", None)
        words = [*arguments.as_overrides(keys), *overrides]
        (composed,) = compose_jobs(job, [f"--config-dir={folder}", *words] if folder else words)
        composed.config.print = Output.none
        if files and not (kind := composed.config.cluster.kind).startswith("local"):
            what = f"a DataFrame of this process is not where the workers of cluster={kind} are"
            raise TipcastError(
                "C003", "data", what, "write it where they can read it, and name the files"
            )
        stand_ins = {f"data.{side}": f"data.{side}={STAND_INS[side]}" for side in files}
        words = [
            stand_ins.get(arguments.key_of(word), word)
            for word in arguments.given(composed.command)
        ]
        composed = replace(composed, command=arguments.with_given(composed.command, words))
        details = composed.run()
        from tipcast.tracking.store import resolve

        tracked = hasattr(composed.config, "tracking")
        return Result(
            run_id=details.get("run_id"),
            experiment_id=details.get("experiment_id"),
            metrics=details.get("metrics") or {},
            model_uri=details.get("model_uri"),
            tracking_uri=resolve(composed.config.tracking) if tracked else None,
            command=composed.command,
            details=details,
        )


@contextlib.contextmanager
def _kept() -> Iterator[None]:
    """Leave the process as it was: environment, warnings' filters, levels and handlers of loggers,
    MLflow's store. Meanwhile MLflow neither logs fits by itself nor sends telemetry.
    """
    environment = dict(os.environ)  # before the imports, of which one sets a variable
    import distributed  # noqa: F401 - it sets its loggers up as it is imported

    from tipcast.tracking import disable_telemetry
    from tipcast.tracking.store import forget_store, without_autologging

    disable_telemetry()
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    before = [(logger, logger.level, logger.propagate, list(logger.handlers)) for logger in loggers]
    try:
        with warnings.catch_warnings(), without_autologging():
            yield
    finally:
        forget_store()
        # never all of them: other threads read it meanwhile
        for name in set(os.environ) - set(environment):
            del os.environ[name]
        os.environ.update(environment)
        for logger, level, propagate, handlers in before:
            logger.setLevel(level)
            logger.propagate, logger.handlers[:] = propagate, handlers
