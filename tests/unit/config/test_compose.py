"""Composing a job's configuration: what is right composes, what is wrong is named with its file and
remedy.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tipcast.config import conf_files, data_schema, schema
from tipcast.config.arguments import to_overrides
from tipcast.config.compose import compose, to_object
from tipcast.config.errors import TipcastError

CONF = conf_files.conf_dir()


def load(job: str, *overrides: str) -> object:
    (composed,) = compose(job, overrides)
    return to_object(composed.config)


def test_a_training_without_words_takes_sample_trips_on_this_machine() -> None:
    config = load("train")
    assert (type(config.data), type(config.cluster)) == (
        data_schema.SampleData,
        schema.LocalCluster,
    )


@pytest.fixture
def three_seeds(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Configurations of a multirun, with a name from the environment."""
    monkeypatch.setenv("NAME", "mine")
    return compose("train", ["--multirun", "seed=1,2,3", "tracking.run_name='${oc.env:NAME}'"])


def test_a_multirun_composes_a_training_for_each_value(three_seeds: Any) -> None:
    assert [(one.config.seed, one.config.tracking.run_name) for one in three_seeds] == [
        (n, "mine") for n in (1, 2, 3)
    ]


def test_overrides_are_kept_as_they_were_given(three_seeds: Any) -> None:
    assert three_seeds[1].overrides == ["seed=2", "tracking.run_name='${oc.env:NAME}'"]


def test_hydra_writes_nothing_into_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    load("train")
    compose("train", ["--multirun", "seed=1,2,3"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "task"),
    [
        ([], "high_tip"),
        (["data=regression", "model=linear"], "target"),
        (["data=table", "data.train=a.csv"], "target"),
        (["data=blobs", "model=kmeans"], "clusters"),
        (["data=table", "data.train=a.csv", "task=tip_amount"], "tip_amount"),
    ],
)
def test_the_task_follows_from_the_options_unless_it_is_named(words: list[str], task: str) -> None:
    assert [load(job, *words).task.name for job in ("train", "sweep", "ladder")] == [task] * 3


