"""Jobs as functions of Python.

`tipcast.train(model="random_forest", data={"rows": 100_000})` does what `tipcast train
model=random_forest data.rows=100000` does. Each function takes the keys of its command.
"""

import os
from collections.abc import Sequence
from typing import Any

from tipcast.calls import Result, call
from tipcast.config.errors import TipcastError

__all__ = [
    "Result",
    "TipcastError",
    "ladder",
    "prepare",
    "promote",
    "run_job",
    "score",
    "sweep",
    "train",
]


def train(
    *,
    target: str | None = None,
    test: object = None,
    overrides: Sequence[str] = (),
    **settings: Any,
) -> Result:
    """Train a model on one period, test it on a later one, and log both to MLflow.

    Nothing is printed to standard output; progress goes to the logger ``tipcast``. Calls from
    several threads run one after another.

    Parameters
    ----------
    target : str, optional
        Column to predict if ``data`` is a DataFrame. If omitted, ``task`` says what the
        model learns.
    test : DataFrame, optional
        Rows to test on if ``data`` is a DataFrame. By default a random fifth of ``data``.
    overrides : sequence of str, default=()
        Words of the command line, such as ``["model=xgboost", "data.rows=20000"]``.
    **settings
        Groups and keys of conf/train.yaml. The value is the name of an option
        (``model="random_forest"``), a plain value (``seed=1``), or a mapping of values
        (``data={"rows": 100_000}``), which may name its option too (``model={"name":
        "random_forest", "params": {"max_depth": 4}}``). ``data`` may be a DataFrame of pandas, cuDF
        or Dask. ``config_dir`` is a folder with options of your own, such as ``task/mine.yaml``.
        ``repeat`` is the id of a run to train again; on the command line it is ``from=RUN``.

    Returns
    -------
    Result
        Its ``metrics`` are those of the test rows. Its ``model_uri`` is the logged model, or the
        registered version if ``tracking.register`` names a model.

    Raises
    ------
    TipcastError
        With code C001 for an unknown key, C002 for an unknown option and C003 for a value of the
        wrong type or out of its range. With a D-code for data that cannot be used, a K-code for a
        cluster that does not start or loses its workers, a T-code for a store that cannot be
        written, and M010 for a metric that is not finite. docs/errors.md lists all codes.

    Examples
    --------
    >>> import tipcast
    >>> result = tipcast.train(data={"rows": 2000}, tracking={"register": "demo"})
    >>> result.model_uri
    'models:/demo/1'
    >>> result.metrics["test/auc"] > 0.5
    True
    """
    return call("train", overrides, settings, target, test)


def sweep(
    *,
    target: str | None = None,
    test: object = None,
    overrides: Sequence[str] = (),
    **settings: Any,
) -> Result:
    """Search for a model's best parameters in parallel, then train with them.

    Each trial is a child run of the sweep's run in MLflow.

    Parameters
    ----------
    target : str, optional
        Column to predict if ``data`` is a DataFrame.
    test : DataFrame, optional
        Rows to test on if ``data`` is a DataFrame. By default a random fifth of ``data``.
    overrides : sequence of str, default=()
        Words of the command line, such as ``["search=tpe", "search.trials=32"]``.
    **settings
        Groups and keys of conf/sweep.yaml, as for :func:`train`. ``search`` says which search
        proposes trials, how many, and from which space. ``resume`` is the id of a sweep to finish.

    Returns
    -------
    Result
        Of the final training. Its ``details`` have ``best``, the number, score and parameters of
        the best trial, and ``trials``, the number of trials by how they ended.

    Raises
    ------
    TipcastError
        With code S001 if the sweep is done but some trials failed, S004 if no trial ended well, and
        S003 if the run to resume is not a sweep. Otherwise as :func:`train`.

    Examples
    --------
    >>> import tipcast
    >>> space = {"max_depth": {"int": [2, 6]}}
    >>> result = tipcast.sweep(data={"rows": 2000}, search={"trials": 2, "space": space})
    >>> 2 <= result.details["best"]["max_depth"] <= 6
    True
    >>> result.details["trials"]
    {'finished': 2, 'failed': 0, 'all': 2}
    """
    return call("sweep", overrides, settings, target, test)


def ladder(
    *,
    target: str | None = None,
    test: object = None,
    overrides: Sequence[str] = (),
    **settings: Any,
) -> Result:
    """Repeat one training on more and more cores and GPUs, and compare the times.

    Parameters
    ----------
    target : str, optional
        Column to predict if ``data`` is a DataFrame.
    test : DataFrame, optional
        Rows to test on if ``data`` is a DataFrame. By default a random fifth of ``data``.
    overrides : sequence of str, default=()
        Words of the command line, such as ``["cores=[1,8]"]``.
    **settings
        Groups and keys of conf/ladder.yaml, as for :func:`train`. ``cores`` and ``gpus`` are the
        numbers to train on. By default one and all that the machine has.

    Returns
    -------
    Result
        Its ``details`` have ``rungs``, with the times and the speed-up of each, and ``not_run``,
        the reason why others were left out.

    Raises
    ------
    TipcastError
        With code K006 if the machine has fewer GPUs than asked for. Otherwise as :func:`train`.

    Examples
    --------
    >>> import tipcast
    >>> result = tipcast.ladder(data={"rows": 2000}, cores=[1])
    >>> [rung["rung"] for rung in result.details["rungs"]]
    ['1 core']
    """
    return call("ladder", overrides, settings, target, test)


