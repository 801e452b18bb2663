"""A configuration as plain values, without its secrets."""

from typing import Any

import pytest
import yaml

from tipcast.config.compose import compose, to_object
from tipcast.config.data_schema import DataSpec, FilesData
from tipcast.config.errors import TipcastError
from tipcast.config.plain import (
    HIDDEN,
    flatten,
    recorded,
    redact,
    redact_address,
    restored,
    to_plain,
)
from tipcast.config.plain import tested as source_of_tests
from tipcast.config.schema import Output


def test_a_whole_configuration_becomes_plain() -> None:
    flat = flatten(to_plain(to_object(compose("train", ["model=logistic"])[0].config)))
    assert (flat["print"], flat["model.params.C"], flat["data.limits.min_rows"]) == (
        "text",
        1.0,
        100,
    )
    assert not {"tracking.register", "model.classes"} & set(flat), (
        "nulls and empty mappings are left out"
    )


def test_secrets_are_hidden() -> None:
    secrets = {
        "key": "x",
        "client_kwargs": {"endpoint_url": "http://user:pw@host", "verify": None},
        "headers": ["x"],
    }
    spec = FilesData(
        "files",
        "a",
        "b",
        None,
        block_bytes=1,
        storage_options={"anon": False, "retries": 3, **secrets},
    )
    hidden = {
        "key": HIDDEN,
        "client_kwargs": {"endpoint_url": HIDDEN, "verify": None},
        "headers": [HIDDEN],
    }
    assert to_plain(spec)["storage_options"] == {"anon": False, "retries": 3, **hidden}
    plain = to_plain({"api_key": "x", "password": "", "rows": 5, "form": Output.json})
    assert plain == {"api_key": HIDDEN, "password": "", "rows": 5, "form": "json"}
    text = "data.train=['https://u:pw@h/a?k=v',s3://b/a.parquet,https://h/b?sig=x]"
    shown = "data.train=['https://h/a',s3://b/a.parquet,https://h/b]"
    assert (redact(text), to_plain([text])) == (shown, [shown]), "of every address in a text"


@pytest.fixture(scope="module")
def sweep_config() -> Any:
    """The configuration of a sweep without overrides."""
    return to_object(compose("sweep", [])[0].config)


MONTHS = ["data=tlc", "data.train=2019-01", "data.test=2019-02"]


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> str:
    """What a sweep recorded on a machine that had its trips from another address, in another
    folder.
    """
    monkeypatch.setenv("TIPCAST_CACHE", "/kept/here")
    far = ["data.url='https://far/{colour}{month}.parquet'", "data.cache=/far"]
    return yaml.safe_dump(to_plain(to_object(compose("sweep", [*MONTHS, *far])[0].config)))


def test_where_data_lie_is_not_taken_from_a_recorded_run(elsewhere: str, sweep_config: Any) -> None:
    here = to_object(compose("sweep", MONTHS)[0].config)
    assert here.data.cache == "/kept/here"
    assert source_of_tests(elsewhere, DataSpec(test=None), "run 1") == here.data
    assert recorded(elsewhere, "{}", "run 1")["data"] == to_plain(here.data)
    assert restored(elsewhere, sweep_config, "run 1").data == here.data


def test_the_command_line_says_where_data_of_a_resumed_sweep_lie(elsewhere: str) -> None:
    given = to_object(compose("sweep", [*MONTHS, "data.cache=/mine"])[0].config)
    assert restored(elsewhere, given, "run 1").data == given.data


NOT_PLAIN = pytest.mark.parametrize(
    ("part", "change"),
    [
        ("model", {"params": {"x": "${oc.env:HOME}"}}),
        ("model", {"params": {"_target_": "os.getcwd"}}),
        ("model", {"_target_": "os.system"}),
        ("model", {"defaults": ["/hydra/launcher/basic"]}),
        ("data", {"train": "${oc.env:HOME}"}),
        ("task", {"params": {"password": HIDDEN}}),
        ("task", {"threshold": "high"}),
    ],
)
"""Parts of a recorded configuration that someone may have changed to have code run."""


def tampered(config: Any, part: str, change: dict[str, object]) -> tuple[str, ...]:
    """Return texts that are no record of a configuration, of which the last is nearly one."""
    plain = to_plain(config)
    return ("", "a: [", "data: 1", yaml.safe_dump(plain | {part: plain[part] | change}))


@NOT_PLAIN
def test_a_run_whose_record_is_not_plain_data_is_not_repeated(
    sweep_config: Any, part: str, change: dict[str, object]
) -> None:
    for text in tampered(sweep_config, part, change):
        with pytest.raises(TipcastError, match="M023"):
            recorded(text, "{}", "run 1")


@NOT_PLAIN
def test_a_sweep_whose_record_is_not_plain_data_is_not_resumed(
    sweep_config: Any, part: str, change: dict[str, object]
) -> None:
    for text in tampered(sweep_config, part, change):
        with pytest.raises(TipcastError, match="S003"):
            restored(text, sweep_config, "run 1")


@pytest.mark.parametrize(
    ("uri", "safe"),
    [
        ("sqlite:////data/mlflow.db?mode=ro", "sqlite:////data/mlflow.db"),
        (
            "https://ada:s3cret@host.example:5000/mlflow?token=s3cret#s3cret",
            "https://host.example:5000/mlflow",
        ),
        ("postgresql://ada:s3c@ret@db.example/mlflow", "postgresql://db.example/mlflow"),
        (
            "postgresql+psycopg2://ada:s3c/ret@db.example:5432/mlflow?sslmode=require",
            "postgresql+psycopg2://db.example:5432/mlflow",
        ),
        ("https://ada:s3#c?ret@host.example/x?token=s3cret", "https://host.example/x"),
        (
            "s3://key:s3cret@bucket/yellow/2018-01.parquet?versionId=s3cret",
            "s3://bucket/yellow/2018-01.parquet",
        ),
        ("http://u:s3cret@[::1]:5000/x", "http://[::1]:5000/x"),
        ("/data/yellow 2018#1.parquet", "/data/yellow 2018#1.parquet"),
        ("https://ada:s3cret@[broken/x", "https://[broken/x"),
        ("s3://bucket/yellow_2018-??.parquet", "s3://bucket/yellow_2018-??.parquet"),
    ],
)
def test_an_address_is_logged_without_secrets(uri: str, safe: str) -> None:
    assert redact_address(uri) == safe
    assert redact(uri) == ("https://..." if "broken" in uri else safe)
