"""A configuration as plain values, without its secrets."""

from __future__ import annotations

import dataclasses

import pytest
import yaml

from tipcast.config.compose import compose, to_object
from tipcast.config.errors import TipcastError
from tipcast.config.plain import HIDDEN, flatten, redact, retrained, to_plain
from tipcast.config.schema import FilesData, Output


def test_a_whole_configuration_becomes_plain() -> None:
    (composed,) = compose("train", ["model=logistic"])
    plain = to_plain(to_object(composed.config))
    assert plain["print"] == "text"
    assert plain["data"]["limits"]["min_rows"] == 100
    flat = flatten(plain)
    assert flat["model.params.C"] == 1.0
    assert flat["task.validation"] == 0.15
    assert "tracking.register" not in flat, "nulls are left out"
    assert "model.classes" not in flat, "empty mappings are left out"


def test_secrets_are_hidden() -> None:
    spec = FilesData(source="files", train="a", test="b", months=None, block_bytes=1)
    spec.storage_options = {
        "anon": False,
        "retries": 3,
        "key": "shown nowhere",
        "client_kwargs": {"endpoint_url": "http://user:pw@host", "verify": None},
        "headers": ["Authorization: x"],
    }
    options = to_plain(spec)["storage_options"]
    assert options == {
        "anon": False,
        "retries": 3,
        "key": HIDDEN,
        "client_kwargs": {"endpoint_url": HIDDEN, "verify": None},
        "headers": [HIDDEN],
    }
    assert to_plain({"api_key": "x", "password": "", "rows": 5, "form": Output.json}) == {
        "api_key": HIDDEN,
        "password": "",
        "rows": 5,
        "form": "json",
    }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://host/a.parquet?X-Amz-Signature=abc&x=1", "https://host/a.parquet"),
        ("postgresql://u:pw@host/db", "postgresql://host/db"),
        ("data.train='https://u:pw@h/a?k=v'", "data.train='https://h/a'"),
        ("data.train=[s3://b/a.parquet,https://h/b?sig=x]", "data.train=[s3://b/a.parquet,https://h/b]"),
        ("s3://bucket/yellow_2018-??.parquet", "s3://bucket/yellow_2018-??.parquet"),
        ("sqlite:///mlflow.db", "sqlite:///mlflow.db"),
        ("trips/2018-*.parquet", "trips/2018-*.parquet"),
    ],
)
def test_addresses_are_shown_without_secrets(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert to_plain([text]) == [shown]


def test_a_training_is_made_again_on_the_machine_of_a_watch() -> None:
    trained = to_object(compose("train", ["model=random_forest", "task=tip_amount", "seed=7"])[0].config)
    words = ["model_uri=models:/tips/1", "input=a", "output=b", "tracking.experiment=here", "cluster.n_workers=3"]
    given = to_object(compose("watch", words)[0].config)
    text = yaml.safe_dump(to_plain(trained), sort_keys=False)
    found = retrained(text, given, "tips", {"max_depth": "5", "max_features": "sqrt"}, "run 1")
    assert (found.task, found.data, found.seed) == (trained.task, trained.data, 7)
    params = {**trained.model.params, "max_depth": 5, "max_features": "sqrt"}
    assert found.model == dataclasses.replace(trained.model, params=params)
    assert (found.tracking.register, found.tracking.experiment, found.cluster.n_workers) == ("tips", "here", 3)


@pytest.mark.parametrize(
    "text", ["", "a: [", "data: 1", "model: {params: {}}\ndata: {source: sample, seed: '${oc.env:A}'}"]
)
def test_what_no_training_wrote_is_not_made_again(text: str) -> None:
    given = to_object(compose("watch", ["model_uri=models:/tips/1", "input=a", "output=b"])[0].config)
    with pytest.raises(TipcastError) as caught:
        retrained(text, given, "tips", {}, "run 1")
    assert caught.value.code == "M023"
