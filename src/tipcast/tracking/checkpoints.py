"""Checkpoints of a training among the artifacts of its run, for a process that goes on in place of
one that was stopped.
"""

import contextlib
import functools
import logging
import re
from collections.abc import Callable, Collection
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
NAME = re.compile(rf"(?P<identity>[0-9a-f]+)-(?P<slot>[0-{SLOTS - 1}])")
"""Name of a checkpoint's file."""
Newest = Callable[[Collection[bytes]], bytes]
"""Returns the newest of several checkpoints; empty if none is whole."""


@final
class RunCheckpoints:
    """The two newest checkpoints of a run's training, written in turn.

    ``identity`` is a digest of the data and the settings that decide the result.
    """

    def __init__(self, run: Run, identity: str = "", *, kept: bool = False) -> None:
        self._run = run
        self._identity = identity
        self._next_slot = 0
        self._warned = False
        self.kept = kept
        """Whether the run has a checkpoint, as far as is known."""

    def keep(self, content: bytes) -> None:
        """Write a checkpoint in place of the older one.

        A store that fails does not end the training: it is said once.
        """
        try:
            self._run.log_bytes(content, f"{FOLDER}/{self._identity}-{self._next_slot}")
            self._next_slot = (self._next_slot + 1) % SLOTS
            self.kept = True
            gate("kept")
        except Exception as problem:  # each kind of artifact store raises its own
            if not self._warned:
                LOG.warning("a checkpoint could not be stored: %s", problem)
            self._warned = True

    def check(self) -> None:
        """Refuse (S003) to go on with a training whose checkpoints are of another one."""
        stored = self._stored_paths()
        if any(identity != self._identity for identity, _ in stored.values()):
            what = "its data or configuration have changed"
            fix = "restore the data, or leave resume out"
            raise TipcastError("S003", f"run {self._run.id}", what, fix)
        self.kept = bool(stored)

    def newest(self, newest_of: Newest) -> bytes:
        """Return the newest whole checkpoint that an earlier process has written; empty if none is.

        ``newest_of`` says which of several contents that is. The next checkpoint replaces another
        one. A checkpoint that is damaged or cannot be fetched is as good as none: it is said in one
        line.
        """
        slots: dict[int, bytes] = {}
        problems = {}
        for slot, (_, path) in self._stored_paths().items():
            try:
                content = self._fetch(path)
            except Exception as problem:  # each kind of artifact store raises its own
                problems[path] = " ".join(str(problem).split())
                continue

            if newest_of([content]):
                slots[slot] = content
            else:
                problems[path] = "it is damaged"

        newest = newest_of(slots.values())
        self.kept = bool(newest)
        for slot, content in slots.items():
            if content == newest:
                self._next_slot = (slot + 1) % SLOTS

        if problems:
            goes_on = "training continues from the other one" if newest else "training starts again"
            reasons = "; ".join(f"{path}: {why}" for path, why in problems.items())
            LOG.warning("a checkpoint cannot be read, so %s: %s", goes_on, reasons)
        elif not newest:
            LOG.info("the run has no checkpoint, so training starts again")
        return newest

    def _fetch(self, path: str) -> bytes:
        """Return the content of a stored checkpoint."""
        with temporary_folder() as folder:
            file = self._run.store.download_artifacts(self._run.id, path, str(folder))
            return Path(file).read_bytes()

    def remove(self) -> None:
        """Remove the checkpoints of a training that has ended, an earlier process's too."""
        self.kept = False
        with contextlib.suppress(Exception):  # a store that cannot delete keeps two files
            if self._stored_paths():
                root = self._run.mlflow_run().info.artifact_uri
                delete = get_artifact_repository(root).delete_artifacts
                calling(self._run.store, functools.partial(delete, FOLDER), offline=False)

    def _stored_paths(self) -> dict[int, tuple[str, str]]:
        """Return slot -> identity and path of each checkpoint among the artifacts.

        Files of other names are not tipcast's.
        """
        paths = {}
        for file in self._run.store.list_artifacts(self._run.id, FOLDER):
            name = NAME.fullmatch(Path(file.path).name)
            if name and not file.is_dir:
                paths[int(name["slot"])] = (name["identity"], file.path)
        return paths
