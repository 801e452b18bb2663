"""Names of scores, files that are passed over or refused, and what a plan says of a folder."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pandas as pd
import pytest
from botocore.config import Config

from tipcast.config.errors import TipcastError
from tipcast.datasets import registry
from tipcast.datasets.base import Dataset, RawColumn
from tipcast.datasets.listing import Listing, ScanRequest
from tipcast.datasets.table import features as table_features
from tipcast.scoring.folder import ManifestEntry, ScoreFolder
from tipcast.scoring.plan import (
    REFUSED,
    SCORING_VERSION,
    DueFile,
    ScorePlan,
    output_names,
    plan_files,
    scoring_digest_of,
    weight_of,
)
from tipcast.tasks.base import Task
from tipcast.tasks.kinds import CLUSTERING, REGRESSION

WANTED = ScanRequest(("pickup",))
Plan = Callable[..., ScorePlan]


@pytest.fixture
def trips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of empty files, in the working folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.parquet", "2019/b.parquet", "2019/c.csv", "2020/b.parquet", "2020/_x.parquet"):
        (tmp_path / "trips" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "trips" / name).touch()
    return tmp_path / "trips"


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("trips", ["2019/b.parquet", "2019/c.csv.parquet", "2020/b.parquet", "a.parquet"]),
        ("trips/20*/*.parquet", ["2019/b.parquet", "2020/_x.parquet", "2020/b.parquet"]),
        (["trips/2019", "trips/a.parquet"], ["a.parquet", "b.parquet", "c.csv.parquet"]),
        ("https://host/trips/a.parquet?signature=x/y", ["a.parquet"]),
    ],
)
def test_names_of_scores_are_those_of_their_files(
    trips: Path, given: object, names: list[str]
) -> None:
    files = output_names(given, WANTED, str(trips.parent / "scored"))
    assert list(files) == names
    for name, uri in files.items():
        assert uri.partition("?")[0].endswith((name, name.removesuffix(".parquet")))


def test_two_files_whose_scores_would_have_one_name_are_refused(trips: Path) -> None:
    given = ["trips/2019/b.parquet", "trips/2020/b.parquet"]
    with pytest.raises(TipcastError, match=r"C003.*would both be b\.parquet"):
        output_names(given, WANTED, str(trips.parent / "scored"))


def put(key: str) -> None:
    """Put an object under a key of the bucket as it is: s3fs would tidy it as a path."""
    client = boto3.client("s3", config=Config(s3={"addressing_style": "path"}))
    client.put_object(Bucket="trips", Key=key, Body=b"rows")


@pytest.mark.parametrize("given", ["s3://trips/in/", "s3://trips/in/**/*.parquet"])
def test_no_scores_leave_their_folder_by_the_dots_of_a_key(
    bucket: Any, tmp_path: Path, given: str
) -> None:
    """Keys of an object store are no paths: such a one is passed over, as a hidden file is."""
    put("in/../../b.parquet")
    put("in/a.parquet")
    assert list(output_names(given, WANTED, str(tmp_path / "scored"))) == ["a.parquet"]


def test_scores_of_a_key_that_would_leave_their_folder_are_refused(
    bucket: Any, tmp_path: Path
) -> None:
    """The name below the folder begins with a slash."""
    put("in//b.parquet")
    says = (
        "C003. input: scores of s3://trips/in//b.parquet would be outside the output folder. "
        "Fix: rename"
    )
    with pytest.raises(TipcastError, match=says):
        output_names("s3://trips/in/", WANTED, str(tmp_path / "scored"))


# Files of tables, and a model of their number `a`


def score_config(given: object, keep: list[str] | None = None) -> Any:
    return SimpleNamespace(
        input=given, keep=keep, columns={}, file_options={}, storage_options={}, block_bytes=1 << 20
    )


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Plan to score files of the working folder: `parts` has rows in a.parquet and none in
    b.parquet.
    """
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame({"a": [1.0, 2.0], "region": ["n", "s"]})
    (tmp_path / "parts").mkdir()
    (tmp_path / "link").symlink_to("parts")
    frame.to_parquet("parts/a.parquet")
    frame[:0].to_parquet("parts/b.parquet")
    frame.to_parquet("hive", partition_cols=["region"])
    frame.to_parquet("mine.parquet")

    manifest = {
        "dataset": "table",
        "table": [asdict(RawColumn("a", ("a",)))],
        "task": Task("t", REGRESSION, ("a",)).to_manifest(),
        "features": ["a"],
    }
    model: Any = SimpleNamespace(uri="u", manifest=manifest, manifest_sha256="m")

    def run(
        given: object, folder: str | ScoreFolder = "scored", keep: list[str] | None = None
    ) -> ScorePlan:
        if isinstance(folder, str):
            folder = ScoreFolder(str(tmp_path / folder))
        return plan_files(score_config(given, keep), folder, model)

    return run


