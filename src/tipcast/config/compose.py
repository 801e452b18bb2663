"""Compose a job's configuration with Hydra, and tell what is wrong with it in one line."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tipcast.config import schema, schema_promote, schema_score, schema_sweep
from tipcast.config.errors import TipcastError
from tipcast.config.location import conf_dir
from tipcast.config.plain import redact

QUIET = {
    "hydra.run.dir": ".",
    "hydra.output_subdir": "null",
    "hydra.help.app_name": "tipcast",
    "hydra/job_logging": "none",
    "hydra/hydra_logging": "none",
}
"""Hydra writes nothing into the working directory."""


@dataclass(frozen=True)
class Composed:
    """A configuration and the overrides that made it."""

    config: DictConfig
    overrides: list[str]


def compose(job: str, overrides: Sequence[str]) -> list[Composed]:
    """Run Hydra's command line for a job.

    Parameters
    ----------
    job
        Name of a file in conf/, without its ending.
    overrides
        Flags and overrides as ``arguments.to_overrides`` returns them.

    Returns
    -------
    list of Composed
        One resolved configuration, several with ``--multirun``, none where a flag only printed something.

    Raises
    ------
    TipcastError
        C001 unknown key, C002 unknown option of a group, C003 wrong type or value, C004 missing value, C005 syntax.

    """
    schema.register()
    schema_sweep.register()
    schema_promote.register()
    schema_score.register()
    composed: list[Composed] = []
    unresolved: list[OmegaConfBaseException] = []

    def capture(config: DictConfig) -> None:
        try:
            OmegaConf.resolve(config)
        except OmegaConfBaseException as problem:  # raised in here, Hydra would print it
            unresolved.append(problem)
        given: Any = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
        composed.append(Composed(config, given))

    keys = {override.partition("=")[0] for override in overrides}
    quiet = [f"{key}={value}" for key, value in QUIET.items() if key not in keys]
    with tempfile.TemporaryDirectory(prefix="tipcast-") as folder, _errors_raised():
        if "hydra.sweep.dir" not in keys:
            quiet.append(f"hydra.sweep.dir={folder}")
        flags = [item for item in overrides if not _is_override(item)]
        before, sys.argv = (
            sys.argv,
            [f"tipcast {job}", *flags, *filter(_is_override, overrides), *quiet],
        )  # argparse wants flags first
        try:
            hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=job)(capture)()
            for problem in unresolved:
                raise problem
        except (HydraException, OmegaConfBaseException) as problem:
            raise _explain(job, overrides, problem) from problem
        except ValueError as problem:  # hydra's own of a group that is no text, or of flags that exclude each other
            raise TipcastError("C005", "command line", str(problem), f"see tipcast {job} --help") from problem
        finally:
            sys.argv = before
            GlobalHydra.instance().clear()
    return composed


@contextlib.contextmanager
def _errors_raised() -> Iterator[None]:
    """Let Hydra raise instead of printing a traceback and leaving."""
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        os.environ.pop("HYDRA_FULL_ERROR")
        if before is not None:
            os.environ["HYDRA_FULL_ERROR"] = before


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
            raise TipcastError(
                "C001", "command line", f"unknown key '{prefix}{name}'", "use the keys that --cfg job shows"
            )
        if value == MISSING:
            raise TipcastError("C004", f"{prefix}{name}", "needs a value", f"add {prefix}{name}=...")
        if dataclasses.is_dataclass(value):
            _refuse_strangers(value, f"{prefix}{name}.")


def _is_override(item: str) -> bool:
    return "=" in item or item.startswith("~")


def _explain(job: str, overrides: Sequence[str], problem: Exception) -> TipcastError:
    chain = [problem, *([problem.__cause__] if problem.__cause__ else [])]
    text = "\n".join(str(link) for link in chain)
    if isinstance(problem, OverrideParseException):
        given = re.sub(r"//[^/\s]*@|\?.*", "...", redact(problem.override))  # what does not parse may hide a secret
        return TipcastError(
            "C005", given, "cannot be read as key=value", "quote what has a blank, a comma, ? or ä, as \"key='a b'\""
        )
    if isinstance(problem, MissingConfigException):
        return _unknown_option(text)
    mixed = re.search(r"Ambiguous value for argument '([^']*)'", text)
    if mixed:
        return TipcastError(
            "C005", mixed[1], "several values for one key", "write a list as key=[a,b], or add --multirun to run each"
        )
    option = re.search(r"Could not override '([^']+)'\.?\s*(?:Did you mean|No match)", text)
    if option:
        return _unknown_key(job, overrides, option[1])
    key = _unknown(text)
    if key:
        return _unknown_key(job, overrides, key, re.search(r"In '([^']+)'", text))
    full = re.search(r"full_key: (\S+)", text)
    where = full[1] if full else job
    return TipcastError(
        "C003",
        where,
        text.split("\n    full_key")[0].split("\n")[-1],
        f"see tipcast {job} --cfg job for the keys and their types",
    )


def _unknown(text: str) -> str | None:
    """Return the full key that a schema or a struct does not have."""
    if not re.search(r"Key '.*' (?:is )?not in|Could not (?:override|append|delete)", text):
        return None
    full = re.search(
        r"Could not (?:override|append to config|delete from config)\.? ?'?([^'\s.]+(?:\.[^'\s.]+)*)'?", text
    )
    if full and full[1] not in {"No", "The"}:
        return full[1]
    nested = re.search(r"full_key: (\S+)", text)
    return nested[1] if nested else None


def _unknown_option(text: str) -> TipcastError:
    found = re.search(r"(?:Could not find|Could not load) '([^']+)'", text)
    name = found[1] if found else text.split("\n")[0]
    group, _, wanted = name.rpartition("/")
    options = sorted(path.stem for path in (conf_dir() / group).glob("*.yaml")) if group else []
    near = difflib.get_close_matches(wanted, options, 1)
    hint = (
        f"did you mean {group}={near[0]}?" if near else f"choose one of {', '.join(options) or 'the groups in conf/'}"
    )
    return TipcastError("C002", f"{group}={wanted}" if group else wanted, f"no such option in conf/{group}", hint)


def _unknown_key(job: str, overrides: Sequence[str], key: str, in_file: re.Match[str] | None = None) -> TipcastError:
    """Name the file that lists the valid keys and the nearest of them."""
    key = key.lstrip("+~").partition("=")[0]
    groups = [item for item in overrides if (conf_dir() / item.lstrip("+").partition("=")[0]).is_dir() and "=" in item]
    reference = _reference(job, groups)
    keys = _flatten(OmegaConf.to_container(reference, resolve=False))
    near = difflib.get_close_matches(key, keys, 1, cutoff=0.75)
    if not near:
        near = [full for full in keys if full.rpartition(".")[2] == key.rpartition(".")[2]][:1]
    if in_file:
        where = f"conf/{in_file[1]}.yaml"
    else:
        group, nested, _ = (near[0] if near else key).partition(".")
        choices = reference.get("hydra", {}).get("runtime", {}).get("choices", {})
        where = f"conf/{group}/{choices[group]}.yaml" if nested and choices.get(group) else f"conf/{job}.yaml"
    fix = f"did you mean {near[0]}?" if near else f"see tipcast {job} --cfg job for the keys"
    return TipcastError("C001", where, f"unknown key '{key}'", fix)


def _reference(job: str, groups: Sequence[str]) -> DictConfig:
    """Compose the job with the chosen groups only, to know its valid keys."""
    for choice in (list(groups), []):
        GlobalHydra.instance().clear()
        try:
            with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
                return hydra.compose(job, choice, return_hydra_config=True)
        except (HydraException, OmegaConfBaseException):
            continue
    return OmegaConf.create({})


def _flatten(tree: Any, prefix: str = "") -> list[str]:
    keys: list[str] = []
    if isinstance(tree, dict):
        for name, value in tree.items():
            if not prefix and name == "hydra":
                continue
            keys += [f"{prefix}{name}", *_flatten(value, f"{prefix}{name}.")]
    return keys
