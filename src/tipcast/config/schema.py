"""Typed schemas of the groups of conf/: OmegaConf checks every key and type against these (mutable) dataclasses.

What a key means is said beside it in conf/, and here of those that conf/ leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tipcast.config.bounds import bounded

MISSING: Any = "???"
"""OmegaConf's sign of a value that must be given, without its import: workers load this module too."""


class Output(Enum):
    """The form of a job's closing lines."""

    text = "text"
    json = "json"
    none = "none"


@dataclass
class BackendSpec:
    """A device."""

    name: str = MISSING


@dataclass
class ClusterSpec:
    """Where the workers are."""

    kind: str = MISSING
    wait_s: float = bounded(above=0, default=60.0)
    """Seconds that workers may take to come."""
    worker_ttl_s: float = bounded(above=0, default=60.0)
    """Seconds without a sign of life after which a worker counts as lost."""
    allowed_failures: int = bounded(0, default=2)
    """Workers that may die of one task before it has failed."""
    connect_timeout_s: float = bounded(above=0, default=10.0)
    """Seconds that a connection to the scheduler may take."""
    performance_report: bool | None = None
    """Whether a run keeps Dask's performance report; null: one that takes more than half a minute."""
    partition_per_worker: bool = False
    """Whether a training joins the rows of each worker to one partition before it fits; that takes twice the memory."""


@dataclass
class LocalCluster(ClusterSpec):
    """Workers on this machine, bound to 127.0.0.1; null means chosen for the machine."""

    n_workers: int | None = bounded(1, default=None)
    threads_per_worker: int | None = bounded(1, default=None)
    processes: bool | None = None
    memory_limit: str | None = None
    dashboard: bool = False


@dataclass
class SchedulerCluster(ClusterSpec):
    """A running Dask scheduler."""

    address: str = MISSING
    """Of the scheduler, as tcp://HOST:8786 or tls://HOST:8786."""
    n_workers: int = bounded(1, default=1)
    insecure: bool = False
    """Whether the address may be off this machine and without TLS: whoever reaches it can run code there."""
    tls_ca_file: str | None = None
    """PEM file; null: as Dask's own configuration says."""
    tls_cert: str | None = None
    """Likewise."""
    tls_key: str | None = None
    """Likewise."""


@dataclass
class LocalCudaCluster(ClusterSpec):
    """One worker for each GPU of this machine, bound to 127.0.0.1."""

    n_workers: int | None = bounded(1, default=None)
    memory_limit: str | None = None
    device_memory_limit: Any = 0.8
    rmm_pool_size: Any = None
    rmm_async: bool = False
    rmm_managed: bool = False
    spill: bool = True
    protocol: str = "tcp"
    environment: dict[str, str] = field(default_factory=dict)
    dashboard: bool = False


@dataclass
class Limits:
    """Shares of a file's rows above which it is refused rather than cleaned."""

    stray: float | None = 0.01
    """Rows picked up outside the period; null: they are kept."""
    bad_zone: float = 0.01
    """Zone ids outside 1 to 265."""
    non_finite: float = 0.01
    """Infinite or absurd numbers (|x| > 1e6) in fare, tip or passengers."""
    missing: float = 0.01
    """Missing fare, tip, pickup time or zone."""
    missing_passengers: float = 0.99
    """Missing numbers of passengers."""
    min_rows: int = 100
    """Fewest rows that a period must keep."""


@dataclass
class DataSpec:
    """Where rows come from. ``train``, ``test`` and (for prepare) ``months`` say which."""

    source: str = MISSING
    train: Any = MISSING
    """What is trained on: months or files, as the source has them."""
    test: Any = MISSING
    """What the model is tested on, likewise."""
    months: Any = MISSING
    """What `prepare` writes, likewise."""
    limits: Limits = field(default_factory=Limits)


@dataclass
class SampleData(DataSpec):
    """Synthetic trips."""

    rows: int = bounded(1)
    """In each period."""
    seed: int = bounded(0, below=2**63)
    """Of the draw of the trips."""
    colour: str = MISSING
    """yellow or green."""
    block_rows: int = bounded(1)


