"""Values of the environment: recorded as expressions, and out of the reach of `mlflow run`."""

import pytest

from tipcast.config.compose import compose, to_object
from tipcast.config.environment import LAUNCHED, check_variables, concealed
from tipcast.config.errors import TipcastError
from tipcast.config.plain import redact, to_plain

SECRET = "canary7Qx"  # noqa: S105 - of this test


@pytest.fixture(autouse=True)
def variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", SECRET)
    monkeypatch.setenv("PIN", "4711")


def test_what_came_of_the_environment_is_recorded_as_it_was_written() -> None:
    """Also a number, and a value that another one names."""
    words = ["seed=${oc.env:PIN}", "data=table", "data.train=${oc.env:CANARY}/t.csv"]
    words += ["data.test=x.csv", "task.target=y", "tracking.experiment=${data.train}"]
    (composed,) = compose("train", words)
    config = to_object(composed.config)
    assert (config.seed, config.data.train) == (4711, f"{SECRET}/t.csv")
    plain = to_plain(config)
    assert plain["seed"] == "${oc.env:PIN}"
    assert plain["data"]["train"] == "${oc.env:CANARY}/t.csv"
    assert plain["tracking"]["experiment"] == "${data.train}"
    assert concealed(f"read {SECRET}/t.csv") == "read ${oc.env:CANARY}/t.csv"


@pytest.mark.parametrize(
    "word",
    [
        "tracking.run_name=${oc.env:CANARY}",
        "tracking.run_name=a${oc.env:NO,b}",
        "tracking.uri=${oc.env:CANARY}",
        "model.params.max_depth=${oc.env:CANARY}",
    ],
)
def test_values_of_mlflow_run_read_no_environment(
    monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setenv(LAUNCHED, "1")
    with pytest.raises(TipcastError) as refused:
        compose("train", [word])
    assert str(refused.value).startswith("error[C006] ${oc.env:")
    assert str(refused.value).count("error[") == 1


@pytest.mark.parametrize(
    "name",
    [
        "PYTHONPATH",
        "LD_PRELOAD",
        "PATH",
        "DASK_DISTRIBUTED__X",
        "BASH_ENV",
        "GCONV_PATH",
        "NCCL_NET_PLUGIN",
        "x",
    ],
)
def test_values_of_mlflow_run_choose_no_code_of_workers(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (composed,) = compose("train", [f"cluster.environment.{name}=evil"])
    to_object(composed.config)
    monkeypatch.setenv(LAUNCHED, "1")
    with pytest.raises(TipcastError, match=f"C006.*environment.{name}"):
        to_object(composed.config)
    check_variables({"MALLOC_ARENA_MAX": "2", "NCCL_DEBUG": "INFO"})


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql+psycopg2://u:pa,s's/w?rd@h:5432/db", "postgresql+psycopg2://h:5432/db"),
        ("of redis://:pw@h:1/0 and mysql://u:p@ss@h/db", "of redis://h:1/0 and mysql://h/db"),
        ("http://127.0.0.1:5000/models/x@champion", "http://127.0.0.1:5000/models/x@champion"),
    ],
)
def test_addresses_lose_credentials(address: str, shown: str) -> None:
    assert redact(address) == shown
