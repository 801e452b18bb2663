"""Compose a job's configuration with Hydra, and report mistakes in one line."""

import contextlib
import dataclasses
import functools
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import hydra
import yaml
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import MISSING, DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from tipcast.config import conf_files, data_schema, environment, help, hints, schema
from tipcast.config.arguments import (
    EVERY_MODEL,
    HELP,
    MULTIRUN,
    SHOW_CONFIG,
    key_of,
    with_from,
)
from tipcast.config.bounds import check_bounds
from tipcast.config.errors import TipcastError, needs_value, unknown
from tipcast.config.hydra_grammar import COLUMN_KEYS, decode_keys, encode_keys
from tipcast.config.jobs import JOBS
from tipcast.config.plain import redact
from tipcast.config.streams import show

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FOLDER = "--config-dir="
EVERY_OPTION = {EVERY_MODEL: "model=glob(*)"}
"""Word of ``--multirun`` for every option of a group -> the same in Hydra's grammar."""
QUOTES = (
    """quote the value: 'key=[a, b]' for a list, "key='a, b'" for a string, """
    "or add --multirun to run each value"
)


@dataclass(frozen=True)
class ComposedConfig:
    """A configuration and the overrides that made it."""

    config: DictConfig
    overrides: list[str]


def compose(
    job: str, overrides: Sequence[str], recorded: Mapping[str, Any] | None = None
) -> list[ComposedConfig]:
    """Compose a job from its file in conf/, with flags and overrides of ``to_overrides``.

    With ``recorded``, see ``plain.recorded``, the overrides change what a run has recorded, in
    place of what conf/ has. Returns one resolved configuration, several with ``--multirun``, none
    after a flag that only prints something. It uses Hydra's Compose API: its command line takes
    twice as long, and would make objects of what a file names, such as callbacks or loggers.

    Raises C001 for an unknown key, C002 for an unknown option of a group, C003 for a wrong type or
    value, C005 for wrong syntax, and C012 for a file of conf/ that cannot be read.
    """
    register_schemas()
    flags = {item for item in overrides if item.startswith("-")}
    for flag in overrides:
        if flag.startswith(FOLDER):
            conf_files.use(flag.removeprefix(FOLDER))

    chosen: list[str] = []
    if recorded:
        chosen = _register_recorded(recorded)
    overrides = [*chosen, *(item for item in overrides if item not in flags)]

    page = ""
    composed: list[ComposedConfig] = []
    try:
        if flags & {*HELP, SHOW_CONFIG}:
            page = _page(job, flags, overrides)
        elif flags & MULTIRUN:
            composed = [_resolved(job, words, chosen) for words in _combinations(overrides)]
        else:
            composed = [_resolved(job, overrides, chosen)]
    except (HydraException, OmegaConfBaseException) as problem:
        raise _refused(problem) or _explained(job, overrides, problem) from problem
    # A file cannot be read, or a value is not one that Hydra knows.
    except (yaml.YAMLError, OSError, ValueError) as problem:
        code = "C012" if isinstance(problem, yaml.YAMLError) else "C005"
        raise conf_files.fault() or TipcastError(
            code, f"tipcast {job}", str(problem), "see --help"
        ) from problem

    if page:
        show(page)
    return composed


def _page(job: str, flags: Collection[str], overrides: Sequence[str]) -> str:
    """Return the text of ``--help``, or else the configuration, as ``--cfg job`` asks for."""
    config, choices = _compose_unresolved(job, overrides)
    if HELP & set(flags):
        return help.text(job, config, choices, overrides)
    return _shown(config)


def _resolved(job: str, overrides: Sequence[str], chosen: Sequence[str]) -> ComposedConfig:
    """Compose and resolve one configuration.

    Its overrides are those of the user: with the folder of options, without ``chosen``.
    """
    folder = conf_files.own_dir()
    config, _ = _compose_unresolved(job, overrides)
    environment.note(config)
    OmegaConf.resolve(config)

    words = [word for word in overrides if word not in chosen]
    if folder:
        words.insert(0, f"{FOLDER}{folder}")
    return ComposedConfig(config, words)


@functools.cache
def register_schemas() -> None:
    """Make the schemas known to Hydra under the names that conf/ refers to.

    Open mappings take keys that conf/ does not have.
    """
    environment.register()
    for name, job in JOBS.items():
        _register_schema(f"{name}_schema", job.config)

    groups = schema.GROUPS | schema.CLUSTERS | data_schema.SOURCES
    for name, kind in groups.items():
        _register_schema(name, kind, group="schema")


def _register_schema(name: str, kind: "type[DataclassInstance]", group: str | None = None) -> None:
    """Make one schema known to Hydra, with its open mappings open."""
    node = OmegaConf.structured(kind)
    for field in dataclasses.fields(kind):
        # Without this Hydra takes a new key only after +, which -P cannot pass.
        if str(field.type).startswith("Open"):
            OmegaConf.set_struct(node[field.name], False)

    ConfigStore.instance().store(name=name, node=node, group=group)


