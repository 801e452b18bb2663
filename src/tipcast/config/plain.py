"""A configuration as plain values, for a run's artifact and parameters, and read back: data that
the schemas check.
"""

import contextlib
import dataclasses
import enum
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tipcast.config import environment, schema
from tipcast.config.arguments import SECRET
from tipcast.config.conf_files import options
from tipcast.config.errors import TipcastError
from tipcast.config.schema import OF_MACHINE, SweepConfig

HIDDEN = "***"
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://(?:\[[0-9a-f:.]+\])?[^\s'\",\]]*", re.IGNORECASE)
LOGIN = re.compile(
    r"(?<=[a-z0-9+.-]://)"
    r"(?:[^\s/@:?#\"]{1,256}|[^\s/@:\"]{0,256}:(?!\d{1,5}[/?#,;])[^\s@\"]{0,256}(?:@[^\s/@\"]{0,256}){0,4})@",
    re.IGNORECASE,
)
"""Name and password of an address, whatever signs are in these, up to a length that keeps the
search linear.
"""
NAMED = ("files", "table")  # sources whose files are named
TRAINED = ("data", "task", "model", "seed")  # the parts of a configuration that decide a fit


def to_plain(value: Any, hidden: bool = False, path: str = "") -> Any:
    """Return dataclasses, enums and sequences as dicts, strings and lists, with secrets hidden.

    What a job's configuration has of the environment is the expression that read it; ``path`` is
    the value's key.
    """
    if isinstance(value, enum.Enum):
        return value.value

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}

    if isinstance(value, Mapping):
        return {
            name: HIDDEN
            if SECRET.search(name) and item
            else to_plain(
                item, hidden or name == "storage_options", f"{path}[{name}]" if path else name
            )
            for name, item in ((str(name), item) for name, item in value.items())
        }  # all storage_options: each file system names its secrets in its own way

    if isinstance(value, list | tuple):
        return [to_plain(item, hidden, f"{path}[{at}]") for at, item in enumerate(value)]
    if isinstance(value, str) and value and hidden:
        return HIDDEN

    written = environment.expression(path, value)
    if written is None:
        return redact(value) if isinstance(value, str) else value

    return without_login(written)


def redact(text: str) -> str:
    """Return a text without the user information and query of its addresses.

    Values of the environment are replaced by the expressions that read them.
    """
    return ADDRESS.sub(
        lambda match: redact_address(match[0]), without_login(environment.concealed(text))
    )


def without_login(text: str) -> str:
    """Return text with the user information of every address in it taken out."""
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
        rest = rest.rpartition("@")[2] if "@" in rest else "..."

    # A glob's question mark begins no query.
    ends = r"[?#]" if scheme.lower() in {"http", "https"} else r"\?(?=.*=)"
    return f"{scheme}://{re.split(ends, rest, maxsplit=1)[0]}"


