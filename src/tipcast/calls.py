"""A call of a job from Python, which leaves the process as it was.

A call takes DataFrames beside what a command line has, and returns a `Result`.
"""

import contextlib
import logging
import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tipcast.commands import ComposedJob, compose_jobs
from tipcast.compute.forkserver import waiting
from tipcast.config.errors import TipcastError, incompatible, must_be
from tipcast.config.jobs import find_job

STAND_INS = {"train": "FRAME", "test": "TEST_FRAME"}
"""Side -> word that a command has in place of the file of a DataFrame."""
_ONE_AT_A_TIME = threading.RLock()
"""Held while a job runs: MLflow's current store and the environment belong to the process, so that
the jobs of several threads run in turn.
"""


@dataclass(frozen=True)
class Result:
    """What a job has done. An attribute is None if the job has no such thing.

    Attributes
    ----------
    run_id : str or None
        Id of the MLflow run that records the job.
    experiment_id : str or None
        Id of the run's experiment.
    metrics : mapping of str to float
        Headline metrics, such as ``test/auc``. Empty for a job that measures nothing.
    model_uri : str or None
        Model that was logged, registered, promoted or scored with, as ``models:/NAME/VERSION`` or
        ``models:/m-ID``.
    tracking_uri : str or None
        MLflow store that has the run.
    command : str
        Command line that repeats the job. ``FRAME`` and ``TEST_FRAME`` stand for the files of
        DataFrames.
    details : mapping of str to object
        Everything that the command prints with ``print=json``.

    Examples
    --------
    >>> import tipcast
    >>> result = tipcast.train(data={"rows": 2000}, seed=1)
    >>> result.metrics["test/auc"] > 0.5
    True
    >>> result.command
    'tipcast train data.rows=2000 seed=1'
    >>> result.details["metrics"] == result.metrics
    True
    """

    run_id: str | None
    experiment_id: str | None
    metrics: Mapping[str, float]
    model_uri: str | None
    tracking_uri: str | None
    command: str
    details: Mapping[str, Any] = field(repr=False)

    def load(self) -> Any:
        """Load the model as an MLflow pyfunc.

        Returns
        -------
        mlflow.pyfunc.PyFuncModel
            Its ``predict`` takes a DataFrame of raw rows, as the training files have them, and
            returns one prediction for each row.

        Raises
        ------
        TipcastError
            With code M001 if the job has no model, and with M003 if a file of the model is not the
            one that was logged.

        Examples
        --------
        >>> import pandas as pd
        >>> import tipcast
        >>> frame = pd.DataFrame({"x": range(200), "y": range(0, 400, 2)})
        >>> result = tipcast.train(data=frame, target="y", model="linear")
        >>> model = result.load()
        >>> len(model.predict(pd.DataFrame({"x": [10, 20, 30]})))
        3
        """
        if self.model_uri is None:
            raise TipcastError(
                "M001", "model_uri", "this job has no model", "load the model of a training run"
            )
        with _one_job_at_a_time():
            from tipcast.tracking.store import load_model

            return load_model(self.model_uri, self.tracking_uri)


def call(
    name: str,
    overrides: Sequence[str],
    settings: Mapping[str, object],
    target: str | None = None,
    test: object = None,
) -> Result:
    """Run a job. DataFrames are written as Parquet files, which are removed when it has ended.

    Raises C003 and C005 for arguments that cannot be used, C008 for an unknown job, and what the
    job raises.
    """
    find_job(name)
    _check_overrides(overrides)
    frames = _frames_of(settings.get("data"), target, test)
    keys = dict(settings)
    if target is not None:
        keys = _with_target(settings, target)

    from tipcast.config.disk import temporary_folder

    with _one_job_at_a_time(), temporary_folder() as folder:
        # Set before any OpenMP library is loaded; workers inherit it.
        os.environ.update(waiting())

        composed = _compose(name, keys, overrides, _write(frames, folder))
        details = composed.run()
        return _result(composed, details)


def _check_overrides(overrides: Sequence[str]) -> None:
    """Refuse flags; C005."""
    if flags := [word for word in overrides if word.startswith("-")]:
        raise TipcastError(
            "C005",
            flags[0],
            "is a flag of the command line",
            "pass keys and values, such as 'seed=1'",
        )


