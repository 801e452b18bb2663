"""What Hydra and OmegaConf complain of, told in one line with advice that mends what was typed."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Sequence
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


def explain(job: str, overrides: Sequence[str], problem: Exception) -> TipcastError:
    """Return what Hydra and OmegaConf complain of as one line.

    Parameters
    ----------
    job
        Name of a file in conf/, without its ending.
    overrides
        That the configuration was to be composed with.
    problem
        What Hydra or OmegaConf raised.

    """
    chain = [problem, *([problem.__cause__] if problem.__cause__ else [])]
    text = "\n".join(str(link) for link in chain)
    if isinstance(problem, OverrideParseException):
        return _unparsed(job, problem.override)
    if isinstance(problem, MissingConfigException):
        return _unknown_option(text)
    mixed = re.search(r"Ambiguous value for argument '([^']*)'", text)
    if mixed:
        return _several(job, overrides, mixed[1])
    there = re.search(r"An item is already at '([^']*)'", text)
    if there:
        return TipcastError("C005", f"+{there[1]}", "the key is there already", f"write {there[1]}=VALUE without the +")
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


def _several(job: str, overrides: Sequence[str], override: str) -> TipcastError:
    """Explain values with a comma between them, with those of the readings that the key can take."""
    key, _, value = override.partition("=")
    others = [item for item in overrides if item != override]
    readings = {"a list": f"{key}=[{value}]", "a text": f"{key}={quoted(value)}"}
    if key.lstrip("+") in _groups():
        readings = {}  # of groups Hydra takes lists, our schemas do not
    fits = {name: word for name, word in readings.items() if _composed(job, [*others, word])}
    fixes = [f"write {_for_shell(as_given(word))} for {name}" for name, word in fits.items()]
    what, given = "several values for one key", _without_secrets(as_given(override))
    if given != as_given(override):
        fixes = ["write 'key=[a,b]' for a list"]
    return TipcastError("C005", given, what, ", or ".join([*fixes, "add --multirun to run each"]))


def _unparsed(job: str, override: str) -> TipcastError:
    """Explain a word that is not Hydra's key=value."""
    word = as_given(override)
    given = _without_secrets(word)
    key, equals, value = word.partition("=")
    if not equals:
        return _bare(job, given)
    if not re.fullmatch(r"[+~]{0,2}[\w./@-]+", key, re.ASCII):
        what = "cannot be read as key=value"
        return TipcastError(
            "C005", given, what, f"name one of the keys that tipcast {job} --cfg job shows before the ="
        )
    what, fix, mended = "cannot be read as key=value", "quote the value", f"{key}={quoted(value)}"
    closing = _unclosed(value)
    if value.startswith("="):
        fix, mended = "write one =", f"{key}={value.lstrip('=')}"
    elif closing and value[0] in "[{":
        what = f"{value[0]} is not closed with {closing[-1]} in this word"
        fix, mended = "close it, and quote what has blanks for the shell", f"{key}={value.rstrip(' ,')}{closing}"
    elif value[:1] == "[" and value[-1:] == "]":
        items = ",".join(quoted(item.strip()) for item in value[1:-1].split(",") if item.strip())
        what, fix, mended = "is no list that can be read", "quote its items", f"{key}=[{items}]"
    elif value[:1] == "{" and value[-1:] == "}":
        what, fix, mended = "is no mapping that can be read", "write", f"{key}={{a: 1, b: text}}"
    if given != word or len(mended) > MOST or not parses(mended):
        mended = f"{key}=[a, b]" if value[:1] == "[" else f"{key}={{a: 1}}" if value[:1] == "{" else f"{key}='a b'"
        fix = f"{fix}, as"
    return TipcastError("C005", given, what, f"{fix}: {_for_shell(mended)}".replace("as:", "as"))


def _without_secrets(word: str) -> str:
    """Return a word to show, without what may be a secret where it does not parse."""
    return re.sub(r"//[^/\s]*@|\?.*", "...", redact(word))


def _bare(job: str, word: str) -> TipcastError:
    """Explain a word without an equals sign: an option of a group, a key, or neither."""
    reference = _reference(job, [])
    choices = sorted(reference.get("hydra", {}).get("runtime", {}).get("choices", {}))
    groups = {group: _options(group) for group in choices if group in _groups()}
    named = [f"{group}={word}" for group, options in groups.items() if word in options]
    near = difflib.get_close_matches(word, [option for options in groups.values() for option in options], 1)
    keys = _flatten(OmegaConf.to_container(reference, resolve=False))
    if word in groups:
        fix = f"choose an option, as {word}={groups[word][0]}; there are {', '.join(groups[word])}"
    elif word in keys:
        fix = f"give it a value: {word}=VALUE"
    elif named or near:
        named = named or [f"{group}={near[0]}" for group, options in groups.items() if near[0] in options]
        fix = f"did you mean {' or '.join(named)}?"
    elif word.count("]") > word.count("[") or word.count("}") > word.count("{"):
        fix = "quote a list or mapping with blanks for the shell, as 'key=[a, b]'"
    else:
        fix = f"write key=value with one of the keys that tipcast {job} --cfg job shows"
    return TipcastError("C005", word, "is not key=value", fix)


def _unclosed(value: str) -> str:
    """Return what closes the brackets and braces that are open at the end of a value."""
    closing = ""
    for letter in value:
        if letter in "[{":
            closing = {"[": "]", "{": "}"}[letter] + closing
        elif closing and letter == closing[0]:
            closing = closing[1:]
    return closing


def _for_shell(word: str) -> str:
    """Quote a word for the shell, readably where that can be."""
    plain = not re.search(r'["$`!]|\\$|\\\\', word)
    return f'"{word}"' if "'" in word and plain else shlex.quote(word)


def _groups() -> set[str]:
    return {path.name for path in conf_files.conf_dir().iterdir() if path.is_dir()}


def _options(group: str) -> list[str]:
    return sorted(conf_files.options(group))


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
    options = _options(group) if group else []
    near = difflib.get_close_matches(wanted, options, 1)
    hint = (
        f"did you mean {group}={near[0]}?" if near else f"choose one of {', '.join(options) or 'the groups in conf/'}"
    )
    return TipcastError("C002", f"{group}={wanted}" if group else wanted, f"no such option in conf/{group}", hint)


def _unknown_key(job: str, overrides: Sequence[str], key: str, in_file: re.Match[str] | None = None) -> TipcastError:
    """Name the file that lists the valid keys and the nearest of them."""
    key = key.lstrip("+~").partition("=")[0]
    groups = [
        item
        for item in overrides
        if (conf_files.conf_dir() / item.lstrip("+").partition("=")[0]).is_dir() and "=" in item
    ]
    for group, _, option in (item.lstrip("+").partition("=") for item in groups):
        if option in _options(group) and (broken := conf_files.not_as_hydra_wants(f"conf/{group}/{option}.yaml")):
            return broken
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


def _flatten(tree: Any, prefix: str = "") -> list[str]:
    keys: list[str] = []
    if isinstance(tree, dict):
        for name, value in tree.items():
            if not prefix and name == "hydra":
                continue
            keys += [f"{prefix}{name}", *_flatten(value, f"{prefix}{name}.")]
    return keys
