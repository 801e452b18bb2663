"""Jobs as functions: `tipcast.train(model="xgboost", data={"rows": 100_000})` does what `tipcast train ...` does."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import shlex
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tipcast.compute.forkserver import waiting
from tipcast.config.errors import TipcastError, failed_to, incompatible, must_be

_ONE_AT_A_TIME = threading.RLock()
"""MLflow's current store and the environment are the process's: jobs that several threads ask for run in turn."""


@dataclass(frozen=True)
class Composed:
    """A job with its checked configuration, ready to run."""

    job: str
    config: Any
    """An instance of the job's schema."""
    command: str
    """What a shell repeats it with."""
    many: Sequence[Composed] = ()
    """The trainings of ``--multirun``, which share one cluster and one run; see ``jobs.multirun.run``."""

    def run(self) -> Mapping[str, Any]:
        """Run the job and return its details."""
        wanted = hasattr(self.config, "cluster") and self.job != "doctor"  # the doctor tells it in its table
        if wanted:
            from tipcast.compute import gpus

            gpus.check(self.config.backend, self.config.cluster)  # before seconds go by loading libraries
        module = importlib.import_module(f"tipcast.jobs.{'multirun' if self.many else self.job}")
        if wanted and self.job != "ladder":  # which has a cluster of its own for each rung
            from tipcast.compute import session

            session.check(self.config.backend, self.config.cluster)
        trainings: Any = [(each.config, each.command) for each in self.many]
        details: Mapping[str, Any] = module.run(trainings or self.config, self.command)
        return details


def compose_jobs(job: str, arguments: Sequence[str]) -> list[Composed]:
    """Compose and check what follows a job's name: one, several with ``--multirun``, none after flags that show."""
    from tipcast.config.arguments import REPEAT, to_overrides
    from tipcast.config.compose import compose

    overrides, recorded = to_overrides(arguments), None
    repeated = [word for word in overrides if word.startswith(REPEAT) and word != f"{REPEAT}null"]
    if repeated and job in ("train", "sweep") and not {"--help", "-h"} & set(overrides):
        from tipcast.jobs.repeat import resolved

        overrides, recorded = resolved(repeated[-1], overrides)
    return [_checked(job, found.config, found.overrides) for found in compose(job, overrides, recorded)]


def _checked(job: str, composed: Any, overrides: Sequence[str]) -> Composed:
    from tipcast.config.arguments import as_given
    from tipcast.config.compose import to_object
    from tipcast.config.plain import redact
    from tipcast.jobs import preflight

    config = to_object(composed)
    preflight(config)
    return Composed(job, config, shlex.join(["tipcast", job, *(redact(as_given(word)) for word in overrides)]))


def joined(found: Sequence[Composed], arguments: Sequence[str]) -> Sequence[Composed]:
    """Return the trainings of ``--multirun`` as one job; other jobs as they are."""
    from tipcast.config.arguments import several
    from tipcast.config.plain import redact

    if not found or found[0].job != "train" or not several(arguments):
        return found
    run = found[0].config.repeat  # its whole id: what is the last one now is another soon
    words = [f"from={run}" if word.startswith(("from=", "repeat=")) else redact(word) for word in arguments]
    return [Composed("train", found[0].config, shlex.join(["tipcast", "train", *words]), found)]


@dataclass(frozen=True)
class Result:
    """What a job has done."""

    run_id: str | None
    """The run in MLflow that records it; None where none was made."""
    experiment_id: str | None
    metrics: Mapping[str, float]
    """The headline metrics, as ``test/auc``."""
    model_uri: str | None
    """The model that was logged, registered, promoted or scored with."""
    tracking_uri: str | None
    """The store that has the run."""
    command: str
    """What repeats the job: in a shell, or, where its data are a DataFrame, in Python."""
    details: Mapping[str, Any] = field(repr=False)
    """All that the command says with ``print=json``."""

    def load(self) -> Any:
        """Load the model as an ``mlflow.pyfunc.PyFuncModel``: its ``predict`` takes raw rows as a pandas DataFrame.

        Raises
        ------
        TipcastError
            M001 there is no model.

        """
        if self.model_uri is None:
            raise TipcastError("M001", "model_uri", "this job has no model", "load the one of a training")
        from tipcast.tracking.store import load_model

        with _ONE_AT_A_TIME, _kept():
            return load_model(self.model_uri, self.tracking_uri)


