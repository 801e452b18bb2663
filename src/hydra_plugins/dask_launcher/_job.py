"""The option `hydra/launcher=dask` and one job on a worker. Hydra replaces modules, and locks in them, without `_`."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

_ONE_AT_A_TIME = threading.Lock()
"""Working directory, logging and ``HydraConfig`` are the process's: threads of one worker run jobs in turn."""


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


def run(
    number: int, overrides: list[str], common: tuple[HydraContext, DictConfig, TaskFunction, Any, str]
) -> JobReturn:
    """Run one job on a worker, in the folder of the process that launched it."""
    context, config, task_function, state, folder = common
    with _ONE_AT_A_TIME, contextlib.chdir(folder):
        setup_globals()
        Singleton.set_state(state)
        own = context.config_loader.load_sweep_config(config, overrides)
        with open_dict(own):
            own.hydra.job.id = f"{own.hydra.job.name}_{number}"
            own.hydra.job.num = number
        HydraConfig.instance().set_config(own)
        return run_job(
            hydra_context=context,
            task_function=task_function,
            config=own,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
