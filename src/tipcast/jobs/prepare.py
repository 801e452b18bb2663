"""`tipcast prepare`: write any source as Parquet months; what is already there and unchanged is left alone."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fsspec

from tipcast.compute.base import Session
from tipcast.compute.cpu import CpuFrames
from tipcast.compute.session import check, session
from tipcast.compute.workers import completed
from tipcast.config.errors import TipcastError
from tipcast.config.job_schemas import PrepareConfig
from tipcast.datasets import months
from tipcast.datasets.base import Dataset
from tipcast.datasets.listing import identical
from tipcast.datasets.months import Written, add_to_manifest, is_current, read_manifest
from tipcast.datasets.registry import open_dataset
from tipcast.jobs import closing
from tipcast.measure.clock import Clock
from tipcast.measure.progress import progress, worth_a_line

LOG = logging.getLogger("tipcast")


def run(config: PrepareConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says."""
    if config.data.months is None:
        fix = "add data.months=2019-01..2019-03, or the files to prepare"
        raise TipcastError("C004", "data.months", "needs a value", fix)
    if not config.out.strip():
        raise TipcastError("C004", "out", "needs a value", "add out=FOLDER or out=s3://BUCKET/PREFIX")
    check(config.backend, config.cluster)
    clock = Clock()
    out, token = config.out, uuid.uuid4().hex[:8]
    if "://" not in out:
        out = str(Path(out).expanduser().resolve())  # as the driver sees it, whatever folder a worker is in
    layout = months.Layout(config.row_group_rows, config.compression)
    with clock.phase("list"):
        dataset = open_dataset(config.data)
        listing = dataset.month_files()
        for note in (*listing.notes, *identical(listing.fragments)):
            LOG.warning(note)
        planned = months.plan(dataset, listing, layout)
        manifest = read_manifest(out)
        due = [month for month in planned if not is_current(out, month.name, month.recipe, manifest)]
    with contextlib.ExitStack() as stack:
        if due:
            stack.enter_context(_nothing_half(out, due, token))
            with clock.phase("cluster") as facts, progress("cluster"):
                workers = stack.enter_context(session(config.backend, config.cluster))
                facts.append(workers.size)
            with clock.phase("write") as facts:
                manifest |= _written(dataset, workers, out, due, layout, listing.facts, token)
                facts.append(f"{sum(manifest[month.name].rows for month in due):,} rows in {len(due)} months")
    names = [month.name for month in planned]
    rows = sum(manifest[name].rows for name in names)
    return closing.say(
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


def _written(*write: Any) -> dict[str, Written]:
    """Write the months, or say in one line where that fails."""
    try:
        return _write(*write)
    except OSError as problem:
        where = problem.filename or write[2]
        raise TipcastError(
            "D023", where, f"cannot be written: {problem.strerror or problem}", "check the path, rights and free space"
        ) from problem


def _write(
    dataset: Dataset,
    workers: Session,
    out: str,
    due: Sequence[months.Month],
    layout: months.Layout,
    facts: Mapping[str, Any],
    token: str,
) -> dict[str, Written]:
    """Write the months in parallel, each into the manifest as soon as it is whole."""
    filesystem, folder = fsspec.core.url_to_fs(out)
    filesystem.makedirs(folder, exist_ok=True)
    futures = {
        workers.client.submit(
            months.write_month, dataset, month, out, layout, facts, CpuFrames(), token, pure=False
        ): month
        for month in due
    }
    ours: dict[str, Written] = {}
    with progress("write", list(futures)):
        for done, (future, entry) in enumerate(completed(workers.client, futures), 1):
            ours[futures[future].name] = entry
            add_to_manifest(out, ours)
            if worth_a_line(done, len(futures)):
                LOG.info("month %d/%d  %s  %s rows", done, len(futures), futures[future].name, f"{entry.rows:,}")
    return ours
