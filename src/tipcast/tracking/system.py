"""A run's system metrics: every second while a run is young, seldom in a long one, whose store has other work."""

from __future__ import annotations

import threading

from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

SAMPLING_S, SELDOM_S = 1, 10
"""Seconds between two samples, at first and later."""
YOUNG_S = 30.0


def started(run_id: str, store: str, *, resume: bool) -> SystemMetricsMonitor:
    """Start to record what processor, memory, disk, network and GPUs do.

    Parameters
    ----------
    run_id, store
        The run, and its tracking store's URI.
    resume
        Whether the run has such metrics already.

    Returns
    -------
    SystemMetricsMonitor
        A thread of its own, until ``finish`` is called.

    """
    monitor = SystemMetricsMonitor(run_id, SAMPLING_S, resume_logging=resume, tracking_uri=store)
    monitor.start()
    later = threading.Timer(YOUNG_S, setattr, (monitor, "sampling_interval", SELDOM_S))
    later.daemon = True
    later.start()
    return monitor
