"""Values that a training's configuration reads of the environment: neither its run nor the terminal
shows them.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from tests.jobs.conftest import console_lines, run_job

from tipcast.config.errors import TipcastError

CANARY = "canary8Wq4"
OTHER = "canary3Zt9"
READ = {"CANARY": CANARY, "OTHER": OTHER}


@pytest.fixture(scope="module")
def tables_of_variables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with tables whose folder and column are called as variables say."""
    folder = tmp_path_factory.mktemp("tables")
    draw = np.random.default_rng(3)
    (folder / (CANARY + OTHER)).mkdir()
    for side in ("a", "b"):
        table = pd.DataFrame({CANARY: draw.normal(size=400), "second": draw.normal(size=400)})
        table = table.assign(target=table.sum(axis=1) > 0)
        table.to_parquet(folder / (CANARY + OTHER) / f"{side}.parquet")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in READ.items():
            patch.setenv(name, value)
        yield folder


WORDS = (
    "data=table",
    "data.train=${oc.env:CANARY}${oc.env:OTHER}/a.parquet",
    "data.test=${oc.env:CANARY}${oc.env:OTHER}/b.parquet",
    "data.columns={first: '${oc.env:CANARY}'}",
    "task.target=target",
    "task.kind=classification",
    "model=logistic",
    "tracking.run_name=of ${oc.env:OTHER}",
)


def recorded(client: mlflow.MlflowClient, run: Any, folder: Path) -> str:
    """Return all that a store tells of a run: parameters, tags, inputs and artifacts of text."""
    below = Path(client.download_artifacts(run.info.run_id, "", str(folder)))
    texts = [
        path.read_bytes().decode(errors="replace") for path in below.rglob("*") if path.is_file()
    ]
    return "\n".join([str(client.get_run(run.info.run_id).to_dictionary()), *texts])


@contextlib.contextmanager
def terminal(file: Path) -> Iterator[None]:
    """Let a file have what a block, and the libraries below it, write to the terminal."""
    copies = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
    with (
        file.open("w") as stream,
        contextlib.redirect_stdout(stream),
        contextlib.redirect_stderr(stream),
    ):
        for descriptor in copies:
            os.dup2(stream.fileno(), descriptor)
        try:
            yield
        finally:
            for descriptor, copy in copies.items():
                os.dup2(copy, descriptor)
                os.close(copy)


@dataclass(frozen=True)
class Trained:
    """A training whose words read the environment."""

    run_id: str
    record: str
    """All that the store has of the run."""
    terminal: str
    """All that was written or logged."""


@pytest.fixture(scope="module")
def trained(tables_of_variables: Path, store: str) -> Trained:
    folder = tables_of_variables
    with contextlib.chdir(folder), console_lines() as lines, terminal(folder / "terminal"):
        ended = run_job(store, "train", *WORDS)
    artifacts = folder / "artifacts"
    artifacts.mkdir()
    record = recorded(mlflow.MlflowClient(store), ended.run, artifacts)
    written = (folder / "terminal").read_text()
    return Trained(ended.run.info.run_id, record, "\n".join([str(ended.said), written, *lines]))


@pytest.mark.parametrize("value", READ.values())
def test_no_value_of_the_environment_is_in_the_record_of_a_run(
    trained: Trained, value: str
) -> None:
    at = trained.record.find(value)
    assert at < 0, trained.record[max(0, at - 200) : at + 60]


@pytest.mark.parametrize("value", READ.values())
def test_no_value_of_the_environment_is_on_the_terminal(trained: Trained, value: str) -> None:
    at = trained.terminal.find(value)
    assert at < 0, trained.terminal[max(0, at - 200) : at + 60]


def test_a_run_that_read_the_environment_is_not_repeated(
    job: Callable[..., Any], trained: Trained
) -> None:
    with pytest.raises(TipcastError, match=r"M023.* Fix: "):
        job("train", f"from={trained.run_id}")


def test_a_sweep_is_resumed_with_the_words_that_read_the_environment(
    job: Callable[..., Any], tables_of_variables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record has expressions, which a run's record alone must not have evaluated."""
    monkeypatch.chdir(tables_of_variables)
    words = [word for word in WORDS if not word.startswith("tracking")]
    ended = job("sweep", *words, "search.trials=1")
    run_id = ended.run.info.run_id
    with pytest.raises(
        TipcastError, match=r"S003.*Fix: repeat the arguments that read the environment"
    ):
        job("sweep", f"resume={run_id}")
    again = job(
        "sweep",
        f"resume={run_id}",
        "data=table",
        *(word for word in words if "oc.env" in word),
        "search.trials=2",
    )
    assert again.said["trials"] == {"finished": 2, "failed": 0, "all": 2}
