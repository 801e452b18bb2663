"""Side-by-side measurement: two pieces of work in turn, medians, a ratio, and what else the machine
did meanwhile.

    from harness import compare, options, write_result

    given = options(__doc__, rows=8_000_000, pairs=5)      # --rows, --pairs, --out
    result = compare(ours, theirs, given.pairs, names=("tipcast", "sklearn"))
    write_result("binned_auc", result, **vars(given))       # -> benchmarks/results/binned_auc.json

A pair counts only when other processes took at most a tenth of the machine; a void pair is measured
again, so the result says honestly when the machine was too busy (``enough`` is false then).

    # before a copy without git is made: what it is a copy of
    python benchmarks/harness.py > .commit
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import importlib.util
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

Work = Callable[[], object] | str | Sequence[str]
"""A function without arguments, or a command (a string is split as a shell would, but no shell runs
it).
"""

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
TAXI = Path(os.environ.get("TIPCAST_TAXI") or ROOT.parent / "shared" / "taxi").resolve()
"""Folder of real trips, as the tests have it."""
START = ("list", "cluster")
"""Phases of a job that belong to the start of its process: the rest is read, fit, evaluate (or
score) and log.
"""
MAX_FOREIGN = 0.10
"""Share of the machine's CPU time that other processes may take before a pair is void."""
SUBREAPER = 36
"""Linux' PR_SET_CHILD_SUBREAPER."""
MAX_TRIES = 3
"""At most this many times the wanted pairs are measured."""
LIBRARIES = (
    "numpy",
    "pandas",
    "pyarrow",
    "scikit-learn",
    "scipy",
    "dask",
    "distributed",
    "xgboost-cpu",
    "xgboost",
    "xgboost-cu13",
    "treelite",
    "mlflow",
    "hydra-core",
    "optuna",
    "cudf-cu13",
    "cuml-cu13",
    "dask-cuda",
)


@dataclass(frozen=True)
class Pair:
    """One run of each work, in seconds of wall clock."""

    a_s: float
    b_s: float
    foreign: float
    """Share of all cores' time that processes other than ours took while the pair ran, 0 to 1."""

    @property
    def void(self) -> bool:
        """Whether other processes disturbed the pair too much."""
        return self.foreign > MAX_FOREIGN


@dataclass(frozen=True)
class Comparison:
    """Pairs of two works and what follows from those that count."""

    names: tuple[str, str]
    pairs: tuple[Pair, ...]
    wanted: int

    @property
    def valid(self) -> tuple[Pair, ...]:
        """The pairs that count."""
        return tuple(pair for pair in self.pairs if not pair.void)

    @property
    def enough(self) -> bool:
        """Whether as many pairs count as were asked for."""
        return len(self.valid) >= self.wanted

    @property
    def medians(self) -> tuple[float, float]:
        """Median seconds of each work, over the pairs that count (over all when none does)."""
        used = self.valid or self.pairs
        return statistics.median(pair.a_s for pair in used), statistics.median(
            pair.b_s for pair in used
        )

    @property
    def ratio(self) -> float:
        """Median of the first over median of the second: below 1 the first is faster."""
        first, second = self.medians
        return first / second

    def record(self) -> dict[str, Any]:
        """Return everything as plain values for JSON."""
        first, second = self.medians
        return {
            "names": list(self.names),
            "ratio": self.ratio,
            "medians_s": {self.names[0]: first, self.names[1]: second},
            "pairs_wanted": self.wanted,
            "pairs_valid": len(self.valid),
            "enough": self.enough,
            "pairs": [{**asdict(pair), "void": pair.void} for pair in self.pairs],
        }

    def __str__(self) -> str:
        first, second = self.medians
        note = (
            ""
            if self.enough
            else f"  NOT VALID: only {len(self.valid)} of {self.wanted} pairs were undisturbed"
        )
        seconds = f"{self.names[0]} {first:.4g} s, {self.names[1]} {second:.4g} s"
        return f"{seconds}, ratio {self.ratio:.3f}{note}"


