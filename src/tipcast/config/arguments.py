"""The ways to Hydra: what a command line, `mlflow run` and Python pass becomes overrides; code is
refused. ``hydra_grammar`` has the quotes that overrides need.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence

from tipcast.config.errors import TipcastError, must_be, needs_value
from tipcast.config.hydra_grammar import (
    COLUMN_MAPPINGS,
    QUOTE,
    literal,
    parsed,
    quoted,
    with_quoted_words,
)

HELP = {"--help", "-h"}
EVERY_MODEL = "model=all"
"""Word of ``--multirun`` for every model that fits the data."""
MULTIRUN = {"-m", "--multirun"}
FLAGS = {
    "-h, --help": "show a job's main keys; after overrides, all keys of their groups",
    "-v, --verbose": "log in detail, including messages from libraries",
    "-q, --quiet": "log warnings and errors only",
    "-m, --multirun": "run each combination of values: tipcast train -m model=xgboost,svc seed=1,2",
    "-cd, --config-dir DIR": "a folder with your own options, such as DIR/task/mine.yaml",
    "-c, --cfg job": "print the composed configuration; run nothing",
    "-sc, --shell-completion": "install=bash prints a completion script, which zsh can use too",
    "-V, --version": "print the version",
}
"""Flags before or after the job."""
SHOW_CONFIG = "--cfg=job"
FLAGS_WITHOUT_VALUE = HELP | MULTIRUN
FLAGS_WITH_VALUE = {"--cfg", "--config-dir"}
LONG_FLAGS = {"-c": "--cfg", "-cd": "--config-dir"}
"""Short form of a flag with a value -> its long form."""
PATH_KEYS = {
    "file",
    "model_uri",
    "resume",
    "repeat",
    "out",
    "output",
    "data.cache",
    "data.url",
    "tracking.uri",
    "tracking.artifact_root",
}
"""Keys of a path, an address or the beginning of a run's id, which Hydra's grammar may read
otherwise or not at all.
"""
PATH_LIST_KEYS = {"input", "data.train", "data.test", "data.months"}
"""Keys whose value is a path or a list of paths."""
REPEAT = "repeat="
"""Beginning of the override that ``from=`` becomes."""
SECRET = re.compile(
    r"(passw|pgpass|secret|token|credential|connection_?string|(access|account|api|private)_?key)",
    re.IGNORECASE,
)

OPTION = {
    "model": "name",
    "task": "name",
    "search": "name",
    "backend": "name",
    "data": "source",
    "cluster": "kind",
}
"""Group of conf/ -> its key that has the name of the option."""
REPLACED_MAPPINGS = {"search.space"}
"""Keys of mappings whose values are replaced rather than merged."""


def to_overrides(arguments: Sequence[str]) -> list[str]:
    """Turn arguments into flags and overrides of Hydra, in their order.

    Arguments are what follows the job's name: ``key=value``, flags, and what `mlflow run -P` makes
    of its pairs: ``--key value``, also ``--overrides 'a=1 b=2'`` and ``--multirun 'a=1,2 b=3'``,
    which stand for several. ``--model xgboost seed=1 out=2019`` becomes ``model=xgboost``,
    ``seed=1`` and ``out='2019'``.

    Raises C005 for an unknown flag or one without its value, C006 for a refused key, and C007 for a
    secret on the command line.
    """
    overrides: list[str] = []
    rest = list(arguments)
    several = bool(MULTIRUN & set(arguments))

    while rest:
        argument = rest.pop(0)
        if argument in FLAGS_WITHOUT_VALUE:
            overrides.append(argument)
            if argument in MULTIRUN:
                rest = _after_multirun(rest)
        elif argument.startswith("-"):
            flags, rest = _with_value(argument, rest)
            overrides += flags
        elif argument.startswith("from="):  # a keyword of Python: no field of a schema can have it
            rest.insert(0, _repeat_override(argument))
        else:
            overrides.append(_with_needed_quotes(argument, several))

    for override in overrides:
        _check(override)

    return overrides


def _after_multirun(rest: list[str]) -> list[str]:
    """Return what follows ``--multirun``, whose value of `mlflow run` is several overrides.

    ``["a=1,2 b=3", "c=4"]`` becomes ``["a=1,2", "b=3", "c=4"]``.
    """
    if rest and " " in rest[0]:
        words = _split_words(rest[0])
        if all("=" in word for word in words):
            return [*words, *rest[1:]]
    return rest


def _with_value(argument: str, rest: list[str]) -> tuple[list[str], list[str]]:
    """Return the flag that an argument is, with its value, and the words that are left.

    ``--key value`` of `mlflow run` is no flag: its override, or those of ``--overrides``, come
    first among the words that are left. ``-c`` with ``["job", "seed=1"]`` becomes
    ``["--cfg=job"], ["seed=1"]``; ``--seed`` with ``["1"]`` becomes ``[], ["seed=1"]``. Raises C005
    for an unknown flag or one without its value.
    """
    name, equals, value = argument.partition("=")
    flag = LONG_FLAGS.get(name, name)
    key = name.lstrip("-+")

    lacks_value = not equals and (not rest or rest[0].startswith("--"))
    if lacks_value or not flag.startswith("--"):
        words = " ".join(FLAGS).split()
        flags = ", ".join(word.rstrip(",") for word in words if word.startswith("--"))
        fix = f"write KEY=VALUE, or one of {flags}"
        raise TipcastError("C005", argument, "unknown flag, or no value for it", fix)

    if not equals:
        value, *rest = rest
    if flag in FLAGS_WITH_VALUE:
        return [f"{flag}={value}"], rest
    if key == "overrides":
        return [], [*_split_words(value), *rest]

    override = f"{key}={value}"
    if key not in PATH_KEYS | PATH_LIST_KEYS and parsed(override) is None:
        override = f"{key}={quoted(value)}"  # a value that came as one word, whatever is in it
    return [], [override, *rest]


def _repeat_override(argument: str) -> str:
    """Return the override that ``from=RUN`` stands for, ``repeat=RUN``; C005 without a run."""
    run = argument.removeprefix("from=")
    if not run:
        raise needs_value("from", "name a run: from=last or from=RUN", "C005")
    return f"{REPEAT}{run}"


def _with_needed_quotes(argument: str, several: bool) -> str:
    """Return ``key=value`` with the quotes that Hydra's grammar asks for; see ``_of_path`` for
    ``several``.

    ``out=2019`` becomes ``out='2019'``, ``task.target=größe`` becomes ``task.target='größe'``,
    ``data.decimal=,`` becomes ``data.decimal=','``; ``seed=1`` stays.
    """
    name, equals, value = argument.partition("=")
    if value == ",":
        return f"{name}={quoted(value)}"
    if equals and name.lstrip("-+") in PATH_KEYS | PATH_LIST_KEYS:
        return _of_path(name, value, several)
    return with_quoted_words(argument)


def with_from(override: str) -> str:
    """Return an override as a user types it: ``repeat='12e4'`` becomes ``from=12e4``, any other
    override stays.
    """
    if not override.startswith(REPEAT):
        return override

    run = override.removeprefix(REPEAT).strip(QUOTE)
    return f"from={run}"


def command_words(command: str) -> list[str]:
    """Return the flags and overrides of a recorded command: of ``tipcast train -q seed=1`` the
    words ``-q`` and ``seed=1``.
    """
    return shlex.split(command)[2:]


def key_of(word: str) -> str:
    """Return the key that an override sets, adds or deletes: ``data.rows`` of ``++data.rows=5``."""
    return word.partition("=")[0].lstrip("+~")


def with_words(command: str, words: Sequence[str]) -> str:
    """Return a recorded command with other flags and overrides: ``tipcast train seed=1`` with
    ``["seed=2"]`` becomes ``tipcast train seed=2``.
    """
    return shlex.join([*shlex.split(command)[:2], *words])


def _split_words(text: str) -> list[str]:
    """Return the words of a text as a shell splits them: ``a=1 'b=2 3'`` becomes ``a=1`` and
    ``b=2 3``; C005 for a quote that is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError as problem:
        fix = "close it, as in overrides=\"seed=1 data.train='a b'\""
        raise TipcastError(
            "C005", "overrides", f"{str(problem).lower()} in what follows it", fix
        ) from problem


