"""Variables of the environment that a configuration reads: recorded as the expression that reads
them, and refused in values of `mlflow run`.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote

from omegaconf import DictConfig, ListConfig, OmegaConf

from tipcast.config.errors import TipcastError

LAUNCHED = "TIPCAST_LAUNCHED"
"""Variable that MLproject's commands set: the values of the command line are data of whoever calls
`mlflow run`.
"""
OURS = "TIPCAST_"
"""Prefix of variables that are settings of tipcast: conf/ reads them, and their values are no
secrets.
"""
SHORT = 6
"""Fewest characters of a variable's value that is searched for in longer texts too."""
NUMBER = re.compile(r"[-+.\deE]+")
"""Values that are not searched for: they may be part of other numbers."""
HARMLESS = re.compile(
    r"(ARROW|GOMP|KMP|LIBCUDF|MALLOC|MKL|NCCL|NUMEXPR|OMP|OPENBLAS|RAPIDS|UCX)_[A-Z0-9_]+"
)
"""Variables that tune libraries, which `mlflow run` may set for workers."""
LOADING = re.compile(
    r"COMMAND|CONF|DEST|DIR|ERROR|FILE|LIB(RAR|S?$|S?_)|MAIL|MODULE"
    r"|NCCL_NET$|PATH|PLUGIN|TOOL|TRACE|TUNER"
)
"""Parts of the names of such variables whose values name files, commands or code."""

_read: dict[str, str] = {}
"""Value of a variable that a configuration has read -> the expression that reads it."""
_written: dict[tuple[str, str], str] = {}
"""Key of a configuration and its value, as text -> the expression that gave the value."""
_reads = [0]
"""How many variables were read."""


def launched() -> bool:
    """Tell whether the command line is `mlflow run`'s."""
    return bool(os.environ.get(LAUNCHED))


def register() -> None:
    """Let OmegaConf read the environment through this module."""
    OmegaConf.register_new_resolver("oc.env", _variable, replace=True)


def _variable(name: str, *default: str | None) -> str | None:
    """Return a variable or the default, as OmegaConf's own resolver does, and note what is read.

    Raises C006 if `mlflow run` has started the process.
    """
    if name.startswith(OURS):
        if default:
            return os.environ.get(name, *default)
        return os.environ[name]

    if launched():
        fix = "write the value, or run tipcast directly"
        raise TipcastError(
            "C006",
            f"${{oc.env:{name}}}",
            "with `mlflow run`, values may not read this variable",
            fix,
        )

    if name not in os.environ:
        if not default:
            raise KeyError(f"Environment variable '{name}' not found")
        return None if default[0] is None else str(default[0])

    _reads[0] += 1
    value = os.environ[name]
    if value:
        _read[value] = f"${{oc.env:{name}}}"

    return value


def note(config: DictConfig) -> None:
    """Note which values of a configuration, not resolved yet, come from the environment."""
    for key, expression in _leaves(OmegaConf.to_container(config, resolve=False)):
        if isinstance(expression, str) and "${" in expression:
            before = _reads[0]
            value = OmegaConf.select(config, key)
            if _reads[0] > before and not isinstance(value, DictConfig | ListConfig):
                _written[key, str(value)] = expression


def _leaves(tree: object, above: str = "") -> Iterator[tuple[str, object]]:
    """Yield each value of nested mappings and lists with its key, as OmegaConf selects it."""
    items: Iterable[tuple[object, object]] = ()
    if isinstance(tree, Mapping):
        items = tree.items()
    elif isinstance(tree, list):
        items = enumerate(tree)
    else:
        yield above, tree

    for name, item in items:
        yield from _leaves(item, key_below(above, str(name)))


def key_below(above: str, name: str) -> str:
    """Return the key of an item in a mapping or list, as OmegaConf selects it.

    ``above`` is the key of the mapping or list, "" for the whole configuration.
    """
    if not above:
        return name
    return f"{above}[{name}]"


def expression(key: str, value: object) -> str | None:
    """Return the expression that a key's value came from, if it read the environment."""
    return _written.get((key, str(value)))


def concealed(text: str) -> str:
    """Return a text with expressions in place of values that were read from the environment.

    Values are found as they are, as JSON writes them and as addresses do. A number is left, or
    other numbers would change.
    """
    # Longest first: one value may begin with another.
    for value in sorted(_read, key=len, reverse=True):
        if len(value) < SHORT or NUMBER.fullmatch(value):
            continue
        for form in dict.fromkeys((value, json.dumps(value)[1:-1], quote(value, safe=""))):
            text = text.replace(form, _read[value])
    return text


def check_variables(variables: Mapping[str, str]) -> None:
    """Refuse variables of workers that may choose code, if `mlflow run` has set them; C006."""
    if not launched():
        return

    for name in variables:
        if not HARMLESS.fullmatch(name) or LOADING.search(name):
            fix = "leave it out, or run tipcast directly"
            what = "with `mlflow run`, this may not be set: it could choose which code runs"
            raise TipcastError("C006", f"cluster.environment.{name}", what, fix)
