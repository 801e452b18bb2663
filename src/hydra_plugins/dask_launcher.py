"""Hydra's launcher `dask`: the jobs of a `--multirun` as tasks of a Dask cluster.

Hydra runs this module at each start, before the module has its name: Dask is imported as jobs are
launched, and annotations are no texts, which dataclasses would look up by that name.
"""

import contextlib
import logging
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, configure_log, filter_overrides, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

LOG = logging.getLogger(__name__)
JOB = "hydra-job"  # Dask resource of which a worker has one: it runs one job at a time
ONE_AT_A_TIME: threading.Lock = (
    getattr(sys.modules.get(__name__), "ONE_AT_A_TIME", None) or threading.Lock()
)
"""Working directory, logging and ``HydraConfig`` are the process's: threads of one worker run jobs
in turn.

Each job has Hydra run this module anew, which must not make another lock.
"""


@dataclass
class DaskLauncherConf:
    """Where jobs run: on the workers of a scheduler that is up, or of a cluster that lasts as long
    as the jobs.
    """

    _target_: str = "hydra_plugins.dask_launcher.DaskLauncher"
    # of a scheduler, as tcp://host:8786, whose workers see the same files and packages
    address: str | None = None
    # local processes, each with one job at a time; null: for each core, at most each job
    n_workers: int | None = None
    threads_per_worker: int = 1  # for what a job itself gives to Dask
    memory_limit: str = "auto"  # of each worker


ConfigStore.instance().store(
    group="hydra/launcher", name="dask", node=DaskLauncherConf, provider="dask_launcher"
)


@final
# its ``setup`` keeps the configuration, the context and the task
class DaskLauncher(BasicLauncher):
    """Run the jobs of a sweep as Dask tasks; settings are those of ``DaskLauncherConf``."""

    def __init__(self, address: str | None, **workers: Any) -> None:
        super().__init__()
        self.address = address
        self.workers = workers

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run a job for each list of overrides, numbered from the first; return what came of them
        in the same order.

        An error of a job is kept in its ``JobReturn``, as Hydra's own launchers keep it; those of
        Dask are raised.
        """
        import dask.system
        from dask.distributed import Client, LocalCluster

        assert self.config is not None  # noqa: S101 - Hydra calls setup first
        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        quiet: dict[str, str] = {}
        # Dask tells of each connection that closes, with a traceback
        if not self.config.hydra.verbose:
            logging.getLogger("distributed").setLevel(logging.WARNING)
            # in the workers
            quiet["distributed.nanny.pre-spawn-environ.DASK_LOGGING__DISTRIBUTED"] = "critical"
        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        common = (
            self.hydra_context,
            self.config,
            self.task_function,
            Singleton.get_state(),
            str(Path.cwd()),
        )
        futures = []
        resources = None
        with dask.config.set(quiet), contextlib.ExitStack() as stack:
            cluster: Any = self.address
            if cluster is None:
                resources = {JOB: 1}
                n_workers = min(
                    self.workers["n_workers"] or dask.system.CPU_COUNT, len(job_overrides)
                )
                places = {
                    "host": "127.0.0.1",
                    "dashboard_address": "127.0.0.1:0",
                    "resources": resources,
                }
                own = {
                    **self.workers,
                    **places,
                    "n_workers": n_workers,
                    "scheduler_kwargs": {"dashboard": False},
                }
                # a dashboard takes a second to import
                cluster = stack.enter_context(LocalCluster(**own))
            client = stack.enter_context(Client(cluster))
            (shared,) = client.scatter([common], hash=False)
            for number, overrides in enumerate(map(list, job_overrides), initial_job_idx):
                LOG.info("#%d : %s", number, " ".join(filter_overrides(overrides)))
                futures.append(
                    client.submit(run, number, overrides, shared, pure=False, resources=resources)
                )
            ended: list[JobReturn] = client.gather(futures)
        return ended


def run(
    number: int,
    overrides: list[str],
    common: tuple[HydraContext, DictConfig, TaskFunction, Any, str],
) -> JobReturn:
    """Run one job on a worker, in the folder of the process that launched it."""
    context, config, task_function, state, folder = common
    with ONE_AT_A_TIME, contextlib.chdir(folder):
        setup_globals()
        Singleton.set_state(state)  # here Hydra runs this module anew
        own = context.config_loader.load_sweep_config(config, overrides)
        with open_dict(own):
            own.hydra.job.id = f"{own.hydra.job.name}_{number}"
            own.hydra.job.num = number
        HydraConfig.instance().set_config(own)
        return run_job(
            task_function, own, "hydra.sweep.dir", "hydra.sweep.subdir", hydra_context=context
        )
