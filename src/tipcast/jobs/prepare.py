"""`tipcast prepare`: write any source as Parquet months; what is already there and unchanged is left alone."""

from __future__ import annotations

import contextlib
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
from distributed import as_completed

from tipcast.backends.base import Session
from tipcast.backends.cpu import CpuFrames
from tipcast.backends.session import check, session
from tipcast.config.errors import TipcastError
from tipcast.config.schema import PrepareConfig
from tipcast.data import months
from tipcast.data.schema import COLUMNS
from tipcast.data.sources import list_fragments
from tipcast.jobs import closing
from tipcast.measure.clock import Clock
from tipcast.measure.progress import progress

REQUIRED = ("pickup", "fare_amount", "tip_amount", "PULocationID", "DOLocationID")


def run(config: PrepareConfig, command: str) -> None:
    """Run the job."""
    if config.data.months is None:
        raise TipcastError(
            "C004", "data.months", "needs a value", "add data.months=2019-01..2019-03, or the files to prepare"
        )
    if not config.out.strip():
        raise TipcastError("C004", "out", "needs a value", "add out=FOLDER or out=s3://BUCKET/PREFIX")
    check(config.backend, config.cluster)
    clock = Clock()
    out, token = config.out, uuid.uuid4().hex[:8]
    if "://" not in out:
        out = str(Path(out).expanduser().resolve())  # as the driver sees it, whatever folder a worker is in
    layout = months.Layout(config.row_group_rows, config.compression)
    with clock.phase("list"):
        listing = list_fragments(config.data, "months", REQUIRED, optional=COLUMNS)
        planned = months.plan(listing, layout)
        manifest = months.read_manifest(out)
        due = [month for month in planned if not months.is_current(out, month, manifest)]
    with contextlib.ExitStack() as stack:
        if due:
            stack.enter_context(_nothing_half(out, due, token))
            with clock.phase("cluster"):
                workers = stack.enter_context(session(config.backend, config.cluster))
            with clock.phase("write"):
                manifest = _written(workers, out, due, layout, listing.colour, token)
    names = [month.name for month in planned]
    rows = sum(manifest[name].rows for name in names)
    closing.say(
        {
            "out": config.out,
            "months": len(names),
            "written": len(due),
            "rows": rows,
            "files": names,
            "dropped": dict(sum((Counter(manifest[name].dropped) for name in names), Counter())),
            "phases": clock.seconds,
            "command": command,
        },
        config.print,
    )


@contextlib.contextmanager
def _nothing_half(out: str, due: Sequence[months.Month], token: str) -> Iterator[None]:
    """Leave no half-written file behind, however the block ends; put it around the session, whose end stops writers."""
    try:
        yield
    except BaseException:
        months.discard(out, due, token)
        raise


def _written(*write: Any) -> dict[str, months.Written]:
    """Write the months, or say in one line where that fails."""
    try:
        return _write(*write)
    except OSError as problem:
        where = problem.filename or write[1]
        raise TipcastError(
            "D023", where, f"cannot be written: {problem.strerror or problem}", "check the path, rights and free space"
        ) from problem


def _write(
    workers: Session,
    out: str,
    due: Sequence[months.Month],
    layout: months.Layout,
    colour: str,
    token: str,
) -> dict[str, months.Written]:
    """Write the months in parallel, each into the manifest as soon as it is whole."""
    filesystem, folder = fsspec.core.url_to_fs(out)
    filesystem.makedirs(folder, exist_ok=True)
    futures = {
        workers.client.submit(
            months.write_month, month, out, layout, tuple(COLUMNS), colour, CpuFrames(), token, pure=False
        ): month
        for month in due
    }
    with progress("write", list(futures)):
        for future, entry in as_completed(list(futures), with_results=True):
            written = months.read_manifest(out) | {futures[future].name: entry}  # another job may have written others
            months.write_manifest(out, written)
    return months.read_manifest(out)
