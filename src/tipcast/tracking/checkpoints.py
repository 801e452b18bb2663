"""Checkpoints of a training among the artifacts of its run, for a process that goes on in place of
one that was killed.
"""

import contextlib
import logging
from pathlib import Path
from typing import final

from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from tipcast.config.disk import temporary_folder
from tipcast.config.errors import TipcastError
from tipcast.config.gate import gate
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
        self._kept = 0
        self._warned = False

    def keep(self, content: bytes) -> None:
        """Write a checkpoint in place of the older one.

        A store that fails does not end the training: it is said once.
        """
        path = f"{FOLDER}/{self._identity}-{self._kept % SLOTS}"
        try:
            self._run.log_bytes(content, path)
            self._kept += 1
            gate("kept")
        except Exception as problem:  # each kind of artifact store raises its own
            if not self._warned:
                LOG.warning("a checkpoint could not be stored: %s", problem)
            self._warned = True

    def stored(self) -> list[bytes]:
        """Return the contents of the checkpoints that an earlier process has written.

        Raises S003 if they are of other data.
        """
        paths = [file.path for file in self._run.store.list_artifacts(self._run.id, FOLDER)]
        if any(Path(path).name.rpartition("-")[0] != self._identity for path in paths):
            what = "its data are not what they were"
            fix = "put the data back, or leave resume out"
            raise TipcastError("S003", f"run {self._run.id}", what, fix)

        contents = []
        for path in paths:
            with temporary_folder() as folder:
                file = self._run.store.download_artifacts(self._run.id, path, str(folder))
                contents.append(Path(file).read_bytes())

        self._kept = len(contents)
        return contents

    def remove(self) -> None:
        """Remove the checkpoints of a training that has ended."""
        if not self._kept:
            return
        with contextlib.suppress(Exception):  # a store that cannot delete keeps two files
            root = self._run.mlflow_run().info.artifact_uri
            get_artifact_repository(root).delete_artifacts(FOLDER)
