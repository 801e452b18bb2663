"""The ways to Hydra: what a command line, `mlflow run` and Python pass becomes overrides; code is
refused.
"""

import os
import re
import shlex
import unicodedata
from collections.abc import Mapping, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from tipcast.config.errors import TipcastError, must_be, needs_value

HELP = {"--help", "-h"}
MULTIRUN = {"-m", "--multirun"}
FLAGS = {
    "-h, --help": "show a job's main keys; after overrides, all keys of their groups",
    "-v, --verbose": "log in detail, with the messages of libraries",
    "-q, --quiet": "log warnings and errors only",
    "-m, --multirun": "run each combination of values: tipcast train -m model=xgboost,svc seed=1,2",
    "-cd, --config-dir DIR": "a folder with options of your own, as DIR/task/mine.yaml",
    "-c, --cfg job": "show the composed configuration, run nothing",
    "-sc, --shell-completion": "install=bash prints a script for completion, in zsh too",
    "-V, --version": "the version",
}
"""Flags before or after the job."""
SHOW = "--cfg=job"
ALONE = HELP | MULTIRUN  # flags that take no value
VALUED = {"--cfg", "--config-dir"}
SHORT = {"-c": "--cfg", "-cd": "--config-dir"}
PATHS = {
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
LISTS = {"input", "data.train", "data.test", "data.months"}
"""Keys whose value is a path or a list of paths."""
REPEAT = "repeat="  # what `from=` becomes
QUOTE = "'"
QUOTES = "'\""
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
WHOLE = {"search.space"}  # mappings whose values are replaced rather than merged
NAMES = {"columns", "data.columns", "data.types"}  # mappings whose keys the user names
COLUMNS = {"task.target", "task.features", "task.categorical", "data.time", "keep", *NAMES}
"""Keys whose values name columns."""
IN_QUOTES = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\""""
WORD = re.compile(
    IN_QUOTES + r"""|(?P<bare>[^\[\]{}(),:=\\'"]*[^\x00-\x7f\[\]{}(),:=\\'"][^\[\]{}(),:=\\'"]*)"""
)
"""A text in quotes, or a bare word with a sign that Hydra's grammar takes only in quotes."""
SIGNS = re.compile(r"[\\()\[\]{}:=, \t]")
"""Signs to escape in the keys of Hydra's mappings, which take no quotes."""
ESCAPED = r"\\\g<0>"
"""Replacement of such a sign: the sign after a backslash."""
KEY = re.compile(IN_QUOTES + r"""|(?<=[{,])(?P<key>(?:\\.|[^\\{}\[\],:'"])+)(?=:)""")
"""A text in quotes, or a key of a mapping."""
SPELT = re.compile(r"\$u([0-9a-f]+)\$")
"""A sign of a key that ``spelt`` has replaced by its number."""
TO_SPELL = re.compile(r"[^\x00-\x7f]|\$(?=u[0-9a-f]+\$)")
"""A sign of a key that ``spelt`` replaces."""


def to_overrides(arguments: Sequence[str]) -> list[str]:
    """Turn arguments into flags and overrides of Hydra, in their order.

    Arguments are what follows the job's name: ``key=value``, flags, and what `mlflow run -P` makes
    of its pairs: ``--key value``, also ``--overrides 'a=1 b=2'`` and ``--multirun 'a=1,2 b=3'``,
    which stand for several.

    Raises C005 for an unknown flag or one without its value, C006 for a refused key, and C007 for a
    secret on the command line.
    """
    overrides: list[str] = []
    rest = list(arguments)
    several = bool(MULTIRUN & set(arguments))

    while rest:
        argument = rest.pop(0)
        if argument in ALONE:
            overrides.append(argument)
            if argument in MULTIRUN:
                rest = _after_multirun(rest)
        elif argument.startswith("-"):
            flags, rest = _with_value(argument, rest)
            overrides += flags
        elif argument.startswith("from="):  # a keyword of Python: no field of a schema can have it
            rest.insert(0, _repeat(argument))
        else:
            overrides.append(_override(argument, several))

    for override in overrides:
        _check(override)

    return overrides


def _after_multirun(rest: list[str]) -> list[str]:
    """Return what follows ``--multirun``, whose value of `mlflow run` is several overrides."""
    if rest and " " in rest[0]:
        words = _words(rest[0])
        if all("=" in word for word in words):
            return [*words, *rest[1:]]
    return rest


def _with_value(argument: str, rest: list[str]) -> tuple[list[str], list[str]]:
    """Return the flag that an argument is, with its value, and the words that are left.

    ``--key value`` of `mlflow run` is no flag: its override, or those of ``--overrides``, come
    first among the words that are left. Raises C005 for an unknown flag or one without its value.
    """
    name, equals, value = argument.partition("=")
    flag = SHORT.get(name, name)
    key = name.lstrip("-+")

    lacks_value = not equals and (not rest or rest[0].startswith("--"))
    if lacks_value or not flag.startswith("--"):
        words = " ".join(FLAGS).split()
        flags = ", ".join(word.rstrip(",") for word in words if word.startswith("--"))
        fix = f"write KEY=VALUE, or one of {flags}"
        raise TipcastError("C005", argument, "unknown flag, or no value for it", fix)

    if not equals:
        value, *rest = rest
    if flag in VALUED:
        return [f"{flag}={value}"], rest
    if key == "overrides":
        return [], [*_words(value), *rest]

    override = f"{key}={value}"
    if key not in PATHS | LISTS and not _parses(override):
        override = f"{key}={quoted(value)}"  # a value that came as one word, whatever is in it
    return [], [override, *rest]


def _repeat(argument: str) -> str:
    """Return the override that ``from=RUN`` stands for; C005 without a run."""
    run = argument.removeprefix("from=")
    if not run:
        raise needs_value("from", "name a run, as from=last or from=RUN", "C005")
    return f"{REPEAT}{run}"


def _override(argument: str, several: bool) -> str:
    """Return ``key=value`` as Hydra's grammar takes it; see ``_path`` for ``several``."""
    name, equals, value = argument.partition("=")
    if equals and name.lstrip("-+") in PATHS | LISTS:
        return _path(name, value, several)
    return _with_quotes(argument)


def as_typed(override: str) -> str:
    """Return an override as a user types it: with ``from=`` for the run that is repeated."""
    if not override.startswith(REPEAT):
        return override

    run = override.removeprefix(REPEAT).strip(QUOTE)
    return f"from={run}"


def command_words(command: str) -> list[str]:
    """Return the flags and overrides of a recorded command."""
    return shlex.split(command)[2:]


def key_of(word: str) -> str:
    """Return the key that an override sets, adds or deletes."""
    return word.partition("=")[0].lstrip("+~")


def with_words(command: str, words: Sequence[str]) -> str:
    """Return a recorded command with other flags and overrides."""
    return shlex.join([*shlex.split(command)[:2], *words])


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as problem:
        fix = "close it, as in overrides=\"seed=1 data.train='a b'\""
        raise TipcastError(
            "C005", "overrides", f"{str(problem).lower()} in what follows it", fix
        ) from problem


def _parses(override: str) -> bool:
    """Tell whether Hydra's grammar takes an override as it is, but for its keys."""
    try:
        OverridesParser.create().parse_override(spelt(override))
    except HydraException:
        return False
    return True


def spelt(override: str) -> str:
    """Return an override whose keys are ASCII, even the keys that name a user's columns.

    Such a key is größe in ``data.types``. Hydra's grammar takes only ASCII there, even in quotes.
    ``as_spelt`` is the way back.
    """
    key, equals, value = override.partition("=")
    name = key.lstrip("+~")
    if name not in NAMES and not name.startswith(tuple(f"{mapping}." for mapping in NAMES)):
        return override

    def in_ascii(text: str) -> str:
        text = unicodedata.normalize("NFC", text)
        return TO_SPELL.sub(lambda sign: f"$u{ord(sign[0]):x}$", text)

    def key_in_ascii(match: re.Match[str]) -> str:
        if match["key"]:
            return in_ascii(match[0])
        return match[0]  # a text in quotes

    return f"{in_ascii(key)}{equals}{KEY.sub(key_in_ascii, value)}"


def as_spelt(text: str) -> str:
    """Return a text with the signs that ``spelt`` put into ASCII."""
    return SPELT.sub(lambda sign: chr(int(sign[1], 16)), text)


def quoted(value: str) -> str:
    """Return a text in the quotes of Hydra's grammar.

    Backslashes are doubled only before a quote, where they count.
    """
    doubled = re.sub(r"(\\+)(?='|$)", r"\1\1", value)
    escaped = doubled.replace("'", r"\'")
    return f"'{escaped}'"


def _with_quotes(argument: str) -> str:
    """Return an override with quotes around words that are not ASCII, if it needs them.

    Names of columns get one Unicode form, as files' names do.
    """
    key, equals, value = argument.partition("=")
    if key.lstrip("+") in COLUMNS:
        value = unicodedata.normalize("NFC", value)
    argument = f"{key}{equals}{value}"
    if value.isascii() or _parses(argument):
        return argument

    def quote(word: re.Match[str]) -> str:
        text = (word["bare"] or "").strip()
        if not text:
            return word[0]
        return word[0].replace(text, quoted(text))

    key, _, value = spelt(argument).partition("=")  # words that are keys take no quotes
    with_quotes = as_spelt(f"{key}{equals}{WORD.sub(quote, value)}")
    if _parses(with_quotes):
        return with_quotes
    return argument


def _path(key: str, value: str, several: bool) -> str:
    """Return an override of a path, in quotes if Hydra's grammar would not take it as text.

    A list is returned as it is. ``several`` says whether a comma separates values to run one after
    another.
    """
    if _is_plain(key, value, several):
        return f"{key}={value}"
    return f"{key}={quoted(value)}"


def _is_plain(key: str, value: str, several: bool) -> bool:
    """Tell whether Hydra takes a path or a list of paths without quotes."""
    plain = f"{key}={value}"
    if not _parses(plain):
        # What looks like a list is left to Hydra, which refuses it; the bracket that begins
        # [12]*.csv is a glob's.
        return value.startswith("[") and (value.endswith("]") or "]" not in value)

    override = OverridesParser.create().parse_override(plain)
    if not override.is_sweep_override():
        # A folder may be called 2019.
        return not isinstance(override.value(), bool | int | float | dict)

    if several or "," not in value:
        return True
    return key.lstrip("+") not in PATHS and not os.path.lexists(value)


def _check(override: str) -> None:
    """Refuse overrides without a key, those that could run code, and secrets."""
    key = key_of(override).partition("@")[0]
    value = override.partition("=")[2]
    if not key:
        fix = "write key=value without blanks round the ="
        raise TipcastError("C005", override, "has no key before its =", fix)
    if key == "--cfg" and override != SHOW:
        raise must_be("--cfg", "job", value, "write --cfg job", "C005")

    if re.match(r"hydra\b", key):  # Hydra's keys can name classes or search paths, and so run code
        fix = "leave it out; -v logs in detail"
        raise TipcastError("C006", key, "a key of Hydra's own may not be set", fix)
    if "_target_" in override:
        fix = "choose a model by name, as model=xgboost"
        raise TipcastError("C006", key, "an override cannot name a class", fix)

    # Secrets would be recorded.
    names_columns = bool({key, key.rpartition(".")[0]} & NAMES)
    if key.startswith("-") or names_columns:
        return
    if SECRET.search(key) or ("{" in value and SECRET.search(value)):
        fix = "set it in the environment, e.g. AWS_SECRET_ACCESS_KEY"
        raise TipcastError("C007", key, "a secret does not belong on the command line", fix)


def as_overrides(settings: Mapping[str, object], prefix: str = "") -> list[str]:
    """Return keywords and nested mappings as overrides of Hydra.

    ``prefix`` is the key above them and ends with a dot.
    """
    overrides: list[str] = []
    for name, value in settings.items():
        key = f"{prefix}{name}"
        is_whole = prefix.removesuffix(".") in WHOLE or key in NAMES

        if isinstance(value, Mapping) and not is_whole:
            inner = dict(value)
            if not prefix and (option := inner.pop(OPTION.get(name), None)):
                overrides.append(f"{name}={option}")
            overrides += as_overrides(inner, f"{key}.")
        elif key in OPTION:
            overrides.append(f"{key}={value}")
        else:
            overrides.append(f"{key}={_literal(value)}")

    return overrides


def _literal(value: object) -> str:
    """Return a value in the grammar of Hydra's overrides."""
    if value is None:
        return "null"
    if isinstance(value, int | float):
        return str(value).lower()  # true
    if isinstance(value, Mapping):
        items = (
            f"{SIGNS.sub(ESCAPED, str(name))}: {_literal(item)}" for name, item in value.items()
        )
        return f"{{{', '.join(items)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    return quoted(str(value))  # a path as well
