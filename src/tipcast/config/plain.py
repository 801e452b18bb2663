"""A configuration as plain values, for a run's artifact and parameters, and read back: data that
the schemas check.
"""

import contextlib
import dataclasses
import enum
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tipcast.config import data_schema, environment, schema
from tipcast.config.arguments import SECRET
from tipcast.config.conf_files import options
from tipcast.config.errors import TipcastError
from tipcast.config.schema import OF_MACHINE

ConfigT = TypeVar("ConfigT", bound=schema.TrainConfig)

HIDDEN = "***"
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://(?:\[[0-9a-f:.]+\])?[^\s'\",\]]*", re.IGNORECASE)
"""An address in a text."""
LOGIN = re.compile(
    r"(?<=[a-z0-9+.-]://)"
    r"(?:[^\s/@:?#\"]{1,256}"
    r"|[^\s/@:\"]{0,256}:(?!\d{1,5}[/?#,;])[^\s@\"]{0,256}(?:@[^\s/@\"]{0,256}){0,4})@",
    re.IGNORECASE,
)
"""Name and password in an address, whatever signs they have, up to a length that keeps the search
linear.
"""
NAMED = ("files", "table")  # sources whose files are named
TRAINED = ("data", "task", "model", "seed")  # the parts of a configuration that decide a fit


def to_plain(value: Any, hidden: bool = False, path: str = "") -> Any:
    """Return dataclasses, enums and sequences as dicts, strings and lists, with secrets hidden.

    A value that came from the environment is returned as the expression that read it. ``path`` is
    the value's key. ``hidden`` hides all texts.
    """
    if isinstance(value, enum.Enum):
        return value.value

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}

    if isinstance(value, Mapping):
        return {
            str(name): _plain_item(str(name), item, hidden, path) for name, item in value.items()
        }

    if isinstance(value, list | tuple):
        return [to_plain(item, hidden, f"{path}[{at}]") for at, item in enumerate(value)]
    if isinstance(value, str) and value and hidden:
        return HIDDEN

    expression = environment.expression(path, value)
    if expression is not None:
        return without_login(expression)
    if isinstance(value, str):
        return redact(value)
    return value


def _plain_item(name: str, item: object, hidden: bool, path: str) -> Any:
    """Return an item of the mapping at ``path`` as plain values; a secret by its name is hidden."""
    if SECRET.search(name) and item:
        return HIDDEN

    # All texts below storage_options: each file system names its secrets in its own way.
    below_hidden = hidden or name == "storage_options"
    return to_plain(item, below_hidden, environment.key_below(path, name))


def redact(text: str) -> str:
    """Return a text without the user information and query of its addresses.

    Values of the environment are replaced by the expressions that read them.
    """
    safe_text = without_login(environment.concealed(text))
    return ADDRESS.sub(lambda match: redact_address(match[0]), safe_text)


def without_login(text: str) -> str:
    """Return a text without the user information of its addresses."""
    return LOGIN.sub("", text)


def redact_address(uri: str) -> str:
    """Return an address without user information and query, and without the fragment of http.

    A path is returned as it is.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return uri

    try:
        parts = urlsplit(uri)
        _ = parts.port
        rest = parts.netloc.rpartition("@")[2] + rest[len(parts.netloc) :]
    except ValueError:  # a password with an unquoted "/", "#" or "?" ends the host's part early
        _, at, host_and_path = rest.rpartition("@")
        rest = "..."
        if at:
            rest = host_and_path

    query = r"\?(?=.*=)"  # a glob's question mark begins no query
    if scheme.lower() in {"http", "https"}:
        query = r"[?#]"
    return f"{scheme}://{re.split(query, rest, maxsplit=1)[0]}"


def flatten(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one with dotted keys; empty ones and nulls are left out."""
    flat: dict[str, Any] = {}
    for name, value in plain.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        elif value is not None:
            flat[f"{prefix}{name}"] = value
    return flat


def restored(text: str, current: ConfigT, where: str) -> ConfigT:
    """Return the training or sweep of a run's ``config.yaml``, to go on with.

    Its data, task, model, search and seed are the run's. Backend, cluster, tracking and output are
    those of ``current``, the configuration of this command, and so is the way in which the machine
    reaches the data. A value of the environment is read again if ``current`` has its key with the
    same expression. ``where`` names the run. Raises S003 if the text is not what such a job writes.
    """
    parts = [*TRAINED]
    if isinstance(current, schema.SweepConfig):
        parts.append("search")
    fix = "repeat the arguments that read the environment, or leave resume out"

    with _read(text, [*parts, "tracking"], where, "S003", fix, current) as plain:
        register = current.tracking.register or plain["tracking"]["register"]
        tracking = dataclasses.replace(current.tracking, register=register)
        typed = _typed(plain, parts, current.data)
        return dataclasses.replace(current, **typed, tracking=tracking)