@dataclass
class FilesData(DataSpec):
    """Files: paths, globs, directories, s3:// and https:// addresses, or lists of them."""

    colour: str | None = None
    columns: dict[str, str] = field(default_factory=dict)
    """Own name -> name of the column in the files, as {pickup: started_at}."""
    block_bytes: int = bounded(1024)
    """A plain text file is read in blocks of this size."""
    storage_options: dict[str, Any] = field(default_factory=dict)
    """Of fsspec, as for s3://; secrets come from the environment."""


@dataclass
class TlcData(DataSpec):
    """Months as the TLC publishes them, kept in a local cache."""

    colour: str = MISSING
    url: str = MISSING
    """Where a month is, with {colour} and {month}."""
    cache: str = MISSING
    """Folder that keeps what was downloaded."""


@dataclass
class MadeData(DataSpec):
    """Rows that are made as they are read."""

    rows: int = bounded(1)
    """To train on."""
    gigabytes: float | None = bounded(above=0, default=None)
    test_rows: int = bounded(1)
    """To test on."""
    columns: int = bounded(1)
    """Features."""
    seed: int = bounded(0)
    """Of the draw of the rows."""
    block_rows: int = bounded(1)


@dataclass
class BlobsData(MadeData):
    """Gaussian blobs."""

    centers: int = bounded(2)
    """How many blobs there are."""
    cluster_std: float = MISSING
    """Standard deviation of each."""
    spread: float = MISSING


@dataclass
class RegressionData(MadeData):
    """Rows of a linear regression."""

    informative: int = bounded(1)
    noise: float = MISSING


@dataclass
class TableData(DataSpec):
    """Parquet or CSV files of anything."""

    time: str | None = None
    columns: dict[str, str] = field(default_factory=dict)
    """Own name -> name of the column in the files, as {pickup: started_at}."""
    types: dict[str, str] = field(default_factory=dict)
    """Column -> what it is taken for: number, category, or none, which leaves it out; others as their values say."""
    test_share: float = bounded(0, below=1)
    """Of the rows, where ``test`` is null."""
    block_bytes: int = bounded(1024)
    """A plain text file is read in blocks of this size."""
    storage_options: dict[str, Any] = field(default_factory=dict)
    """Of fsspec, as for s3://; secrets come from the environment."""


@dataclass
class OwnData(DataSpec):
    """A dataset that an installed package or a script brings; ``source`` is its name."""

    options: dict[str, Any] = field(default_factory=dict)
    """What the dataset's own class takes."""
    columns: dict[str, str] = field(default_factory=dict)
    """Own name -> name of the column in the files, as {pickup: started_at}."""


@dataclass
class TaskSpec:
    """What is predicted from what."""

    name: str = MISSING
    kind: str | None = None
    """classification, multiclass, regression or clustering; null: as the target column says."""
    function: str | None = None
    """Name of a function that makes the target of raw columns; null: ``target`` as it is."""
    target: str | None = None
    """Column that is predicted; null: the dataset's own."""
    positive: str | None = None
    """Of two classes the one whose probability is told; null: the second in their order."""
    columns: list[str] = field(default_factory=list)
    """Raw columns that the function needs."""
    params: dict[str, Any] = field(default_factory=dict)
    """Of the function."""
    threshold: float | None = bounded(0, below=1_000_000, default=None)
    """One more of them: tip over fare above which a tip is high."""
    classes: list[str] = field(default_factory=list)
    """Names of the classes, from 0 on."""
    description: str = ""
    """The target in words, with params in braces."""
    features: list[str] | None = None
    """Features that the model gets; null: all that the dataset has."""
    categorical: list[str] = field(default_factory=list)
    """Features that are categories: sets to XGBoost, a column for each value to the models of libraries."""
    validation: float = bounded(0, below=1)
    """Share held out for validation: of the time that the training files cover, at its end, or of rows at random."""


