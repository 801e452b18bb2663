"""`tipcast --help`: a page of each job, and of its options every key, with what conf/ or its schema
says of it.
"""

import re
from pathlib import Path

import pytest
import yaml

from tipcast import cli
from tipcast.config import conf_files, help
from tipcast.config.arguments import to_overrides
from tipcast.config.completion import candidates
from tipcast.config.compose import compose, to_object
from tipcast.config.jobs import JOBS

LIBRARYS = ("model.params.", "model.space.")
"""Keys that a library explains; the comments in conf/model add to that."""
LONGEST_PAGE = 36


def output_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main([*words]) == 0
    return capsys.readouterr().out


def explained(text: str) -> dict[str, str]:
    """Return key -> what is said of it, on its own line or below it; none may have nothing."""
    comments: dict[str, str] = {}
    key = ""
    for line in text.partition("\nkeys of ")[2].partition("\nflags\n")[0].splitlines():
        if line.startswith(" " * help.COLUMN):
            comments[key] = f"{comments[key]} {line.strip()}".strip()
        elif line.startswith("  "):
            word, _, rest = line[2:].partition("  ")
            key = word.partition("=")[0]
            comments[key] = rest.strip()
    assert not [
        key for key, comment in comments.items() if not comment and not key.startswith(LIBRARYS)
    ]
    return comments


def test_every_key_of_every_option_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    options = {
        group: [*conf_files.options(group)] for group in help.GROUPS if group != "experiment"
    }
    for at in range(max(map(len, options.values()))):  # one of each group at a time
        chosen = {group: names[at % len(names)] for group, names in options.items()}
        words = [f"{group}={name}" for group, name in chosen.items()]
        text = output_of(capsys, "sweep", "--help", *words)
        assert all(f"{word}: " in text for word in words)
        assert explained(text)
        assert to_object(compose("sweep", [*words, "data.train=a", "data.test=b"])[0].config)
    for name, path in conf_files.options("model").items():
        keys = {
            f"model.fit.{key}" for key in yaml.safe_load(path.read_text(encoding="utf-8"))["fit"]
        }
        assert keys <= set(help._comments(path, "model")), name


@pytest.fixture
def train_page(capsys: pytest.CaptureFixture[str]) -> str:
    """The help page of a training with these options."""
    return output_of(capsys, "train", "--help", "model=xgboost", "data=sample", "cluster=local")


def test_a_key_shows_its_default(train_page: str) -> None:
    assert (
        "  data.rows=200000                  rows of all months of a period together\n"
        in train_page
    )


def test_a_key_shows_the_comment_of_its_file(train_page: str) -> None:
    comment = explained(train_page)["model.fit.early_stopping_rounds"]
    assert comment == "null: never; needs task.validation > 0"


def test_a_key_without_a_comment_shows_what_the_schema_says(train_page: str) -> None:
    comments = explained(train_page)
    assert comments["cluster.worker_ttl_s"].startswith("seconds without a heartbeat")
    assert comments["resume"].startswith("Killed training run to resume: its id")


def test_a_key_that_follows_from_its_option_is_not_shown(train_page: str) -> None:
    assert "data.source" not in explained(train_page)


def test_a_mistake_beside_help_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "model=xgbost", "--help"]) == 2
    assert "error[C002] model=xgbost" in capsys.readouterr().err


def test_a_command_without_words_shows_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    usage = output_of(capsys, "--help")
    assert "--quiet" in usage
    cli.main([])
    assert capsys.readouterr().out == usage


def test_a_command_without_words_is_a_mistake() -> None:
    assert cli.main([]) == 2


def test_no_page_shows_what_only_tests_use(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help", "model=svc"], ["--cfg", "job"], ["--cfg", "job", "model=svc"]):
        assert "tiny" not in output_of(capsys, "train", *words), words
    assert candidates("tipcast train model.k") == ["model.kinds."]
    assert candidates("tipcast train model.t") == []
    assert compose("train", [])[0].config.model.tiny, "the option keeps it"


@pytest.mark.parametrize("job", JOBS)
def test_a_page_says_what_matters(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = output_of(capsys, job, "--help")
    assert len(text.splitlines()) <= LONGEST_PAGE
    parts = [part.splitlines()[1:] for part in text.partition("\nmore: ")[0].split("\n\n")[1:]]
    for group, names in (line.split(maxsplit=1) for line in parts[0] if line[2] != " "):
        first_name = names.replace("[", "").split(",")[0].strip("]")
        assert first_name in {
            next(iter(options(group)))
            for options in (conf_files.options, conf_files.options_without_task)
        }
    assert [line for line in parts[1] if not re.match(r"  [\w.]+=\S+  +\S", line)] == [], (
        "a default and a word"
    )
    for example in " ".join(parts[2]).split(" tipcast ")[1:]:
        assert compose(example.split()[0], to_overrides(example.split()[1:])), example
    every = output_of(capsys, job, "-h", "print=text")
    assert every.startswith(f"tipcast {job}: ")
    assert "print" in explained(every)
    first = (conf_files.conf_dir() / f"{job}.yaml").read_text(encoding="utf-8").partition("\n")[0]
    assert first.startswith(f"# tipcast {job}")
    assert f"{first.partition(': ')[2]}\n" in output_of(capsys, "--help"), "one line each"


def test_options_of_one_s_own_are_explained_too(
    own_conf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = output_of(capsys, "train", "--config-dir", str(own_conf), "task=mine", "--help")
    assert "task=mine: Is it mine?" in text
    assert explained(text)["task.threshold"] == "above"
    assert explained(text)["task.validation"].startswith(
        "share of the time that the training files cover"
    )


@pytest.mark.parametrize("job", JOBS)
def test_a_job_without_a_task_offers_no_data_that_bring_one(
    job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    offered = re.search(r"^  data +(.*)$", output_of(capsys, job, "--help"), re.MULTILINE)
    if offered is None:  # the files of score are named by input=
        return
    for name in re.sub(r"[\[\]]", "", offered[1]).split(", "):
        compose(job, [f"data={name}"])
    assert ("blobs" in offered[1]) == ("data=blobs" in candidates(f"tipcast {job} data="))
