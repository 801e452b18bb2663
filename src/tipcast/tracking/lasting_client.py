"""MLflow's client of a server or a database, for a job whose results outlive the store."""

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, final

from mlflow import MlflowClient

from tipcast.config.disk import is_writable, temporary_folder
from tipcast.config.errors import left_offline
from tipcast.config.plain import redact_address
from tipcast.tracking.journal import Call, Journal
from tipcast.tracking.making import METHODS, Making
from tipcast.tracking.offline import FILE, new_folder
from tipcast.tracking.patience import Outage, Patience

T = TypeVar("T")

LOG = logging.getLogger("tipcast")
SERVER = "tipcast.server"
"""Tag of an experiment of an offline store: the address of the server that went away."""
ON_SERVER = (
    "get_registered_model",
    "get_model_version",
    "get_model_version_by_alias",
    "set_registered_model_alias",
    "set_registered_model_tag",
)
"""Methods for registered models, which only the server has."""


@final
class LastingClient:
    """A client whose calls outlast an outage of the store, and the store.

    It has the methods of ``MlflowClient``. A call waits while the store does not answer. When no
    patience is left, ``Outage`` is raised. While there is a ``journal``, ``connect`` rather opens
    an offline store in the working folder, which becomes MLflow's current one: it gets what the
    journal has, and all later calls.
    """

    def __init__(
        self, client: MlflowClient, patience: Patience, connect: Callable[[Path], MlflowClient]
    ) -> None:
        self._client = client
        self._patience = patience
        self._connect = connect
        self._turn = threading.RLock()
        self.journal: Journal | None = None
        """What the open run has written; None while no run is open."""
        self.offline_file: Path | None = None
        """File of the offline store that is written to now; None while the store answers."""

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._client, name)
        if not callable(attribute):
            return attribute
        if name in ON_SERVER:
            return functools.partial(self._call_server, name)
        return functools.partial(self._call_method, name)

    def call(self, function: Callable[[], T], *, offline: bool = True) -> T:
        """Return what a function returns that reaches the store by other ways than this client.

        The function must not use this client. Of one that is of no use ``offline``, ``Outage`` is
        raised there.
        """
        with self._turn:  # the thread of a training's checkpoints calls too
            if self.offline_file and offline:
                return function()
            try:
                result = self._patience.call(function)
            except Outage as outage:
                if self.journal is None or not self.journal.runs:
                    raise
                self._go_offline(self.journal, outage)
                if not offline:
                    raise
                return function()

            if self.journal:
                self.journal.note(result)
            return result

    def _call_method(self, name: str, *arguments: Any, **keywords: Any) -> Any:
        """Call a method of the present client, and remember what it has written."""
        with self._turn:
            result = self.call(self._bound(name, arguments, keywords))
            if self.journal and not self.offline_file:
                self._remember(self.journal, Call(name, arguments, keywords))
            return result

    def _bound(
        self, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Callable[[], Any]:
        """Return a function that calls a method of the client, of the present one each time."""
        if name in METHODS:
            making = Making(name, arguments, keywords)
            return lambda: making.make(self._client)
        return lambda: getattr(self._client, name)(*arguments, **keywords)

    def _remember(self, journal: Journal, call: Call) -> None:
        """Add a call to the journal, which is given up if its files find no room."""
        try:
            journal.add(call)
        except OSError as problem:
            LOG.warning("no local copy of the run can be kept if its server goes away: %s", problem)
            self.journal = None

    def _call_server(self, name: str, *arguments: Any, **keywords: Any) -> Any:
        """Call a method that no offline store can answer; ``Outage`` if the server is gone."""
        with self._turn:
            if self.offline_file:
                raise Outage(f"is gone; when it is back: tipcast replay {self.offline_file}")
            return self._patience.call(self._bound(name, arguments, keywords))

    def _go_offline(self, journal: Journal, outage: Outage) -> None:
        """Make the offline store, and write to it what the job has written so far."""
        address = redact_address(self._client.tracking_uri)
        try:
            with new_folder(next(iter(journal.runs))) as folder:
                file = folder / FILE
                client = self._connect(file)
                journal.write_to(file, client)
                for experiment_id in {run.info.experiment_id for run in journal.runs.values()}:
                    client.set_experiment_tag(experiment_id, SERVER, address)
        # A full disk, or a folder that may not be written. After Ctrl-C or SIGTERM the journal
        # stays: the call that closes the run makes the store.
        except Exception as problem:
            self.journal = None  # one try
            LOG.warning("cannot create an offline store in the working folder: %s", problem)
            raise outage from problem

        self.journal = None
        self._client = client
        self.offline_file = file
        LOG.warning("%s %s: the run continues in %s", address, outage, file)


@contextlib.contextmanager
def outliving(store: MlflowClient) -> Iterator[None]:
    """Let what the block writes outlive a server or a database that goes away.

    If the block fails after that, a warning names the offline store.
    """
    if not isinstance(store, LastingClient) or store.journal or store.offline_file:
        yield
        return

    if not is_writable(Path()):
        LOG.warning(
            "no local copy of the run can be kept if its server goes away: %s is not writable",
            Path.cwd(),
        )
    with temporary_folder() as folder:
        store.journal = Journal(folder)
        try:
            yield
        except BaseException:
            if store.offline_file:
                LOG.warning("%s", left_offline(store.offline_file))
            raise
        finally:
            store.journal = None


def calling(store: MlflowClient, function: Callable[[], T], *, offline: bool = True) -> T:
    """Return what a function returns that reaches a store by other ways than its client.

    It outlasts what the client's own methods outlast, see ``LastingClient.call``.
    """
    if isinstance(store, LastingClient):
        return store.call(function, offline=offline)
    return function()


def server_of(offline_store: MlflowClient) -> str | None:
    """Return the address of the server whose runs an offline store has; None for other stores."""
    for experiment in offline_store.search_experiments():
        if address := experiment.tags.get(SERVER):
            return str(address)
    return None


def offline_file(store: MlflowClient) -> Path | None:
    """Return the file of the offline store that a client writes to; None if its store answers."""
    if isinstance(store, LastingClient):
        return store.offline_file
    return None
