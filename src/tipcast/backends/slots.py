"""Slots: how many trials a worker runs at once, which its device decides."""

from __future__ import annotations


def slots(device: str, threads: int, per_gpu: int) -> int:
    """Return a worker's slots.

    Parameters
    ----------
    device
        The session's: ``cpu`` or ``cuda``.
    threads
        Of the worker.
    per_gpu
        Trials that share a GPU.

    """
    return threads if device == "cpu" else per_gpu
