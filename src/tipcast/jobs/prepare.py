"""`tipcast prepare`: write any source as Parquet months; what is already there and unchanged is
left alone.
"""

import contextlib
import functools
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tipcast.compute.base import Session
from tipcast.compute.cluster import completed
from tipcast.compute.session import session
from tipcast.config.errors import TipcastError, failed_to, needs_value
from tipcast.config.schema import PrepareConfig
from tipcast.datasets import months
from tipcast.datasets.base import Dataset, Months
from tipcast.datasets.listing import identical
from tipcast.datasets.registry import open_dataset
from tipcast.jobs import say
from tipcast.measure.progress import Clock, progress, worth_a_line

LOG = logging.getLogger("tipcast")


def run(config: PrepareConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says."""
    if config.data.months is None:
        raise needs_value(
            "data.months", "add data.months=2019-01..2019-03, or the files to prepare"
        )
    if not config.out.strip() or config.out.endswith("://"):
        raise needs_value("out", "add out=FOLDER or out=s3://BUCKET/PREFIX")

    clock = Clock()
    given = config.out.removeprefix("file://")
    here = Path(given).expanduser().resolve()  # whatever folder a worker is in
    out = given.rstrip("/") if "://" in given else str(here)

    with clock.phase("list"):
        dataset = open_dataset(config.data)
        if not isinstance(dataset, Months):
            what = f"rows of {dataset.name} have no months to write"
            fix = "use data=sample, data=files or data=tlc"
            raise TipcastError("C003", "data.source", what, fix)

        listing = dataset.month_files()
        for note in (*listing.notes, *identical(listing.fragments)):
            LOG.warning(note)
        planned = months.plan(
            dataset, listing, row_group_rows=config.row_group_rows, compression=config.compression
        )

    with contextlib.ExitStack() as folder:
        with _refused(out):
            folder.enter_context(months.alone(out))
        written = {month.name: entry for month in planned if (entry := months.current(out, month))}
        due = [month for month in planned if month.name not in written]
        if due:
            written |= _open_and_write(config, dataset, out, due, clock)

    return say(
        {
            "out": config.out,
            "months": len(planned),
            "written": len(due),
            "rows": sum(entry["rows"] for entry in written.values()),
            "files": [month.name for month in planned],
            "dropped": dict(
                sum((Counter(entry["dropped"]) for entry in written.values()), Counter())
            ),
            "phases": clock.seconds,
            "command": command,
        },
        config.print,
    )


def _open_and_write(
    config: PrepareConfig, dataset: Dataset, out: str, due: Sequence[months.Month], clock: Clock
) -> dict[str, Any]:
    """Open the workers and write the months; errors as ``_write``."""
    # workers stop before it cleans up
    with months.unfinished(out) as token, contextlib.ExitStack() as stack:
        with clock.phase("cluster") as facts, progress("cluster"):
            workers = stack.enter_context(session(config.backend, config.cluster))
            facts.append(workers.size)
        with clock.phase("write") as facts:
            written = _write(dataset, workers, out, due, token)
            facts.append(
                f"{sum(entry['rows'] for entry in written.values()):,} rows in {len(due)} months"
            )

    return written


def _write(
    dataset: Dataset, workers: Session, out: str, due: Sequence[months.Month], token: str
) -> dict[str, Any]:
    """Write the months in parallel; D023 where that fails."""
    written: dict[str, Any] = {}
    # never a result of before
    submit = functools.partial(workers.client.submit, months.write_month, pure=False)
    with _refused(out):
        futures = {submit(dataset, month, out, token): month.name for month in due}
        with progress("write", list(futures)):
            for done, (future, entry) in enumerate(completed(workers.client, futures), 1):
                written[futures[future]] = entry
                if worth_a_line(done, len(futures)):
                    LOG.info(
                        "month %d/%d  %s  %s rows",
                        done,
                        len(futures),
                        futures[future],
                        f"{entry['rows']:,}",
                    )

    return written


@contextlib.contextmanager
def _refused(out: str) -> Iterator[None]:
    """Tell in one line what a disk or store refuses; D023."""
    try:
        yield
    except OSError as problem:
        fix = "check the path, rights and free space"
        raise failed_to(
            "written", problem.filename or out, problem.strerror or problem, fix, "D023"
        ) from problem
