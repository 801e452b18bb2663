"""Models of text files of other habits: their scores are those of the plain file's model."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from tests.jobs.conftest import Ended, run_job

from tipcast.config.errors import TipcastError

HABITS = ("data.decimal=','", "data.encoding=cp1252")


def houses() -> pd.DataFrame:
    draw = np.random.default_rng(0)
    rows = pd.DataFrame({"größe": draw.normal(size=200).round(3)})
    rows["town"] = draw.choice(["Köln", "Bonn; Rhein", "Ulm"], 200)
    rows["price"] = (3 * rows["größe"] + (rows["town"] == "Köln")).round(3)
    return rows


@dataclass(frozen=True)
class Trained:
    """The same rows in two files, and a model of each."""

    store: str
    folder: Path
    plain: Ended
    own: Ended

    def scores(self, ended: Ended, file: str, *words: str) -> pd.DataFrame:
        """Score a file with a training's model."""
        output = self.folder / f"scored-{len(list(self.folder.iterdir()))}"
        files = (f"input={self.folder / file}", f"output={output}")
        run_job(self.store, "score", f"model_uri={ended.said['model_uri']}", *files, *words)
        return pd.read_parquet(output / f"{file}.parquet")

    def loaded(self) -> Any:
        """Return the model of the file of other habits as MLflow loads it."""
        mlflow.set_tracking_uri(self.store)
        return mlflow.pyfunc.load_model(self.own.said["model_uri"])


@pytest.fixture(scope="module")
def trained(store: str, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("habits")
    houses().to_csv(folder / "plain.csv", index=False)
    houses().to_csv(folder / "own.csv", index=False, sep=";", decimal=",", encoding="cp1252")

    words = ("data=table", "task.target=price", "model=linear")
    train = functools.partial(run_job, store, "train", *words)
    plain = train(f"data.train={folder / 'plain.csv'}")
    own = train(f"data.train={folder / 'own.csv'}", *HABITS)
    return Trained(store, folder, plain, own)


def test_a_training_learns_the_same(trained: Trained) -> None:
    assert trained.own.said["metrics"] == trained.plain.said["metrics"]


def test_a_file_is_scored_as_the_training_file_was_read(trained: Trained) -> None:
    expected = trained.scores(trained.plain, "plain.csv")
    scored = trained.scores(trained.own, "own.csv")
    columns = [*houses().columns, "prediction"]
    pd.testing.assert_frame_equal(scored[columns], expected[columns])


def test_a_scoring_says_that_a_file_is_plain(trained: Trained) -> None:
    expected = trained.scores(trained.plain, "plain.csv")
    scored = trained.scores(trained.own, "plain.csv", "decimal=.", "encoding=utf-8")
    assert scored["prediction"].tolist() == expected["prediction"].tolist()


def test_a_plain_file_is_not_read_with_letters_of_another_encoding(trained: Trained) -> None:
    with pytest.raises(TipcastError, match=r"D016.*is UTF-8, not cp1252.*encoding=utf-8"):
        trained.scores(trained.own, "plain.csv")


def test_the_portable_model_reads_the_cells_of_its_files(trained: Trained) -> None:
    read = functools.partial(pd.read_csv, sep=";", encoding="cp1252", dtype=str)
    cells = read(trained.folder / "own.csv")
    expected = trained.scores(trained.own, "own.csv")["prediction"]
    np.testing.assert_allclose(np.ravel(trained.loaded().predict(cells)), expected)


def test_the_portable_model_names_a_cell_with_the_other_sign(trained: Trained) -> None:
    rows = pd.DataFrame({"größe": ["1,5", "1.5"], "town": "Ulm"})
    with pytest.raises(mlflow.MlflowException, match=r"'1\.5' of row 2 is not a number"):
        trained.loaded().predict(rows)
