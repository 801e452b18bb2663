"""Typed schemas of the jobs' configuration: OmegaConf checks every key and type against these (mutable) dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from tipcast.config.clusters import ClusterSpec as ClusterSpec
from tipcast.config.clusters import LocalCluster as LocalCluster
from tipcast.config.clusters import LocalCudaCluster as LocalCudaCluster
from tipcast.config.clusters import SchedulerCluster as SchedulerCluster
from tipcast.config.clusters import SlurmCluster as SlurmCluster
from tipcast.config.clusters import SshCluster as SshCluster


class Output(Enum):
    """The form of a job's closing lines."""

    text = "text"
    json = "json"


@dataclass
class BackendSpec:
    """A device."""

    name: str = MISSING


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
class TaskSpec:
    """What is predicted from what."""

    name: str = MISSING
    kind: str = MISSING
    threshold: float = MISSING
    """Tip over fare above which a tip is high."""
    features: list[str] = MISSING
    categorical: list[str] = field(default_factory=list)
    """Features that XGBoost treats as categories."""
    validation: float = MISSING
    """Share of the time that the training files cover, at its end, that is held out for validation."""


@dataclass
class ModelSpec:
    """A model: its parameters and its classes by device and reach."""

    name: str = MISSING
    kind: str = MISSING
    params: dict[str, Any] = MISSING
    fit: dict[str, Any] = field(default_factory=dict)
    """What belongs to training rather than to the model (rounds, early stopping)."""
    cpu: dict[str, str] = field(default_factory=dict)
    gpu: dict[str, str] = field(default_factory=dict)
    space: dict[str, Any] = field(default_factory=dict)
    tiny: dict[str, Any] = field(default_factory=dict)


@dataclass
class TrackingSpec:
    """Where runs are recorded."""

    uri: str | None = None
    """MLflow tracking URI; null takes MLFLOW_TRACKING_URI, then sqlite:///mlflow.db."""
    experiment: str = MISSING
    register: str | None = None
    """Name to register the model under; null registers nothing."""
    run_name: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    system_metrics: bool = True
    max_retries: int = 5
    """Of one HTTP request to the tracking server."""
    wait_s: float = 60.0
    """How long a locked sqlite file is waited for."""
    artifact_root: str | None = None
    """Folder of this machine that a server may name as the place of a model's files."""
    insecure: bool = False
    """Whether a password or token may go to a server of another machine without TLS."""


@dataclass
class TrainConfig:
    """Schema of conf/train.yaml."""

    backend: BackendSpec = MISSING
    cluster: ClusterSpec = MISSING
    data: DataSpec = MISSING
    task: TaskSpec = MISSING
    model: ModelSpec = MISSING
    tracking: TrackingSpec = MISSING
    seed: int = MISSING
    print: Output = MISSING
    debug: bool = False
    """Show tracebacks."""


@dataclass
class PrepareConfig:
    """Schema of conf/prepare.yaml."""

    backend: BackendSpec = MISSING
    cluster: ClusterSpec = MISSING
    data: DataSpec = MISSING
    out: str = MISSING
    """Folder or s3:// prefix that gets the prepared months."""
    row_group_rows: int = MISSING
    compression: str = MISSING
    print: Output = MISSING
    debug: bool = False


@dataclass
class DoctorConfig:
    """Schema of conf/doctor.yaml."""

    backend: BackendSpec = MISSING
    cluster: ClusterSpec = MISSING
    data: DataSpec = MISSING
    tracking: TrackingSpec = MISSING
    print: Output = MISSING
    debug: bool = False


def register() -> None:
    """Make the schemas known to Hydra under the names that conf/ refers to."""
    store = ConfigStore.instance()
    store.store(name="train_schema", node=TrainConfig)
    store.store(name="prepare_schema", node=PrepareConfig)
    store.store(name="doctor_schema", node=DoctorConfig)
    for name, node in (
        ("backend", BackendSpec),
        ("local", LocalCluster),
        ("local_cuda", LocalCudaCluster),
        ("scheduler", SchedulerCluster),
        ("ssh", SshCluster),
        ("slurm", SlurmCluster),
        ("sample", SampleData),
        ("files", FilesData),
        ("tlc", TlcData),
        ("task", TaskSpec),
        ("model", ModelSpec),
        ("tracking", TrackingSpec),
    ):
        store.store(group="schema", name=name, node=node)