def _of_path(key: str, value: str, several: bool) -> str:
    """Return an override of a path, in quotes if Hydra's grammar would not take it as text.

    ``out`` and ``a,b`` become ``out='a,b'``, ``data.train`` and ``2019`` become
    ``data.train='2019'``; a list, as ``[a.csv,b.csv]``, gets no quotes. ``several`` says whether a
    comma separates values to run one after another.
    """
    if _is_plain(key, value, several):
        return f"{key}={value}"
    return f"{key}={quoted(value)}"


def _is_plain(key: str, value: str, several: bool) -> bool:
    """Tell whether Hydra takes a path or a list of paths without quotes: ``a.csv`` and
    ``[a.csv,b.csv]``, but not ``2019`` or ``{a}``.
    """
    override = parsed(f"{key}={value}")
    if override is None:
        # What looks like a list is left to Hydra, which refuses it; the bracket that begins
        # [12]*.csv is a glob's.
        return value.startswith("[") and (value.endswith("]") or "]" not in value)

    if not override.is_sweep_override():
        # A folder may be called 2019.
        return not isinstance(override.value(), bool | int | float | dict)

    if several or "," not in value:
        return True
    return key.lstrip("+") not in PATH_KEYS and not os.path.lexists(value)


def _check(override: str) -> None:
    """Refuse an override without a key, C005; one that could run code, C006; and a secret, C007.

    ``=1``, ``hydra.verbose=true`` and ``tracking.password=x`` are refused.
    """
    key = key_of(override).partition("@")[0]
    value = override.partition("=")[2]
    if not key:
        fix = "write key=value without spaces around the ="
        raise TipcastError("C005", override, "has no key before the =", fix)
    if key == "--cfg" and override != SHOW_CONFIG:
        raise must_be("--cfg", "job", value, "write --cfg job", "C005")

    if re.match(r"hydra\b", key):  # Hydra's keys can name classes or search paths, and so run code
        fix = "leave it out; -v logs in detail"
        raise TipcastError("C006", key, "Hydra's own keys cannot be set", fix)
    if "_target_" in override:
        fix = "choose a model by name, such as model=xgboost"
        raise TipcastError("C006", key, "an override cannot name a class", fix)

    # Secrets would be recorded.
    names_columns = bool({key, key.rpartition(".")[0]} & COLUMN_MAPPINGS)
    if key.startswith("-") or names_columns:
        return
    if SECRET.search(key) or ("{" in value and SECRET.search(value)):
        fix = "set it in the environment, e.g. AWS_SECRET_ACCESS_KEY"
        raise TipcastError("C007", key, "a secret does not belong on the command line", fix)


def overrides_of_settings(settings: Mapping[str, object], prefix: str = "") -> list[str]:
    """Return keywords and nested mappings as overrides of Hydra.

    ``{"seed": 1, "model": {"name": "svc", "params": {"C": 2}}}`` becomes ``seed=1``, ``model=svc``
    and ``model.params.C=2``. ``prefix`` is the key above the settings and ends with a dot.
    """
    overrides: list[str] = []
    for name, value in settings.items():
        key = f"{prefix}{name}"
        is_whole = prefix.removesuffix(".") in REPLACED_MAPPINGS or key in COLUMN_MAPPINGS

        if isinstance(value, Mapping) and not is_whole:
            inner = dict(value)
            if not prefix and (option := inner.pop(OPTION.get(name), None)):
                overrides.append(f"{name}={option}")
            overrides += overrides_of_settings(inner, f"{key}.")
        elif key in OPTION:
            overrides.append(f"{key}={value}")
        else:
            overrides.append(f"{key}={literal(value)}")

    return overrides
