"""What a run is called, and what a job says at its end."""

import json
from typing import cast

import pytest
from mlflow import MlflowClient

from tipcast.config.schema import Output, TrackingSpec
from tipcast.jobs import end_job
from tipcast.jobs.run_context import LONGEST_NAME, resume_command, run_names
from tipcast.tracking.run import Run


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("tipcast train model=xgboost task=tip_amount print=json", "xgboost task=tip_amount"),
        ("mlflow run . --env-manager local -P seed=1 -P tracking.register=mine", "xgboost seed=1"),
        ("tipcast train seed=1 +data.storage_options.account_name=mine", "xgboost seed=1"),
        (
            "tipcast train data=files 'data.train=trips/2018-*.parquet'",
            "xgboost train=trips/2018-*.parquet",
        ),
        (
            "tipcast train data=files data.train=/a/long/folder/of/trips/2018.parquet "
            "data.test=b.csv.gz",
            "xgboost train=…er/of/trips/2018.parquet test=b.csv.gz",
        ),
        ("tipcast train --config-dir=mine model=deep", "deep"),
        (
            "tipcast train from=0123456789abcdef0123456789abcdef seed=2",
            "xgboost from=01234567 seed=2",
        ),
        (
            "tipcast train data.train=FRAME \"task.target='it,s'\" print=json",
            "xgboost train=FRAME target=it,s",
        ),
    ],
)
def test_runs_are_told_apart_by_what_was_overridden(command: str, expected: str) -> None:
    assert run_names([("xgboost", command)]) == [expected]


def test_trainings_of_one_command_have_names_of_their_own() -> None:
    shared = "tipcast train data=table data.train=evenings.csv task.target=tip"
    sets = [
        f"features={features} max_depth={depth}"
        for features in ("[bill,size]", "[bill,smoker]")
        for depth in (2, 4)
    ]
    words = [
        overrides.replace("features", "task.features").replace("max", "model.params.max")
        for overrides in sets
    ]
    assert run_names([("xgboost", f"{shared} {overrides}") for overrides in words]) == [
        f"xgboost {overrides} ..." for overrides in sets
    ]


@pytest.mark.parametrize(
    "words",
    [
        [f"task.features=[{','.join(f'column_{at}' for at in range(many))}]" for many in (50, 51)],
        ["data.train=2018/trips.csv", "data.train=2019/trips.csv"],
        [" ".join(f"model.params.parameter_{at}={value}" for at in range(40)) for value in (1, 2)],
        ["seed=1", "seed=1"],
    ],
    ids=["long lists", "paths", "many", "the same twice"],
)
def test_no_two_names_are_the_same(words: list[str]) -> None:
    names = run_names([("xgboost", f"tipcast train {overrides}") for overrides in words])
    assert len(set(names)) == 2
    assert max(map(len, names)) <= LONGEST_NAME + len(" (2)")


RESULT = {
    "run_id": "abc",
    "run": "http://link",
    "tracking_uri": "sqlite:///a",
    "rows": 12345,
    "metrics": {"test/auc": 0.56563},
    "files": ["a", "b"],
    "written": 0,
    "none": {},
}
TEXT = ["run_id   abc", "rows     12,345", "metrics  test/auc 0.5656", "files    a b", "written  0"]


@pytest.mark.parametrize(
    ("form", "lines"), [(Output.json, [json.dumps(RESULT)]), (Output.text, TEXT), (Output.none, [])]
)
def test_a_result_is_printed(
    form: Output, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert end_job(RESULT, form) is RESULT
    assert capsys.readouterr().out.splitlines() == lines


@pytest.mark.parametrize(
    ("uri", "store"),
    [
        (None, ""),
        ("sqlite:///runs.db", " tracking.uri=sqlite:///runs.db"),
        ("http://ann:pass@server:5000", " tracking.uri=http://server:5000"),
    ],
)
def test_a_run_is_resumed_in_its_store_and_without_its_password(
    uri: str | None, store: str
) -> None:
    run = Run("12ab", "0", cast("MlflowClient", None))
    assert (
        resume_command("sweep", run, TrackingSpec(uri=uri)) == f"tipcast sweep resume=12ab{store}"
    )
