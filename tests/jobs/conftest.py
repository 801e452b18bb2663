"""A store that the jobs of one test session share, and a way to run a job in this process."""

import contextlib
import functools
import io
import json
import logging
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import pyarrow.parquet as pq
import pytest
from tests import warm
from tests.conftest import without_mlflow

from tipcast.commands import compose_jobs
from tipcast.config.errors import TipcastError
from tipcast.config.schema import TrackingSpec
from tipcast.tracking import model_fetch
from tipcast.tracking.store import open_store

with warnings.catch_warnings():
    # MLflow's, of its own classes, at import: whichever test is the first
    warnings.simplefilter("ignore")
    import mlflow.pyfunc

TRACKED = {"train", "sweep", "promote", "score"}
QUICK = (
    "print=json",
    "cluster.processes=false",
    "cluster.n_workers=1",
    "cluster.threads_per_worker=2",
)
ON_GPUS = ("print=json", "cluster.rmm_pool_size=2GiB")
"""Jobs of several tests at once share the memory of a GPU."""
QUICK_TRAIN = ("cluster.performance_report=false", "tracking.system_metrics=false")
OF_PROCESS = re.compile(
    r"(seconds|memory|system|fit)/.*|(train|validation|test)/(rows.*|(raw_)?bytes|partitions|dropped/.*|.*_share)"
    r"|(train|validation)/positive_rate"
)
"""Metrics of how a run went, and of its rows."""
MOST_OF_MODEL = 25
"""Metrics of the model that a run may have."""
TAGS = {"job", "command", "tipcast.process", "tipcast.version"}
"""Tags of every run of a job."""


@dataclass(frozen=True)
class Ended:
    """A job that has run: what its last line said, and the run it left."""

    said: dict[str, Any]
    run: Any

    @property
    def auc(self) -> float:
        return float(self.said["metrics"]["test/auc"])


@pytest.fixture(scope="session")
def store(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An sqlite store with its tables made."""
    uri = f"sqlite:///{shutil.copy(tables, tmp_path_factory.mktemp('store'))}"
    open_store(TrackingSpec(uri=uri, experiment="jobs"))
    return uri


@pytest.fixture(scope="module", autouse=True)
def _small_pictures(small_pictures: None) -> None:
    """Pictures of 60 pixels; who looks at them sets DPI."""


@pytest.fixture(scope="module", autouse=True)
def _parsed_here(_parsed_once: None) -> Iterator[None]:
    """No model is parsed in a process of its own, which takes seconds: unit tests tell of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_fetch, "_parsed", warm.parsed_here)
        yield


_alone = pytest.fixture(autouse=True)(without_mlflow)


@contextlib.contextmanager
def console_lines() -> Iterator[list[str]]:
    """Collect what the console is told; Dask's local cluster turns caplog's handler down."""
    lines: list[str] = []
    handler = logging.Handler()
    logger = logging.getLogger("tipcast")
    level = logger.level
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """What the console is told during a test."""
    with console_lines() as lines:
        yield lines


def run_job(store: str, name: str, *overrides: str) -> Ended:
    """Run a job in this process, on two threads or on every GPU; artifacts of a new experiment go
    below where it is.
    """
    words = [*(ON_GPUS if "backend=gpu" in overrides else QUICK), *overrides]
    if name in TRACKED:
        words += [*QUICK_TRAIN, f"tracking.uri={store}"]
    (composed,), out = compose_jobs(name, words), io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            composed.run()
    except TipcastError:
        print(out.getvalue(), end="")  # what it said of files that it refused
        raise
    said = json.loads(out.getvalue().splitlines()[-1])
    return Ended(
        said, mlflow.MlflowClient(store).get_run(said["run_id"]) if "run_id" in said else None
    )


@pytest.fixture
def job(store: str) -> Callable[..., Ended]:
    return functools.partial(run_job, store)


def of_model(metrics: Iterable[str]) -> list[str]:
    """Return the metrics that are about the model."""
    return [name for name in metrics if not OF_PROCESS.fullmatch(name)]


def own_tags(run: Any) -> set[str]:
    """Return the names of a run's tags that are not MLflow's own, nor there in a checkout alone."""
    return {
        name
        for name in run.data.tags
        if not name.startswith(("mlflow.", "tipcast.commit", "tipcast.dirty"))
    }


def children(client: Any, run: Any) -> list[Any]:
    """Return the runs of a sweep's trials, by number."""
    found = client.search_runs(
        [run.info.experiment_id], f"tags.`mlflow.parentRunId` = '{run.info.run_id}'"
    )
    return sorted(found, key=lambda child: int(child.data.tags["trial.number"]))


def damaged(path: Path) -> bytes:
    """Return a file with one bit of a page changed, which its footer does not show."""
    content = bytearray(path.read_bytes())
    group = pq.read_metadata(path).row_group(2)
    columns = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
    content[columns["tpep_pickup_datetime"].data_page_offset + 200] ^= 4
    return bytes(content)
