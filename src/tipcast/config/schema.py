"""Typed schemas of the groups of conf/: OmegaConf checks every key and type against these (mutable) dataclasses.

What a key means is said beside it in conf/, and here of those that conf/ leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

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
    wait_s: float = 60.0
    worker_ttl_s: float = 60.0
    allowed_failures: int = 2
    connect_timeout_s: float = 10.0
    performance_report: bool | None = None
    """Whether a run keeps Dask's performance report; null: one that takes more than half a minute."""
    task_graph: bool = False
    """Whether a training keeps the graph of the tasks behind its rows, and which worker holds which of them."""
    partition_per_worker: bool = False
    """Whether a training joins the rows of each worker to one partition before it fits; that takes twice the memory."""
    upload: list[str] = field(default_factory=list)
    """Files of Python (.py, .egg, .zip) that each worker is sent and imports, also one that comes later."""


@dataclass
class LocalCluster(ClusterSpec):
    """Workers on this machine, bound to 127.0.0.1; null means chosen for the machine."""

    n_workers: int | None = None
    threads_per_worker: int | None = None
    processes: bool | None = None
    memory_limit: str | None = None
    dashboard: bool = False


@dataclass
class SchedulerCluster(ClusterSpec):
    """A running Dask scheduler."""

    address: str = MISSING
    n_workers: int = 1
    insecure: bool = False
    tls_ca_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None


@dataclass
class LocalCudaCluster(ClusterSpec):
    """One worker for each GPU of this machine, bound to 127.0.0.1."""

    n_workers: int | None = None
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
class SshCluster(ClusterSpec):
    """A scheduler and workers that are started over ssh and end with the job."""

    hosts: list[str] = MISSING
    """The first runs the scheduler, the others a worker each (with GPUs, one for each GPU)."""
    n_workers: int | None = None
    threads_per_worker: int | None = None
    memory_limit: str | None = None
    remote_python: str | None = None
    known_hosts: str | None = None
    insecure: bool = False


@dataclass
class SlurmCluster(ClusterSpec):
    """Workers that are jobs of Slurm, one for each GPU with backend=gpu; the scheduler runs in the driver."""

    n_workers: int = 1
    queue: str | None = None
    account: str | None = None
    walltime: str = "01:00:00"
    cores: int = 1
    memory: str = MISSING
    directives: list[str] = field(default_factory=list)
    prologue: list[str] = field(default_factory=list)
    interface: str | None = None
    shared_folder: str | None = None


@dataclass
class Limits:
    """Shares of a file's rows above which it is refused rather than cleaned."""

    stray: float = 0.01
    """Rows picked up outside the period."""
    bad_zone: float = 0.01
    """Zone ids outside 1 to 265."""
    non_finite: float = 0.01
    """Infinite or absurd numbers (|x| > 1e6) in fare, tip or passengers."""
    missing: float = 0.01
    """Missing fare, tip, pickup time or zone."""
    missing_passengers: float = 0.99
    min_rows: int = 100
    """Fewest rows that a period must keep."""


@dataclass
class DataSpec:
    """Where rows come from. ``train``, ``test`` and (for prepare) ``months`` say which."""

    source: str = MISSING
    train: Any = MISSING
    test: Any = MISSING
    months: Any = MISSING
    limits: Limits = field(default_factory=Limits)


@dataclass
class SampleData(DataSpec):
    """Synthetic trips."""

    rows: int = MISSING
    seed: int = MISSING
    colour: str = MISSING
    block_rows: int = MISSING


@dataclass
class FilesData(DataSpec):
    """Files: paths, globs, directories, s3:// and https:// addresses, or lists of them."""

    colour: str | None = None
    block_bytes: int = MISSING
    storage_options: dict[str, Any] = field(default_factory=dict)


@dataclass
class TlcData(DataSpec):
    """Months as the TLC publishes them, kept in a local cache."""

    colour: str = MISSING
    url: str = MISSING
    cache: str = MISSING


