"""`tipcast train from=RUN`: how an earlier run was trained, and whether this one comes to the
same.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tipcast.config.arguments import QUOTE, REPEAT, quoted
from tipcast.config.compose import compose, to_object
from tipcast.config.errors import TipcastError
from tipcast.config.plain import recorded
from tipcast.config.schema import MultirunConfig
from tipcast.jobs.train_plan import DIGEST, Plan
from tipcast.tracking import run as runs
from tipcast.tracking.artifacts import config_text, read_yaml
from tipcast.tracking.store import failures, open_store, resolve

LOG = logging.getLogger("tipcast")

REPEATS = "repeat.of"
"""Tag with the id of the run that is trained again."""
JOBS = ("train", "sweep")
"""Of runs that have trained one model."""
STORE = (
    "-m",
    "--multirun",
    "--config-dir=",
    "experiment=",
    *(
        f"tracking{key}="
        for key in ("", ".uri", ".experiment", ".insecure", ".max_retries", ".wait_s")
    ),
)
"""How flags and overrides begin that say which store is asked; with ``-m``, that of the first
configuration.
"""


def resolved(named: str, overrides: Sequence[str]) -> tuple[list[str], Mapping[str, Any]]:
    """Return overrides with the whole id of the run that one of them names, and how that run was
    trained.

    See ``config.plain.recorded``. T004 no such run, M023 one that has trained no model, or does not
    tell how.
    """
    store = compose("train", [word for word in overrides if word.startswith(STORE)])[0].config
    tracking = to_object(store.tracking)  # an experiment may leave other keys to the run
    client = open_store(tracking)

    with failures(resolve(tracking)):
        run = runs.find_run(client, named.removeprefix(REPEAT).strip(QUOTE), tracking, "train")
        run_id = run.info.run_id
        where = f"run {run.info.run_id}"
        if run.data.tags.get("job") not in JOBS:
            raise TipcastError(
                "M023", where, "is not of train or sweep", "name the run of a training or a sweep"
            )
        text = config_text(client, run_id, "train with tipcast train, and name what it shall be")
        files = read_yaml(client, run_id, runs.FILES)
        trained = recorded(text, run.data.tags.get(runs.BEST, "{}"), where, files)

    return [
        f"{REPEAT}{quoted(run_id)}",
        *(word for word in overrides if not word.startswith(REPEAT)),
    ], trained


@dataclass(frozen=True)
class Original:
    """A run that is repeated."""

    run_id: str
    metrics: Mapping[str, float]

    def compared(self, metrics: Mapping[str, float]) -> str:
        """Say which test metrics of both are not equal to the last bit."""
        both = [name for name in metrics if name.startswith("test/") and name in self.metrics]
        others = [name for name in both if metrics[name] != self.metrics[name]]
        return (
            f"test metrics differ: {', '.join(others)}"
            if others
            else "test metrics are equal to the last bit"
        )


def original(config: MultirunConfig, plan: Plan) -> Original | None:
    """Find the run that a training repeats, if it does.

    D024 data of other digests, unless ``other_data`` allows them: then they are a warning.
    """
    if config.repeat is None:
        return None

    client = open_store(config.tracking)
    with failures(resolve(config.tracking)):
        run = runs.find_run(client, config.repeat)

    inputs = run.inputs.dataset_inputs if run.inputs else []
    had = {tag.value: entry.dataset.digest[:DIGEST] for entry in inputs for tag in entry.tags}
    has = {"train": plan.train.digest[:DIGEST], "test": plan.test.digest[:DIGEST]}
    others = [
        f"{side} {had.get(side)}, now {has[side]}" for side in has if had.get(side) != has[side]
    ]

    if others:
        what = f"the data here are not those that it was trained on: digest of {'; '.join(others)}"
        fix = "name the same by data.train and data.test, or train on these with other_data=true"
        if not config.other_data:
            raise TipcastError("D024", f"run {config.repeat}", what, fix)
        LOG.warning("run %s: %s", config.repeat, what)

    return Original(config.repeat, run.data.metrics)