def _frames_of(data: object, target: str | None, test: object) -> Mapping[str, object]:
    """Return the DataFrames by side, ``train`` and ``test``; none if ``data`` is not a DataFrame.

    Raises C003 for other types, and for a target or test rows without a DataFrame.
    """
    from tipcast.datasets.dataframe import is_dataframe

    has_frame = is_dataframe(data)
    if data is not None and not has_frame and not isinstance(data, str | Mapping):
        raise _not_a_frame("data", data)
    if test is not None and not is_dataframe(test):
        raise _not_a_frame("test", test)

    if has_frame and test is not None:
        return {"train": data, "test": test}
    if has_frame:
        return {"train": data}
    if target is not None or test is not None:
        raise TipcastError(
            "C003",
            "target",
            "can only be used with a DataFrame",
            "pass data=FRAME, or task={'target': ...}",
        )
    return {}


def _not_a_frame(key: str, value: object) -> TipcastError:
    """Return the C003 error of an argument that must be a DataFrame."""
    rule = "a pandas, cuDF or Dask DataFrame"
    return must_be(key, rule, type(value).__name__, "convert it to one")


def _with_target(settings: Mapping[str, object], target: str) -> dict[str, object]:
    """Return the settings with the target column in their task; C003 if that is another task."""
    task = settings.get("task", {})
    if not isinstance(task, Mapping) or task.get("name", "target") != "target":
        raise incompatible("task", "target")
    return {**settings, "task": {**task, "name": "target", "target": target}}


def _write(frames: Mapping[str, object], folder: Path) -> dict[str, str]:
    """Write the DataFrames into a folder; return the files by side."""
    from tipcast.datasets.dataframe import write_dataframe

    return {
        side: write_dataframe(frame, folder / f"{side}.parquet", side)
        for side, frame in frames.items()
    }


def _compose(
    name: str, settings: dict[str, object], overrides: Sequence[str], files: Mapping[str, str]
) -> ComposedJob:
    """Compose the one job of settings and overrides, with the files of DataFrames as its data.

    Raises C003 if there are such files, and workers on other machines.
    """
    from tipcast.config import arguments
    from tipcast.config.schema import Output

    folder = settings.pop("config_dir", None)
    if files:
        settings["data"] = {"source": "table", **files}

    words = [*arguments.overrides_of_settings(settings), *overrides]
    if folder:
        words.insert(0, f"--config-dir={folder}")
    (composed,) = compose_jobs(name, words)
    composed.config.print = Output.none
    if files:
        _check_workers_are_here(composed)

    stand_ins = {f"data.{side}": f"data.{side}={STAND_INS[side]}" for side in files}
    recorded_words = [
        stand_ins.get(arguments.key_of(word), word)
        for word in arguments.command_words(composed.command)
    ]
    return replace(composed, command=arguments.with_words(composed.command, recorded_words))


def _check_workers_are_here(composed: ComposedJob) -> None:
    """Refuse workers that may be on other machines, where files of this process are not; C003."""
    kind = composed.config.cluster.kind
    if not kind.startswith("local"):
        what = f"the workers of cluster={kind} cannot reach a DataFrame of this process"
        fix = "write it to files that they can read, and pass the paths"
        raise TipcastError("C003", "data", what, fix)


def _result(composed: ComposedJob, details: Mapping[str, Any]) -> Result:
    """Return the details of a job that has ended as a result."""
    from tipcast.tracking.store import resolve

    tracking_uri = None
    if hasattr(composed.config, "tracking"):
        tracking_uri = resolve(composed.config.tracking)
    if file := details.get("offline"):
        tracking_uri = f"sqlite:///{file}"

    return Result(
        run_id=details.get("run_id"),
        experiment_id=details.get("experiment_id"),
        metrics=details.get("metrics") or {},
        model_uri=details.get("model_uri"),
        tracking_uri=tracking_uri,
        command=composed.command,
        details=details,
    )


@contextlib.contextmanager
def _one_job_at_a_time() -> Iterator[None]:
    """Wait for the jobs of other threads, and leave the process as it was.

    The environment, the filters of warnings, levels and handlers of loggers, and MLflow's store are
    put back. Meanwhile MLflow neither logs fits by itself nor sends telemetry.
    """
    with _ONE_AT_A_TIME, _unchanged_process():
        yield


@contextlib.contextmanager
def _unchanged_process() -> Iterator[None]:
    """Put the process's settings back at the end of the block."""
    environment = dict(os.environ)  # before the imports: one of them sets a variable
    import distributed  # noqa: F401 - importing it sets up its loggers

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
        # The environment is never empty: other threads read it meanwhile.
        for name in set(os.environ) - set(environment):
            del os.environ[name]
        os.environ.update(environment)
        for logger, level, propagate, handlers in before:
            logger.setLevel(level)
            logger.propagate = propagate
            logger.handlers[:] = handlers
