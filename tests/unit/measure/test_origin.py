"""The commits and the versions that a result comes from."""

from pathlib import Path

import pytest
from tests.conftest import git

from tipcast import __version__
from tipcast.measure import origin
from tipcast.measure.origin import Origin, Source

source = origin.source.__wrapped__  # as at the first call


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for path in ("src/tipcast/a.py", "conf/a.yaml", "README.md"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("before\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "m")
    return tmp_path


def test_a_repository_without_a_commit_has_none(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert source(tmp_path) == origin.project(tmp_path) == Source()


def test_no_commit_is_told_without_git(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert source(repository) == origin.project(repository) == Source()


def test_the_code_is_not_dirty_by_a_readme_or_a_store(
    repository: Path,
) -> None:
    (repository / "README.md").write_text("after\n")
    (repository / "mlflow.db").write_text("")
    assert source(repository) == Source(git(repository, "rev-parse", "HEAD"))


def test_a_folder_of_a_checkout_is_not_the_code_of_tipcast(repository: Path) -> None:
    assert source(repository / "src") == Source()


@pytest.mark.parametrize("changed", ["src/tipcast/a.py", "conf/a.yaml", "conf/mine.yaml"])
def test_the_code_is_dirty_by_a_change_of_source_or_conf(
    repository: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # as a hook has it
    (repository / changed).write_text("after\n")
    assert source(repository) == Source(git(repository, "rev-parse", "HEAD"), dirty=True)


def test_the_project_is_the_repository_of_the_working_folder(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found from a folder below, and asked anew for each run: a notebook commits between two
    trainings.
    """
    monkeypatch.chdir(repository / "conf")
    for number in range(2):
        git(repository, "commit", "-q", "--allow-empty", "-m", f"{number}")
        assert origin.origin().project == Source(git(repository, "rev-parse", "HEAD"))


def test_a_project_is_dirty_by_changes_of_tracked_files(repository: Path) -> None:
    (repository / "mlflow.db").write_text("")
    assert not origin.project(repository).dirty
    (repository / "README.md").write_text("after\n")
    assert origin.project(repository).dirty


def test_a_folder_in_no_repository_has_no_commit(tmp_path: Path) -> None:
    assert origin.project(tmp_path) == Source()


def test_tags_keep_the_commit_of_the_project_apart_from_that_of_tipcast() -> None:
    both = Origin(Source("p", dirty=True), Source("c"))
    assert both.tags == {
        "mlflow.source.git.commit": "p",
        "mlflow.source.git.dirty": "true",
        "tipcast.version": __version__,
        "tipcast.commit": "c",
        "tipcast.dirty": "false",
    }
    assert Origin().tags == {"tipcast.version": __version__}


def test_a_remark_names_the_code_that_was_changed() -> None:
    assert Origin(Source("p"), Source("c")).remark == ""
    assert (
        Origin(Source("p", dirty=True)).remark
        == "The project had uncommitted changes on commit `p`."
    )
    both = Origin(Source("p", dirty=True), Source("c", dirty=True)).remark
    assert both.endswith("The code of tipcast had uncommitted changes on commit `c`.")
