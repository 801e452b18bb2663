"""What Hydra and OmegaConf complain of, told in one line with advice that mends what was typed."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tipcast.config import conf_files
from tipcast.config.arguments import as_given, parses, quoted
from tipcast.config.errors import TipcastError
from tipcast.config.plain import redact

MOST = 100
"""Letters of a word that is repeated as it should be; a longer one gets an example."""
CLOSING = {"[": "]", "{": "}"}


def explain(job: str, overrides: Sequence[str], problem: HydraException | OmegaConfBaseException) -> TipcastError:
    """Return what Hydra and OmegaConf complain of, composing a job with overrides, as one line."""
    if isinstance(problem, OverrideParseException):
        return _unparsed(job, problem.override)
    if isinstance(problem, MissingConfigException):
        return _unknown_option(str(problem.missing_cfg_file))
    text = f"{problem}\n{problem.__cause__ or ''}".rstrip()
    if mixed := re.match(r"Ambiguous value for argument '([^']*)'", text):
        return _several(job, overrides, mixed[1])
    if there := re.search(r"An item is already at '([^']*)'", text):
        return TipcastError("C005", f"+{there[1]}", "the key is there already", f"write {there[1]}=VALUE without the +")
    where = full[1] if (full := re.search(r"full_key: (\S+)", text)) else job
    named = re.search(r"Could not (?:override|delete from config\.) '([^']+)'", text)
    if named or re.search(r"Key '.*' (?:is )?not in", text):
        return _unknown_key(job, overrides, named[1] if named else where, re.search(r"In '([^']+)'", text))
    what = text.partition("\n    full_key")[0].rpartition("\n")[2]
    return TipcastError("C003", where, what, f"see tipcast {job} --cfg job for the keys and their types")


def _several(job: str, overrides: Sequence[str], override: str) -> TipcastError:
    """Explain values with a comma between them, with those of the readings that the key can take."""
    key, _, value = override.partition("=")
    given = _without_secrets(as_given(override))
    fixes = []
    if given != as_given(override):
        fixes = ["write 'key=[a,b]' for a list"]
    elif key.lstrip("+") not in _groups():  # of groups Hydra takes lists, our schemas do not
        others = [item for item in overrides if item != override]
        readings = {"a list": f"{key}=[{value}]", "a text": f"{key}={quoted(value)}"}
        fits = {name: word for name, word in readings.items() if _composed(job, [*others, word])}
        fixes = [f"write {_for_shell(as_given(word))} for {name}" for name, word in fits.items()]
    return TipcastError(
        "C005", given, "several values for one key", ", or ".join([*fixes, "add --multirun to run each"])
    )


def _unparsed(job: str, override: str) -> TipcastError:
    """Explain a word that is not Hydra's key=value."""
    word = as_given(override)
    given = _without_secrets(word)
    key, equals, value = word.partition("=")
    if not equals:
        return _bare(job, given)
    what, fix, mended = "cannot be read as key=value", "quote the value", f"{key}={quoted(value)}"
    if not re.fullmatch(r"[+~]{0,2}[\w./@-]+", key, re.ASCII):
        fix = f"name one of the keys that tipcast {job} --cfg job shows before the ="
        return TipcastError("C005", given, what, fix)
    example, closing = f"{key}='a b'", CLOSING.get(value[:1])
    if value.startswith("="):
        fix, mended = "write one =", f"{key}={value.lstrip('=')}"
    elif closing:
        example = f"{key}=[a, b]" if closing == "]" else f"{key}={{a: 1, b: text}}"
        if not value.endswith(closing):
            what = f"{value[0]} is not closed with {closing} in this word"
            fix, mended = "close it, and quote what has blanks for the shell", f"{key}={value.rstrip(' ,')}{closing}"
        elif closing == "]":
            items = ",".join(quoted(item.strip()) for item in value[1:-1].split(",") if item.strip())
            what, fix, mended = "is no list that can be read", "quote its items", f"{key}=[{items}]"
        else:
            what, fix, mended = "is no mapping that can be read", "write", example
    if given != word or len(mended) > MOST or not parses(mended):
        return TipcastError("C005", given, what, f"{fix}, as {_for_shell(example)}")
    return TipcastError("C005", given, what, f"{fix}: {_for_shell(mended)}")


def _without_secrets(word: str) -> str:
    """Return a word to show, without what may be a secret where it does not parse."""
    return re.sub(r"//[^/\s]*@|\?.*", "...", redact(word))


