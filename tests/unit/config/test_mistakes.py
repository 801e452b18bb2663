"""Advice on words that are not key=value: it mends what was typed."""

from __future__ import annotations

from pathlib import Path

import hydra
import pytest

from tipcast.config.arguments import to_overrides
from tipcast.config.compose import compose
from tipcast.config.errors import TipcastError


@pytest.fixture(autouse=True)
def _working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _refused(word: str) -> TipcastError:
    with pytest.raises(TipcastError) as caught:
        compose("train", to_overrides([word]))
    assert caught.value.code == "C005"
    assert len(str(caught.value)) <= 300
    return caught.value


@pytest.mark.parametrize(
    ("word", "advice"),
    [
        ("xgboost", "did you mean model=xgboost?"),
        ("xgbost", "did you mean model=xgboost?"),
        ("local", "did you mean cluster=local?"),
        ("model", "did you mean model=VALUE?"),
        ("data.rows", "data.rows=VALUE"),
        ("b]", "'key=[a, b]'"),
        ("=5", "without blanks round the ="),
        ("nothing", "tipcast train --cfg job"),
        ("tracking.run_name=a?;b", "\"key='a b'\""),
        ("ä=1", "'key=[a, b]'"),
        ("task.features=[pickup_hour", "'key=[a, b]'"),
        ("tracking.tags={a;1}", "'key=[a, b]'"),
        ("seed==5", "\"key='a b'\""),
        ("tracking.run_name=a,b", "\"key='a,b'\""),
        ("seed=1,2", "add --multirun"),
        ("model=xgboost,knn", "add --multirun"),
    ],
)
def test_advice(word: str, advice: str) -> None:
    assert advice in _refused(word).fix


def test_a_list_of_addresses_shows_no_secret() -> None:
    problem = _refused("data.train=https://u:hunter2@h/a.csv,https://u:hunter2@h/b.csv")
    assert "hunter2" not in str(problem)
    assert "'key=[a,b]' for a list" in problem.fix


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["+seed=1"], "C005", "seed=VALUE"),
        (["--overrides", "'a"], "C005", "quotation"),
        (["--cfg", "job", "-p", "nope"], "C005", "see above"),
        (["a" * 400 + "=1"], "C", ""),
    ],
)
def test_what_was_a_traceback_is_a_line(words: list[str], code: str, told: str) -> None:
    with pytest.raises(TipcastError) as caught:
        compose("train", to_overrides(words))
    assert caught.value.code.startswith(code)
    assert told in str(caught.value)


def test_a_signal_while_composing_is_no_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(SystemExit):
        """What a handler of signals raises."""

    def main(**_: object) -> None:
        raise Ended(143)

    monkeypatch.setattr(hydra, "main", main)
    with pytest.raises(Ended):
        compose("train", ["--multirun"])