def test_mappings_take_keys_that_conf_does_not_have() -> None:
    words = [
        "model.params.max_leaves=8",
        "tracking.tags={team: cabs}",
        "cluster.environment.A=1",
        "model.fit.x=null",
    ]
    config = load("sweep", *words, "search.space.max_depth={int: [4, 8]}")
    assert (config.model.params["max_leaves"], config.model.params["max_depth"]) == (8, 6)
    assert (config.tracking.tags, config.cluster.environment) == ({"team": "cabs"}, {"A": "1"})
    assert config.search.space == {"max_depth": {"int": [4, 8]}}
    environment = "+cluster.environment.NCCL_DEBUG=INFO"
    for words, kind in (
        (["prepare", "backend=gpu", "out=months"], "local_cuda"),
        (["train", "backend=gpu", "cluster=scheduler"], "scheduler"),
        (["train", "backend=cpu", environment], "local"),
        (["train", "backend=gpu", environment, "cluster.rmm_pool_size=8GiB"], "local_cuda"),
    ):
        spec = load(*words).cluster
        assert spec.kind == kind, "a backend brings its cluster"
        assert environment not in words or spec.environment == {"NCCL_DEBUG": "INFO"}
    assert spec.rmm_pool_size == "8GiB"
    config = load(
        "score", "model_uri=m", "input=x", "output=y", "columns.a=b", "storage_options.anon=true"
    )
    assert (config.columns, config.storage_options) == ({"a": "b"}, {"anon": True})


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["modle=x"], "C001", ["conf/train.yaml", "modle", "model?"]),
        (["data.tran=x"], "C001", ["conf/train.yaml", "data.tran", "data.train?"]),
        (["model.parms.x=1"], "C001", ["model.parms.x"]),
        (["+foo=1"], "C001", ["foo"]),
        (["train=x"], "C001", ["did you mean data.train?"]),
        (["target=y"], "C001", ["did you mean task.target?"]),
        (["register=m"], "C001", ["did you mean tracking.register?"]),
        (["max_depth=3"], "C001", ["did you mean model.params.max_depth?"]),
        (["random_state=1"], "C001", ["did you mean seed?"]),
        (["data.name=table"], "C001", ["did you mean data.source?"]),
        (["model=a/b.yaml"], "C002", ["model=a/b.yaml: unknown option of conf/model 'a/b.yaml'"]),
        (
            ["model.tiny.max_depth=3"],
            "C001",
            ["conf/train.yaml", "unknown key 'model.tiny.max_depth'"],
        ),
        (["~model.tiny"], "C001", ["unknown key 'model.tiny'"]),
        (["model.tiny={x: 1}", "--help"], "C001", ["unknown key 'model.tiny'"]),
        (["-m", "+model.tiny.x=1,2"], "C001", ["unknown key 'model.tiny.x'"]),
        (["model=xgbost"], "C002", ["model=xgbost", "model=xgboost"]),
        (["seed=abc"], "C003", ["seed", "abc"]),
        (["print=xml"], "C003", ["print", "json"]),
        (["task.features=x"], "C003", ["task.features: must be a list", "[VALUE]"]),
        (["tracking.run_name='${nope}'"], "C003", ["nope"]),
        (["data=files"], "C004", ["data.test"]),
        (["~seed"], "C004", ["seed"]),
        (["--multirun", "model=glob(my*)"], "C002", ["glob"]),
        (["model=null"], "C005", ["group"]),
        (["--overrides", "'a"], "C005", ["quotation"]),
        (["+seed=1"], "C003", ["An item is already at 'seed'"]),
        (["xgboost"], "C005", ["xgboost: must be key=value"]),
        (["--hydra-help"], "C005", ["unknown flag", "--config-dir"]),
        (["=5"], "C005", ["without spaces around the ="]),
        (["n=[1"], "C005", ["n=[1", "'key=[a, b]'"]),
        (["data.train=a,b"], "C005", ["data.train", "'key=[a, b]' for a list"]),
        (["task.target=Sold for (€)"], "C005", ["quote the value"]),
        (["seed=1,2"], "C005", ["add --multirun"]),
        (
            ["data.train=https://u:hunter2@h/a.csv,https://u:hunter2@h/b.csv"],
            "C005",
            ["'key=[a, b]' for a list"],
        ),
        (
            ["tracking.run_name=https://user:hunter2@here/x?token=hunter2"],
            "C005",
            ["tracking.run_name"],
        ),
    ],
)
def test_mistakes(
    words: list[str], code: str, told: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(TipcastError) as caught:
        to_object(compose("train", to_overrides(words))[0].config)
    assert caught.value.code == code, str(caught.value)
    assert len(str(caught.value)) <= 300
    assert "hunter2" not in str(caught.value)
    for word in told:
        assert word in str(caught.value)
    assert capfd.readouterr() == ("", ""), "Hydra prints nothing of it"


GLOBAL = b"# @package _global_\n"


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of conf/ that a user edits."""
    copy = tmp_path / "conf"
    shutil.copytree(CONF, copy)
    monkeypatch.setattr(conf_files, "conf_dir", lambda: copy)
    return copy


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (GLOBAL + b"seed: [1\nprint: 2\n", ["expected ',' or ']'", "line 3, column 6"]),
        (GLOBAL + b"model:\n\tparams: 1\n", ["indent with spaces", "line 3, column 1"]),
        (GLOBAL + b"seed: 1\nseed: 2\n", ["duplicate key seed"]),
        (b"\xef\xbb\xbf" + GLOBAL + b"seed: 1\n", ["# @package _global_"]),
        ((GLOBAL + b"seed: 1\n").decode().encode("utf-16"), ["YAML in UTF-8"]),
        (b"just words\n", ["no keys and values"]),
        (GLOBAL + b"defaults: knn\n", ["defaults"]),
    ],
)
def test_a_users_experiment(conf: Path, content: bytes, words: list[str]) -> None:
    (conf / "experiment" / "mine.yaml").write_bytes(content)
    with pytest.raises(TipcastError, match=r"C012.*mine\.yaml") as caught:
        compose("train", ["experiment=mine"])
    for word in words:
        assert word in str(caught.value)


def test_files_of_conf_that_are_none_or_have_unknown_keys(conf: Path) -> None:
    (conf / "experiment" / "mine.yaml").mkdir()
    with pytest.raises(TipcastError, match="C002.*experiment=mine.*categorical_zones"):
        compose("train", ["experiment=mine"])
    (conf / "experiment" / "mine.yaml").rmdir()
    with pytest.raises(
        TipcastError, match="C003.*data=blobs needs a task, and prepare has none.*data=sample"
    ):
        load("prepare", "data=blobs", "out=x")
    with (conf / "data" / "sample.yaml").open("a") as file:
        file.write("\nrowz: 5\n")
    with pytest.raises(TipcastError, match=r"conf/data/sample\.yaml.*rowz"):
        load("train")
    (conf / "experiment" / "loop.yaml").symlink_to("loop.yaml")
    with pytest.raises(
        TipcastError, match=r"C012.*conf/experiment/loop\.yaml: cannot be read.*symbolic links"
    ):
        load("train")