def _bare(job: str, word: str) -> TipcastError:
    """Explain a word without an equals sign: an option of a group, a key, or neither."""
    reference = _reference(job, [])
    groups = {group: sorted(conf_files.options(group)) for group in sorted(_choices(reference)) if group in _groups()}
    near = difflib.get_close_matches(word, [option for options in groups.values() for option in options], 1)
    named = [f"{group}={option}" for option in near for group, options in groups.items() if option in options]
    if word in groups:
        fix = f"choose an option, as {word}={groups[word][0]}; there are {', '.join(groups[word])}"
    elif word in _keys(reference):
        fix = f"give it a value: {word}=VALUE"
    elif named:
        fix = f"did you mean {' or '.join(named)}?"
    elif any(word.count(end) > word.count(begin) for begin, end in CLOSING.items()):
        fix = "quote a list or mapping with blanks for the shell, as 'key=[a, b]'"
    else:
        fix = f"write key=value with one of the keys that tipcast {job} --cfg job shows"
    return TipcastError("C005", word, "is not key=value", fix)


def _for_shell(word: str) -> str:
    """Quote a word for the shell, readably where that can be."""
    plain = not re.search(r'["$`!]|\\$|\\\\', word)
    return f'"{word}"' if "'" in word and plain else shlex.quote(word)


def _groups() -> set[str]:
    return {path.name for path in conf_files.conf_dir().iterdir() if path.is_dir()}


def _unknown_option(name: str) -> TipcastError:
    group, _, wanted = name.rpartition("/")
    options = sorted(conf_files.options(group)) if group else []
    near = difflib.get_close_matches(wanted, options, 1)
    fix = f"did you mean {group}={near[0]}?" if near else f"choose one of {', '.join(options) or 'the groups in conf/'}"
    return TipcastError("C002", f"{group}={wanted}" if group else wanted, f"no such option in conf/{group}", fix)


def _unknown_key(job: str, overrides: Sequence[str], key: str, in_file: re.Match[str] | None) -> TipcastError:
    """Name the file that lists the valid keys and the nearest of them."""
    groups = [item for item in overrides if item.lstrip("+").partition("=")[0] in _groups() and "=" in item]
    for group, _, option in (item.lstrip("+").partition("=") for item in groups):
        if option in conf_files.options(group) and (
            broken := conf_files.not_as_hydra_wants(f"conf/{group}/{option}.yaml")
        ):
            return broken
    if in_file and in_file[1].startswith("data/") and key == "task":  # which only a job that asks something has
        what = f"rows of {in_file[1].replace('/', '=')} are for a task, and {job} has none"
        return TipcastError("C003", "data", what, "use data=sample, data=files or data=tlc")
    reference = _reference(job, groups)
    keys = list(_keys(reference))
    near = difflib.get_close_matches(key, keys, 1, cutoff=0.75)
    if not near:
        near = [full for full in keys if full.rpartition(".")[2] == key.rpartition(".")[2]][:1]
    if in_file:
        where = f"conf/{in_file[1]}.yaml"
    else:
        group, nested, _ = (near[0] if near else key).partition(".")
        chosen = _choices(reference).get(group)
        where = f"conf/{group}/{chosen}.yaml" if nested and chosen else f"conf/{job}.yaml"
    fix = f"did you mean {near[0]}?" if near else f"see tipcast {job} --cfg job for the keys"
    return TipcastError("C001", where, f"unknown key '{key}'", fix)


def _reference(job: str, groups: Sequence[str]) -> DictConfig:
    """Compose the job with the chosen groups only, to know its valid keys."""
    found = _composed(job, groups)
    return found if found is not None else _composed(job, []) or OmegaConf.create({})


def composed(job: str, overrides: Sequence[str]) -> DictConfig:
    """Compose a job, with Hydra's own configuration below ``hydra``, by the Compose API, whose errors are raised."""
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(conf_files.conf_dir()), version_base="1.3"):
        return hydra.compose(job, [*overrides, *conf_files.search_path()], return_hydra_config=True)


def _composed(job: str, overrides: Sequence[str]) -> DictConfig | None:
    """Compose a job, None where that fails."""
    try:
        return composed(job, overrides)
    except (HydraException, OmegaConfBaseException):
        return None


def _choices(reference: DictConfig) -> Any:
    """Return group -> the option of it that was composed."""
    return OmegaConf.select(reference, "hydra.runtime.choices", default={})


def _keys(reference: DictConfig) -> Iterator[str]:
    """Yield the full keys of a configuration, but Hydra's own."""

    def below(tree: Any, prefix: str) -> Iterator[str]:
        for name, value in tree.items() if isinstance(tree, dict) else ():
            if prefix or name != "hydra":
                yield f"{prefix}{name}"
                yield from below(value, f"{prefix}{name}.")

    yield from below(OmegaConf.to_container(reference, resolve=False), "")
