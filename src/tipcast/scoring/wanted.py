"""Whether anybody waits for the task that a worker runs."""

from concurrent.futures import CancelledError
from contextlib import suppress

from distributed import get_worker
from distributed.core import Status


def check_task_is_wanted() -> None:
    """Raise CancelledError if nobody waits for this task any more: its worker is closing, or the
    job has ended without it.

    A task that runs outlives its job. It must not touch scores that a later job may be writing.
    """
    with suppress(ValueError, KeyError):  # called outside a task
        worker = get_worker()
        task = worker.state.tasks.get(worker.get_current_task())
        closing = worker.status in (Status.closing, Status.closed)
        if closing or task is None or task.state == "cancelled":
            raise CancelledError
