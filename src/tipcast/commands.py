"""Jobs of a command line: composed, checked and run."""

import importlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tipcast.config.jobs import JOBS


@dataclass(frozen=True)
class ComposedJob:
    """A job with its checked configuration, ready to run."""

    name: str
    config: Any
    """An instance of the job's schema."""
    command: str
    """Command line that repeats the job."""
    trainings: Sequence["ComposedJob"] = ()
    """The trainings of ``--multirun``, which share one cluster and one run."""

    def run(self) -> Mapping[str, Any]:
        """Run the job and return its details.

        Checks that need none of the job's libraries come before these load, which takes seconds.
        Raises C003 for values of Dask's configuration and of the cluster, K006 if there are fewer
        GPUs than workers, K008 if a GPU has too little free memory, and what the job raises.
        """
        from tipcast.config import dask_settings

        job = JOBS[self.name]
        cluster_checked = job.checks_cluster and hasattr(self.config, "cluster")

        if cluster_checked:
            from tipcast.compute import gpus

            # session.check, below, includes this. Here it comes before the job's libraries load.
            gpus.check(self.config.backend, self.config.cluster)
        dask_settings.check()

        name = job.module
        if self.trainings and job.multirun_module:
            name = job.multirun_module
        module = importlib.import_module(name)

        if cluster_checked:
            from tipcast.compute import session

            session.check(self.config.backend, self.config.cluster)

        trainings: Any = [(training.config, training.command) for training in self.trainings]
        details: Mapping[str, Any] = module.run(trainings or self.config, self.command)
        return details


def compose_jobs(name: str, arguments: Sequence[str]) -> list[ComposedJob]:
    """Compose and check the job ``name`` with the words that follow it on a command line.

    Returns one job for each configuration: several with ``--multirun``, none after flags that only
    print. Trainings of ``--multirun`` are one job.

    Raises C-errors for words and values that are refused, T004 and M023 for a run that ``from=``
    cannot repeat.
    """
    from tipcast.config.arguments import to_overrides, with_from
    from tipcast.config.compose import compose, to_object
    from tipcast.jobs import preflight

    overrides, recorded = _with_recorded(name, to_overrides(_with_key(name, arguments)))
    jobs: list[ComposedJob] = []

    for composed in compose(name, overrides, recorded):
        config = to_object(composed.config)
        preflight.check(config)
        command = _command(name, map(with_from, composed.overrides))
        jobs.append(ComposedJob(name, config, command))

    return _as_one_job(name, arguments, jobs)


def _with_key(name: str, arguments: Sequence[str]) -> list[str]:
    """Return the arguments, with the key of a job's one word without ``=``, if it takes one."""
    key = JOBS[name].word_is
    if key is None:
        return list(arguments)
    return [word if "=" in word or word.startswith("-") else f"{key}={word}" for word in arguments]


def _with_recorded(name: str, overrides: list[str]) -> tuple[list[str], Mapping[str, Any] | None]:
    """Return the overrides, and what the run of ``repeat=RUN`` has recorded if they have that."""
    from tipcast.config.arguments import HELP, REPEAT

    repeated = [word for word in overrides if word.startswith(REPEAT) and word != f"{REPEAT}null"]
    if not repeated or not JOBS[name].takes_from or HELP & set(overrides):
        return overrides, None

    from tipcast.jobs.repeat import resolved

    return resolved(repeated[-1], overrides)


def _as_one_job(name: str, arguments: Sequence[str], jobs: list[ComposedJob]) -> list[ComposedJob]:
    """Join the jobs of ``--multirun`` if the table of jobs names a module that runs them all."""
    from tipcast.config.arguments import MULTIRUN, REPEAT

    if not jobs or not JOBS[name].multirun_module or not MULTIRUN & set(arguments):
        return jobs

    run = jobs[0].config.repeat  # the whole id: `last` is soon another run
    words = list(arguments)
    for at, word in enumerate(words):
        if word.startswith(("from=", REPEAT)):
            words[at] = f"from={run}"
    return [ComposedJob(name, jobs[0].config, _command(name, words), jobs)]


def _command(name: str, words: Iterable[str]) -> str:
    """Return the command line, without its secrets."""
    from tipcast.config.plain import redact

    return shlex.join(["tipcast", name, *map(redact, words)])
