"""The option `hydra/launcher=dask`, in a module that Hydra's search for plugins leaves to Python's own import."""

from __future__ import annotations

from dataclasses import dataclass

from hydra.core.config_store import ConfigStore


@dataclass
class DaskLauncherConf:
    """Where jobs run: on the workers of a scheduler that is up, or of a cluster that lasts as long as the jobs."""

    _target_: str = "hydra_plugins.dask_launcher.dask_launcher.DaskLauncher"
    address: str | None = None
    """Of a running scheduler, as ``tcp://host:8786``, whose workers see the same files and packages; null: local."""
    n_workers: int | None = None
    """Worker processes, each with one job at a time; null: one for each core, at most one for each job."""
    threads_per_worker: int = 1
    """Threads for what a job itself gives to Dask."""
    memory_limit: str = "auto"
    """Of each worker."""


ConfigStore.instance().store(group="hydra/launcher", name="dask", node=DaskLauncherConf, provider="dask_launcher")
