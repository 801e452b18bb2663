"""Hydra's launcher `dask`: the jobs of a `--multirun` as tasks of a Dask cluster.

Hydra runs this module at each start, before the module has its name: Dask is imported as jobs are
launched, and annotations are no texts, which dataclasses would look up by that name.
"""

import contextlib
import logging
import math
import sys
import threading
from collections.abc import Iterator, Sequence
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
WORKER_TTL_S = 300.0  # seconds without a sign of life after which a worker is restarted, as in Dask
ONE_AT_A_TIME: threading.Lock = (
    getattr(sys.modules.get(__name__), "ONE_AT_A_TIME", None) or threading.Lock()
)
"""Held while a job runs: working directory, logging and ``HydraConfig`` belong to the process, so
that threads of one worker run jobs in turn.

Each job has Hydra run this module anew, which must not make another lock.
"""


@dataclass
class DaskLauncherConf:
    """Where jobs run: on the workers of a scheduler that is up, or of a cluster that lasts as long
    as the jobs.
    """

    _target_: str = "hydra_plugins.dask_launcher.DaskLauncher"
    # address of a scheduler, as tcp://host:8786; its workers see the same files and packages
    address: str | None = None
    # local processes, each with one job at a time; null: one per core, and no more than jobs
    n_workers: int | None = None
    threads_per_worker: int = 1  # threads for what a job itself gives to Dask
    memory_limit: str = "auto"  # memory limit of each worker


ConfigStore.instance().store(
    group="hydra/launcher", name="dask", node=DaskLauncherConf, provider="dask_launcher"
)


@final
class DaskLauncher(BasicLauncher):
    """Run the jobs of a sweep as Dask tasks; settings are those of ``DaskLauncherConf``.

    ``BasicLauncher.setup`` keeps the configuration, the context and the task.
    """

    def __init__(self, address: str | None, **workers: Any) -> None:
        super().__init__()
        self.address = address
        self.workers = workers

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run a job for each list of overrides; return the results in the same order.

        Jobs are numbered from ``initial_job_idx``. An error of a job is kept in its ``JobReturn``,
        as Hydra's own launchers keep it; those of Dask are raised.
        """
        # Importing Dask sets levels of its loggers: before Hydra sets those of the configuration.
        import distributed  # noqa: F401

        assert self.config is not None  # noqa: S101 - Hydra calls setup first
        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        shared_state = (
            self.hydra_context,
            self.config,
            self.task_function,
            Singleton.get_state(),
            str(Path.cwd()),
        )

        resources: dict[str, int] | None = {JOB: 1}
        if self.address:  # workers of a scheduler have no such resource
            resources = None

        with self._connected(len(job_overrides)) as client:
            (state,) = client.scatter([shared_state], hash=False)
            futures = []
            for number, overrides in enumerate(map(list, job_overrides), initial_job_idx):
                LOG.info("#%d : %s", number, " ".join(filter_overrides(overrides)))
                futures.append(
                    client.submit(run, number, overrides, state, pure=False, resources=resources)
                )
            returned: list[JobReturn] = client.gather(futures)
        return returned

    @contextlib.contextmanager
    def _connected(self, n_jobs: int) -> Iterator[Any]:
        """Yield a client of the scheduler at ``address``, or of local processes.

        The processes end with the block. A scheduler that is frozen ends it with K004.
        """
        import dask.config
        from dask.distributed import Client, LocalCluster

        from tipcast.compute.watch import at_work

        with dask.config.set(self._quieten()), contextlib.ExitStack() as stack:
            cluster: Any = self.address
            if cluster is None:
                cluster = stack.enter_context(LocalCluster(**self._local_settings(n_jobs)))
            client = stack.enter_context(Client(cluster))
            # Workers may come as late as they like.
            stack.enter_context(at_work(client, wait_s=math.inf, worker_ttl_s=WORKER_TTL_S))
            yield client

    def _quieten(self) -> dict[str, str]:
        """Keep Dask's log to warnings; return the setting that does so in the workers.

        Dask logs each connection that closes, with a traceback. With ``hydra.verbose`` all is
        logged.
        """
        assert self.config is not None  # noqa: S101 - Hydra calls setup first
        if self.config.hydra.verbose:
            return {}
        logging.getLogger("distributed").setLevel(logging.WARNING)
        return {"distributed.nanny.pre-spawn-environ.DASK_LOGGING__DISTRIBUTED": "critical"}

    def _local_settings(self, n_jobs: int) -> dict[str, Any]:
        """Return the settings of a cluster on this machine that runs ``n_jobs``."""
        import dask.system

        return {
            **self.workers,
            "n_workers": min(self.workers["n_workers"] or dask.system.CPU_COUNT, n_jobs),
            "resources": {JOB: 1},
            "host": "127.0.0.1",
            "dashboard_address": "127.0.0.1:0",
            # a dashboard takes a second to import
            "scheduler_kwargs": {"dashboard": False},
        }


def run(
    number: int,
    overrides: list[str],
    shared_state: tuple[HydraContext, DictConfig, TaskFunction, object, str],
) -> JobReturn:
    """Run one job on a worker, in the folder of the process that launched it."""
    context, config, task_function, singletons, folder = shared_state
    with ONE_AT_A_TIME, contextlib.chdir(folder):
        setup_globals()
        Singleton.set_state(singletons)  # here Hydra runs this module anew
        job_config = context.config_loader.load_sweep_config(config, overrides)
        with open_dict(job_config):
            job_config.hydra.job.id = f"{job_config.hydra.job.name}_{number}"
            job_config.hydra.job.num = number

        HydraConfig.instance().set_config(job_config)
        return run_job(
            task_function,
            job_config,
            "hydra.sweep.dir",
            "hydra.sweep.subdir",
            hydra_context=context,
        )
