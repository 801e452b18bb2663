"""Compose a job's configuration with Hydra, complete words of a shell, and tell mistakes in one
line.
"""

import contextlib
import dataclasses
import functools
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import hydra
import yaml
from hydra._internal.core_plugins.bash_completion import BashCompletion
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import MISSING, DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from tipcast.config import conf_files, environment, help, hints, schema
from tipcast.config.arguments import (
    COLUMNS,
    FLAGS,
    HELP,
    MULTIRUN,
    SHOW,
    as_given,
    as_spelt,
    key_of,
    spelt,
)
from tipcast.config.bounds import check_bounds
from tipcast.config.errors import TipcastError, must_be, needs_value, unknown
from tipcast.config.jobs import JOBS
from tipcast.config.plain import redact
from tipcast.config.streams import show

FOLDER = "--config-dir="
QUOTES = (
    """quote the value: 'key=[a, b]' for a list, "key='a, b'" for a text, """
    "or add --multirun to run each"
)


@dataclass(frozen=True)
class ComposedConfig:
    """A configuration and the overrides that made it."""

    config: DictConfig
    overrides: list[str]


def compose(
    job: str, overrides: Sequence[str], recorded: Mapping[str, Any] | None = None
) -> list[ComposedConfig]:
    """Compose a job of its file in conf/, with flags and overrides of ``to_overrides``.

    The overrides change what ``recorded`` of ``plain.recorded`` has, in place of what conf/ has.
    Returns one resolved configuration, several with ``--multirun``, none after a flag that only
    prints something. It uses Hydra's Compose API: its command line takes twice as long, and would
    make objects of what a file names, as of callbacks or logging.

    Raises C001 for an unknown key, C002 for an unknown option of a group, C003 for a wrong type or
    value, C005 for wrong syntax, and C012 for a file of conf/ that cannot be read.
    """
    _register()
    flags = [item for item in overrides if item.startswith("-")]
    for flag in flags:
        if flag.startswith(FOLDER):
            conf_files.use(flag.removeprefix(FOLDER))

    chosen = _register_recorded(recorded) if recorded else []
    overrides = [*chosen, *(item for item in overrides if item not in flags)]
    try:
        if (asked := HELP & set(flags)) or SHOW in flags:
            config, choices = _by_api(job, overrides)
            show(help.text(job, config, choices, overrides) if asked else _shown(config))
            return []

        combinations = _combinations(overrides) if MULTIRUN & set(flags) else [overrides]
        return [_resolved(job, words, chosen) for words in combinations]
    except (HydraException, OmegaConfBaseException) as problem:
        raise _refused(problem) or _explained(job, overrides, problem) from problem
    # A file cannot be read, or a value is not one that Hydra knows.
    except (yaml.YAMLError, OSError, ValueError) as problem:
        code = "C012" if isinstance(problem, yaml.YAMLError) else "C005"
        raise conf_files.fault() or TipcastError(
            code, f"tipcast {job}", str(problem), "see --help"
        ) from problem


def _resolved(job: str, overrides: Sequence[str], chosen: Sequence[str]) -> ComposedConfig:
    """Compose and resolve one configuration.

    Its overrides are those that a user has given: with the folder of options, without ``chosen``.
    """
    folder = conf_files.own_dir()
    config, _ = _by_api(job, overrides)
    environment.note(config)
    OmegaConf.resolve(config)

    flags = [f"{FOLDER}{folder}"] if folder else []
    return ComposedConfig(config, [*flags, *(word for word in overrides if word not in chosen)])


@functools.cache
def _register() -> None:
    """Make the schemas known to Hydra under the names that conf/ refers to.

    Open mappings take keys that conf/ does not have.
    """
    environment.register()
    schemas = {f"{name}_schema": job.config for name, job in JOBS.items()}
    groups = schema.GROUPS | schema.CLUSTERS | schema.SOURCES

    for name, kind in [*schemas.items(), *groups.items()]:
        node = OmegaConf.structured(kind)
        for field in dataclasses.fields(kind):
            # Without this Hydra takes a new key only after +, which -P cannot pass.
            if str(field.type).startswith("Open"):
                OmegaConf.set_struct(node[field.name], False)
        ConfigStore.instance().store(
            name=name, node=node, group=None if name in schemas else "schema"
        )


