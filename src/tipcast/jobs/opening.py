"""How a job's run begins: configuration, versions and code are recorded before any worker starts."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Mapping
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
LONGEST_VALUE, LONGEST_NAME = 24, 80


def told_apart(model: str, command: str) -> str:
    """Return a run's name: its model, and what the command overrides, as ``xgboost seed=1 max_depth=8``."""
    found = model
    for word in shlex.split(command):
        key, _, value = word.lstrip("+").partition("=")
        untold = key in UNTOLD or key.split(".")[0] in UNTOLD[1:]
        if not OVERRIDE.match(word) or untold or "/" in value or len(value) > LONGEST_VALUE:
            continue
        longer = f"{found} {key.rpartition('.')[2]}={value}"
        if len(longer) <= LONGEST_NAME:
            found = longer
    return found


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
) -> Iterator[Run]:
    """Open a job's run, see ``tracking.run.open_run``."""
    source = origin.source()
    told: dict[str, object] = {"job": job, "tipcast.version": __version__, "device": config.backend.name}
    told |= {"command": command, **source.tags, **(tags or {})}
    with open_run(config.tracking, name=name, tags=told, params=params, resume=resume) as run:
        run.log_text(yaml.safe_dump(to_plain(config), sort_keys=False), CONFIG)
        run.log_text(yaml.safe_dump(origin.versions(), sort_keys=False), VERSIONS)
        if source.diff:
            run.log_text(source.diff, origin.DIFF)
        yield run
