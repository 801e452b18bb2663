"""What a sweep has on the scheduler: its trials die but once, and nothing of it stays when its driver is gone."""

from __future__ import annotations

import contextlib
from typing import Any, final

from distributed import SchedulerPlugin


@final
class Guard(SchedulerPlugin):
    """Watches over one sweep.

    Parameters
    ----------
    name
        Of the plugin that the sweep has on the workers, and of this one.
    sweep
        How the keys of its tasks end.
    client
        Id of its driver's client.

    """

    idempotent = True

    def __init__(self, name: str, sweep: str, client: str) -> None:
        self.name, self._sweep, self._client = name, sweep, client
        self._scheduler: Any = None

    async def start(self, scheduler: Any) -> None:
        """Keep the scheduler."""
        self._scheduler = scheduler

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Let Dask give a task up when its worker dies: the driver decides what is begun again."""
        if finish == "processing" and str(key).endswith(self._sweep):
            task = self._scheduler.tasks[key]
            task.suspicious = max(task.suspicious, self._scheduler.allowed_failures)

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Clear up after a driver that was killed."""
        if client == self._client:
            scheduler.loop.add_callback(self._clear, scheduler)

    async def _clear(self, scheduler: Any) -> None:
        with contextlib.suppress(ValueError):  # it did so itself
            scheduler.remove_plugin(self.name)
            await scheduler.unregister_worker_plugin(None, self.name)
