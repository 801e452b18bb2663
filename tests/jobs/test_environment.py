"""Values that a training's configuration reads of the environment: neither its run nor the terminal
shows them.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest

from tipcast.config.errors import TipcastError

CANARY = "canary8Wq4"
OTHER = "canary3Zt9"
READ = {"CANARY": CANARY, "OTHER": OTHER}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder with tables whose folder and column are called as variables say."""
    for name, value in READ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(3)
    Path(CANARY + OTHER).mkdir()
    for side in ("a", "b"):
        table = pd.DataFrame({CANARY: draw.normal(size=400), "second": draw.normal(size=400)})
        table.assign(target=table.sum(axis=1) > 0).to_parquet(f"{CANARY}{OTHER}/{side}.parquet")


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


def shown(client: mlflow.MlflowClient, run: Any, folder: Path) -> str:
    """Return all that a store tells of a run: parameters, tags, inputs and artifacts of text."""
    below = Path(mlflow.artifacts.download_artifacts(run_id=run.info.run_id, dst_path=str(folder)))
    texts = [
        path.read_bytes().decode(errors="replace") for path in below.rglob("*") if path.is_file()
    ]
    return "\n".join([str(client.get_run(run.info.run_id).to_dictionary()), *texts])


def test_a_runs_record_and_the_terminal(
    job: Callable[..., Any], files: None, store: str, tmp_path: Path, capfd: Any, logged: list[str]
) -> None:
    ended = job("train", *WORDS)
    mlflow.set_tracking_uri(store)
    record = shown(mlflow.MlflowClient(store), ended.run, tmp_path / "artifacts")
    told = capfd.readouterr()
    for text in (record, str(ended.said), told.out, told.err, "\n".join(logged)):
        for value in READ.values():
            at = text.find(value)
            assert at < 0, text[max(0, at - 200) : at + 60]
    shutil.rmtree(tmp_path / "artifacts")
    with pytest.raises(TipcastError, match=r"M023.* Fix: "):
        job("train", f"from={ended.run.info.run_id}")


def test_a_sweep_is_resumed_with_the_words_that_read_the_environment(
    job: Callable[..., Any], files: None
) -> None:
    """Its record has expressions, which a run's record alone must not have evaluated."""
    words = [word for word in WORDS if not word.startswith("tracking")]
    ended = job("sweep", *words, "search.trials=1")
    run_id = ended.run.info.run_id
    with pytest.raises(
        TipcastError, match=r"S003.*Fix: repeat the words that read the environment"
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