@dataclass
class MadeData(DataSpec):
    """Rows that are made as they are read."""

    rows: int = MISSING
    gigabytes: float | None = None
    test_rows: int = MISSING
    columns: int = MISSING
    seed: int = MISSING
    block_rows: int = MISSING


@dataclass
class BlobsData(MadeData):
    """Gaussian blobs."""

    centers: int = MISSING
    cluster_std: float = MISSING
    spread: float = MISSING


@dataclass
class RegressionData(MadeData):
    """Rows of a linear regression."""

    informative: int = MISSING
    noise: float = MISSING


@dataclass
class TableData(DataSpec):
    """Parquet or CSV files of anything."""

    time: str | None = None
    test_share: float = MISSING
    block_bytes: int = MISSING
    storage_options: dict[str, Any] = field(default_factory=dict)


@dataclass
class OwnData(DataSpec):
    """A dataset that an installed package or a script brings; ``source`` is its name."""

    options: dict[str, Any] = field(default_factory=dict)


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
    columns: list[str] = field(default_factory=list)
    """Raw columns that the function needs."""
    params: dict[str, Any] = field(default_factory=dict)
    """Of the function."""
    threshold: float | None = None
    """One more of them: tip over fare above which a tip is high."""
    classes: list[str] = field(default_factory=list)
    description: str = ""
    """The target in words, with params in braces."""
    features: list[str] | None = None
    categorical: list[str] = field(default_factory=list)
    """Features that XGBoost treats as categories."""
    validation: float = MISSING
    """Share held out for validation: of the time that the training files cover, at its end, or of rows at random."""


@dataclass
class ModelSpec:
    """A model: its parameters and its classes by device."""

    name: str = MISSING
    kinds: list[str] = field(default_factory=list)
    """Kinds of tasks: classification, multiclass, regression, clustering."""
    params: dict[str, Any] = MISSING
    fit: dict[str, Any] = field(default_factory=dict)
    """What belongs to training rather than to the model (rounds, early stopping)."""
    cpu: str | None = None
    """Class of tipcast's own."""
    gpu: str | None = None
    classes: dict[str, Any] = field(default_factory=dict)
    """Or classes of a library: kind -> cpu or gpu -> reach -> dotted name; local is enough."""
    space: dict[str, Any] = field(default_factory=dict)
    tiny: dict[str, Any] = field(default_factory=dict)


@dataclass
class TrackingSpec:
    """Where runs are recorded."""

    uri: str | None = None
    """MLflow tracking URI; null takes MLFLOW_TRACKING_URI, then sqlite:///mlflow.db."""
    experiment: str = MISSING
    register: str | None = None
    run_name: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    system_metrics: bool = True
    max_retries: int = 5
    """Of one HTTP request to the tracking server."""
    wait_s: float = 60.0
    """How long a locked sqlite file is waited for."""
    artifact_root: str | None = None
    insecure: bool = False


@dataclass
class SearchSpec:
    """How trials are proposed, where they run and when they are given up."""

    name: str = MISSING
    trials: int | None = MISSING
    space: dict[str, Any] = field(default_factory=dict)
    """Parameter -> range or list, in place of the model's own; null leaves the parameter as model.params has it."""
    points: int = 3
    eta: int = 3
    min_rounds: int | None = None
    max_concurrent: int = 8
    attempts: int = 3
    """Maximum worker losses per trial, not counting out-of-memory."""
    trial_timeout_s: float | None = None
    """A trial that takes longer has failed, and its worker is started anew; null: as long as it wants."""
    trials_per_gpu: int = 1
    """Trials at once on each GPU; a CPU worker runs one on each thread."""
    through: str = "pool"
    """``pool``: trials as tasks of our own. ``joblib``: by scikit-learn's GridSearchCV over joblib's Dask backend."""
    rows: int = 20_000


CLUSTERS = {
    "local": LocalCluster,
    "local_cuda": LocalCudaCluster,
    "scheduler": SchedulerCluster,
    "ssh": SshCluster,
    "slurm": SlurmCluster,
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