def train(*, target: str | None = None, test: Any = None, overrides: Sequence[str] = (), **settings: Any) -> Result:
    """Fit a model on one period, test it on a later one, log it, and register it where ``tracking.register`` asks.

    Parameters
    ----------
    target, test
        Where ``data`` is a pandas, cuDF or Dask DataFrame: its column to predict (None: there is none, and ``task``
        says what to do) and the rows to test on (None: a fifth of ``data``, at random).
    overrides
        As on the command line: ``["model=xgboost", "data.rows=20000"]``.
    **settings
        Groups and keys of conf/train.yaml: an option's name (``model="random_forest"``), a value (``seed=1``), or a
        mapping of values (``data={"rows": 100_000}``), which may name its option too
        (``model={"name": "random_forest", "params": {"max_depth": 4}}``). ``config_dir`` is a folder with options of
        one's own, as ``task/mine.yaml``. ``repeat`` is the id of a run that is trained again, ``from`` of the command.

    Returns
    -------
    Result

    Raises
    ------
    TipcastError
        As the command ends with, see docs/errors.md.

    Notes
    -----
    Runs of several threads are made one after another. Nothing is printed to standard output; progress goes to the
    logger ``tipcast``.

    """
    return _call_on("train", target, test, overrides, settings)


@dataclass(frozen=True)
class Swept(Result):
    """What a sweep has done; ``metrics`` are those of the best model, which was fitted again."""

    @property
    def best(self) -> Mapping[str, Any]:
        """The parameters that were found, number and score of their trial."""
        found: Mapping[str, Any] = self.details["best"]
        return found

    @property
    def trials(self) -> Mapping[str, int]:
        """How many are ``finished``, ``failed`` and ``all``, and ``not_tried`` where the time was up."""
        found: Mapping[str, int] = self.details["trials"]
        return found


def sweep(*, target: str | None = None, test: Any = None, overrides: Sequence[str] = (), **settings: Any) -> Swept:
    """Try many parameters in parallel, fit the best again and log it; the rest as of :func:`train`.

    Parameters
    ----------
    target, test, overrides, **settings
        See :func:`train`.

    """
    return Swept(**vars(_call_on("sweep", target, test, overrides, settings)))


def ladder(*, target: str | None = None, test: Any = None, overrides: Sequence[str] = (), **settings: Any) -> Result:
    """Train the same on one core, all cores, one GPU and all GPUs; parameters and errors as of :func:`train`."""
    return _call_on("ladder", target, test, overrides, settings)


def score(model_uri: str, input: Any, output: str, *, overrides: Sequence[str] = (), **settings: Any) -> Result:
    """Score files with a model that is logged or registered; the rest as of :func:`train`.

    Parameters
    ----------
    model_uri
        ``models:/name/3``, ``models:/name@alias``, ``models:/m-...`` or ``runs:/id/MODEL-TASK``.
    input
        A path, a glob, a folder, an address or a list of them.
    output
        Folder or s3:// prefix that gets the scores.
    overrides, **settings
        See :func:`train`.

    """
    return _call("score", overrides, {"model_uri": model_uri, "input": input, "output": output, **settings})


def promote(model_uri: str, *, overrides: Sequence[str] = (), **settings: Any) -> Result:
    """Move an alias, as champion, to a registered version that is not worse than its holder; else as :func:`train`."""
    return _call("promote", overrides, {"model_uri": model_uri, **settings})


def prepare(*, overrides: Sequence[str] = (), **settings: Any) -> Result:
    """Write a dataset as Parquet months that spread over workers; parameters and errors as of :func:`train`."""
    return _call("prepare", overrides, settings)


def _call_on(job: str, target: str | None, test: Any, overrides: Sequence[str], settings: dict[str, Any]) -> Result:
    """Run a job on a DataFrame, which becomes a table of Parquet files as long as the job runs, or as it is."""
    frame = settings.get("data")
    for key, rows in (("data", frame), ("test", test)):
        if not (rows is None or hasattr(rows, "to_parquet") or (key == "data" and isinstance(rows, str | Mapping))):
            raise must_be(key, "a DataFrame of pandas, cuDF or Dask", type(rows).__name__, "make one of it", "C003")
    if not hasattr(frame, "to_parquet"):
        if target is not None or test is not None:
            raise TipcastError("C003", "target", "belongs to a DataFrame", "pass data=FRAME, or task={'target': ...}")
        return _call(job, overrides, settings)
    from tipcast.config.disk import temporary_folder

    with temporary_folder() as folder:
        sides = {"train": frame} | ({} if test is None else {"test": test})
        files = {side: _written(rows, folder / f"{side}.parquet", side) for side, rows in sides.items()}
        if target is not None:
            given = settings.get("task", {})
            if not isinstance(given, Mapping) or given.get("name", "target") != "target":
                raise incompatible("task", "target")
            settings = {**settings, "task": {**given, "name": "target", "target": target}}
        return _call(job, overrides, {**settings, "data": {"source": "table", **files}}, frames=list(sides))


