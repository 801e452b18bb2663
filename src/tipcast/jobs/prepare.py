"""`tipcast prepare`: write any source as Parquet months; what is already there and unchanged is left alone."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from distributed import as_completed

from tipcast.backends.base import Session
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
    check(config.backend, config.cluster)
    clock = Clock()
    layout = months.Layout(config.row_group_rows, config.compression)
    with clock.phase("list"):
        listing = list_fragments(config.data, "months", REQUIRED, optional=COLUMNS)
        planned = months.plan(listing, layout)
        manifest = months.read_manifest(config.out)
        due = [month for month in planned if not months.is_current(config.out, month, manifest)]
    with contextlib.ExitStack() as stack:
        if due:
            stack.enter_context(_nothing_half(config.out, due))
            with clock.phase("cluster"):
                workers = stack.enter_context(session(config.backend, config.cluster))
            with clock.phase("write"):
                manifest = _write(workers, config.out, due, manifest, layout, listing.colour)
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
def _nothing_half(out: str, due: Sequence[months.Month]) -> Iterator[None]:
    """Leave no half-written file behind, however the block ends; put it around the session, whose end stops writers."""
    try:
        yield
    except BaseException:
        months.discard(out, due)
        raise


def _write(
    workers: Session,
    out: str,
    due: Sequence[months.Month],
    manifest: Mapping[str, months.Written],
    layout: months.Layout,
    colour: str,
) -> dict[str, months.Written]:
    """Write the months in parallel, each into the manifest as soon as it is whole."""
    written = dict(manifest)
    futures = {
        workers.client.submit(
            months.write_month, month, out, layout, tuple(COLUMNS), colour, workers.frames, pure=False
        ): month
        for month in due
    }
    with progress("write", list(futures)):
        for future, entry in as_completed(list(futures), with_results=True):
            written[futures[future].name] = entry
            months.write_manifest(out, written)
    return written
