"""Folders that are replaced as a whole: the old or the new at any moment, and what killed jobs leave is cleared."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.waiting import WATCHDOG_S

from tipcast.config.errors import TipcastError
from tipcast.scoring import swap
from tipcast.scoring.output_folder import MANIFEST

ROOT = Path(__file__).resolve().parents[3]
HOLD = """
import sys
from pathlib import Path
from tipcast.scoring import swap
with swap.beside(Path(sys.argv[1])) as work:
    (Path(work.whole) / "half").write_text("half")
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "scored"


def made(output: Path, **files: str) -> None:
    with swap.beside(output) as work:
        for name, content in files.items():
            (Path(work.whole) / name).write_text(content)
        work.commit(lambda: b"manifest of " + ",".join(files).encode(), [], b"announced")


def test_what_a_killed_worker_left_half_written_is_no_score(output: Path) -> None:
    with swap.beside(output) as work:
        for name in ("a.parquet", "a.parquet.0123abcd.tmp"):
            (Path(work.whole) / name).touch()
        work.commit(lambda: b"", [], b"announced")
    assert set(found(output)) == {"a.parquet", MANIFEST}


def found(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_new_folder_an_empty_one_and_one_that_is_replaced(output: Path) -> None:
    made(output, a="1")
    assert found(output) == {"a": "1", MANIFEST: "manifest of a"}
    made(output, b="2")
    assert found(output) == {"b": "2", MANIFEST: "manifest of b"}
    for path in output.iterdir():
        path.unlink()
    made(output, c="3")
    assert found(output) == {"c": "3", MANIFEST: "manifest of c"}
    assert list(output.parent.iterdir()) == [output]


def test_kept_files_are_links_and_dropped_ones_gone(output: Path) -> None:
    made(output, a="1", b="2")
    before = (output / "a").stat()
    with swap.beside(output) as work:
        work.keep("a")
        (Path(work.whole) / "sub").mkdir()
        (Path(work.whole) / "sub" / "c").write_text("3")
        work.drop(["sub/c", "never"])
        work.commit(lambda: b"", ["b"], b"announced")
    assert found(output) == {"a": "1", MANIFEST: ""}
    assert (output / "a").stat().st_ino == before.st_ino
    assert (output / "a").stat().st_mtime_ns == before.st_mtime_ns
    assert not (output / "sub").exists()


def test_without_an_exchange_the_old_folder_is_put_back(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(output, a="1")
    monkeypatch.setattr(swap, "exchange", lambda one, other: False)  # as file systems without it say
    made(output, b="2")
    assert found(output) == {"b": "2", MANIFEST: "manifest of b"}
    with swap.beside(output) as work:
        new = Path(work.whole)
        with pytest.raises(OSError, match="No such file"):
            swap.replace(new / "missing", output, new.parent / swap.OLD)
    assert found(output) == {"b": "2", MANIFEST: "manifest of b"}


@pytest.fixture
def moved_away(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Let something happen right after the first of the two renames of file systems that know no exchange."""

    def then(what: Callable[[], object]) -> None:
        rename = Path.rename

        def renamed(self: Path, target: Path) -> Path:
            moved = rename(self, target)
            if target.name == swap.OLD:
                what()
            return moved

        monkeypatch.setattr(swap, "exchange", lambda one, other: False)
        monkeypatch.setattr(Path, "rename", renamed)

    return then


def test_interrupted_between_two_renames(output: Path, moved_away: Callable[[Callable[[], object]], None]) -> None:
    made(output, a="1")
    moved_away(lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        made(output, b="2")
    assert found(output) == {"a": "1", MANIFEST: "manifest of a"}
    assert list(output.parent.iterdir()) == [output]


KILLED = """
import os, signal, sys
from pathlib import Path
from tipcast.scoring import swap
rename = Path.rename
def renamed(self, target):
    rename(self, target)
    os.kill(os.getpid(), signal.SIGKILL)
swap.exchange, Path.rename = lambda one, other: False, renamed
with swap.beside(Path(sys.argv[1])) as work:
    work.commit(lambda: b"", [], b"")
"""


def test_killed_between_two_renames(output: Path) -> None:
    made(output, a="1")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    assert subprocess.run([sys.executable, "-c", KILLED, str(output)], env=environment).returncode == -signal.SIGKILL
    assert not output.exists()
    swap.recover(output)
    assert found(output) == {"a": "1", MANIFEST: "manifest of a"}
    assert list(output.parent.iterdir()) == [output]


def test_scores_that_cannot_be_put_back_are_kept(
    output: Path, moved_away: Callable[[Callable[[], object]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    made(output, a="1")

    def refuse(self: Path, target: Path) -> Path:
        raise PermissionError(errno.EACCES, "Permission denied", str(target))

    with monkeypatch.context() as until:
        moved_away(lambda: until.setattr(Path, "rename", refuse))
        with pytest.raises(PermissionError):
            made(output, b="2")
    monkeypatch.undo()
    (left,) = output.parent.iterdir()
    assert found(left / swap.OLD) == {"a": "1", MANIFEST: "manifest of a"}
    swap.recover(output)
    assert found(output) == {"a": "1", MANIFEST: "manifest of a"}
    assert list(output.parent.iterdir()) == [output]


def test_a_block_that_fails_changes_nothing(output: Path) -> None:
    made(output, a="1")
    with pytest.raises(RuntimeError, match="disk"), swap.beside(output) as work:
        (Path(work.whole) / "b").write_text("2")
        raise RuntimeError("disk")
    assert found(output) == {"a": "1", MANIFEST: "manifest of a"}
    assert list(output.parent.iterdir()) == [output]


LOOK = """
import os, sys
bad = looks = 0
print("ready", flush=True)
while not os.path.exists(sys.argv[1] + ".stop"):
    looks += 1
    bad += not os.path.isdir(sys.argv[1])
    if looks == 100:
        open(sys.argv[1] + ".looked", "w").close()
print(bad, looks)
"""


def test_an_exchange_is_one_step(output: Path) -> None:
    """A reader that never stops looking always finds the folder."""
    made(output, a="1")
    with subprocess.Popen([sys.executable, "-c", LOOK, str(output)], stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout
        reader.stdout.readline()
        for turn in itertools.count():
            made(output, **{"ab"[turn % 2]: str(turn)})
            if turn >= 100 and Path(f"{output}.looked").exists():
                break
        Path(f"{output}.stop").touch()
        bad, looks = map(int, reader.communicate(timeout=WATCHDOG_S)[0].split())
    assert looks >= 100
    assert bad == 0, f"{bad} of {looks} looks"


def test_what_a_killed_job_leaves_is_cleared(output: Path) -> None:
    made(output, a="1")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    words = [sys.executable, "-c", HOLD, str(output)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as job:
        assert job.stdout
        assert job.stdout.readline() == "ready\n"
        with pytest.raises(TipcastError) as caught:
            swap.recover(output)
        assert caught.value.code == "S011"
        with pytest.raises(TipcastError), swap.beside(output):
            pass
        assert len(list(output.parent.iterdir())) == 3, "scores, unfinished work, and a lock"
        job.kill()
    swap.recover(output)
    assert list(output.parent.iterdir()) == [output]
    assert found(output) == {"a": "1", MANIFEST: "manifest of a"}


def test_a_folder_that_was_about_to_be_replaced_comes_back(output: Path) -> None:
    made(output, a="1")
    left = output.parent / f".{output.name}.tipcast-x"
    left.mkdir()
    output.rename(left / swap.OLD)
    swap.recover(output)
    assert found(output) == {"a": "1", MANIFEST: "manifest of a"}
    assert list(output.parent.iterdir()) == [output]


def test_names_that_only_begin_alike_are_others(output: Path) -> None:
    others = [output.parent / f".{output.name}2.tipcast-{end}" for end in ("x", "lock")]
    others[0].mkdir()
    others[1].touch()
    swap.recover(output)
    assert sorted(output.parent.iterdir()) == sorted(others)


@pytest.mark.parametrize("jobs", [2, 6])
def test_of_jobs_that_start_together_one_goes_on(output: Path, jobs: int) -> None:
    begin, tried = threading.Barrier(jobs), threading.Barrier(jobs)

    def job(_: int) -> bool:
        begin.wait(WATCHDOG_S)
        try:
            with swap.beside(output):
                tried.wait(WATCHDOG_S)
        except TipcastError as problem:
            tried.wait(WATCHDOG_S)
            assert problem.code == "S011"
            return False
        return True

    with ThreadPoolExecutor(jobs) as pool:
        for _ in range(100):
            assert sum(pool.map(job, range(jobs))) == 1
    assert list(output.parent.iterdir()) == []


def test_no_two_jobs_are_ever_at_work(output: Path) -> None:
    """Not when one comes while another removes its lock, either."""
    working: list[int] = []

    def job(number: int) -> int:
        done = 0
        for _ in range(200):
            with contextlib.suppress(TipcastError), swap.beside(output):
                working.append(number)
                os.sched_yield()  # so that others try meanwhile
                assert working == [number]
                working.remove(number)
                done += 1
        return done

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(job, range(8))) > 0
    assert list(output.parent.iterdir()) == []


@pytest.mark.parametrize("mode", [0o700, 0o2775])
@pytest.mark.parametrize("exchanged", [True, False])
def test_a_folder_keeps_its_rights(output: Path, mode: int, exchanged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not exchanged:
        monkeypatch.setattr(swap, "exchange", lambda one, other: False)
    owner, group = (4711, 4712) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    output.mkdir()
    os.chown(output, owner, group)
    output.chmod(mode)
    os.utime(output, (0, 0))
    for content in "12":
        made(output, a=content)
        now = output.stat()
        assert (now.st_mode & 0o7777, now.st_uid, now.st_gid) == (mode, owner, group)
        assert now.st_mtime > 0, "new content"


def test_unfinished_work_is_this_users_alone(output: Path) -> None:
    with swap.beside(output) as work:
        assert Path(work.whole).parent.stat().st_mode & 0o777 == 0o700
