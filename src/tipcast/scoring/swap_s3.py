"""Unfinished scores in an object store: under a prefix of their own, copied object by object, the manifest last."""

from __future__ import annotations

import contextlib
import datetime
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tipcast.datasets import address
from tipcast.scoring.manifest import MANIFEST
from tipcast.scoring.output_folder import UNFINISHED

AT_ONCE = 16
"""Requests on their way to the store."""
OLD_S = 3600.0
"""A store knows no locks: what nothing was added to for an hour was left by a job that was killed."""


class StoreWork:
    """A prefix within the one that gets the scores.

    A store has no folders to exchange. Each object is replaced as a whole, and the manifest says which belong together.
    """

    def __init__(self, output: str, storage: Mapping[str, Any]) -> None:
        self._output, self._store = output, address.filesystem(output, storage)
        self._folder = f"{output}/{UNFINISHED}{uuid.uuid4().hex[:12]}"
        self.parts, self.whole = f"{self._folder}/parts", f"{self._folder}/whole"
        self.final = output

    def keep(self, name: str) -> None:
        """Nothing: an object that is not replaced stays."""

    def drop(self, names: Collection[str]) -> None:
        """Remove new objects again."""
        with address.reaching(self._output):
            self._remove([f"{self.whole}/{name}" for name in names])

    def commit(self, manifest: Callable[[], bytes], obsolete: Collection[str], announced: bytes) -> None:
        """Announce the new objects, copy them to their names, remove what is obsolete, write the manifest.

        Killed in between, all that is there is named by a manifest: the next job makes again what has no stamp in it.
        """
        with address.reaching(self._output):
            self._store.pipe_file(f"{self._output}/{MANIFEST}", announced)
            self._store.invalidate_cache()
            made = self._found(self.whole)
            _each(self._store.cp_file, made, [f"{self._output}/{_below(path, self.whole)}" for path in made])
            self._remove([f"{self._output}/{name}" for name in obsolete])
            self._store.pipe_file(f"{self._output}/{MANIFEST}", manifest())

    def remove(self) -> None:
        """Remove all that is under the prefix; a store that fails now must not hide the first problem."""
        with contextlib.suppress(Exception):
            self._store.invalidate_cache()
            self._remove(self._found(self._folder))

    def _remove(self, paths: Collection[str]) -> None:
        def remove(path: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                self._store.rm_file(path)

        _each(remove, paths)

    def _found(self, folder: str) -> list[str]:
        try:
            found: list[str] = self._store.find(folder)
        except FileNotFoundError:
            return []
        return found


@contextlib.contextmanager
def within(output: str, storage: Mapping[str, Any]) -> Iterator[StoreWork]:
    """Choose a prefix for unfinished work, and remove what is under it at the end, however that comes."""
    work = StoreWork(output, storage)
    try:
        yield work
    finally:
        work.remove()


def recover(output: str, storage: Mapping[str, Any]) -> None:
    """Remove what killed jobs left in the store.

    Raises
    ------
    TipcastError
        D022 a store that does not answer.

    """
    now = datetime.datetime.now(datetime.UTC)
    with address.reaching(output):
        store = address.filesystem(output, storage)
        store.invalidate_cache()
        left: dict[str, list[tuple[str, datetime.datetime]]] = {}
        for path, told in store.find(output, prefix=UNFINISHED, detail=True).items():
            left.setdefault(_below(path, output).partition("/")[0], []).append((path, told["LastModified"]))
        for objects in left.values():
            if (now - max(time for _, time in objects)).total_seconds() > OLD_S:
                _each(store.rm_file, [path for path, _ in objects])


def _each(call: Callable[..., object], *paths: Iterable[str]) -> None:
    """Call for each object, several at once.

    Requests that remove a thousand objects are not used: stores differ in the checksum they ask of them, and s3fs does
    not tell which objects such a request has left.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in pool.map(call, *paths):
            pass


def _below(path: str, address: str) -> str:
    """Return what a store's path is below an address."""
    return path.removeprefix(address.removeprefix("s3://") + "/")