def _register_recorded(recorded: Mapping[str, Any]) -> list[str]:
    """Make options of what ``plain.recorded`` says of a run.

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
    with _hydra():
        loader = GlobalHydra.instance().config_loader()  # glob(*) asks this loader for options
        parsed = OverridesParser.create(loader).parse_overrides([spelt(word) for word in overrides])
        combined: list[list[str]] = BasicSweeper.split_arguments(parsed, None)[0]
    if not combined:
        raise TipcastError(
            "C002", "--multirun", "a glob(*) matches no option that tipcast has", "name the options"
        )
    return [[as_spelt(word) for word in words] for words in combined]


def _by_api(job: str, overrides: Sequence[str]) -> tuple[DictConfig, Mapping[str, str | None]]:
    """Compose a job without resolving it; return it and the option of each group.

    Hydra's errors pass. Raises C001 for an override of a key that only options of conf/ have.
    """
    for key in map(key_of, overrides):
        if _tests_only(key):
            fix = f"see tipcast {job} --cfg job for the keys"
            raise TipcastError("C001", f"conf/{job}.yaml", f"unknown key '{key}'", fix)

    with _hydra():
        words = [spelt(word) for word in overrides]
        config = hydra.compose(job, [*words, *conf_files.search_path()], return_hydra_config=True)

    choices: Mapping[str, str | None] = config.hydra.runtime.choices
    with open_dict(config):
        del config["hydra"]

    for key in COLUMNS:
        _in_one_form(config, key)

    return config, choices


def _tests_only(key: str) -> bool:
    """Tell whether a full key is one that users neither see nor set, or is below such a key."""
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

    Keys get back the signs that ``spelt`` replaced.
    """
    group, _, name = key.rpartition(".")
    parent = OmegaConf.select(config, group) if group else config
    if parent is None or name not in parent or OmegaConf.is_interpolation(parent, name):
        return

    def plain(value: Any) -> Any:
        if isinstance(value, str):
            return unicodedata.normalize("NFC", value)
        if isinstance(value, list):
            return [plain(item) for item in value]
        if isinstance(value, dict):
            return {
                plain(as_spelt(item)) if isinstance(item, str) else item: plain(value[item])
                for item in value
            }
        return value

    value = parent[name]
    raw = OmegaConf.to_container(value, resolve=False) if OmegaConf.is_config(value) else value
    renamed = plain(raw)
    if renamed != raw:
        OmegaConf.update(config, key, renamed, merge=False, force_add=True)


def _hydra() -> Any:
    """Return a context in which Hydra knows the folder of options."""
    GlobalHydra.instance().clear()
    return hydra.initialize_config_dir(str(conf_files.conf_dir()), version_base="1.3")


def to_object(config: DictConfig) -> Any:
    """Return the configuration as its schema's dataclass instance.

    Raises C004 with the first key that needs a value, C001 for a key that no schema has, and C003
    for a number out of its bounds.
    """
    if missing := sorted(OmegaConf.missing_keys(config)):
        raise needs_value(missing[0])
    specification = OmegaConf.to_object(config)
    _check(specification)
    environment.check_variables(
        getattr(getattr(specification, "cluster", None), "environment", None) or {}
    )
    return specification


def _check(specification: Any, prefix: str = "") -> None:
    """Refuse keys that `+key=value` added or `~key` took away, and numbers out of bounds.

    The schemas are closed. Raises C001, C003 and C004.
    """
    fields = {field.name: field for field in dataclasses.fields(specification)}
    for name, value in vars(specification).items():
        if name not in fields:
            raise unknown("command line", "key", f"{prefix}{name}", [*fields], "C001", prefix)
        if value == MISSING:
            raise needs_value(f"{prefix}{name}")
        if dataclasses.is_dataclass(value):
            _check(value, f"{prefix}{name}.")
        check_bounds(fields[name], value, f"{prefix}{name}")


def _refused(problem: BaseException) -> TipcastError | None:
    """Return the error of ours that one of Hydra's or OmegaConf's came from, as of a resolver."""
    cause: BaseException | None = problem
    while cause is not None:
        if isinstance(cause, TipcastError):
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


def _explained(
    job: str, overrides: Sequence[str], problem: HydraException | OmegaConfBaseException
) -> TipcastError:
    """Return what Hydra and OmegaConf complain of, composing a job with overrides, as one line."""
    text = f"{problem}\n{problem.__cause__ or ''}".rstrip()
    ambiguous = re.match(r"Ambiguous value for argument '([^']*)'", text)
    if ambiguous:
        return _no_override(ambiguous[1])
    if isinstance(problem, OverrideParseException):
        return _no_override(str(getattr(problem, "override", "")))

    if isinstance(problem, MissingConfigException):
        # Only the first slash separates: an address or a path has more.
        group, _, wanted = str(problem.missing_cfg_file).partition("/")
        return hints.unknown_option(job, group, wanted, sorted(conf_files.options(group)))

    place = re.search(r"full_key: (\S+)", text)
    where = place[1] if place else job
    given = re.search(r"Could not (?:override|delete from config\.) '([^']+)'", text)
    if not given and not re.search(r"Key '.*' (?:is )?not in", text):
        what = str(problem.__cause__ or problem).partition("\n")[0]
        fix = f"see tipcast {job} --cfg job for the keys and their types"
        return TipcastError("C003", where, what, fix)

    key = given[1] if given else where
    if file := re.search(r"In '([^']+)'", text):
        return _unknown_key_of_file(job, key, file[1])
    return _unknown_key(job, key, overrides)