def test_scores_stay_until_an_option_of_files_is_set() -> None:
    """What no option says is not part of the digest: a release may bring new ones."""
    model: Any = SimpleNamespace(uri="u", manifest_sha256="m")

    def digest(**options: str | None) -> str:
        config = score_config("a.parquet")
        config.file_options = {"colour": None, "decimal": None, "encoding": None} | options
        return scoring_digest_of(config, model)

    before = json.dumps([SCORING_VERSION, "u", "m", None, None]).encode()
    assert digest() == hashlib.sha256(before).hexdigest()
    asked = ("", "colour", "decimal", "encoding")
    assert len({digest(**({name: ","} if name else {})) for name in asked}) == len(asked)


def test_file_without_rows_is_passed_over_beside_others(
    plan: Plan, caplog: pytest.LogCaptureFixture
) -> None:
    parts = plan("parts")
    assert [file.name for file in parts.due] == ["a.parquet"]
    assert parts.refused == {}
    assert parts.n_files == 1
    assert "1 file without rows skipped" in caplog.text


def test_only_file_without_rows_is_refused(plan: Plan) -> None:
    with pytest.raises(TipcastError, match="D009"):
        plan("parts/b.parquet")


def test_damaged_file_is_refused_beside_others(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "parts" / "c.parquet").write_bytes(b"PAR1")
    parts = plan("parts")
    assert {name: error.code for name, error in parts.refused.items()} == {"c.parquet": "D005"}
    assert parts.n_files == 2


def test_files_in_the_folder_of_scores_are_not_scored(plan: Plan) -> None:
    files = plan(["link", "mine.parquet"], "parts").due
    assert [file.name for file in files] == ["mine.parquet"]


@pytest.mark.parametrize(
    ("given", "folder", "keep", "error"),
    [
        ("parts", "scored", ["a", "prediction"], "C003.*keep.*prediction is a column that scoring"),
        ("hive", "scored", None, "D025.*column region"),
        ("link", "parts", None, "C011.*contains all input files"),
    ],
)
def test_input_that_cannot_be_scored_is_refused(
    plan: Plan, given: str, folder: str, keep: list[str] | None, error: str
) -> None:
    with pytest.raises(TipcastError, match=error):
        plan(given, folder, keep)


def scored_folder(plan: ScorePlan, **about: Any) -> ScoreFolder:
    """Write a file of any bytes for each that a plan wants to score; return the folder as its
    manifest says.
    """
    files = {}
    for file in plan.due:
        path = Path(plan.folder.path, file.name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"scores")
        files[file.name] = replace(file.entry, bytes=6, sha256="s")
    return ScoreFolder(plan.folder.path, files, {"run_id": "r", REFUSED: {}, **about})


def test_folder_with_the_scores_of_all_files_is_up_to_date(plan: Plan) -> None:
    folder = scored_folder(plan("parts"))
    again = plan("parts", folder)
    assert again.unchanged == folder.files
    assert again.is_up_to_date


def test_folder_of_a_killed_job_is_not_up_to_date(plan: Plan) -> None:
    """It has all scores, and no manifest that says so."""
    folder = replace(scored_folder(plan("parts")), about={})
    assert not plan("parts", folder).is_up_to_date


