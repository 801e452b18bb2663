"""The driver's side of a scoring: a task for each file, what became of them, and the run that
records it.
"""

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from distributed import as_completed

from tipcast.compute.base import Session
from tipcast.config.gate import gate
from tipcast.config.plain import to_plain
from tipcast.datasets import address
from tipcast.datasets.parts import merged
from tipcast.evaluation import evaluator
from tipcast.evaluation.base import Evaluation, logged
from tipcast.evaluation.report import plot, repeat
from tipcast.measure.progress import progress, worth_a_line
from tipcast.models.fit import hold
from tipcast.scoring.plan import Scoring, stops_all
from tipcast.scoring.worker import ROW_GROUP, Work, score_file
from tipcast.scoring.writing import failures
from tipcast.tracking.run import Run

LOG = logging.getLogger("tipcast")


def score(workers: Session, scoring: Scoring) -> None:
    """Score all files that are due, a task for each; T008, D022 where scores cannot be written,
    workers' K-errors.
    """
    client = workers.client
    config = scoring.config
    fetched = scoring.fetched
    folder = scoring.present.folder
    judge = evaluator(scoring.task.kind)
    total = len(scoring.due)
    storage = address.storage(folder, config.storage_options)
    threshold = fetched.manifest.get("threshold")
    task = scoring.task
    keep = config.keep
    model = fetched.name or str(fetched.model_id)
    version = fetched.version
    work = Work(
        workers.frames, scoring.dataset, task, threshold, keep, model, version, folder, storage
    )
    held = hold(client, fetched.path, fetched.format, workers.device)

    with failures(folder):
        # by the driver: a late worker must bring none back
        for item in () if address.scheme(folder) else scoring.due:
            Path(folder, item.name).parent.mkdir(parents=True, exist_ok=True)

    # Few files leave cores idle that their parts can use.
    threads = max(workers.n_threads // max(workers.n_workers, total), 1)
    most = min(work.frames.batch_rows, ROW_GROUP)
    files = {}

    for item in scoring.due:
        joined = replace(item, fragments=merged(item.fragments, most))
        replaces = item.name in scoring.present.files
        # Not pure, or a task of an earlier scoring with the same arguments would answer.
        future = client.submit(
            score_file, joined, held, work, replaces=replaces, threads=threads, pure=False
        )
        files[future] = item.name

    with progress("score") as report:
        for done, future in enumerate(as_completed(files), 1):
            report(done, total)
            name = files.pop(future)
            problem = future.exception()
            if problem is None:
                scoring.made[name], sums = future.result()
                scoring.sums = [judge.total([*scoring.sums, sums])]
            elif stops_all(problem):
                raise problem
            else:
                scoring.refused[name] = problem

            if worth_a_line(done, total):
                rows = "refused" if problem else f"{scoring.made[name].rows:,} rows"
                LOG.info("file %d/%d  %s  %s", done, total, name, rows)

            gate(f"scored-{len(scoring.made)}")


def record(
    run: Run, command: str, scoring: Scoring, measured: Mapping[str, float], remark: str
) -> dict[str, float]:
    """Record in a scoring's run what was scored, and its ``measured`` seconds and memory; return
    the headlines.

    ``remark`` says which changes of the code are in no commit.
    """
    made = scoring.made
    refused = scoring.refused
    rows = scoring.rows
    fetched = scoring.fetched
    judge = evaluator(scoring.task.kind)
    classes = scoring.task.classes
    unscored = scoring.unscored
    model = f"{fetched.name} version {fetched.version}" if fetched.version else fetched.uri
    sums = judge.total(scoring.sums)
    labelled: Evaluation | None = judge.of_sums(sums, fetched.manifest.get("threshold"))
    metrics: dict[str, float] = {"score/rows": rows, "score/unscored": sum(unscored.values())}
    metrics |= {f"score/{name}": value for name, value in judge.summary(sums, classes).items()}
    metrics |= {f"unscored/{reason}": number for reason, number in unscored.items()}
    if labelled:
        metrics |= logged(judge, labelled, "labelled", classes) | {"labelled/rows": labelled.rows}

    pace = {"score/rows_per_s": rows / measured["seconds/score"]} if rows else {}
    files = {
        "score/files": len(made),
        "score/kept_files": len(scoring.kept),
        "score/refused_files": len(refused),
    }
    run.log_metrics({**metrics, **pace, **files, **measured})

    if made:
        together = "\n".join(entry.input_sha256 for _, entry in sorted(made.items()))
        digest = hashlib.sha256(together.encode()).hexdigest()
        first = next(iter(made.values())).input
        run.log_dataset(
            first,
            digest,
            f"rows scored by {model}"[:100],
            "score",
            {"rows": rows, "files": len(made)},
        )

    names = ("scores", "input", "rows", "unscored", "input_sha256", "scores_sha256", "refused")
    lines: list[tuple[object, ...]] = [
        (
            name,
            entry.input,
            entry.rows,
            sum(entry.unscored.values()),
            entry.input_sha256,
            entry.sha256,
            "",
        )
        for name, entry in sorted(made.items())
    ]
    lines += [
        (name, problem.where, None, None, None, None, str(problem))
        for name, problem in refused.items()
    ]
    run.log_table(
        {name: [line[at] for line in lines] for at, name in enumerate(names)}, "tables/files.json"
    )

    if labelled:
        about = f"{model}, {labelled.rows:,} rows whose answer is known"
        for path, drawn in judge.figures({"scored": labelled}, about, classes):
            run.log_bytes(drawn, path)

    parts = [
        f"### {model} scored {rows:,} rows",
        f"Model `{fetched.uri}`, scores in `{to_plain(scoring.present.folder)}`.",
        f"{len(refused)} files were refused: artifact `tables/files.json`." if refused else "",
        plot(run.id, judge.figure) if labelled else "",
        repeat(command, remark),
    ]
    run.note("\n\n".join(filter(None, parts)) + "\n")
    headlines = ("score/mean", "score/predicted_rate", f"labelled/{judge.headline.name}")
    return {name: metrics[name] for name in headlines if name in metrics}