def score(
    model_uri: str,
    input: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    overrides: Sequence[str] = (),
    **settings: Any,
) -> Result:
    """Score files with a logged or registered model, one file of scores for each.

    Files whose scores are up to date are not read again.

    Parameters
    ----------
    model_uri : str
        Model to score with: ``models:/NAME/VERSION``, ``models:/NAME@ALIAS``, ``models:/m-ID`` or
        ``runs:/ID/MODEL-TASK``.
    input : str, path or list of them
        Parquet or CSV files, of tables also Feather and JSON lines: paths, globs, folders, or
        ``s3://`` and ``https://`` addresses.
    output : str or path
        Folder or ``s3://`` prefix for the scores. It must be new, empty or have scores already.
    overrides : sequence of str, default=()
        Words of the command line, such as ``["keep=[]"]``.
    **settings
        Groups and keys of conf/score.yaml, as for :func:`train`. ``keep`` lists the input columns
        to keep beside the scores; by default all.

    Returns
    -------
    Result
        Its ``details`` say how many files and rows were scored.

    Raises
    ------
    TipcastError
        With code C011 if ``output`` holds other files, M001 if the model does not exist, S010 if
        the scoring is done but some files were refused, and T008 if scores cannot be written.
        Otherwise as :func:`train`.

    Examples
    --------
    >>> import tipcast
    >>> months = tipcast.prepare(data={"rows": 2000, "months": "2019-03"}, out="months")
    >>> result = tipcast.score("models:/tipcast/1", "months", "scored", keep=[])
    >>> result.details["rows"] == months.details["rows"]
    True
    """
    keys = {"model_uri": model_uri, "input": input, "output": output, **settings}
    return call("score", overrides, keys)


def promote(model_uri: str, *, overrides: Sequence[str] = (), **settings: Any) -> Result:
    """Give an alias to a registered version that is not worse than the alias's holder.

    Both versions are scored on the same test rows.

    Parameters
    ----------
    model_uri : str
        Version to promote: ``models:/NAME/VERSION`` or ``models:/NAME@ALIAS``.
    overrides : sequence of str, default=()
        Words of the command line, such as ``["margin=0.01"]``.
    **settings
        Groups and keys of conf/promote.yaml, as for :func:`train`. ``alias`` is the alias to move,
        by default ``champion``. ``margin`` is how much worse the version may be, by the headline
        metric. ``force=True`` moves the alias whatever the checks say.

    Returns
    -------
    Result
        Its ``metrics`` are those of the version, its ``model_uri`` the version.

    Raises
    ------
    TipcastError
        With code M020 if a check failed and the alias stays, M021 if the model is not registered,
        and M022 if the alias was moved meanwhile. Otherwise as :func:`train`.

    Examples
    --------
    >>> import tipcast
    >>> result = tipcast.promote("models:/tipcast/1")
    >>> result.model_uri
    'models:/tipcast/1'
    """
    return call("promote", overrides, {"model_uri": model_uri, **settings})


def prepare(*, overrides: Sequence[str] = (), **settings: Any) -> Result:
    """Write a dataset as one Parquet file per month, in row groups that spread over workers.

    Months that are up to date are left alone.

    Parameters
    ----------
    overrides : sequence of str, default=()
        Words of the command line, such as ``["data.months=2019-01..2019-03"]``.
    **settings
        Groups and keys of conf/prepare.yaml, as for :func:`train`. ``data`` must have ``months``,
        and ``out`` is the folder or ``s3://`` prefix for the files.

    Returns
    -------
    Result
        It has no run. Its ``details`` have the number of ``months`` and ``rows``, how many months
        were ``written``, and the names of the ``files``.

    Raises
    ------
    TipcastError
        With code C004 if ``out`` or ``data.months`` is not given, C011 if ``out`` has a file of the
        same name that is not prepared, and D023 if the files cannot be written. Otherwise as
        :func:`train`.

    Examples
    --------
    >>> import tipcast
    >>> result = tipcast.prepare(data={"rows": 2000, "months": "2019-01"}, out="months")
    >>> result.details["months"]
    1
    """
    return call("prepare", overrides, settings)


def run_job(
    name: str,
    /,
    *,
    target: str | None = None,
    test: object = None,
    overrides: Sequence[str] = (),
    **settings: Any,
) -> Result:
    """Run any job of the command line by its name, as ``tipcast NAME`` does.

    Jobs without a function of their own are ``doctor`` and ``inspect``.

    Parameters
    ----------
    name : str
        One of the jobs that ``tipcast --help`` lists.
    target : str, optional
        Column to predict if ``data`` is a DataFrame.
    test : DataFrame, optional
        Rows to test on if ``data`` is a DataFrame.
    overrides : sequence of str, default=()
        Words of the command line.
    **settings
        Groups and keys of conf/NAME.yaml, as for :func:`train`.

    Returns
    -------
    Result
        Its ``details`` are what the command prints with ``print=json``.

    Raises
    ------
    TipcastError
        With code C008 for an unknown job, C005 if ``overrides`` has a flag, and C003 if
        ``data`` or ``test`` is of a type that cannot be used. Otherwise the error that the command
        ends with.

    Examples
    --------
    >>> import pandas as pd
    >>> import tipcast
    >>> houses = pd.DataFrame({"rooms": [2, 3, 4], "town": ["A", "B", "A"], "price": [1, 2, 3]})
    >>> houses.to_csv("houses.csv", index=False)
    >>> result = tipcast.run_job("inspect", data={"train": "houses.csv"})
    >>> [column["column"] for column in result.details["columns"]]
    ['rooms', 'town', 'price']
    """
    return call(name, overrides, settings, target, test)
