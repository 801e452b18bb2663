"""`tipcast prepare`: write any source as Parquet months; unchanged months stay as they are."""

import contextlib
import functools
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tipcast.compute.base import Session
from tipcast.compute.cluster import completed
from tipcast.compute.session import open_session
from tipcast.config.errors import TipcastError, failed_to, needs_value
from tipcast.config.schema import PrepareConfig
from tipcast.datasets import months
from tipcast.datasets.base import Dataset, Months
from tipcast.datasets.find_files import identical
from tipcast.datasets.registry import open_dataset
from tipcast.jobs import end_job
from tipcast.measure.progress import Clock, progress, worth_a_line

LOG = logging.getLogger("tipcast")


def run(config: PrepareConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says."""
    clock = Clock()
    out = output_folder(config)

    with clock.phase("list"):
        dataset, planned = plan_months(config)

    with contextlib.ExitStack() as stack:
        with write_errors(out):
            stack.enter_context(months.locked_folder(out))

        current = {month.name: months.current(out, month) for month in planned}
        entries = {name: entry for name, entry in current.items() if entry}
        due = [month for month in planned if month.name not in entries]
        if due:
            entries |= write_due(config, dataset, out, due, clock)

    result = {
        "out": config.out,
        "months": len(planned),
        "written": len(due),
        "rows": rows_of(entries),
        "files": [month.name for month in planned],
        "dropped": dropped_rows(entries),
        "phases": clock.seconds,
        "command": command,
    }
    return end_job(result, config.print)


def output_folder(config: PrepareConfig) -> str:
    """Return the absolute path, whatever folder a worker is in, or the address of the months.

    Raises C004 if the configuration does not name the months, or the folder.
    """
    if config.data.months is None:
        fix = "add data.months=2019-01..2019-03, or the files to prepare"
        raise needs_value("data.months", fix)
    if not config.out.strip() or config.out.endswith("://"):
        raise needs_value("out", "add out=FOLDER or out=s3://BUCKET/PREFIX")

    folder = config.out.removeprefix("file://")
    if "://" in folder:
        return folder.rstrip("/")
    return str(Path(folder).expanduser().resolve())


def plan_months(config: PrepareConfig) -> tuple[Dataset, list[months.Month]]:
    """List the source, and plan its months, whether or not they exist already."""
    dataset = open_dataset(config.data)
    if not isinstance(dataset, Months):
        what = f"rows of {dataset.name} have no months to write"
        fix = "use data=sample, data=files or data=tlc"
        raise TipcastError("C003", "data.source", what, fix)

    listing = dataset.month_files()
    for note in (*listing.notes, *identical(listing.parts)):
        LOG.warning(note)

    planned = months.plan(
        dataset, listing, row_group_rows=config.row_group_rows, compression=config.compression
    )
    return dataset, planned


def write_due(
    config: PrepareConfig, dataset: Dataset, out: str, due: Sequence[months.Month], clock: Clock
) -> dict[str, Any]:
    """Start workers and write the months that are due; return name -> entry.

    Raises D023 if a month cannot be written.
    """
    # The stack is left first: workers stop before unfinished files are removed.
    with months.unfinished(out) as token, contextlib.ExitStack() as stack:
        with clock.phase("cluster") as notes, progress("cluster"):
            session = stack.enter_context(open_session(config.backend, config.cluster))
            notes.append(session.size)

        with clock.phase("write") as notes:
            entries = write_months(dataset, session, out, due, token)
            notes.append(f"{rows_of(entries):,} rows in {len(due)} months")

    return entries


def write_months(
    dataset: Dataset, session: Session, out: str, due: Sequence[months.Month], token: str
) -> dict[str, Any]:
    """Write months in parallel, a task for each; return name -> entry. D023 if that fails."""
    entries: dict[str, Any] = {}
    # pure=False: Dask must not return an earlier result.
    submit = functools.partial(session.client.submit, months.write_month, pure=False)

    with write_errors(out):
        names = {submit(dataset, month, out, token): month.name for month in due}
        total = len(names)
        with progress("write", list(names)):
            for done, (future, entry) in enumerate(completed(session.client, names), 1):
                name = names[future]
                entries[name] = entry
                if worth_a_line(done, total):
                    LOG.info("month %d/%d  %s  %s rows", done, total, name, f"{entry['rows']:,}")

    return entries


def rows_of(entries: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the number of rows in months, given month -> its manifest's entry."""
    return sum(entry["rows"] for entry in entries.values())


def dropped_rows(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Return reason -> number of rows dropped from months, given month -> its manifest's entry."""
    return dict(sum((Counter(entry["dropped"]) for entry in entries.values()), Counter()))


@contextlib.contextmanager
def write_errors(out: str) -> Iterator[None]:
    """Turn errors of a disk or store into one line; D023."""
    try:
        yield
    except OSError as problem:
        where = problem.filename or out
        why = problem.strerror or problem
        fix = "check the path, permissions and free space"
        raise failed_to("written", where, why, fix, "D023") from problem
