"""The table of jobs: one line each, from which the command line, `--help`, completion and Python
know them.

MLproject's entry points and the list in docs/command_line.md are written from it by a test.
CONTRIBUTING.md says how to add a job.
"""

from dataclasses import dataclass

from tipcast.config import schema
from tipcast.config.errors import unknown


@dataclass(frozen=True)
class Job:
    """A job: the command ``tipcast NAME``.

    Its keys are in conf/NAME.yaml; ``run`` of the module ``tipcast.jobs.NAME`` does it.
    """

    name: str
    config: type[schema.JobConfig]
    """Schema of conf/NAME.yaml; ``run`` takes an instance of it and the command that repeats it."""
    needs_workers: bool = False
    """Whether the job is sure to need workers: their processes then load libraries while this
    process does. Jobs that may find nothing to do leave it False.
    """
    has_run: bool = True
    """Whether the job records a run of its own. `mlflow run` opens a run for every job: if False,
    the command names that run and closes it.
    """
    checks_cluster: bool = True
    """Whether the cluster is checked before the job starts; False if the job does so itself."""
    takes_from: bool = False
    """Whether the job takes ``from=RUN``, which repeats a run of ``train`` or ``sweep``."""
    multirun_module: str | None = None
    """Module of ``tipcast.jobs`` that runs all configurations of ``--multirun`` as one job; None if
    they are one job after another.
    """

    word_is: str | None = None
    """Key whose value a word without ``=`` is; None refuses such a word."""

    @property
    def module(self) -> str:
        """Name of the module with the job's ``run``."""
        return f"tipcast.jobs.{self.name}"


_TABLE = (
    Job(
        "train",
        schema.TrainJobConfig,
        needs_workers=True,
        takes_from=True,
        multirun_module="tipcast.jobs.multirun",
    ),
    Job("sweep", schema.SweepConfig, needs_workers=True, takes_from=True),
    # The job itself checks the cluster of each rung.
    Job("ladder", schema.LadderConfig, checks_cluster=False),
    Job("prepare", schema.PrepareConfig, has_run=False),
    Job("score", schema.ScoreConfig),
    Job("promote", schema.PromoteConfig, needs_workers=True),
    # The job's table shows what is wrong with the cluster.
    Job("doctor", schema.DoctorConfig, has_run=False, checks_cluster=False),
    Job("inspect", schema.InspectConfig, has_run=False),
    Job("replay", schema.ReplayConfig, has_run=False, word_is="file"),
)

JOBS = {job.name: job for job in _TABLE}
"""Name -> job, in the order of `tipcast --help`."""


def find_job(name: str) -> Job:
    """Return the job of a name; raise C008, with the nearest name, if there is none."""
    if name not in JOBS:
        raise unknown("tipcast", "job", name, JOBS, "C008")
    return JOBS[name]