def compare(
    a: Work,
    b: Work,
    pairs: int = 5,
    *,
    names: tuple[str, str] = ("a", "b"),
    warmups: int = 1,
    environment: Mapping[str, str] | None = None,
    tries: int = MAX_TRIES,
) -> Comparison:
    """Run two works in turn until enough undisturbed pairs are measured.

    Parameters
    ----------
    a, b
        Functions or commands. The order within a pair alternates, so that neither profits from a
        warm cache. A function may return seconds that do not count, as a float.
    pairs
        Undisturbed pairs wanted.
    names
        What the two are called in the result.
    warmups
        Runs of each before the first pair, not counted.
    environment
        Variables added for commands.
    tries
        How many times as many pairs may be run.

    Raises
    ------
    subprocess.CalledProcessError
        When a command ends with another code than 0; its output is in the error.

    """
    first = _callable(a, environment)
    second = _callable(b, environment)
    for _ in range(warmups):
        first()
        second()

    measured: list[Pair] = []
    while sum(not pair.void for pair in measured) < pairs and len(measured) < pairs * tries:
        measured.append(_pair(first, second, swapped=len(measured) % 2 == 1))

    return Comparison(names=names, pairs=tuple(measured), wanted=pairs)


def inside(
    whole: Comparison, a_s: Sequence[float], b_s: Sequence[float], names: tuple[str, str]
) -> Comparison:
    """Return the same pairs by the seconds that the works said themselves of their last runs."""
    count = len(whole.pairs)
    said = zip(whole.pairs, a_s[-count:], b_s[-count:], strict=True)
    return Comparison(
        names, tuple(replace(pair, a_s=a, b_s=b) for pair, a, b in said), whole.wanted
    )


def options(purpose: str | None, /, **defaults: Any) -> argparse.Namespace:
    """Return a script's options, one for each default, and ``out``, the folder of its result.

    Raises
    ------
    SystemExit
        Where an option differs from its default and the result would go to benchmarks/results, or
        where tipcast is imported from another tree.

    """
    parser = argparse.ArgumentParser(
        description=purpose, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in defaults.items():
        many = isinstance(value, list)
        kind = type(value[0] if many else value)
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=kind, default=value, nargs="+" if many else None
        )

    parser.add_argument(
        "--out",
        type=lambda word: Path(word).resolve(),
        default=RESULTS,
        help="folder of the result",
    )
    given = parser.parse_args()
    other = [name for name, value in defaults.items() if getattr(given, name) != value]

    if other and given.out == RESULTS:
        parser.error(
            "benchmarks/results has full measurements only; with "
            f"another {', '.join(other)} give --out FOLDER"
        )

    found = importlib.util.find_spec("tipcast")
    if found is None or not Path(str(found.origin)).is_relative_to(ROOT):
        parser.error(
            f"tipcast is imported from {found and found.origin}; set PYTHONPATH={ROOT / 'src'}"
        )

    import_from_here()
    adopt()
    return given


