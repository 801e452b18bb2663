"""The bridge from `mlflow run -P` to Hydra's overrides, and what it refuses."""

import dataclasses
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString

from tipcast.config import schema
from tipcast.config.arguments import LISTS, PATHS, as_given, parses, quoted, to_overrides
from tipcast.config.compose import compose
from tipcast.config.errors import TipcastError

PAYLOADS = [
    "$(touch broken)", "`touch broken`", "; touch broken", "| touch broken", "& touch broken", "&& touch broken",
    "a\ntouch broken", "' ; touch broken ; '", '" ; touch broken ; "', "> broken",
    "{0.__class__}", "{PATH}", "a b", "\\", "a=b", "~x", "[1", "${oc.env:HOME}", "C:\\x\\", "it\\'s",
]  # fmt: skip
"""What a value of `mlflow run -P` may try."""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["model=xgboost"], ["model=xgboost"]),
        (["--model", "xgboost"], ["model=xgboost"]),
        (["--model=xgboost"], ["model=xgboost"]),
        (["--model.params.max_depth", "8", "seed=1"], ["++model.params.max_depth=8", "seed=1"]),
        (["model.params.max_leaves=64"], ["++model.params.max_leaves=64"]),
        (["~model.params.gamma", "model.fit.x=1"], ["~model.params.gamma", "++model.fit.x=1"]),
        (["--overrides", "seed=1 data.train='a b'"], ["seed=1", "data.train=a b"]),
        (["--overrides", ""], []),
        (["--data.train", "trips/2018-*.parquet"], ["data.train=trips/2018-*.parquet"]),
        (["--data.train", "it's; rm -rf {x}"], ["data.train='it\\'s; rm -rf {x}'"]),
        (["--data.train", "[2019-01,2019-02]"], ["data.train=[2019-01,2019-02]"]),
        (["--cfg", "job", "seed=1", "-c=job"], ["--cfg=job", "seed=1", "--cfg=job"]),
        (["~data.test", "+data.x=1", "-m"], ["~data.test", "+data.x=1", "-m"]),
        (["resume=12e45678", "--resume", "01234567"], ["resume='12e45678'", "resume=01234567"]),
        (["resume=last"], ["resume=last"]),
    ],
)
def test_forms(arguments: list[str], expected: list[str]) -> None:
    assert to_overrides(arguments) == expected


@pytest.mark.parametrize("given", ["model.params.max_leaves=64", "tracking.tags.a=b", "seed=1", "++data.rows=5"])
def test_a_repeated_command_is_as_it_was_given(given: str) -> None:
    (override,) = to_overrides([given])
    assert as_given(override) == given


@pytest.mark.parametrize(
    ("argument", "code"),
    [
        ("hydra.verbose=true", "C006"),
        ("hydra.job_logging.handlers=1", "C006"),
        ("+hydra/callbacks=evil", "C006"),
        ("model._target_=os.system", "C006"),
        ("+model.params={_target_:os.system}", "C006"),
        ("--seed", "C005"),
        ("-x", "C005"),
        ("--cfg=hydra", "C005"),
        ("from=", "C005"),
        ("--from=", "C005"),
        ("data.storage_options.secret=hunter2", "C007"),
        ("+tracking.password=hunter2", "C007"),
        ("tracking.password=hunter2", "C007"),
        ("--data.storage_options.secret=hunter2", "C007"),
        ("+x.api_key=hunter2", "C007"),
    ],
)
def test_refused(argument: str, code: str) -> None:
    with pytest.raises(TipcastError) as caught:
        to_overrides([argument])
    assert caught.value.code == code
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_launchers_value_arrives_as_it_is(payload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/the/home")
    (composed,) = compose("train", to_overrides(["--tracking.run_name", payload]))
    expected = "/the/home" if payload == "${oc.env:HOME}" else payload
    if payload[0] == payload[-1] and payload[0] in "'\"":
        expected = payload[1:-1]  # to Hydra's grammar a quoted text
    assert composed.config.tracking.run_name == expected
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", ["data.train={}", "--data.train={}"])
def test_a_path_is_text_where_hydras_grammar_reads_none(form: str) -> None:
    paths = [
        "trips/2018-0[1-6]*.parquet", "a b.parquet", "a=b.parquet", "{a}", "x/{1,2}.parquet", "[12]*.csv", "1e3",
        "2019", "~/x", "it's", "a#b&c;d!<", "C:\\x[1]\\", "copy(1)", "trips(1).parquet", "s3://b/[x]?.csv", "ä", "true",
    ]  # fmt: skip
    for path in paths:
        (override,) = to_overrides([form.format(path)])
        assert _value(override) == path
    for text, expected in {"['a[1]','ä']": ["a[1]", "ä"], "[a,b c]": ["a", "b c"], "null": None}.items():
        (override,) = to_overrides([form.format(text)])
        assert _value(override) == expected


def test_a_comma_in_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert to_overrides(["out=a,b"]) == ["out='a,b'"], "no list is meant"
    assert to_overrides(["input=a,b"]) == ["input=a,b"], "a list may be meant, which Hydra asks about"
    (tmp_path / "a,b").touch()
    assert to_overrides(["input=a,b"]) == ["input='a,b'"]
    assert to_overrides(["-m", "out=a,b"]) == ["-m", "out=a,b"]


@pytest.mark.parametrize("text", ["[a.parquet,b", "[a[1].parquet,b]"])
def test_a_list_that_does_not_parse_is_no_path(text: str) -> None:
    assert to_overrides([f"data.train={text}"]) == [f"data.train={text}"]
    assert not parses(f"data.train={text}")


@pytest.mark.parametrize("text", ["", "\\", "'", "\\'", "a\\\\b[", "it\\'s\\"])
def test_quotes_keep_a_text(text: str) -> None:
    assert _value(f"k={quoted(text)}") == text


def test_keys_of_paths_are_those_of_the_schemas() -> None:
    groups = {
        "data": [schema.FilesData, schema.TlcData],
        "tracking": [schema.TrackingSpec],
        "cluster": [schema.SchedulerCluster],
        "": [schema.PrepareConfig, schema.ScoreConfig, schema.MultirunConfig],
    }
    keys = {
        f"{group}.{field.name}".lstrip(".")
        for group, found in groups.items()
        for each in found
        for field in dataclasses.fields(each)
    }
    assert keys >= PATHS | LISTS


def _value(override: str) -> object:
    def plain(value: object) -> object:
        if isinstance(value, list):
            return [plain(item) for item in value]
        return value.text if isinstance(value, QuotedString) else value

    return plain(OverridesParser.create().parse_override(override).value())
