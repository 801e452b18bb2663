"""The bridge from `mlflow run -P` to Hydra's overrides, and what it refuses."""

import dataclasses
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString

from tipcast.config import data_schema, schema
from tipcast.config.arguments import (
    PATH_KEYS,
    PATH_LIST_KEYS,
    overrides_of_settings,
    to_overrides,
    with_from,
)
from tipcast.config.compose import compose
from tipcast.config.errors import TipcastError

PAYLOADS = [
    "$(touch broken)",
    "`touch broken`",
    "; touch broken",
    "| touch broken",
    "& touch broken",
    "&& touch broken",
    "a\ntouch broken",
    "' ; touch broken ; '",
    '" ; touch broken ; "',
    "> broken",
    "{0.__class__}",
    "{PATH}",
    "a b",
    "\\",
    "a=b",
    "~x",
    "[1",
    "${oc.env:HOME}",
    "C:\\x\\",
    "it\\'s",
]
"""What a value of `mlflow run -P` may try."""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--model", "xgboost", "--task=duration"], ["model=xgboost", "task=duration"]),
        (["--model.params.max_depth", "8", "seed=1"], ["model.params.max_depth=8", "seed=1"]),
        (["--overrides", "seed=1 data.train='a b'"], ["seed=1", "data.train=a b"]),
        (["--overrides", ""], []),
        (["--data.train", "trips/2018-*.parquet"], ["data.train=trips/2018-*.parquet"]),
        (["--data.train", "it's; rm -rf {x}"], ["data.train='it\\'s; rm -rf {x}'"]),
        (["data.train=[a.parquet,b"], ["data.train=[a.parquet,b"]),  # no path: Hydra refuses it
        (["--cfg", "job", "seed=1", "-c=job"], ["--cfg=job", "seed=1", "--cfg=job"]),
        (["~data.test", "+data.x=1", "-m"], ["~data.test", "+data.x=1", "-m"]),
        (["-m", "seed=1,2 model=svc"], ["-m", "seed=1,2", "model=svc"]),
        (["resume=12e45678", "--resume", "01234567"], ["resume='12e45678'", "resume=01234567"]),
        (["from=last"], ["repeat=last"]),
    ],
)
def test_forms(arguments: list[str], expected: list[str]) -> None:
    assert to_overrides(arguments) == expected
    for given in ("model.params.max_leaves=64", "tracking.tags.a=b", "++data.rows=5", "from=12e4"):
        assert with_from(*to_overrides([given])) == given


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (
            "C006",
            [
                "hydra.verbose=true",
                "+hydra/callbacks=evil",
                "model._target_=x",
                "+model.params={_target_:x}",
            ],
        ),
        ("C005", ["--seed", "-x", "--cfg=hydra", "from=", "--from="]),
        (
            "C007",
            [
                "data.storage_options.secret=hunter2",
                "--data.storage_options.secret=hunter2",
                "+x.api_key=hunter2",
                "tracking.password=hunter2",
                "+model.params={token: hunter2}",
            ],
        ),
    ],
)
def test_refused(code: str, arguments: list[str]) -> None:
    for argument in arguments:
        with pytest.raises(TipcastError) as caught:
            to_overrides([argument])
        assert caught.value.code == code
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_launchers_value_arrives_as_it_is(
    payload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        "trips/2018-0[1-6]*.parquet",
        "a b.parquet",
        "a=b.parquet",
        "{a}",
        "x/{1,2}.parquet",
        "[12]*.csv",
        "1e3",
        "2019",
        "~/x",
        "it's",
        "a#b&c;d!<",
        "C:\\x[1]\\",
        "copy(1)",
        "trips(1).parquet",
        "s3://b/[x]?.csv",
        "ä",
        "true",
    ]
    lists = {"['a[1]','ä']": ["a[1]", "ä"], "[a,b c]": ["a", "b c"], "null": None}
    for text, expected in [*zip(paths, paths, strict=True), *lists.items()]:
        (override,) = to_overrides([form.format(text)])
        assert _value(override) == expected


def test_a_comma_in_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert to_overrides(["out=a,b"]) == ["out='a,b'"], "no list is meant"
    assert to_overrides(["input=a,b"]) == ["input=a,b"], (
        "a list may be meant, which Hydra asks about"
    )
    (tmp_path / "a,b").touch()
    assert to_overrides(["input=a,b"]) == ["input='a,b'"]
    assert to_overrides(["-m", "out=a,b"]) == ["-m", "out=a,b"]


def test_keys_of_paths_are_fields_of_the_schemas() -> None:
    kinds = filter(dataclasses.is_dataclass, (vars(schema) | vars(data_schema)).values())
    fields = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    assert {key.rpartition(".")[2] for key in PATH_KEYS | PATH_LIST_KEYS} <= fields


def _value(override: str) -> object:
    def plain(value: object) -> object:
        if isinstance(value, list):
            return [plain(item) for item in value]
        return value.text if isinstance(value, QuotedString) else value

    return plain(OverridesParser.create().parse_override(override).value())


def test_names_of_other_than_ascii_letters_need_no_quotes() -> None:
    given = [
        "task.target=größe",
        "task.features=[größe, a]",
        "data.columns={size: größe}",
        "data.time=gro\u0308n",
    ]
    expected = [
        "task.target='größe'",
        "task.features=['größe', a]",
        "data.columns={size: 'größe'}",
        "data.time='grön'",
    ]
    assert to_overrides(given) == expected


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize(
    ("words", "types", "columns"),
    [
        (["data.types={größe: category}"], {"größe": "category"}, {}),
        (
            ["data.types={a: number, größe neu: text, ö$u41$: none}"],
            {"a": "number", "größe neu": "text", "ö$u41$": "none"},
            {},
        ),
        (["data.types.größe=category"], {"größe": "category"}, {}),
        (["--data.types", "{größe: category}"], {"größe": "category"}, {}),
        (["data.columns={size: größe, ß: 'a, ö: b'}"], {}, {"size": "größe", "ß": "a, ö: b"}),
        (["data.types={größe\\(m\\): category}", "-m", "seed=1"], {"größe(m)": "category"}, {}),
        (
            overrides_of_settings({"data": {"types": {"größe (m)": "category"}}}),
            {"größe (m)": "category"},
            {},
        ),
    ],
)
def test_keys_that_name_columns_have_any_letters_in_one_form(
    form: Any, words: Any, types: Any, columns: Any
) -> None:
    given = ["data=table", *(unicodedata.normalize(form, word) for word in words)]
    (composed,) = compose("train", to_overrides(given))
    assert (composed.config.data.types, composed.config.data.columns) == (types, columns)


def test_names_of_a_yaml_have_one_form(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    text = "defaults: [table, _self_]\ntime: tägä\ntypes: {größe: category}\n"
    (tmp_path / "data" / "own.yaml").write_text(
        unicodedata.normalize("NFD", text), encoding="utf-8"
    )
    (composed,) = compose("train", [f"--config-dir={tmp_path}", "data=own"])
    assert (composed.config.data.time, composed.config.data.types) == (
        "tägä",
        {"größe": "category"},
    )


@pytest.mark.parametrize("word", ["data.decimal=,", "data.decimal=','"])
def test_a_comma_alone_is_a_value(word: str) -> None:
    (composed,) = compose("train", to_overrides(["data=table", "data.train=a.csv", word]))
    assert composed.config.data.decimal == ","
