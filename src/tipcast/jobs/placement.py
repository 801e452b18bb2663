"""Where a training's rows lie: on how many GPUs, and in whose memory."""

import dataclasses
import logging

from tipcast.compute.base import Session
from tipcast.compute.frames import GpuFramesOnHost
from tipcast.config.schema import LocalCudaCluster, TrainConfig
from tipcast.jobs.train_plan import Plan, planned_readings
from tipcast.models.base import Estimator

LOG = logging.getLogger("tipcast")

VALUE_BYTES = 4
ON_ONE_GPU = 0.25
"""Share of a GPU's free memory that features may take for one of several GPUs to do. Some models
copy them as float64, which takes twice as much again.
"""
ON_THE_GPU = 0.6
"""Share of a GPU's free memory above which features wait on the host."""


def placed(session: Session, config: TrainConfig, plan: Plan, estimator: Estimator) -> Session:
    """Return the session with the workers and frames that suit a training's rows.

    Rows lie on one GPU if several would not be faster, unless the configuration says how many.
    Rows that would fill the memory of one GPU wait on the host, if the model can take them from
    there. Both need the number of rows, which footers tell. Folds take all GPUs.
    """
    if session.device != "cuda" or plan.task.folds:
        return session

    listings = [listing for listing, _, _ in planned_readings(plan)]
    if any(part.rows is None for listing in listings for part in listing.parts):
        return session

    train_rows = plan.train.known_rows
    features = len(plan.task.features)
    size = sum(listing.known_rows for listing in listings) * features * VALUE_BYTES

    if not _asks_for_all(config) and session.n_workers > 1:
        gains = estimator.gains_from(session.n_workers, train_rows, features)
        if not gains and size <= ON_ONE_GPU * session.free_bytes:
            message = "%-9s1 of %d: more would not make the fit of %s rows faster"
            LOG.info(message, "gpus", session.n_workers, f"{train_rows:,}")
            session = dataclasses.replace(session, n_workers=1, homes=1)

    if estimator.bins_parts and session.n_workers == 1 and size > ON_THE_GPU * session.free_bytes:
        message = "%-9swait on the host: their features take %.0f GB, and the GPU has %.0f GB free"
        LOG.info(message, "rows", size / 1e9, session.free_bytes / 1e9)
        session = dataclasses.replace(session, frames=GpuFramesOnHost())

    return session


def _asks_for_all(config: TrainConfig) -> bool:
    """Tell whether the configuration decides how many workers have rows."""
    cluster = config.cluster
    if not isinstance(cluster, LocalCudaCluster):
        return True
    return cluster.n_workers is not None or cluster.partition_per_worker
