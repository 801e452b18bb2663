"""One job on a worker. Hydra replaces modules of plugins, and locks in them, whose names have no underscore."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

_ONE_AT_A_TIME = threading.Lock()
"""Working directory, logging and ``HydraConfig`` are the process's: threads of one worker run jobs in turn."""


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
