"""What a configuration reads of the environment: recorded as the expression, and refused in values
of `mlflow run`.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
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
"""Characters from which on a variable's value is looked for in longer texts too."""
NUMBER = re.compile(r"[-+.\deE]+")
HARMLESS = re.compile(
    r"(ARROW|GOMP|KMP|LIBCUDF|MALLOC|MKL|NCCL|NUMEXPR|OMP|OPENBLAS|RAPIDS|UCX)_[A-Z0-9_]+"
)
"""Variables that tune libraries, which `mlflow run` may set for workers."""
LOADING = re.compile(
    r"COMMAND|CONF|DEST|DIR|ERROR|FILE|LIB(RAR|S?$|S?_)|MAIL|MODULE|NCCL_NET$|PATH|PLUGIN|TOOL|TRACE|TUNER"
)
"""Parts of such names whose values name files, commands or code."""

_read: dict[str, str] = {}
"""Value of a variable that a configuration has read -> the expression that reads it."""
_written: dict[tuple[str, str], str] = {}
"""Key of a configuration and its value, as text -> the expression that it was made of."""
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

    Raises C006 for values of `mlflow run`, see ``launched``.
    """
    if name.startswith(OURS):
        return os.environ.get(name, *default) if default else os.environ[name]

    if launched():
        fix = "write the value, or run tipcast itself"
        raise TipcastError(
            "C006",
            f"${{oc.env:{name}}}",
            "values of `mlflow run` may not read the environment",
            fix,
        )

    if name not in os.environ and default:
        return None if default[0] is None else str(default[0])
    if name not in os.environ:
        raise KeyError(f"Environment variable '{name}' not found")

    _reads[0] += 1
    value = os.environ[name]
    if value:
        _read[value] = f"${{oc.env:{name}}}"

    return value


def note(config: DictConfig) -> None:
    """Note which values of a configuration that is not resolved yet come of the environment."""
    for key, expression in _leaves(OmegaConf.to_container(config, resolve=False)):
        if isinstance(expression, str) and "${" in expression:
            before = _reads[0]
            value = OmegaConf.select(config, key)
            if _reads[0] > before and not isinstance(value, DictConfig | ListConfig):
                _written[key, str(value)] = expression


def _leaves(tree: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Give each value of nested mappings and lists with its key, as OmegaConf selects it."""
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(tree, Mapping):
        items = tree.items()
    elif isinstance(tree, list):
        items = enumerate(tree)
    else:
        yield above, tree
    for name, item in items:
        yield from _leaves(item, f"{above}[{name}]" if above else str(name))


def expression(path: str, value: object) -> str | None:
    """Return what a key's value was made of, if that is the environment."""
    return _written.get((path, str(value)))


def concealed(text: str) -> str:
    """Return a text with expressions in place of the values that were read of the environment.

    Values are found as they are, as JSON and as addresses write them. A number is left, or other
    numbers would change.
    """
    # Longest first: one value may begin with another.
    for value in sorted(_read, key=len, reverse=True):
        if len(value) < SHORT or NUMBER.fullmatch(value):
            continue
        for form in dict.fromkeys((value, json.dumps(value)[1:-1], quote(value, safe=""))):
            text = text.replace(form, _read[value])
    return text


def check_variables(variables: Mapping[str, Any]) -> None:
    """Refuse variables of workers that may choose code, if `mlflow run` has set them.

    Raises C006.
    """
    for name in variables if launched() else ():
        if not HARMLESS.fullmatch(name) or LOADING.search(name):
            fix = "leave it out, or run tipcast itself"
            what = "values of `mlflow run` may not set it: such variables choose what code runs"
            raise TipcastError("C006", f"cluster.environment.{name}", what, fix)