def adopt() -> None:
    """Let what outlives its parent become this process's child: workers are forked from a server
    that ends before.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SUBREAPER, 1)


def _reap() -> None:
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
            if child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)


def import_from_here() -> None:
    """Let the processes that are started import this tree's tipcast, whatever folder they are in.

    Other entries of PYTHONPATH stay: a machine may have all of its libraries there.
    """
    others = [
        str(Path(each).resolve())
        for each in os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if each
    ]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(ROOT / "src"), *others]))


def tipcast(job: str, *words: str, folder: Path, **variables: str) -> dict[str, Any]:
    """Run a job as a process, with a store in a folder; return what it says, ``process_s`` and
    ``job_s``.

    ``variables`` are those of its environment beside this process's.

    Raises
    ------
    RuntimeError
        With the end of its standard error, when it fails.

    """
    environment = {
        **os.environ,
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
        **variables,
    }
    return process("-m", "tipcast", job, *words, "print=json", cwd=folder, env=environment)


def process(*words: str, **how: Any) -> dict[str, Any]:
    """Run Python; return the JSON of its last line, its seconds as ``process_s`` and its job's as
    ``job_s``.

    ``again_s`` of the JSON are seconds that the process worked once more, warmed up; they are left
    out.
    """
    start = time.perf_counter()
    ended = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, **how
    )
    seconds = time.perf_counter() - start
    if ended.returncode:
        raise RuntimeError(f"exit code {ended.returncode}: {ended.stderr[-1500:]}")

    said: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    phases = said.get("phases", {})
    job_s = sum(phases[name] for name in phases if name not in START)
    return {"job_s": job_s, **said, "process_s": seconds - said.get("again_s", 0.0)}


def peak_bytes(work: Callable[[], object]) -> tuple[int, int]:
    """Return the resident sets of this process and its descendants together: before a work, and the
    most during it.

    Sampled every 20 ms; pages that processes share count more than once.
    """
    done, seen = threading.Event(), [_resident()]

    def watch() -> None:
        while not done.wait(0.02):
            seen.append(_resident())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        work()
    finally:
        done.set()
        thread.join()
    return seen[0], max(seen)


def write_result(
    name: str,
    result: Comparison | Mapping[str, Any] | Sequence[Comparison | Mapping[str, Any]],
    *,
    out: Path | None = None,
    **facts: object,
) -> Path:
    """Write a result with the machine, the versions, the commit and the date.

    Parameters
    ----------
    name
        File name without suffix; an older file of that name is replaced.
    result
        One comparison, or rows of one's own, or a list of either.
    out
        Folder; benchmarks/results if not given.
    facts
        What the numbers depend on: rows, rounds, threads.

    """
    rows = list(result) if isinstance(result, Sequence) else [result]
    content = {
        "benchmark": name,
        "facts": facts,
        "results": [row.record() if isinstance(row, Comparison) else dict(row) for row in rows],
        "environment": describe_environment(),
    }
    path = (out or RESULTS) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, default=str) + "\n", encoding="utf-8")

    return path


def describe_environment() -> dict[str, Any]:
    """Return machine, cores, memory, Python, library versions, commit and date; no host or user
    name.
    """
    versions = {}
    for library in LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            versions[library] = version(library)

    commit, files = origin()
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "changed": not files or any(_blob(ROOT / name) != blob for name, blob in files.items()),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": available,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": _gpus(),
        "python": platform.python_version(),
        "versions": versions,
    }


def origin() -> tuple[str | None, dict[str, str]]:
    """Return the commit that this tree is of, and git's hash of each of its files but the results.

    From the file .commit where a copy came with it, which may lie in a checkout of another commit;
    else from git.
    """
    listed = ROOT / ".commit"
    tree = git("rev-parse", "--show-toplevel", "HEAD")
    if listed.exists():
        lines = listed.read_text(encoding="utf-8").splitlines()
    elif tree and Path(tree.splitlines()[0]).resolve() == ROOT:
        lines = [
            tree.splitlines()[1],
            *(git("ls-tree", "-r", "HEAD") or "").splitlines(),
        ]
    else:
        lines = []

    if not lines:
        return None, {}

    entries = (line.partition("\t") for line in lines[1:])
    files = {
        name: entry.split()[-1]
        for entry, _, name in entries
        if not name.startswith("benchmarks/results/")
    }
    return lines[0], files


def _blob(path: Path) -> str | None:
    """Return git's hash of a file's content; nothing where there is no file."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _callable(work: Work, environment: Mapping[str, str] | None) -> Callable[[], object]:
    if callable(work):
        return work
    words = shlex.split(work) if isinstance(work, str) else list(work)
    variables = {**os.environ, **(environment or {})}
    return lambda: subprocess.run(words, check=True, capture_output=True, text=True, env=variables)


def _pair(first: Callable[[], object], second: Callable[[], object], *, swapped: bool) -> Pair:
    start = time.perf_counter()
    ours = _own_seconds()
    all_busy = _busy_seconds()
    if swapped:
        b_s = _timed(second)
        a_s = _timed(first)
    else:
        a_s = _timed(first)
        b_s = _timed(second)
    foreign = (_busy_seconds() - all_busy) - (_own_seconds() - ours)
    capacity = (time.perf_counter() - start) * (psutil.cpu_count() or 1)
    return Pair(a_s=a_s, b_s=b_s, foreign=round(max(foreign, 0.0) / capacity, 4))


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    apart = work()
    return time.perf_counter() - start - (apart if isinstance(apart, float) else 0.0)


def _busy_seconds() -> float:
    """Seconds that all cores were busy since boot (user time already contains guests; time stolen
    counts as busy).
    """
    times = psutil.cpu_times()
    return sum(
        getattr(times, kind, 0.0) for kind in ("user", "nice", "system", "irq", "softirq", "steal")
    )


def _resident() -> int:
    total = 0
    own = psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total


def _own_seconds() -> float:
    """CPU seconds of this process, its living descendants, and the ended ones, those too that
    outlived their parent.
    """
    _reap()
    total = 0.0
    own = psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )


def _gpus() -> list[str]:
    """Return name and memory of each GPU that CUDA_VISIBLE_DEVICES leaves."""
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible in ("", "-1"):
        return []
    if visible:
        command.append(f"--id={visible}")
    return (_output(*command) or "").splitlines()


def git(*words: str) -> str | None:
    """Return what git says of this tree, or None if it fails."""
    return _output("git", "-C", str(ROOT), *words)


def _output(*command: str) -> str | None:
    program = shutil.which(command[0])
    if program is None:
        return None
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


if __name__ == "__main__":
    print(git("rev-parse", "HEAD"))
    print(git("ls-tree", "-r", "HEAD"))
