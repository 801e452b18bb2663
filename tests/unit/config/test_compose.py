"""Composing a job's configuration: what is right composes, what is wrong is named with its file and remedy."""

import os
import shutil
from pathlib import Path

import hydra
import pytest

from tipcast.config import conf_files, schema
from tipcast.config.arguments import to_overrides
from tipcast.config.compose import compose, to_object
from tipcast.config.conf_files import conf_dir
from tipcast.config.errors import TipcastError


def load(job: str, *overrides: str) -> object:
    (composed,) = compose(job, overrides)
    return to_object(composed.config)


@pytest.fixture(autouse=True)
def _working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_train_defaults(tmp_path: Path) -> None:
    config = load("train")
    assert isinstance(config, schema.TrainConfig)
    assert isinstance(config.data, schema.SampleData)
    assert isinstance(config.cluster, schema.LocalCluster)
    assert config.print is schema.Output.text
    assert not list(tmp_path.iterdir()), "hydra writes nothing into the working directory"


@pytest.mark.parametrize("group", ["backend", "cluster", "data", "task", "model", "tracking"])
def test_every_option_composes(group: str) -> None:
    options = sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
    assert options
    for option in options:
        more = ["data.train=a", "data.test=b"] if group == "data" else []
        assert load("train", f"{group}={option}", *more)


@pytest.mark.parametrize("name", sorted(path.stem for path in (conf_dir() / "experiment").glob("*.yaml")))
def test_every_experiment_composes(name: str) -> None:
    searches = "override /search:" in (conf_dir() / "experiment" / f"{name}.yaml").read_text(encoding="utf-8")
    assert load("sweep" if searches else "train", f"experiment={name}")


@pytest.mark.parametrize("job", ["train", "sweep", "ladder"])
@pytest.mark.parametrize(
    ("words", "task"),
    [
        ([], "high_tip"),
        (["data=blobs"], "target"),
        (["data=regression", "model=linear"], "target"),
        (["data=table", "data.train=a.csv"], "target"),
        (["model=kmeans"], "clusters"),
        (["data=blobs", "model=kmeans"], "clusters"),
        (["task=clusters", "data=blobs", "model=kmeans"], "clusters"),
        (["data=table", "data.train=a.csv", "task=tip_amount"], "tip_amount"),
    ],
)
def test_data_and_models_bring_a_task_that_may_be_another(job: str, words: list[str], task: str) -> None:
    assert load(job, *words).task.name == task


@pytest.mark.parametrize("data", ["blobs", "regression", "table"])
def test_rows_without_months_are_not_prepared(data: str) -> None:
    with pytest.raises(TipcastError, match=f"C003.*data={data} are for a task, and prepare has none.*data=sample"):
        load("prepare", f"data={data}", "out=x")


@pytest.mark.parametrize("flags", [[], ["--multirun"]])
def test_an_override_is_kept_as_it_was_given(flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAME", "mine")
    (composed,) = compose("train", [*flags, "tracking.run_name='${oc.env:NAME}'"])
    assert composed.config.tracking.run_name == "mine"
    assert composed.overrides == ["tracking.run_name='${oc.env:NAME}'"]


def test_hydra_prints_nothing_of_a_mistake(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TipcastError):
        load("train", "tracking.run_name='${nope}'")
    assert capfd.readouterr() == ("", "")
    assert "HYDRA_FULL_ERROR" not in os.environ


def test_what_does_not_parse_shows_no_secret() -> None:
    for value in ("https://user:hunter2@example.invalid/x.parquet?token=hunter2", "'http://user:hunter2@here/'junk"):
        with pytest.raises(TipcastError) as caught:
            load("train", f"data.train={value}")
        assert caught.value.code == "C005"
        assert "hunter2" not in str(caught.value)
        assert "data.train" in str(caught.value)


def test_multirun_gives_one_configuration_each(tmp_path: Path) -> None:
    configs = compose("train", ["--multirun", "seed=1,2,3"])
    assert [composed.config.seed for composed in configs] == [1, 2, 3]
    assert configs[1].overrides == ["seed=2"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("overrides", "code", "words"),
    [
        (["modle=x"], "C001", ["conf/train.yaml", "modle", "model?"]),
        (["data.tran=x"], "C001", ["conf/data/sample.yaml", "data.tran", "data.train?"]),
        (["data=files", "data.rows=5", "data.train=x"], "C001", ["conf/data/files.yaml", "data.rows"]),
        (["+foo=1"], "C001", ["foo"]),
        (["+data.foo=1"], "C001", ["data.foo"]),
        (["model=xgbost"], "C002", ["model=xgbost", "model=xgboost"]),
        (["cluster=shceduler"], "C002", ["cluster=shceduler", "cluster=scheduler"]),
        (["nogroup/x=1"], "C001", ["nogroup"]),
        (["seed=abc"], "C003", ["seed", "abc"]),
        (["data.rows=5x"], "C003", ["data.rows", "5x"]),
        (["print=xml"], "C003", ["print", "json"]),
        (["task.features=5"], "C003", ["task.features"]),
        (["data=files"], "C004", ["data.test"]),
        (["~seed"], "C004", ["seed"]),
        (["n=[1"], "C005", ["n=[1"]),
        (["model=null"], "C005", ["group"]),
        (["--multirun", "--cfg", "job"], "C005", ["--multirun"]),
        (["tracking.run_name='${nope}'"], "C003", ["nope"]),
        (["data.train=a,b"], "C005", ["data.train", "[a, b]"]),
    ],
)
def test_mistakes(overrides: list[str], code: str, words: list[str]) -> None:
    with pytest.raises(TipcastError) as caught:
        load("train", *overrides)
    assert caught.value.code == code, str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_unknown_key_in_a_file_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "conf"
    shutil.copytree(conf_dir(), copy)
    file = copy / "data" / "sample.yaml"
    file.write_text(file.read_text() + "\nrowz: 5\n")
    monkeypatch.setattr(conf_files, "conf_dir", lambda: copy)
    with pytest.raises(TipcastError) as caught:
        load("train")
    assert "conf/data/sample.yaml" in str(caught.value)
    assert "rowz" in str(caught.value)


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
        ("tracking.run_name=a?;b", "\"key='a, b'\""),
        ("ä=1", "'key=[a, b]'"),
        ("task.features=[pickup_hour", "'key=[a, b]'"),
        ("tracking.tags={a;1}", "'key=[a, b]'"),
        ("seed==5", "\"key='a, b'\""),
        ("tracking.run_name=a,b", "\"key='a, b'\""),
        ("seed=1,2", "add --multirun"),
        ("model=xgboost,knn", "add --multirun"),
    ],
)
def test_advice(word: str, advice: str) -> None:
    assert advice in _refused(word).fix


def test_a_list_of_addresses_shows_no_secret() -> None:
    problem = _refused("data.train=https://u:hunter2@h/a.csv,https://u:hunter2@h/b.csv")
    assert "hunter2" not in str(problem)
    assert "'key=[a, b]' for a list" in problem.fix


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
        compose("train", ["--cfg=job"])