def flatten(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one with dotted keys; empty ones and nulls are left out."""
    flat: dict[str, Any] = {}
    for name, value in plain.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        elif value is not None:
            flat[f"{prefix}{name}"] = value
    return flat


def restored(text: str, given: SweepConfig, where: str) -> SweepConfig:
    """Return the sweep of a run's ``config.yaml``, to go on with.

    Its data, task, model, search and seed are the run's. What the command line gives of backend,
    cluster, tracking and output, and how the machine reaches the data, stays. A value of the
    environment is read again if the command line has its key with the same expression. ``where``
    names the run. Raises S003 if the text is not what a sweep writes.
    """
    parts = (*TRAINED, "search", "tracking")
    fix = "repeat the words that read the environment, or start a new sweep"
    with _read(text, parts, where, "S003", fix, given) as plain:
        register = given.tracking.register or plain["tracking"]["register"]
        tracking = dataclasses.replace(given.tracking, register=register)
        return dataclasses.replace(
            given, **_typed(plain, (*TRAINED, "search"), given.data), tracking=tracking
        )


def tested(text: str, given: schema.DataSpec, where: str) -> schema.DataSpec:
    """Return the source that a training run read, by its ``config.yaml``.

    ``given`` replaces its test period, if it is not None. Raises M023 if the text is not what a
    training writes.
    """
    with _read(
        text, ("data",), where, "M023", "name its test rows: data=... data.test=..."
    ) as plain:
        source: schema.DataSpec = _typed(plain, ("data",))["data"]
        return dataclasses.replace(source, test=given.test or source.test)


def recorded(
    text: str, best: str, where: str, files: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return how a run was trained, as plain values of its data, task, model and seed.

    ``text`` is its ``config.yaml``, ``best`` the parameters that a sweep has found, as JSON,
    ``files`` its ``data/files.yaml``: the files of ``train`` and ``test`` that were read, in place
    of their patterns. Raises M023 if the artifacts are not what a training writes.
    """
    with _read(
        text, TRAINED, where, "M023", "train with tipcast train, and name what it shall be"
    ) as plain:
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
    given: SweepConfig | None = None,
) -> Iterator[dict[str, Any]]:
    """Give parts of a run's ``config.yaml``.

    What is wrong with it, or with other artifacts, becomes one line.
    """
    try:
        whole = yaml.safe_load(text)
        plain = {name: whole[name] for name in parts}
        if given is not None:
            plain = _read_again(plain, dataclasses.asdict(given))
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
        why = problem.what if isinstance(problem, TipcastError) else str(problem).partition("\n")[0]
        raise TipcastError(
            code, where, f"its config.yaml is not what such a job writes: {why}", fix
        ) from problem


def _read_again(recorded: Any, given: Any, path: str = "") -> Any:
    """Return recorded values with those of the environment as ``given`` has read them.

    Key and expression must be the same.
    """
    if isinstance(recorded, dict):
        values = given if isinstance(given, dict) else {}
        items = (
            (name, item, f"{path}[{name}]" if path else name) for name, item in recorded.items()
        )
        return {name: _read_again(item, values.get(name), below) for name, item, below in items}

    if isinstance(recorded, list):
        given_items = (
            given
            if isinstance(given, list) and len(given) == len(recorded)
            else [None] * len(recorded)
        )
        pairs = zip(recorded, given_items, strict=True)
        return [_read_again(item, other, f"{path}[{at}]") for at, (item, other) in enumerate(pairs)]

    if isinstance(recorded, str) and environment.expression(path, given) == recorded:
        return given

    return recorded


def _typed(
    plain: Mapping[str, Any], parts: Sequence[str], given: schema.DataSpec | None = None
) -> dict[str, Any]:
    """Return parts of a configuration as their schemas check them.

    How this machine reaches the data is as ``given`` has it, else as conf/ has it, never as the run
    had it.
    """
    typed: dict[str, Any] = {"seed": int(plain["seed"])} if "seed" in parts else {}
    for name in (part for part in parts if part != "seed"):
        kind = schema.GROUPS.get(name, schema.OwnData)
        values = plain[name]
        if name == "data" and values["source"] in schema.SOURCES:
            kind = schema.SOURCES[values["source"]]
            shipped = options("data")[values["source"]]
            here = yaml.safe_load(shipped.read_text("utf-8"))
            values = values | {
                key: getattr(given, key, here[key]) for key in OF_MACHINE if key in here
            }
        typed[name] = OmegaConf.to_object(
            OmegaConf.merge(OmegaConf.structured(kind), OmegaConf.create(dict(values)))
        )

    return typed


def _refuse_active(value: Any) -> None:
    """Raise ValueError for what OmegaConf or Hydra would act upon.

    Also for values that were hidden.
    """
    if isinstance(value, Mapping):
        value = [
            part
            for name, item in value.items()
            if name != "storage_options"
            for part in (str(name), item)
        ]

    if isinstance(value, list):
        for item in value:
            _refuse_active(item)
    elif isinstance(value, str) and (
        "${" in value or value == HIDDEN or value.startswith("_") and value.endswith("_")
    ):
        raise ValueError(f"it holds {value!r}")
