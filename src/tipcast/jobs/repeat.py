"""`tipcast train from=RUN`: how an earlier run was trained, and what of its code, versions and data is another now."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tipcast import __version__
from tipcast.config.arguments import QUOTE, REPEAT, quoted
from tipcast.config.compose import compose, to_object
from tipcast.config.errors import TipcastError
from tipcast.config.plain import recorded
from tipcast.config.schema import MultirunConfig
from tipcast.jobs.train_plan import DIGEST, Plan
from tipcast.measure.origin import moved, source
from tipcast.tracking import run as runs
from tipcast.tracking.store import failures, open_store, resolve

LOG = logging.getLogger("tipcast")

JOBS = ("train", "sweep")
"""Of runs that have trained one model."""
STORE = (
    "-m", "--multirun", "--config-dir=", "experiment=",
    *(f"tracking{key}=" for key in ("", ".uri", ".experiment", ".insecure", ".max_retries", ".wait_s")),
)  # fmt: skip
"""How flags and overrides begin that say which store is asked; with ``-m``, that of the first configuration."""


def resolved(named: str, overrides: Sequence[str]) -> tuple[list[str], Mapping[str, Any]]:
    """Return overrides with the whole id of the run that one of them names, and how that run was trained.

    See ``config.plain.recorded``. T004 no such run, M023 one that has trained no model, or does not tell how.
    """
    store = compose("train", [word for word in overrides if word.startswith(STORE)])[0].config
    tracking = to_object(store.tracking)  # an experiment may leave other keys to the run
    client = open_store(tracking)
    with failures(resolve(tracking)):
        run = runs.find_run(client, named.removeprefix(REPEAT).strip(QUOTE), tracking, "train")
        run_id, where = run.info.run_id, f"run {run.info.run_id}"
        if run.data.tags.get("job") not in JOBS:
            raise TipcastError("M023", where, "is not of train or sweep", "name the run of a training or a sweep")
        text = runs.config_text(client, run_id, "train with tipcast train, and name what it shall be")
        trained = recorded(text, run.data.tags.get(runs.BEST, "{}"), where, runs.artifact(client, run_id, runs.FILES))
    return [f"{REPEAT}{quoted(run_id)}", *(word for word in overrides if not word.startswith(REPEAT))], trained


@dataclass(frozen=True)
class Original:
    """A run that is repeated."""

    run_id: str
    metrics: Mapping[str, float]
    differs: Mapping[str, str]
    """``code``, ``versions``, ``backend`` or ``data`` -> what it was and is, where that is another now."""

    @property
    def tags(self) -> dict[str, str]:
        """What the run that repeats it is tagged with."""
        return {"repeat.of": self.run_id} | ({"repeat.differs": self.how} if self.differs else {})

    @property
    def how(self) -> str:
        """What differs, in one line."""
        return "; ".join(f"{name} {how}" for name, how in self.differs.items())

    def remark(self, metrics: Mapping[str, float]) -> str:
        """Return Markdown on what differs, and whether test metrics are the same."""
        differs = (f"- {name}: {how}" for name, how in self.differs.items())
        return "\n".join([f"Repeats run {self.run_id}: {self.compared(metrics)}.", *differs])

    def compared(self, metrics: Mapping[str, float]) -> str:
        """Say which test metrics of both are not equal to the last bit."""
        both = [name for name in metrics if name.startswith("test/") and name in self.metrics]
        others = [name for name in both if metrics[name] != self.metrics[name]]
        return f"test metrics differ: {', '.join(others)}" if others else "test metrics are equal to the last bit"


def original(config: MultirunConfig, plan: Plan) -> Original | None:
    """Hold a training against the run that it repeats, if it does; what differs is a warning.

    D024 data of other digests, unless ``other_data`` allows them.
    """
    if config.repeat is None:
        return None
    client = open_store(config.tracking)
    with failures(resolve(config.tracking)):
        run = runs.find_run(client, config.repeat)
        had = {**run.data.tags, **runs.artifact(client, run.info.run_id, runs.VERSIONS)}
    here, datasets = source(), run.inputs.dataset_inputs if run.inputs else []
    digests = {tag.value: each.dataset.digest[:DIGEST] for each in datasets for tag in each.tags}
    facts = [
        ("backend", "", run.data.params.get("backend.name"), config.backend.name),
        ("code", "tipcast ", had.get("tipcast"), __version__),
        ("code", "commit ", had.get(runs.COMMIT), here.commit),
        ("data", "train ", digests.get("train"), plan.train.digest[:DIGEST]),
        ("data", "test ", digests.get("test"), plan.test.digest[:DIGEST]),
    ]
    texts = [
        (of, f"{what}{was or 'not known'}, now {now or 'not known'}") for of, what, was, now in facts if was != now
    ]
    if here.dirty or had.get(runs.DIRTY) == "true":
        texts.append(("code", "uncommitted changes"))
    texts += [("versions", text) for text in moved(had)]
    differs = {name: "; ".join(text for part, text in texts if part == name) for name in dict(texts)}
    if "data" in differs and not config.other_data:
        what = f"the data here are not those that it was trained on: digest of {differs['data']}"
        fix = "name the same by data.train and data.test, or train on these with other_data=true"
        raise TipcastError("D024", f"run {config.repeat}", what, fix)
    first = Original(config.repeat, run.data.metrics, differs)
    if differs:
        LOG.warning("not all is as in run %s: %s", config.repeat, first.how)
    return first
