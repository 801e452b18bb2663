"""Compose a job's configuration with Hydra, and tell what is wrong with it in one line."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import MISSING, DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from tipcast.config import conf_files, job_schemas, mistakes
from tipcast.config.disk import temporary_folder
from tipcast.config.errors import TipcastError

QUIET = {
    "hydra.run.dir": ".",
    "hydra.output_subdir": "null",
    "hydra.help.app_name": "tipcast",
    "hydra.help.footer": "'Flags, before or after the job: -v logs more, -q warnings and errors only'",
    "hydra/job_logging": "none",
    "hydra/hydra_logging": "none",
}
"""Hydra writes nothing into the working directory."""


FOLDER = "--config-dir="


@dataclass(frozen=True)
class Composed:
    """A configuration and the overrides that made it."""

    config: DictConfig
    overrides: list[str]


def compose(job: str, overrides: Sequence[str]) -> list[Composed]:
    """Run Hydra's command line for a job, a file of conf/, with overrides of ``arguments.to_overrides``.

    Returns
    -------
    list of Composed
        One resolved configuration, several with ``--multirun``, none where a flag only printed something.

    Raises
    ------
    TipcastError
        C001 unknown key, C002 unknown option of a group, C003 wrong type or value, C004 missing value, C005 syntax,
        C012 a file of conf/ that cannot be read, C021 a folder of Hydra's that cannot be written.

    """
    job_schemas.register()
    flags = [item for item in overrides if not _is_override(item)]
    if named := [item for item in flags if item.startswith(FOLDER)]:
        os.environ[conf_files.OWN] = str(Path(named[-1].removeprefix(FOLDER)).expanduser().absolute())
        flags = [item for item in flags if item not in named]
        overrides = [item for item in overrides if item not in named]
    try:
        plain = None if flags else _plain(job, overrides)
        return [plain] if plain else _by_command_line(job, flags, overrides)
    except (HydraException, OmegaConfBaseException) as problem:
        raise mistakes.explain(job, overrides, problem) from problem
    except SystemExit as problem:  # of Hydra's parser of flags, which has said why
        if type(problem) is not SystemExit:  # a signal's
            raise
        if problem.code:
            what = "Hydra refuses a flag or its value, see above"
            raise TipcastError("C005", "command line", what, f"see tipcast {job} --help") from problem
        return []
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as problem:
        raise conf_files.unreadable(problem) from problem
    except ValueError as problem:  # hydra's own of a group that is no text, or of flags that exclude each other
        if "defaults" in str(problem):
            raise conf_files.unreadable(problem) from problem
        raise TipcastError("C005", "command line", str(problem), f"see tipcast {job} --help") from problem


def _plain(job: str, overrides: Sequence[str]) -> Composed | None:
    """Compose one configuration by Hydra's Compose API, in half the time of its command line.

    It runs no job, so that it gives None where Hydra is asked to do more than that.
    """
    if any(override.lstrip("+~").startswith("hydra") for override in overrides):
        return None
    config = mistakes.composed(job, overrides)
    asked = config.hydra
    _check_own(asked)
    if asked.mode is RunMode.MULTIRUN or asked.callbacks or asked.job.env_set or asked.job.chdir:
        return None
    HydraConfig.instance().set_config(config)  # ${hydra:...}
    with open_dict(config):
        del config["hydra"]
    try:
        OmegaConf.resolve(config)
    finally:
        HydraConfig.instance().cfg = None
    return _done(config, asked)


def _check_own(asked: Any) -> None:
    """Refuse what a file of a user's own sets of Hydra's that could run code."""
    if conf_files.own_dir() is None:
        return
    classes = (asked.launcher._target_, asked.sweeper._target_)
    if asked.callbacks or asked.job.env_set or not all(name.startswith("hydra._internal.") for name in classes):
        what = "a file there sets keys of Hydra's"
        raise TipcastError("C006", "--config-dir", what, "leave what is below hydra alone")


def _by_command_line(job: str, flags: Sequence[str], overrides: Sequence[str]) -> list[Composed]:
    if conf_files.own_dir() is not None and {"-m", "--multirun"} & set(flags):
        # Hydra makes objects of the launcher and sweeper that files name before anything of them can be looked at.
        raise TipcastError("C006", "--multirun", "does not go with --config-dir", "run one configuration after another")
    composed: list[Composed] = []
    unresolved: list[OmegaConfBaseException] = []

    def capture(config: DictConfig) -> None:
        _check_own(HydraConfig.get())
        try:
            OmegaConf.resolve(config)
        except OmegaConfBaseException as problem:  # raised in here, Hydra would print it
            unresolved.append(problem)
        composed.append(_done(config, HydraConfig.get()))

    keys = {override.partition("=")[0] for override in overrides}
    quiet = [f"{key}={value}" for key, value in QUIET.items() if key not in keys]
    words, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    with temporary_folder() as folder:
        if "hydra.sweep.dir" not in keys:
            quiet.append(f"hydra.sweep.dir={folder}")
        given = filter(_is_override, overrides)
        sys.argv = [f"tipcast {job}", *flags, *given, *quiet, *conf_files.search_path()]  # argparse wants flags first
        os.environ["HYDRA_FULL_ERROR"] = "1"  # let Hydra raise instead of printing a traceback and leaving
        try:
            hydra.main(version_base="1.3", config_path=str(conf_files.conf_dir()), config_name=job)(capture)()
        finally:
            sys.argv = words
            del os.environ["HYDRA_FULL_ERROR"]
            if full_error is not None:
                os.environ["HYDRA_FULL_ERROR"] = full_error
            GlobalHydra.instance().clear()
    for problem in unresolved:
        raise problem
    return composed


def _done(config: DictConfig, asked: Any) -> Composed:
    """Return a configuration with the overrides that repeat it, among them a user's own folder."""
    folder = conf_files.own_dir()
    own = [] if folder is None else [f"{FOLDER}{folder}"]
    given: Any = OmegaConf.to_container(asked.overrides.task, resolve=False)
    return Composed(config, [*own, *given])


def to_object(config: DictConfig) -> Any:
    """Return the configuration as its schema's dataclass instance.

    Raises
    ------
    TipcastError
        C004 naming the first key that needs a value, C001 a key that no schema has.

    """
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise TipcastError("C004", missing[0], "needs a value", f"add {missing[0]}=...")
    specification = OmegaConf.to_object(config)
    _refuse_strangers(specification)
    return specification


def _refuse_strangers(specification: Any, prefix: str = "") -> None:
    """Refuse keys that `+key=value` added or `~key` took away: the schemas are closed."""
    names = {field.name for field in dataclasses.fields(specification)}
    for name, value in vars(specification).items():
        if name not in names:
            what = f"unknown key '{prefix}{name}'"
            raise TipcastError("C001", "command line", what, "use the keys that --cfg job shows")
        if value == MISSING:
            raise TipcastError("C004", f"{prefix}{name}", "needs a value", f"add {prefix}{name}=...")
        if dataclasses.is_dataclass(value):
            _refuse_strangers(value, f"{prefix}{name}.")


def _is_override(item: str) -> bool:
    return ("=" in item or item.startswith("~")) and not item.startswith("--")