def test_folder_with_scores_of_other_files_is_not_up_to_date(plan: Plan) -> None:
    folder = scored_folder(plan(["parts", "mine.parquet"]))
    assert not plan("parts", folder).is_up_to_date


def test_folder_whose_manifest_has_other_refused_files_is_not_up_to_date(plan: Plan) -> None:
    folder = scored_folder(plan("parts"), refused={"c.parquet": {}})
    assert not plan("parts", folder).is_up_to_date


def test_file_that_changed_is_due(plan: Plan, tmp_path: Path) -> None:
    folder = scored_folder(plan("parts"))
    pd.DataFrame({"a": [3.0]}).to_parquet(tmp_path / "parts" / "a.parquet")
    assert [file.name for file in plan("parts", folder).due] == ["a.parquet"]


def test_file_whose_scores_have_another_size_is_due(plan: Plan, tmp_path: Path) -> None:
    folder = scored_folder(plan("parts"))
    (tmp_path / "scored" / "a.parquet").write_bytes(b"more scores")
    assert [file.name for file in plan("parts", folder).due] == ["a.parquet"]


def test_file_is_due_if_another_column_is_kept(plan: Plan) -> None:
    folder = scored_folder(plan("parts"))
    assert [file.name for file in plan("parts", folder, keep=["a"]).due] == ["a.parquet"]


class Drawn(Dataset):
    """A dataset of one's own, whose rows are in no files."""

    name = "drawn"
    code = table_features
    features = ("x0",)

    @classmethod
    def of_model(cls, manifest: Any) -> Dataset:
        return cls()

    def scan(self, which: str, columns: Sequence[str], optional: Sequence[str] = ()) -> Listing:
        raise NotImplementedError


def test_model_of_rows_that_are_in_no_files_scores_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.BY_NAME, "drawn", Drawn)
    task = Task("t", CLUSTERING, ("x0",)).to_manifest()
    manifest = {"dataset_columns": 1, "dataset": "drawn", "task": task, "features": ["x0"]}
    model: Any = SimpleNamespace(uri="u", manifest=manifest, manifest_sha256="m")
    pd.DataFrame({"x0": [1.0]}).to_parquet(tmp_path / "a.parquet")
    says = "M006. model_uri: was trained on drawn, which is not read from files. Fix: use a"
    with pytest.raises(TipcastError, match=says):
        plan_files(score_config(str(tmp_path)), ScoreFolder(str(tmp_path / "scored")), model)


def due(name: str, *columns: str) -> DueFile:
    """A file to score that has some columns."""
    part: Any = SimpleNamespace(columns={column: column for column in columns})
    return DueFile(name, name, {}, ManifestEntry(recipe="r"), (part,))


WEIGHTED = Task("t", REGRESSION, ("x",), columns=("y",), weight="w")


def test_answers_count_by_their_weights_if_all_have_some() -> None:
    files = [due("a", "x", "y", "w"), due("without answers", "x"), due("b", "x", "y", "w")]
    assert weight_of(WEIGHTED, files) == "w"


def test_answers_count_the_same_if_some_lack_weights(caplog: pytest.LogCaptureFixture) -> None:
    files = [due("a", "x", "y", "w"), due("b", "x", "y"), due("c", "x", "y")]
    assert weight_of(WEIGHTED, files) is None
    (line,) = caplog.messages
    assert "2 of 3 files with a target lack the weight column 'w' (as b" in line


def test_files_without_answers_need_no_weights(caplog: pytest.LogCaptureFixture) -> None:
    weight_of(WEIGHTED, [due("a", "x"), due("b", "x", "w")])
    assert not caplog.messages


@pytest.mark.parametrize("task", [replace(WEIGHTED, weight=None), Task("t", CLUSTERING, ("x",))])
def test_a_task_without_weights_has_none(task: Task, caplog: pytest.LogCaptureFixture) -> None:
    assert weight_of(task, [due("a", "x", "y")]) is None
    assert not caplog.messages