def _register_recorded(recorded: Mapping[str, Any]) -> list[str]:
    """Make options of a run's data, task and model, see ``plain.recorded``.

    Returns the overrides that choose them.
    """
    source = recorded["data"]["source"]
    bases = {
        "data": "/schema/dataset@_here_",
        "task": "/schema/task@_here_",
        "model": "/schema/model@_here_",
    }
    if source in conf_files.options("data"):
        bases["data"] = source

    for group, base in bases.items():
        values = {
            name: value for name, value in recorded[group].items() if name not in schema.OF_MACHINE
        }
        ConfigStore.instance().store(
            schema.RECORDED, {"defaults": [base, "_self_"], **values}, group=group
        )

    return [*(f"{group}={schema.RECORDED}" for group in bases), f"seed={recorded['seed']}"]


def _combinations(overrides: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each job of ``--multirun``, as Hydra's own sweeper combines them.

    Raises C002 if they combine to nothing.
    """
    with hydra_of_conf():
        loader = GlobalHydra.instance().config_loader()  # glob(*) asks this loader for options
        parsed = OverridesParser.create(loader).parse_overrides(
            [encode_keys(EVERY_OPTION.get(word, word)) for word in overrides]
        )
        combined: list[list[str]] = BasicSweeper.split_arguments(parsed, None)[0]
    if not combined:
        raise TipcastError(
            "C002", "--multirun", "a glob(*) matches none of tipcast's options", "name the options"
        )
    return [[decode_keys(word) for word in words] for words in combined]


def _compose_unresolved(
    job: str, overrides: Sequence[str]
) -> tuple[DictConfig, Mapping[str, str | None]]:
    """Compose a job without resolving it; return its configuration and the option of each group.

    Hydra's errors pass. Raises C001 for an override of a key that only options of conf/ may set.
    """
    for key in map(key_of, overrides):
        if _tests_only(key):
            fix = f"see tipcast {job} --cfg job for the keys"
            raise TipcastError("C001", f"conf/{job}.yaml", f"unknown key '{key}'", fix)

    with hydra_of_conf():
        words = [encode_keys(word) for word in overrides]
        config = hydra.compose(job, [*words, *conf_files.search_path()], return_hydra_config=True)

    choices: Mapping[str, str | None] = config.hydra.runtime.choices
    with open_dict(config):
        del config["hydra"]

    for key in COLUMN_KEYS:
        _in_one_form(config, key)

    return config, choices


def _tests_only(key: str) -> bool:
    """Tell whether a full key, or a key above it, is one that users neither see nor set."""
    return any(
        key == hidden or key.startswith((f"{hidden}.", f"{hidden}@"))
        for hidden in schema.TESTS_ONLY
    )


def _shown(config: DictConfig) -> str:
    """Return the YAML that `--cfg job` prints of a configuration: what users can set."""
    plain: Any = OmegaConf.to_container(config, enum_to_str=True)  # a schema gives no key away
    for key in schema.TESTS_ONLY:
        group, _, name = key.partition(".")
        plain.get(group, {}).pop(name, None)
    return OmegaConf.to_yaml(OmegaConf.create(plain)).rstrip()


def _in_one_form(config: DictConfig, key: str) -> None:
    """Give names of columns one Unicode form, as files' names get.

    Keys get back the letters that ``encode_keys`` replaced.
    """
    group, _, name = key.rpartition(".")
    parent = config
    if group:
        parent = OmegaConf.select(config, group)
    if parent is None or name not in parent or OmegaConf.is_interpolation(parent, name):
        return

    raw = parent[name]
    if OmegaConf.is_config(raw):
        raw = OmegaConf.to_container(raw, resolve=False)
    normalized = _normalized(raw)
    if normalized != raw:
        OmegaConf.update(config, key, normalized, merge=False, force_add=True)


def _normalized(value: object) -> object:
    """Return a value with all of its texts in one Unicode form; see ``_in_one_form`` for keys."""
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    if isinstance(value, list):
        return [_normalized(item) for item in value]
    if isinstance(value, dict):
        return {_normalized_key(key): _normalized(item) for key, item in value.items()}
    return value


def _normalized_key(key: object) -> object:
    if isinstance(key, str):
        return _normalized(decode_keys(key))
    return key


def hydra_of_conf() -> Any:
    """Return a context in which Hydra knows the folder conf/."""
    GlobalHydra.instance().clear()
    return hydra.initialize_config_dir(str(conf_files.conf_dir()), version_base="1.3")


def to_object(config: DictConfig) -> Any:
    """Return the configuration as its schema's dataclass instance.

    Raises C004 with the first key that needs a value, C001 for a key that no schema has, and C003
    for a number out of its bounds.
    """
    if missing := sorted(OmegaConf.missing_keys(config)):
        raise needs_value(missing[0])
    job_config: Any = OmegaConf.to_object(config)
    _check(job_config)

    cluster = getattr(job_config, "cluster", None)
    environment.check_variables(getattr(cluster, "environment", None) or {})
    return job_config


def _check(section: "DataclassInstance", prefix: str = "") -> None:
    """Refuse keys that `+key=value` added or `~key` took away, and numbers out of bounds.

    ``section`` is a configuration or a group of it, and ``prefix`` its key with a dot. Raises
    C001, C003 and C004.
    """
    fields = {field.name: field for field in dataclasses.fields(section)}
    for name, value in vars(section).items():
        key = f"{prefix}{name}"
        if name not in fields:
            raise unknown("command line", "key", key, [*fields], "C001", prefix)
        if value == MISSING:
            raise needs_value(key)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            _check(value, f"{key}.")
        check_bounds(fields[name], value, key)


def _refused(problem: BaseException) -> TipcastError | None:
    """Return the TipcastError that an error of Hydra or OmegaConf came from, as of a resolver."""
    cause: BaseException | None = problem
    while cause is not None:
        if isinstance(cause, TipcastError):
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


def _explained(
    job: str, overrides: Sequence[str], problem: HydraException | OmegaConfBaseException
) -> TipcastError:
    """Return the error in one line for what Hydra and OmegaConf raise as they compose a job."""
    text = f"{problem}\n{problem.__cause__ or ''}".rstrip()
    ambiguous = re.match(r"Ambiguous value for argument '([^']*)'", text)
    if ambiguous:
        return _no_override(ambiguous[1])
    if isinstance(problem, OverrideParseException):
        return _no_override(str(getattr(problem, "override", "")))

    if isinstance(problem, MissingConfigException):
        # Only the first slash separates: an address or a path has more.
        group, _, option = str(problem.missing_cfg_file).partition("/")
        return hints.unknown_option(job, group, option, sorted(conf_files.options(group)))

    key = job
    if full_key := re.search(r"full_key: (\S+)", text):
        key = full_key[1]

    override = re.search(r"Could not (?:override|delete from config\.) '([^']+)'", text)
    if override:
        key = override[1]
    elif not re.search(r"Key '.*' (?:is )?not in", text):
        what = str(problem.__cause__ or problem).partition("\n")[0]
        fix = f"see tipcast {job} --cfg job for the keys and their types"
        if "is not a ListConfig" in what:
            what = "must be a list"
            fix = f"write {key}=[VALUE], or several values with commas between them"
        return TipcastError("C003", key, what, fix)

    if file := re.search(r"In '([^']+)'", text):
        return _unknown_key_of_file(job, key, file[1])
    return _unknown_key(job, key, overrides)


def _no_override(word: str) -> TipcastError:
    """Return the error for a word that Hydra cannot read."""
    # A secret may stand elsewhere in the word.
    safe = re.sub(r"//[^/\s]*@|\?.*", "...", redact(with_from(decode_keys(word))))
    return TipcastError("C005", safe, "must be key=value with a single value", QUOTES)


def _unknown_key_of_file(job: str, key: str, file: str) -> TipcastError:
    """Return the error for a key of a file in conf/ that the job does not have."""
    # Data bring a task, which only some jobs have.
    if key == "task" and file.startswith("data/"):
        what = f"{file.replace('/', '=')} needs a task, and {job} has none"
        fix = "use data=sample, files or tlc"
        if job == "promote":
            fix = "leave it out: data.test= names other files of the version's own data"
        return TipcastError("C003", "data", what, fix)

    fix = f"{job} has no such key: correct the file, or choose another option"
    unknown_key = TipcastError("C001", f"conf/{file}.yaml", f"unknown key '{key}'", fix)
    return conf_files.fault() or unknown_key


def _unknown_key(job: str, key: str, overrides: Sequence[str]) -> TipcastError:
    """Return the error for a key of the command line that the job does not have.

    It suggests the keys that may be meant.
    """
    near = list[str]()
    # Another mistake may stand beside this one: then there is no hint.
    with contextlib.suppress(HydraException, OmegaConfBaseException):
        groups = (word for word in overrides if conf_files.options(word.split("=")[0]))
        config, choices = _compose_unresolved(job, [word for word in groups if key_of(word) != key])
        near = hints.meant(key, [*choices, *(name for name, *_ in help.keys(config))])

    fix = f"see tipcast {job} --cfg job for the keys"
    if near:
        fix = f"did you mean {' or '.join(near)}?"
    return TipcastError("C001", f"conf/{job}.yaml", f"unknown key '{key}'", fix)
