"""Typed schemas of the jobs and groups of conf/: OmegaConf checks every key and type against these
dataclasses.

A comment beside a key in conf/ says what it means, and a comment here if conf/ leaves the key out;
`--help` shows both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tipcast.config.bounds import MISSING, bounded
from tipcast.config.data_schema import DataSpec, Open, OpenTexts, OwnData


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
    wait_s: float = bounded(above=0, default=60.0)  # seconds to wait for workers to start
    # seconds without a heartbeat after which a worker counts as lost
    worker_ttl_s: float = bounded(above=0, default=60.0)
    # worker deaths that one task can cause before it fails
    allowed_failures: int = bounded(0, default=2)
    # times that training continues after losing a worker
    recoveries: int = bounded(0, default=2)
    # timeout of a connection to the scheduler, in seconds
    connect_timeout_s: float = bounded(above=0, default=10.0)
    performance_report: bool = False  # true: keep Dask's performance report
    # true: join each worker's rows before a fit, which takes twice the memory
    partition_per_worker: bool = False


@dataclass
class LocalCluster(ClusterSpec):
    """Workers on this machine, bound to 127.0.0.1; null means chosen for the machine."""

    n_workers: int | None = bounded(1, default=None)
    threads_per_worker: int | None = bounded(1, default=None)
    processes: bool | None = None
    memory_limit: str | None = None
    environment: OpenTexts = field(default_factory=dict)
    dashboard: bool = False


@dataclass
class SchedulerCluster(ClusterSpec):
    """A running Dask scheduler."""

    address: str = MISSING  # address of the scheduler, such as tcp://HOST:8786 or tls://HOST:8786
    n_workers: int = bounded(1, default=1)
    # true: allow another machine without TLS; anyone who can connect to it can run code
    insecure: bool = False


@dataclass
class LocalCudaCluster(ClusterSpec):
    """One worker for each GPU of this machine, bound to 127.0.0.1."""

    n_workers: int | None = bounded(1, default=None)
    memory_limit: str | None = None
    device_memory_limit: Any = 0.8
    rmm_pool_size: Any = None
    rmm_managed: bool = False
    environment: OpenTexts = field(default_factory=dict)
    dashboard: bool = False


@dataclass
class TaskSpec:
    """What is predicted from what."""

    name: str = MISSING
    # classification, multiclass, regression or clustering; null: inferred from the target column
    kind: str | None = None
    # function that computes the target from raw columns; null: the target column as it is
    function: str | None = None
    target: str | None = None  # column to predict; null: the dataset's own
    # the positive one of two classes, whose probability is predicted; null: the second in order
    positive: str | None = None
    columns: list[str] = field(default_factory=list)  # raw columns that the function needs
    params: dict[str, Any] = field(default_factory=dict)  # parameters of the function
    # ratio of tip to fare above which a tip is high
    threshold: float | None = bounded(0, below=1_000_000, default=None)
    classes: list[str] = field(default_factory=list)  # names of the classes, from 0 on
    description: str = ""  # the target in words, with params in braces
    # features of the model; null: all features of the dataset
    features: list[str] | None = None
    # categorical features: split into sets, or one column per value
    categorical: list[str] = field(default_factory=list)
    weight: str | None = None  # column of row weights; null: all rows count the same
    class_weight: str | None = None  # balanced: all classes count the same; null: all rows
    # share held out for validation: the end of the time, or rows at random
    validation: float = bounded(0, below=1)
    # cross-validation folds, instead of validation: each is tested by a model of the others
    folds: int = bounded(0, below=100, default=0)


@dataclass
class ModelSpec:
    """A model: its parameters and its classes by device."""

    name: str = MISSING
    # kinds of tasks: classification, multiclass, regression, clustering
    kinds: list[str] = field(default_factory=list)
    # parameters by the library's names; others can be added
    params: Open = field(default_factory=dict)
    # settings of the fit, such as rounds and early stopping
    fit: Open = field(default_factory=dict)
    cpu: str | None = None  # tipcast's own class
    gpu: str | None = None  # tipcast's own class with backend=gpu
    # classes of a library: kind -> device (-> reach) -> class
    classes: dict[str, Any] = field(default_factory=dict)
    # what a sweep searches: parameter -> range or list
    space: dict[str, Any] = field(default_factory=dict)
    tiny: dict[str, Any] = field(default_factory=dict)  # parameters of the project's tests


@dataclass
class TrackingSpec:
    """Where runs are recorded."""

    # MLflow tracking URI; null: MLFLOW_TRACKING_URI, else sqlite:///mlflow.db
    uri: str | None = None
    experiment: str | None = None
    register: str | None = None  # name to register the model under; null: only log it
    run_name: str | None = None  # name of the run; null: the model and the overrides
    # additional tags of the run, such as tracking.tags.team=cabs
    tags: OpenTexts = field(default_factory=dict)
    # true: record the use of CPU, memory, disk, network and GPUs
    system_metrics: bool = False
    max_retries: int = bounded(0, default=5)  # retries of one HTTP request to the tracking server
    # seconds to wait for a locked sqlite file
    wait_s: float = bounded(0, below=1_000_000, default=60.0)
    # folder on this machine that a server can name as the place of a model's files
    artifact_root: str | None = None
    # total seconds that a job waits for a tracking server or database that does not answer
    patience_s: float = bounded(0, default=90.0)
    insecure: bool = False  # true: allow sending a password or token without TLS


@dataclass
class SearchSpec:
    """How trials are proposed, where they run and when they are given up."""

    name: str = MISSING
    trials: int | None = bounded(1)  # number of trials; null: as many as the search has
    # parameter -> range or list; null fixes it at the value of model.params
    space: Open = field(default_factory=dict)
    metric: str | None = None
    baseline: bool = False  # true: trial 0 uses model.params
    timeout_s: float | None = bounded(above=0, default=None)
    # grid points along each range of the model's own space
    points: int = bounded(2, default=3)
    # maximum concurrent trials in a search that learns from its trials
    max_concurrent: int = bounded(1, default=8)
    sampler: str = "random"  # search that proposes halving's trials: random or tpe
    factor: int = bounded(2, default=3)  # halving: the best 1/factor of a rung goes on
    min_trees: int = bounded(1, default=10)  # halving: minimum trees of the first rung
    # maximum worker losses per trial, not counting out-of-memory
    attempts: int = bounded(1, default=3)
    # seconds that a trial can take before its worker is restarted; null: no limit
    trial_timeout_s: float | None = bounded(above=0, default=None)
    # trials at once on each GPU; a CPU worker runs one on each thread
    trials_per_gpu: int = bounded(1, default=1)


GROUPS = {
    "backend": BackendSpec,
    "dataset": OwnData,
    "task": TaskSpec,
    "model": ModelSpec,
    "search": SearchSpec,
    "tracking": TrackingSpec,
}
"""Group of conf/ -> its schema."""
CLUSTERS = {"local": LocalCluster, "local_cuda": LocalCudaCluster, "scheduler": SchedulerCluster}
"""Kind of cluster -> its schema."""


@dataclass
class JobConfig:
    print: Output = MISSING  # format of the closing lines; json: the last line is one JSON object
    debug: bool = False  # true: show tracebacks with errors


@dataclass
class ReplayConfig(JobConfig):
    """An offline store, and the server that its runs go to."""

    tracking: TrackingSpec = MISSING
    file: str = MISSING


@dataclass
class InspectConfig(JobConfig):
    """A table to look at, and its column that would be predicted."""

    data: DataSpec = MISSING
    task: TaskSpec = MISSING


@dataclass
class WorkersConfig(JobConfig):
    backend: BackendSpec = MISSING
    cluster: ClusterSpec = MISSING


@dataclass
class DataJobConfig(WorkersConfig):
    """What jobs that read a dataset and keep a run have in common."""

    data: DataSpec = MISSING
    tracking: TrackingSpec = MISSING


@dataclass
class DoctorConfig(DataJobConfig):
    """What the doctor looks at."""

    task: TaskSpec = MISSING  # without a name until the data bring one


@dataclass
class TrainConfig(DataJobConfig):
    """A training: what jobs that train have in common."""

    task: TaskSpec = MISSING
    model: ModelSpec = MISSING
    seed: int = bounded(0, below=2**31)  # seed of all random draws


@dataclass
class TrainJobConfig(TrainConfig):
    """The job `train`: one training or, with ``--multirun``, one of several."""

    repeat: str | None = None
    other_data: bool = False
    resume: str | None = None


@dataclass
class SweepConfig(TrainConfig):
    """What a training has, and how its parameters are searched."""

    search: SearchSpec = MISSING
    repeat: str | None = None
    resume: str | None = None


@dataclass
class LadderConfig(TrainConfig):
    """A training on several sizes of machine."""

    cores: list[int] | None = None
    gpus: list[int] | None = None
    tolerance: float = bounded(0, default=0.01)


@dataclass
class PrepareConfig(WorkersConfig):
    """Months to keep prepared."""

    data: DataSpec = MISSING
    out: str = MISSING
    # rows per row group of the Parquet files; one task reads one row group
    row_group_rows: int = bounded(1)
    # compression of the Parquet files: zstd, snappy, gzip, lz4, brotli or none
    compression: str = MISSING


@dataclass
class PromoteConfig(DataJobConfig):
    """A version, and the gate before its alias.

    The source ``tested`` of ``data`` is the one that the version's run read.
    """

    model_uri: str = MISSING  # models:/NAME/VERSION or models:/NAME@ALIAS
    alias: str = MISSING  # alias to move, such as champion
    margin: float = bounded(0)
    force: bool = MISSING


TESTS_ONLY = ("model.tiny",)
"""Keys of options of conf/ for the project's tests and `ladder`'s warm-up: nobody sets them, no
page shows them.
"""
RECORDED = "recorded"  # option of data, task and model that an earlier run had
OF_MACHINE = ("storage_options", "url", "cache")
"""Keys of ``data`` that say how a machine reaches the data, whatever another one has recorded."""
FILE_OPTIONS = ("colour", "decimal", "encoding")
"""Keys of ``ScoreConfig`` that describe the files, and that only the dataset understands."""


@dataclass
class ScoreConfig(WorkersConfig):
    """A model, rows, and where their scores go."""

    tracking: TrackingSpec = MISSING
    model_uri: str = MISSING
    input: Any = MISSING
    output: str = MISSING
    keep: list[str] | None = None
    columns: OpenTexts = field(default_factory=dict)
    colour: str | None = None
    decimal: str | None = None  # null: as in the model's training files
    encoding: str | None = None  # null: as in the model's training files
    block_bytes: int = bounded(1024)
    storage_options: Open = field(default_factory=dict)

    @property
    def file_options(self) -> dict[str, Any]:
        """Options that only the dataset understands, see ``Scorable.of_files``."""
        return {name: getattr(self, name) for name in FILE_OPTIONS}
