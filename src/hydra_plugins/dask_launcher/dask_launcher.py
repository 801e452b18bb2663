"""The launcher plugin. Hydra imports this module at each start, so that Dask is imported as jobs are launched."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, configure_log, filter_overrides, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from hydra_plugins.dask_launcher._job import run  # which makes hydra/launcher=dask known

LOG = logging.getLogger(__name__)
JOB = "hydra-job"
"""Dask resource of which a worker has one: it runs one job at a time."""


@final
class DaskLauncher(Launcher):
    """Run the jobs of a sweep as Dask tasks; parameters as of ``DaskLauncherConf``."""

    def __init__(self, address: str | None, n_workers: int | None, threads_per_worker: int, memory_limit: str) -> None:
        self.address, self.n_workers = address, n_workers
        self.threads_per_worker, self.memory_limit = threads_per_worker, memory_limit
        self.config: DictConfig | None = None
        self.task_function: TaskFunction | None = None
        self.hydra_context: HydraContext | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Take what all jobs have in common."""
        self.config, self.hydra_context, self.task_function = config, hydra_context, task_function

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run a job for each list of overrides, numbered from the first; return what came of them in the same order.

        An error of a job is kept in its ``JobReturn``, as Hydra's own launchers keep it; those of Dask are raised.
        """
        from dask.distributed import Client, LocalCluster
        from dask.system import CPU_COUNT

        assert self.config is not None and self.hydra_context is not None  # noqa: S101 - Hydra calls setup first
        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        if not self.config.hydra.verbose:  # Dask tells of each connection that closes, with a traceback
            logging.getLogger("distributed").setLevel(logging.WARNING)
        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        common = (self.hydra_context, self.config, self.task_function, Singleton.get_state(), str(Path.cwd()))
        futures, resources = [], None
        with contextlib.ExitStack() as stack:
            cluster: Any = self.address
            if cluster is None:
                resources = {JOB: 1}
                cluster = stack.enter_context(
                    LocalCluster(
                        n_workers=min(self.n_workers or CPU_COUNT, len(job_overrides)),
                        threads_per_worker=self.threads_per_worker,
                        memory_limit=self.memory_limit,
                        host="127.0.0.1",
                        dashboard_address="127.0.0.1:0",
                        scheduler_kwargs={"dashboard": False},  # its pages take a second to import
                        resources=resources,
                    )
                )
            client = stack.enter_context(Client(cluster))
            (shared,) = client.scatter([common], hash=False)
            for number, overrides in enumerate(map(list, job_overrides), initial_job_idx):
                LOG.info("#%d : %s", number, " ".join(filter_overrides(overrides)))
                job = client.submit(run, number, overrides, shared, pure=False, retries=0, resources=resources)
                futures.append(job)
            found: list[JobReturn] = client.gather(futures)
        return found
