"""A wrong key or option names the key that is meant, as MLflow and scikit-learn call it too."""

import pytest

from tipcast.config.compose import compose
from tipcast.config.errors import TipcastError


def fix_of(job: str, word: str) -> str:
    with pytest.raises(TipcastError) as caught:
        compose(job, [word])
    return caught.value.fix


@pytest.mark.parametrize(
    ("job", "key", "meant"),
    [
        ("train", "experiment_name", "tracking.experiment"),
        ("train", "experiment-name", "tracking.experiment"),
        ("train", "experiment_id", "tracking.experiment"),
        ("promote", "experiment", "tracking.experiment"),
        ("train", "run_name", "tracking.run_name"),
        ("sweep", "tracking_uri", "tracking.uri"),
        ("score", "registry_uri", "tracking.uri"),
        ("train", "MLFLOW_TRACKING_URI", "tracking.uri"),
        ("train", "default_artifact_root", "tracking.artifact_root"),
        ("train", "registered_model_name", "tracking.register"),
        ("score", "registered_model_name", "model_uri"),
        ("score", "model", "model_uri"),
        ("promote", "model_name", "model_uri"),
        ("promote", "stage", "alias"),
        ("score", "input-path", "input"),
        ("train", "tags.owner", "tracking.tags.owner"),
    ],
)
def test_a_word_of_mlflow_names_the_key(job: str, key: str, meant: str) -> None:
    assert fix_of(job, f"{key}=x") == f"did you mean {meant}?"


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("experiment=taxi", "for MLflow's experiment, write tracking.experiment=taxi"),
        ("tracking=http://h:5000", "for a store, write tracking.uri=http://h:5000"),
        ("data=folder/rows.csv", "for a file, write data=table data.train=folder/rows.csv"),
    ],
)
def test_an_option_that_is_a_value_of_another_key_names_it(word: str, meant: str) -> None:
    assert fix_of("train", word).endswith(f"; {meant}")


@pytest.mark.parametrize(
    ("job", "word", "fix"),
    [
        ("train", "experiment=categorical_zone", "did you mean experiment=categorical_zones?"),
        ("train", "data=mine", "use one of blobs, files, regression, sample, table, tlc"),
        ("prepare", "experiment=taxi", "use one of categorical_zones"),
    ],
)
def test_other_options_name_those_of_the_group_alone(job: str, word: str, fix: str) -> None:
    assert fix_of(job, word) == fix


def test_an_address_is_shown_without_its_user_info() -> None:
    with pytest.raises(TipcastError) as caught:
        compose("train", ["tracking=http://me:sesame@h:5000"])
    assert "sesame" not in str(caught.value)
