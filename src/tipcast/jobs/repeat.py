"""`tipcast train from=RUN`: how an earlier run was trained, and whether this run has the same
result.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tipcast.config.arguments import REPEAT
from tipcast.config.compose import compose, to_object
from tipcast.config.errors import TipcastError
from tipcast.config.hydra_grammar import QUOTE, quoted
from tipcast.config.plain import recorded
from tipcast.config.schema import TrainJobConfig
from tipcast.jobs.train_plan import DIGEST, Plan
from tipcast.tracking.artifacts import config_text, read_yaml
from tipcast.tracking.failures import store_errors
from tipcast.tracking.run import BEST, FILES
from tipcast.tracking.run_lookup import find_run
from tipcast.tracking.store import open_store, resolve

if TYPE_CHECKING:
    from tipcast.tracking.mlflow_types import MlflowRun

LOG = logging.getLogger("tipcast")

REPEATS = "repeat.of"
"""Tag with the id of the run that is repeated."""
JOBS = ("train", "sweep")
"""Jobs whose runs have trained one model."""
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
"""Beginnings of flags and overrides that choose the store; with ``-m``, the first configuration's
store is used.
"""


def resolved(named: str, overrides: Sequence[str]) -> tuple[list[str], Mapping[str, Any]]:
    """Return overrides with the whole id of the run that one of them names, and the configuration
    that the run was trained with, see ``config.plain.recorded``.

    Raises T004 if there is no such run, M023 if it has trained no model or does not say how.
    """
    words = [word for word in overrides if word.startswith(STORE)]
    config = compose("train", words)[0].config
    tracking = to_object(config.tracking)  # an experiment may leave other keys to the run
    store = open_store(tracking)

    with store_errors(resolve(tracking)):
        run = find_run(store, named.removeprefix(REPEAT).strip(QUOTE), tracking, "train")
        run_id = run.info.run_id
        where = f"run {run_id}"
        if run.data.tags.get("job") not in JOBS:
            fix = "give the run of a train or sweep job"
            raise TipcastError("M023", where, "is not a run of train or sweep", fix)

        text = config_text(store, run_id, "use tipcast train, and name the data, task and model")
        files = read_yaml(store, run_id, FILES)
        trained = recorded(text, run.data.tags.get(BEST, "{}"), where, files)

    other_words = [word for word in overrides if not word.startswith(REPEAT)]
    return [f"{REPEAT}{quoted(run_id)}", *other_words], trained


@dataclass(frozen=True)
class Original:
    """A run that is repeated."""

    run_id: str
    metrics: Mapping[str, float]

    def compared(self, metrics: Mapping[str, float]) -> str:
        """Say which test metrics of both runs differ in any bit."""
        tested = [name for name in metrics if name.startswith("test/") and name in self.metrics]
        unequal = [name for name in tested if metrics[name] != self.metrics[name]]
        if unequal:
            return f"test metrics differ: {', '.join(unequal)}"
        return "test metrics are bit-for-bit equal"


def original(config: TrainJobConfig, plan: Plan) -> Original | None:
    """Find the run that a training repeats; None if it repeats none.

    Raises D024 for data with other digests; a warning if ``other_data`` allows them.
    """
    if config.repeat is None:
        return None

    store = open_store(config.tracking)
    with store_errors(resolve(config.tracking)):
        run = find_run(store, config.repeat)

    changed = changed_data(run, plan)
    if changed:
        what = f"the data differ from its training data: digest of {'; '.join(changed)}"
        fix = "give the same data.train and data.test, or set other_data=true to train on these"
        if not config.other_data:
            raise TipcastError("D024", f"run {config.repeat}", what, fix)
        LOG.warning("run %s: %s", config.repeat, what)

    return Original(config.repeat, run.data.metrics)


def changed_data(run: "MlflowRun", plan: Plan) -> list[str]:
    """Return the sides whose files are not those of a run, with both digests."""
    recorded_digests: dict[str, str] = {}
    if run.inputs:
        for entry in run.inputs.dataset_inputs:
            for tag in entry.tags:
                recorded_digests[tag.value] = entry.dataset.digest[:DIGEST]

    digests = {"train": plan.train.digest[:DIGEST], "test": plan.test.digest[:DIGEST]}
    return [
        f"{side} {recorded_digests.get(side)}, now {digest}"
        for side, digest in digests.items()
        if recorded_digests.get(side) != digest
    ]
