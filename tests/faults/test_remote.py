"""`cluster=ssh` and `cluster=slurm` against a real server of OpenSSH and a real Slurm, both on this machine."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.conftest import program
from tests.faults.conftest import ROOT, trains

MARK = "TIPCAST_TEST_OF"
"""Variable that marks the processes which a server started."""
LEAVE_S = 30.0
TRAIN = ("train", "--quiet", "data.rows=20000", "model.params.n_estimators=10")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that servers of any user can pass, as munge's wants it."""
    made = Path(tempfile.mkdtemp(prefix="tipcast-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def running(*command: str, folder: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server in the foreground, and stop it."""
    with (folder / f"{Path(command[0]).name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **variables})
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def until(what: Callable[[], object], limit_s: float = LEAVE_S) -> bool:
    """Wait until something is true."""
    deadline = time.monotonic() + limit_s
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


@dataclass(frozen=True)
class Ssh:
    """A server on 127.0.0.1 that takes one key, and the home of who has it."""

    home: Path
    mark: str

    @property
    def words(self) -> tuple[str, ...]:
        """Two workers of one thread."""
        return ("cluster=ssh", f"cluster.hosts=[{','.join(['127.0.0.1'] * 3)}]", "cluster.insecure=true",
                "cluster.threads_per_worker=1")  # fmt: skip

    def processes(self) -> list[psutil.Process]:
        """Return what it started and still runs."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def workers(self) -> list[psutil.Process]:
        """Return those that train."""
        return [process for process in self.processes() if trains(process)]


@pytest.fixture
def ssh(folder: Path, free_port: Callable[[], int]) -> Iterator[Ssh]:
    server, port, home = program("sshd", "openssh-server"), free_port(), folder / "home"
    (home / ".ssh").mkdir(parents=True)
    for key in (folder / "host", home / ".ssh" / "id"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    (home / ".ssh" / "config").write_text(f"Host 127.0.0.1\n  Port {port}\n  IdentityFile {home}/.ssh/id\n")
    (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    lines = (
        f"Port {port}", "ListenAddress 127.0.0.1", f"HostKey {folder}/host", "StrictModes no", "UsePAM no",
        f"AuthorizedKeysFile {home}/.ssh/id.pub", "PasswordAuthentication no", "PidFile none",
        f"SetEnv {MARK}={folder} PYTHONPATH={ROOT / 'src'}",
    )  # fmt: skip
    (folder / "sshd_config").write_text("\n".join(lines))
    with contextlib.suppress(PermissionError):  # only root's server wants it
        Path("/run/sshd").mkdir(exist_ok=True)
    with running(server, "-D", "-e", "-f", str(folder / "sshd_config"), folder=folder) as process:
        assert until(lambda: process.poll() is not None or answers(port)), "no answer"
        assert process.poll() is None, (folder / "sshd.log").read_text()
        yield Ssh(home, str(folder))


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def test_ssh_trains_and_leaves_nothing(ssh: Ssh, tipcast: Callable[..., Any]) -> None:
    job = tipcast(*TRAIN, *ssh.words, HOME=str(ssh.home))
    job.wait_for(lambda: len(ssh.workers()) == 2)
    assert job.end() == 0, job.err
    assert job.statuses == ["FINISHED"]
    assert len(job.err.splitlines()) == 1, job.err
    assert "without TLS" in job.err
    assert until(lambda: not ssh.processes())


@pytest.mark.parametrize(
    ("number", "fitting"),
    [(signal.SIGTERM, False), (signal.SIGKILL, True)]
    + [pytest.param(*each, marks=pytest.mark.long) for each in [(signal.SIGKILL, False), (signal.SIGTERM, True)]],
)
def test_ssh_is_ended(ssh: Ssh, tipcast: Callable[..., Any], number: signal.Signals, fitting: bool) -> None:
    """Nothing is left on the hosts, whatever ends the job and wherever it is."""
    job = tipcast(*TRAIN, *ssh.words, "data.rows=2000000", HOME=str(ssh.home))
    job.wait_for(lambda: len(ssh.workers()) == 2 if fitting else ssh.processes())
    job.process.send_signal(number)
    code = job.end()
    assert code == (143 if number == signal.SIGTERM else -9), job.err
    assert until(lambda: not ssh.processes())
    if number == signal.SIGTERM:
        assert job.statuses == ["KILLED"]
        assert len(job.err.splitlines()) == 2, job.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["cluster.remote_python=/nowhere/python"], "127.0.0.1: no scheduler or no worker was started over ssh: "),
        (["cluster.hosts=[127.0.0.1,nowhere.invalid]"], "127.0.0.1, nowhere.invalid: no scheduler or no worker"),
        pytest.param(
            ["cluster.known_hosts=/nowhere"],
            "127.0.0.1: no scheduler or no worker was started over ssh: ",
            marks=pytest.mark.long,
        ),
    ],
)
def test_ssh_that_cannot_start(ssh: Ssh, tipcast: Callable[..., Any], words: list[str], told: str) -> None:
    job = tipcast(*TRAIN, *ssh.words, *words, HOME=str(ssh.home))
    assert job.end() == 4, job.err
    assert job.err.splitlines()[-1].startswith(f"error[K001] {told}"), job.err
    assert len(job.err.splitlines()) == 2, job.err
    assert until(lambda: not ssh.processes())


@dataclass(frozen=True)
class Slurm:
    """A controller and a node of two processors."""

    variables: dict[str, str]

    words = ("cluster=slurm", "cluster.n_workers=2", "cluster.memory=2GiB", "cluster.interface=lo")

    def jobs(self, state: str = "all") -> list[str]:
        """Return the jobs that wait or run."""
        command = ["squeue", "--noheader", "--states", state]
        return subprocess.run(
            command, env={**os.environ, **self.variables}, capture_output=True, text=True, check=True
        ).stdout.splitlines()


@pytest.fixture
def slurm(folder: Path, free_port: Callable[[], int]) -> Iterator[Slurm]:
    munge, controller, node = (
        program(name, "slurmctld slurmd slurm-client munge") for name in ("munged", "slurmctld", "slurmd")
    )
    host, socket_ = socket.gethostname().partition(".")[0], folder / "munge.socket"
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    settings = {
        "ClusterName": "test", "SlurmctldHost": f"{host}(127.0.0.1)", "SlurmctldPort": free_port(),
        "SlurmdPort": free_port(), "AuthType": "auth/munge", "AuthInfo": f"socket={socket_}", "CredType": "cred/munge",
        "SlurmUser": getpass.getuser(), "SlurmdUser": getpass.getuser(), "StateSaveLocation": folder / "state",
        "SlurmdSpoolDir": folder / "spool", "SlurmctldPidFile": folder / "slurmctld.pid",
        "SlurmdPidFile": folder / "slurmd.pid", "ProctrackType": "proctrack/linuxproc", "TaskPlugin": "task/none",
        "SwitchType": "switch/none", "MpiDefault": "none", "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory", "SchedulerType": "sched/builtin",
        "SlurmdParameters": "config_overrides", "AccountingStorageType": "accounting_storage/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "NodeName": f"{host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=8192 State=UNKNOWN",
        "PartitionName": "main Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
    }  # fmt: skip
    file = folder / "slurm.conf"
    file.write_text("\n".join(f"{name}={value}" for name, value in settings.items()))
    made = Slurm({"SLURM_CONF": str(file)})
    munged = [f"--{name}={folder}/munge.{name.partition('-')[0]}" for name in ("key-file", "pid-file", "log-file")]
    with contextlib.ExitStack() as stack:
        for command in (
            (munge, "--foreground", f"--socket={socket_}", f"--seed-file={folder}/munge.seed", *munged),
            (controller, "-D", "-f", str(file)),
            (node, "-D", "-f", str(file)),
        ):
            stack.enter_context(running(*command, folder=folder, **made.variables))
            assert until(socket_.exists), (folder / "munged.log").read_text()

        def idle() -> bool:
            command = ["sinfo", "--noheader", "--format=%T"]
            asked = subprocess.run(command, env={**os.environ, **made.variables}, capture_output=True, text=True)
            return asked.stdout.strip() == "idle"

        if not until(idle):  # it asks much of a machine: names of hosts, users, processes
            pytest.skip(f"Slurm does not come up here: {(folder / 'slurmctld.log').read_text()[-500:]}")
        yield made
        subprocess.run(["scancel", "--user", getpass.getuser()], env={**os.environ, **made.variables}, check=True)


def test_slurm_trains_and_leaves_nothing(slurm: Slurm, tipcast: Callable[..., Any], folder: Path) -> None:
    """Its jobs get the prologue, and none of the driver's secrets; certificates go with it."""
    words = (f"cluster.prologue=['env > {folder}/environment.$SLURM_JOB_ID']",)
    job = tipcast(*TRAIN, *slurm.words, *words, MLFLOW_TRACKING_PASSWORD="hush", **slurm.variables)
    job.wait_for(lambda: len(slurm.jobs("RUNNING")) == 2)
    assert job.end() == 0, job.err
    assert job.statuses == ["FINISHED"]
    assert not job.err
    told = [path.read_text() for path in folder.glob("environment.*")]
    assert len(told) == 2
    assert not [path for path in job.folder.iterdir() if path.name.startswith((".tipcast", ".dask"))]
    assert all("SLURM_JOB_ID" in each and "hush" not in each for each in told)
    assert until(lambda: not slurm.jobs("RUNNING,PENDING"))


def test_slurm_is_terminated(slurm: Slurm, tipcast: Callable[..., Any]) -> None:
    job = tipcast(*TRAIN, *slurm.words, "data.rows=2000000", **slurm.variables)
    job.wait_for(lambda: len(slurm.jobs("RUNNING")) == 2)
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 143, job.err
    assert job.statuses == ["KILLED"]
    assert until(lambda: not slurm.jobs("RUNNING,PENDING"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["cluster.queue=nowhere"], r"K001] cluster=slurm: Slurm did not take the workers' jobs: "),
        pytest.param(
            ["cluster.memory=100GiB"],
            r"K001] cluster=slurm: Slurm did not take the workers' jobs: ",
            marks=pytest.mark.long,
        ),
        (["cluster.directives=[--hold]", "cluster.wait_s=3"], r"K002] tls://127.0.0.1:"),
    ],
)
def test_slurm_that_gives_no_workers(slurm: Slurm, tipcast: Callable[..., Any], words: list[str], told: str) -> None:
    job = tipcast(*TRAIN, *slurm.words, *words, **slurm.variables)
    assert job.end() == 4, job.err
    (line,) = job.err.splitlines()
    assert line.startswith(f"error[{told}"), line
    assert until(lambda: not slurm.jobs("RUNNING,PENDING"))


def test_slurm_that_is_not_here(tipcast: Callable[..., Any], folder: Path) -> None:
    job = tipcast(*TRAIN, "cluster=slurm", PATH=str(folder))
    assert job.end() == 4
    assert job.err.startswith("error[K007] cluster=slurm: no sbatch on the PATH. Fix: "), job.err