def _no_override(word: str) -> TipcastError:
    """Return the error for a word that Hydra cannot read."""
    # A secret may stand elsewhere in the word.
    safe = re.sub(r"//[^/\s]*@|\?.*", "...", redact(as_given(as_spelt(word))))
    return TipcastError("C005", safe, "must be key=value, of one value", QUOTES)


def _unknown_key_of_file(job: str, key: str, file: str) -> TipcastError:
    """Return the error for a key of a file in conf/ that the job does not have."""
    # Only a job with a task has this key.
    if key == "task" and file.startswith("data/"):
        what = f"rows of {file.replace('/', '=')} are for a task, and {job} has none"
        fix = "use data=sample, files or tlc"
        if job == "promote":
            fix = "leave it out: data.test= names other files of the version's own data"
        return TipcastError("C003", "data", what, fix)

    fix = f"{job} has no such key: correct the file, or choose another option"
    unknown_key = TipcastError("C001", f"conf/{file}.yaml", f"unknown key '{key}'", fix)
    return conf_files.fault() or unknown_key


def _unknown_key(job: str, key: str, overrides: Sequence[str]) -> TipcastError:
    """Return the error for a key of the command line that the job does not have, with those that
    may be meant.
    """
    near = list[str]()
    # Another mistake may stand beside this one: then there is no hint.
    with contextlib.suppress(HydraException, OmegaConfBaseException):
        groups = (word for word in overrides if conf_files.options(word.split("=")[0]))
        config, choices = _by_api(job, [word for word in groups if key_of(word) != key])
        near = hints.meant(key, [*choices, *(name for name, *_ in help.keys(config))])

    fix = f"see tipcast {job} --cfg job for the keys"
    if near:
        fix = f"did you mean {' or '.join(near)}?"
    return TipcastError("C001", f"conf/{job}.yaml", f"unknown key '{key}'", fix)


def complete(words: Sequence[str]) -> None:
    """Print what `tipcast -sc install=bash` asks for.

    That is a script or, for query, how the line of COMP_LINE may go on. Raises C005 for other
    words.
    """
    if words == ["query=bash"]:
        show("\n".join(candidates(os.environ.get("COMP_LINE", ""))))
    elif words == ["install=bash"]:
        kind: Any = BashCompletion
        plugin = kind(None)
        plugin._get_exec = lambda: "tipcast"  # Hydra's script names the program that it completes
        plugin.install()
    else:
        fix = "zsh takes the same script, after bashcompinit"
        raise must_be(
            "--shell-completion", "install=bash", " ".join(words) or "nothing", fix, "C005"
        )


def candidates(line: str) -> list[str]:
    """Return what the last word of a command line, which may be empty, can go on as."""
    words = line.split()
    word = words.pop() if words and not line[-1].isspace() else ""
    if not words:  # the program itself
        return []

    job, *given = [
        item for item in words[1:] if item not in {"-v", "-q", "--verbose", "--quiet"}
    ] or [""]
    if word.startswith("-"):
        flags = (flag for names in FLAGS for flag in re.findall(r"(?<!\S)--?[\w-]+", names))
        return sorted(flag for flag in flags if flag.startswith(word))
    if job not in JOBS:
        return [] if job else [name for name in JOBS if name.startswith(word)]

    overrides = [
        item for item in given if "=" in item and not item.startswith("-") or item in MULTIRUN
    ]
    _register()
    try:
        with _hydra():
            plugin = BashCompletion(GlobalHydra.instance().config_loader())
            offered = plugin._query(job, " ".join([*overrides, *conf_files.search_path(), word]))
    # An earlier word is wrong.
    except (HydraException, OmegaConfBaseException, TipcastError, SystemExit):
        return []

    hidden = ["hydra", "schema", *schema.TESTS_ONLY]
    if not any(field.name == "task" for field in dataclasses.fields(JOBS[job].config)):
        for_a_task = conf_files.options("data").keys() - conf_files.options_without_task("data")
        hidden += [f"data={name}" for name in for_a_task]
    return [item for item in offered if not item.lstrip("+~").startswith(tuple(hidden))]
