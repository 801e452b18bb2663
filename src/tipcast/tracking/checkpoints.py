"""Checkpoints of a training among the artifacts of its run, for a process that goes on in place of
one that was killed.
"""

import contextlib
import functools
import logging
from pathlib import Path
from typing import final

from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from tipcast.config.disk import temporary_folder
from tipcast.config.errors import TipcastError
from tipcast.config.gate import gate
from tipcast.tracking.lasting_client import calling
from tipcast.tracking.run import Run

LOG = logging.getLogger("tipcast")
FOLDER = "checkpoint"
"""Artifact folder of the checkpoints."""
SLOTS = 2
"""Checkpoints that are kept: one may be cut off when its process is killed."""


@final
class RunCheckpoints:
    """The two newest checkpoints of a run's training, written in turn.

    ``identity`` is a digest of the data and the settings that decide the result.
    """

    def __init__(self, run: Run, identity: str) -> None:
        self._run = run
        self._identity = identity
        self._slots: dict[int, bytes] = {}
        """Slot -> content that an earlier process has written."""
        self._next_slot = 0
        self._warned = False

    def keep(self, content: bytes) -> None:
        """Write a checkpoint in place of the older one.

        A store that fails does not end the training: it is said once.
        """
        try:
            self._run.log_bytes(content, f"{FOLDER}/{self._identity}-{self._next_slot}")
            self._next_slot = (self._next_slot + 1) % SLOTS
            gate("kept")
        except Exception as problem:  # each kind of artifact store raises its own
            if not self._warned:
                LOG.warning("a checkpoint could not be stored: %s", problem)
            self._warned = True

    def check(self) -> None:
        """Refuse (S003) to go on with a training whose checkpoints are of another one."""
        if any(identity != self._identity for identity, _ in self._stored_paths().values()):
            what = "its data or its configuration are not what they were"
            fix = "put the data back, or leave resume out"
            raise TipcastError("S003", f"run {self._run.id}", what, fix)

    def stored(self) -> list[bytes]:
        """Return the contents of the checkpoints that an earlier process has written."""
        for slot, (_, path) in self._stored_paths().items():
            with temporary_folder() as folder:
                file = self._run.store.download_artifacts(self._run.id, path, str(folder))
                self._slots[slot] = Path(file).read_bytes()
        return list(self._slots.values())

    def spare(self, content: bytes) -> None:
        """Let the next checkpoint replace another one than ``content``."""
        for slot, stored in self._slots.items():
            if stored == content:
                self._next_slot = (slot + 1) % SLOTS

    def remove(self) -> None:
        """Remove the checkpoints of a training that has ended, an earlier process's too."""
        with contextlib.suppress(Exception):  # a store that cannot delete keeps two files
            if self._stored_paths():
                root = self._run.mlflow_run().info.artifact_uri
                delete = get_artifact_repository(root).delete_artifacts
                calling(self._run.store, functools.partial(delete, FOLDER))

    def _stored_paths(self) -> dict[int, tuple[str, str]]:
        """Return slot -> identity and path of each checkpoint among the artifacts."""
        paths = {}
        for file in self._run.store.list_artifacts(self._run.id, FOLDER):
            identity, _, slot = Path(file.path).name.rpartition("-")
            paths[int(slot)] = (identity, file.path)
        return paths
