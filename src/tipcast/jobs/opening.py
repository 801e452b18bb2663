"""How a job's run begins: configuration, versions and code are recorded before any worker starts."""

from __future__ import annotations

import contextlib
import hashlib
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import yaml

from tipcast import __version__
from tipcast.config.job_schemas import DoctorConfig, ScoreConfig
from tipcast.config.plain import to_plain
from tipcast.measure import origin
from tipcast.tracking.facts import CONFIG, VERSIONS
from tipcast.tracking.run import Run, open_run

OVERRIDE = re.compile(r"\+{0,2}[A-Za-z_][\w.@/]*=")
"""How an override of the configuration begins."""
UNTOLD = ("model", "print", "debug", "tracking", "cluster", "search", "multirun", "resume", "from", "other_data")
"""First parts of keys that say nothing of what is trained, or what the name begins with."""
LONGEST_VALUE, LONGEST_NAME, LONGEST_OWN = 24, 80, 200
"""Characters of a value, of a name, and of one with what sets it apart from others."""


def run_names(runs: Sequence[tuple[str, str]]) -> list[str]:
    """Return a name for each of some runs, of their models and commands, as ``xgboost seed=1 max_depth=8``.

    It has what a command overrides: first all that not every command has, shortened; no two names are the same.
    """
    words = [[word.lstrip("+") for word in shlex.split(command) if OVERRIDE.match(word)] for _, command in runs]
    shared = set(words[0]).intersection(*words)
    names = [_name(model, own, shared) for (model, _), own in zip(runs, words, strict=True)]
    return [f"{name} ({names[:at].count(name) + 1})" if name in names[:at] else name for at, name in enumerate(names)]


def _name(model: str, words: Sequence[str], shared: Collection[str]) -> str:
    own = [word.partition("=") for word in words if word not in shared and word != f"model={model}"]
    told = [f"{key.rpartition('.')[2]}={_short(value)}" for key, _, value in own]
    found = _short(" ".join([model, *told]), LONGEST_OWN)
    for key, _, value in (word.partition("=") for word in words if word in shared):
        untold = key in UNTOLD or key.split(".")[0] in UNTOLD[1:]
        longer = f"{found} {key.rpartition('.')[2]}={value}"
        if not untold and "/" not in value and len(value) <= LONGEST_VALUE and len(longer) <= LONGEST_NAME:
            found = longer
    return found


def _short(text: str, most: int = LONGEST_VALUE) -> str:
    """Return a text, cut where it is long: with a digest, so that two texts stay two."""
    return text if len(text) <= most else f"{text[: most - 7]}~{hashlib.sha256(text.encode()).hexdigest()[:6]}"


@contextlib.contextmanager
def opened(
    config: DoctorConfig | ScoreConfig,
    command: str,
    *,
    job: str,
    name: str,
    params: Mapping[str, Any],
    tags: Mapping[str, object] | None = None,
    resume: str | None = None,
    parent: Run | None = None,
) -> Iterator[Run]:
    """Open a job's run, see ``tracking.run.open_run``."""
    source = origin.source()
    told: dict[str, object] = {"job": job, "tipcast.version": __version__, "device": config.backend.name}
    told |= {"command": command, **source.tags, **(tags or {})}
    with open_run(config.tracking, name=name, tags=told, params=params, resume=resume, parent=parent) as run:
        run.log_text(yaml.safe_dump(to_plain(config), sort_keys=False), CONFIG)
        run.log_text(yaml.safe_dump(origin.versions(), sort_keys=False), VERSIONS)
        if source.diff:
            run.log_text(source.diff, origin.DIFF)
        yield run
