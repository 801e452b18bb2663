"""Composing a job's configuration: what is right composes, what is wrong is named with its file and remedy."""

import shutil
from pathlib import Path

import pytest

from tipcast.config import conf_files, schema
from tipcast.config.arguments import to_overrides
from tipcast.config.compose import compose, to_object
from tipcast.config.conf_files import conf_dir, fault
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


def test_multirun_gives_one_configuration_each(tmp_path: Path) -> None:
    configs = compose("train", ["--multirun", "seed=1,2,3"])
    assert [composed.config.seed for composed in configs] == [1, 2, 3]
    assert configs[1].overrides[0] == "seed=2"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["modle=x"], "C001", ["conf/train.yaml", "modle", "model?"]),
        (["data.tran=x"], "C001", ["conf/train.yaml", "data.tran", "data.train?"]),
        (["data=files", "data.rows=5", "data.train=x"], "C001", ["conf/train.yaml", "data.rows"]),
        (["data=blobs", "out=x"], "C001", ["conf/data/blobs.yaml: unknown key 'task'", "prepare has no such key"]),
        (["+foo=1"], "C001", ["foo"]),
        (["+data.foo=1"], "C001", ["data.foo"]),
        (["nogroup/x=1"], "C001", ["nogroup"]),
        (["a" * 400 + "=1"], "C005", ["File name too long"]),
        (["model=xgbost"], "C002", ["model=xgbost", "model=xgboost"]),
        (["cluster=shceduler"], "C002", ["cluster=shceduler", "cluster=scheduler"]),
        (["seed=abc"], "C003", ["seed", "abc"]),
        (["data.rows=5x"], "C003", ["data.rows", "5x"]),
        (["print=xml"], "C003", ["print", "json"]),
        (["task.features=5"], "C003", ["task.features"]),
        (["tracking.run_name='${nope}'"], "C003", ["nope"]),
        (["data=files"], "C004", ["data.test"]),
        (["~seed"], "C004", ["seed"]),
        (["--multirun", "model=glob(my*)"], "C002", ["glob"]),
        (["model=null"], "C005", ["group"]),
        (["--overrides", "'a"], "C005", ["quotation"]),
        (["+seed=1"], "C003", ["An item is already at 'seed'"]),
        (["xgboost"], "C005", ["xgboost: must be key=value"]),
        (["--info", "config"], "C001", ["info"]),
        (["--config-path=x"], "C001", ["config-path"]),
        (["--hydra-help"], "C005", ["unknown flag", "--config-dir"]),
        (["=5"], "C005", ["without blanks round the ="]),
        (["b]"], "C005", ["'key=[a, b]'"]),
        (["n=[1"], "C005", ["n=[1", "'key=[a, b]'"]),
        (["ä=1"], "C005", ["'key=[a, b]'"]),
        (["task.features=[pickup_hour"], "C005", ["'key=[a, b]'"]),
        (["tracking.tags={a;1}"], "C005", ["'key=[a, b]'"]),
        (["data.train=a,b"], "C005", ["data.train", "'key=[a, b]' for a list"]),
        (["tracking.run_name=a?;b"], "C005", ["\"key='a, b'\""]),
        (["task.target=Sold for (€)"], "C005", ["quote the value"]),
        (["seed==5"], "C005", ["\"key='a, b'\""]),
        (["tracking.run_name=a,b"], "C005", ["\"key='a, b'\""]),
        (["seed=1,2"], "C005", ["add --multirun"]),
        (["model=xgboost,knn"], "C005", ["add --multirun"]),
        (["data.train=https://u:hunter2@h/a.csv,https://u:hunter2@h/b.csv"], "C005", ["'key=[a, b]' for a list"]),
    ],
)
def test_mistakes(words: list[str], code: str, told: list[str]) -> None:
    with pytest.raises(TipcastError) as caught:
        to_object(compose("train", to_overrides(words))[0].config)
    assert caught.value.code == code, str(caught.value)
    assert len(str(caught.value)) <= 300
    assert "hunter2" not in str(caught.value)
    for word in told:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "value", ["https://user:hunter2@example.invalid/x?token=hunter2", "'http://user:hunter2@here/'junk"]
)
def test_what_does_not_parse_shows_no_secret(value: str) -> None:
    with pytest.raises(TipcastError, match=r"C005.*data\.train") as caught:
        load("train", f"data.train={value}")
    assert "hunter2" not in str(caught.value)


GLOBAL = b"# @package _global_\n"


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of conf/ that a user edits."""
    copy = tmp_path / "conf"
    shutil.copytree(conf_files.conf_dir(), copy)
    monkeypatch.setattr(conf_files, "conf_dir", lambda: copy)
    return copy


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (GLOBAL + b"seed: [1\nprint: 2\n", ["expected ',' or ']'", "line 3, column 6"]),
        (GLOBAL + b"model:\n\tparams: 1\n", ["indent with blanks", "line 3, column 1"]),
        (GLOBAL + b"name: caf\xe9\n", ["YAML in UTF-8: 'utf-8' codec can't decode byte 0xe9 in position 29"]),
        (GLOBAL + b"seed: \0\n", ["character #x0000"]),
        (b"\xef\xbb\xbf" + GLOBAL + b"seed: 1\n", ["# @package _global_"]),
        ((GLOBAL + b"seed: 1\n").decode().encode("utf-16"), ["YAML in UTF-8"]),
        (b"- a\n", ["no keys and values"]),
        (b"just words\n", ["no keys and values"]),
        (b"seed: 4\n", ["# @package _global_"]),
        (b"defaults:\n  - override /model: knn\n", ["# @package _global_"]),
        (GLOBAL + b"defaults: knn\n", ["defaults"]),
    ],
)
def test_a_users_experiment(conf: Path, content: bytes, words: list[str]) -> None:
    (conf / "experiment" / "mine.yaml").write_bytes(content)
    with pytest.raises(TipcastError) as caught:
        compose("train", ["experiment=mine"])
    assert caught.value.code == "C012", str(caught.value)
    assert caught.value.where == "conf/experiment/mine.yaml"
    for word in words:
        assert word in str(caught.value)


def test_a_key_that_is_there_twice(conf: Path) -> None:
    (conf / "experiment" / "mine.yaml").write_bytes(GLOBAL + b"seed: 1\nseed: 2\n")
    with pytest.raises(TipcastError, match=r"C012.*mine\.yaml.*duplicate key seed"):
        compose("train", ["experiment=mine"])


def test_a_folder_in_a_files_place_is_no_option(conf: Path) -> None:
    (conf / "experiment" / "mine.yaml").mkdir()
    with pytest.raises(TipcastError, match="C002.*experiment=mine.*categorical_zones"):
        compose("train", ["experiment=mine"])


def test_what_the_system_refuses(conf: Path) -> None:
    (conf / "experiment" / "mine.yaml").symlink_to("mine.yaml")
    problem = fault()
    assert problem is not None
    assert str(problem).startswith("error[C012] conf/experiment/mine.yaml: cannot be read")
    assert "symbolic links" in str(problem)


def test_unknown_key_in_a_file_names_the_file(conf: Path) -> None:
    with (conf / "data" / "sample.yaml").open("a") as file:
        file.write("\nrowz: 5\n")
    with pytest.raises(TipcastError, match=r"conf/data/sample\.yaml.*rowz"):
        load("train")