@dataclass
class ModelSpec:
    """A model: its parameters and its classes by device."""

    name: str = MISSING
    kinds: list[str] = field(default_factory=list)
    """Kinds of tasks: classification, multiclass, regression, clustering."""
    params: dict[str, Any] = MISSING
    """Parameters by the library's own names; others that it has may be added."""
    fit: dict[str, Any] = field(default_factory=dict)
    """What belongs to training rather than to the model (rounds, early stopping)."""
    cpu: str | None = None
    """Class of tipcast's own."""
    gpu: str | None = None
    """Likewise, with backend=gpu."""
    classes: dict[str, Any] = field(default_factory=dict)
    """Or classes of a library: kind -> cpu or gpu -> reach -> dotted name; local is enough."""
    space: dict[str, Any] = field(default_factory=dict)
    """What a sweep searches: parameter -> range or list."""
    tiny: dict[str, Any] = field(default_factory=dict)
    """Parameters of the project's tests."""


@dataclass
class TrackingSpec:
    """Where runs are recorded."""

    uri: str | None = None
    """MLflow tracking URI; null takes MLFLOW_TRACKING_URI, then sqlite:///mlflow.db."""
    experiment: str | None = None
    """Name of MLflow's experiment; null: MLFLOW_EXPERIMENT_NAME or MLFLOW_EXPERIMENT_ID, else tipcast."""
    register: str | None = None
    """Name that the model is registered under; null: it is logged alone."""
    run_name: str | None = None
    """Name of the run; null: the model and what was overridden."""
    tags: dict[str, str] = field(default_factory=dict)
    """More tags of the run, as tracking.tags.team=cabs."""
    system_metrics: bool = True
    """Whether the use of processor, memory, disk, network and GPUs is recorded."""
    max_retries: int = bounded(0, default=5)
    """Of one HTTP request to the tracking server."""
    wait_s: float = bounded(0, below=1_000_000, default=60.0)
    """How long a locked sqlite file is waited for."""
    artifact_root: str | None = None
    """Folder of this machine that a server may name as the place of a model's files."""
    insecure: bool = False
    """Whether a password or token may go to another machine without TLS."""


@dataclass
class SearchSpec:
    """How trials are proposed, where they run and when they are given up."""

    name: str = MISSING
    trials: int | None = bounded(1)
    """How many; null: as many as the search has."""
    space: dict[str, Any] = field(default_factory=dict)
    """Parameter -> range or list, in place of the model's own; null leaves the parameter as model.params has it."""
    metric: str | None = None
    """Of the validation rows, that trials are ranked by; null: the leading one of the task's kind."""
    baseline: bool = False
    """Whether trial 0 has the parameters that model.params has."""
    timeout_s: float | None = bounded(above=0, default=None)
    """No trial begins after so many seconds of the search, those that run are finished; null: there is no limit."""
    points: int = bounded(2, default=3)
    """Of a grid along each range of the model's own space."""
    max_concurrent: int = bounded(1, default=8)
    """Most trials at once, of a search that learns from its trials."""
    attempts: int = bounded(1, default=3)
    """Maximum worker losses per trial, not counting out-of-memory."""
    trial_timeout_s: float | None = bounded(above=0, default=None)
    """A trial that takes longer has failed, and its worker is started anew; null: as long as it wants."""
    trials_per_gpu: int = bounded(1, default=1)
    """Trials at once on each GPU; a CPU worker runs one on each thread."""


CLUSTERS = {
    "local": LocalCluster,
    "local_cuda": LocalCudaCluster,
    "scheduler": SchedulerCluster,
}
"""``cluster.kind`` -> its schema."""
SOURCES = {
    "sample": SampleData,
    "files": FilesData,
    "tlc": TlcData,
    "blobs": BlobsData,
    "regression": RegressionData,
    "table": TableData,
}
"""``data.source`` -> its schema; a source of an installed package has that of ``OwnData``."""