def tested(text: str, current: data_schema.DataSpec, where: str) -> data_schema.DataSpec:
    """Return the source that a training run read, by its ``config.yaml``.

    The test period is that of ``current``, the data of this command, if it has one. ``where`` names
    the run. Raises M023 if the text is not what a training writes.
    """
    fix = "name its test rows: data=... data.test=..."
    with _read(text, ("data",), where, "M023", fix) as plain:
        source: data_schema.DataSpec = _typed(plain, ("data",))["data"]
        return dataclasses.replace(source, test=current.test or source.test)


def recorded(
    text: str, best: str, where: str, files: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return how a run was trained, as plain values of its data, task, model and seed.

    ``text`` is its ``config.yaml``, ``best`` the best parameters of a sweep as JSON, and ``files``
    its ``data/files.yaml``: the files of ``train`` and ``test`` that were read, in place of their
    patterns. Raises M023 if the artifacts are not what a training writes.
    """
    fix = "use tipcast train, and name the data, task and model"
    with _read(text, TRAINED, where, "M023", fix) as plain:
        params = json.loads(best)
        data = plain["data"]
        uris = files or {}
        _refuse_active([dict(params), dict(uris)])

        if data["source"] in NAMED:
            data |= {side: list(map(str, uris[side])) for side in uris if data[side] is not None}
        plain["model"]["params"] |= params
        values: dict[str, Any] = to_plain(_typed(plain, TRAINED))
        return values


@contextlib.contextmanager
def _read(
    text: str,
    parts: Collection[str],
    where: str,
    code: str,
    fix: str,
    current: schema.TrainConfig | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield parts of a run's ``config.yaml``.

    Errors of the text, and those of the block, become one error with a code and a fix.
    """
    try:
        whole = yaml.safe_load(text)
        plain = {name: whole[name] for name in parts}
        if current is not None:
            plain = _read_again(plain, dataclasses.asdict(current))
        _refuse_active(plain)

        yield plain
    except (
        TipcastError,
        OmegaConfBaseException,
        yaml.YAMLError,
        LookupError,
        TypeError,
        ValueError,
    ) as problem:
        why = str(problem).partition("\n")[0]
        if isinstance(problem, TipcastError):
            why = problem.what
        what = f"its config.yaml cannot be used: {why}"
        raise TipcastError(code, where, what, fix) from problem


def _read_again(recorded: Any, current: object, path: str = "") -> Any:
    """Return recorded values, but those of the environment as ``current`` has read them.

    A value is read again if both have the same expression at the same key, which is ``path``.
    """
    if isinstance(recorded, dict):
        values: dict[str, object] = {}
        if isinstance(current, dict):
            values = current
        return {
            name: _read_again(item, values.get(name), environment.key_below(path, name))
            for name, item in recorded.items()
        }

    if isinstance(recorded, list):
        items: list[object] = [None] * len(recorded)
        if isinstance(current, list) and len(current) == len(recorded):
            items = current
        pairs = enumerate(zip(recorded, items, strict=True))
        return [_read_again(old_item, item, f"{path}[{at}]") for at, (old_item, item) in pairs]

    if isinstance(recorded, str) and environment.expression(path, current) == recorded:
        return current
    return recorded


def _typed(
    plain: Mapping[str, Any], parts: Sequence[str], current: data_schema.DataSpec | None = None
) -> dict[str, Any]:
    """Return parts of a configuration as their schemas check them.

    How this machine reaches the data is as ``current`` has it, else as conf/ has it, never as the
    run had it.
    """
    typed: dict[str, Any] = {}
    if "seed" in parts:
        typed["seed"] = int(plain["seed"])

    for name in (part for part in parts if part != "seed"):
        kind = schema.GROUPS.get(name, data_schema.OwnData)
        values = plain[name]
        if name == "data" and values["source"] in data_schema.SOURCES:
            kind = data_schema.SOURCES[values["source"]]
            values = values | _access(values["source"], current)

        merged = OmegaConf.merge(OmegaConf.structured(kind), OmegaConf.create(dict(values)))
        typed[name] = OmegaConf.to_object(merged)

    return typed


def _access(source: str, current: data_schema.DataSpec | None) -> dict[str, Any]:
    """Return the keys of a source that say how this machine reaches the data; see ``_typed``."""
    shipped = options("data")[source]
    defaults = yaml.safe_load(shipped.read_text("utf-8"))
    return {key: getattr(current, key, defaults[key]) for key in OF_MACHINE if key in defaults}


def _refuse_active(value: object) -> None:
    """Raise ValueError for a text that OmegaConf or Hydra would act upon, or that was hidden."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if name != "storage_options":
                _refuse_active(str(name))
                _refuse_active(item)
    elif isinstance(value, list):
        for item in value:
            _refuse_active(item)
    elif isinstance(value, str) and _is_active(value):
        raise ValueError(f"it contains {value!r}")


def _is_active(text: str) -> bool:
    is_directive = text.startswith("_") and text.endswith("_")
    return is_directive or text == HIDDEN or "${" in text