def _written(frame: Any, path: Path, side: str) -> str:
    """Write a DataFrame as Parquet, one of Dask's as a folder of files; intervals and periods become their texts.

    D006 two columns of one name, D008 a name that is no text, a column that Parquet does not hold.
    """
    where, names = f"data ({side})", list(frame.columns)
    if odd := [name for name in names if not isinstance(name, str)]:
        raise must_be(where, "named by texts", repr(odd[0]), "rename the columns: map(str, frame.columns)", "D008")
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise TipcastError("D006", where, f"column {twice[0]!r} is there twice", "drop or rename one of the two")
    dask = hasattr(frame, "npartitions")
    kinds = {name: getattr(getattr(kind, "categories", None), "dtype", kind) for name, kind in frame.dtypes.items()}
    try:
        for name in [name for name, kind in kinds.items() if str(kind).startswith(("interval", "period"))]:
            texts = frame[name].astype(object).map(str, "ignore", **({"meta": (name, "string")} if dask else {}))
            frame = frame.assign(**{name: texts})
        frame.to_parquet(str(path), **{"write_index" if dask else "index": False})
    except OSError:  # as of a full disk
        raise
    except Exception as problem:  # pandas, cuDF and pyarrow have many
        why: object = problem
        if isinstance(problem, OverflowError):  # which names no column
            large = [name for name in names if any(type(item) is int and abs(item) >= 2**63 for item in frame[name])]
            why = f"whole numbers beyond 64 bits in column {large}"
        fix = "turn the column that it names into one type, as by astype(str), or leave it out"
        raise failed_to("written as Parquet", where, why, fix, "D008") from problem
    return str(path)


def _call(job: str, overrides: Sequence[str], settings: Mapping[str, Any], *, frames: Sequence[str] = ()) -> Result:
    """Run a job; of ``frames``, the sides of the data that are DataFrames, the files are gone when it has ended."""
    flags = [word for word in overrides if word.startswith("-")]
    if flags:
        raise TipcastError("C005", flags[0], "is a flag of the command line", "name keys and values, as 'seed=1'")
    from tipcast.config.arguments import as_overrides
    from tipcast.config.schema import Output
    from tipcast.tracking.store import resolve, without_autologging

    with _ONE_AT_A_TIME, _kept(), without_autologging():
        os.environ.update(waiting())  # before any OpenMP library is loaded; inherited by the workers
        given = {name: value for name, value in settings.items() if name != "config_dir"}
        own = [f"--config-dir={settings['config_dir']}"] if "config_dir" in settings else []
        arguments = [*own, *as_overrides(given), *overrides]
        (composed,) = compose_jobs(job, arguments)
        composed.config.print = Output.none
        if frames and not composed.config.cluster.kind.startswith("local"):
            what = f"a DataFrame of this process is not where the workers of cluster={composed.config.cluster.kind} are"
            raise TipcastError("C003", "data", what, "write it where they can read it, and name the files")
        if frames:
            words = shlex.split(composed.command)[2:]
            left_out = ("data=", "data.train=", "data.test=", "--config-dir=")
            call = ["data=frame", *["test=test_frame"][: len(frames) - 1]]
            call += [f"config_dir={str(settings['config_dir'])!r}"] if own else []
            call.append(f"overrides={[word for word in words if not word.startswith(left_out)]}")
            composed = replace(composed, command=f"tipcast.{job}({', '.join(call)})")
        details = dict(composed.run())
        spec = getattr(composed.config, "tracking", None)
        tracking = None if spec is None else resolve(spec)
    return Result(
        run_id=details.get("run_id"),
        experiment_id=details.get("experiment_id"),
        metrics=details["metrics"] if isinstance(details.get("metrics"), Mapping) else {},
        model_uri=details.get("model_uri"),
        tracking_uri=tracking,
        command=composed.command,
        details=details,
    )


@contextlib.contextmanager
def _kept() -> Iterator[None]:
    """Leave the process as it was: environment, warnings' filters, levels and handlers of loggers, MLflow's store."""
    environment = dict(os.environ)
    import distributed  # noqa: F401 - it sets its loggers up as it is imported

    from tipcast.tracking.store import forget_store

    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    known = [(logger, logger.level, logger.propagate, list(logger.handlers)) for logger in loggers]
    try:
        with warnings.catch_warnings():
            yield
    finally:
        forget_store()
        for name in set(os.environ) - set(environment):
            del os.environ[name]
        os.environ.update(environment)
        for logger, level, propagate, handlers in known:
            logger.setLevel(level)
            logger.propagate, logger.handlers[:] = propagate, handlers
