"""Which workers were ended for their memory, as Dask's nannies say."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, final

TELL_S = 0.5
"""How long an account of a worker's death may come after the death itself, in seconds."""
TOPIC = "worker-restart-memory"
"""Where Dask's nannies say that they end a worker for its memory."""


@final
@dataclass
class MemoryEvents:
    """Workers that a nanny ended for their memory."""

    seen: set[str] = field(default_factory=set)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, event: tuple[float, Any]) -> None:
        """Note one."""
        with self.changed:
            self.seen.add(str(event[1]["worker"]))
            self.changed.notify_all()

    def about(self, address: str) -> bool:
        """Tell whether a worker that died is one of them."""
        with self.changed:
            return self.changed.wait_for(lambda: address in self.seen, TELL_S)
