"""Models fetched out of MLflow: by every kind of address, only if nothing was changed, and nothing
of theirs is run.
"""

import hashlib
import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import skops.io
import xgboost
import yaml
from tests.unit.tracking.conftest import Saved

from tipcast.config.errors import TipcastError
from tipcast.datasets.taxi import features
from tipcast.models import native
from tipcast.tracking.model_fetch import FetchedModel, check_parses, fetch

FORMATS = ("xgboost-ubj", "treelite", "skops")
BASE = list(features.BASE_FEATURES)


Registry = dict[str, Saved]


@pytest.fixture
def registry(current: Registry, tmp_path: Path) -> Iterator[Registry]:
    """One registered model of each format, called by it, whose files are put back after a test."""
    files = current["skops"].folder.parents[3]
    shutil.copytree(files, tmp_path / "whole")
    yield current
    shutil.rmtree(files)
    shutil.copytree(tmp_path / "whole", files)


def get(registry: Registry, uri: str, **options: Any) -> FetchedModel:
    folder = Path("fetched")  # of the test
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return fetch(registry["skops"].run.store, uri, folder, **options)


def refused(registry: Registry, uri: str, says: str) -> TipcastError:
    with pytest.raises(TipcastError, match=says) as caught:
        get(registry, uri)
    return caught.value


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_fetched(registry: Registry, natives: Any, format: str) -> None:
    """Of what it scores tests/jobs/test_score.py tells."""
    file = natives[format][0]
    model = get(registry, f"models:/{format}@champion")
    assert (model.uri, model.name, model.version) == (f"models:/{format}/1", format, "1")
    assert (model.format, model.run_id, model.manifest["features"]) == (
        format,
        registry["skops"].run.id,
        BASE,
    )
    assert model.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    fetched = {path.name for path in Path("fetched").rglob("*") if path.is_file()}
    assert fetched == {"MLmodel", "manifest.json", file.name}, "no code is downloaded"


def test_an_address_of_no_model_is_refused(registry: Registry) -> None:
    for uri, says in (
        ("models:/nobody/1", "M001.*no such registered model"),
        ("models:/treelite/7", "M001.*: version 7 does not exist; versions: 1[.] Fix"),
        (
            "models:/treelite@challenger",
            "M001.*: alias challenger does not exist; aliases: champion[.]",
        ),
        ("models:/m-0123456789abcdef0123456789abcdef", "M001.*no such logged model"),
        (
            "runs:/0123456789abcdef0123456789abcdef/model",
            "M001.*: run 0123456789abcdef0123456789abcdef does not exist",
        ),
        (f"runs:/{registry['skops'].run.id}/other", "M001.*has logged no model 'other'"),
        ("models:/treelite", "C003.*not a model URI"),
        ("treelite", "C003.*not a model URI"),
        ("file:///etc", "C003.*not a model URI"),
        ("https://user:secret@host/model", "C003.*https://host/model"),
    ):
        refused(registry, uri, says)


def test_a_password_of_a_refused_address_is_not_repeated(registry: Registry) -> None:
    assert "secret" not in str(refused(registry, "https://user:secret@host/model", "C003"))


@pytest.fixture
def copies(registry: Registry) -> Iterator[None]:
    """A version that MLflow copied, a copy of that, and a version that it registered."""
    client = registry["skops"].run.store
    client.copy_model_version("models:/treelite/1", "production")
    client.copy_model_version("models:/production/1", "abroad")
    mlflow.register_model(registry["treelite"].logged.uri, "by_hand")
    yield
    for model in client.search_registered_models():
        if model.name in ("production", "abroad", "by_hand"):
            client.delete_registered_model(model.name)


@pytest.mark.usefixtures("copies")
def test_a_version_that_mlflow_copied_or_registered_is_fetched(registry: Registry) -> None:
    for name in ("production", "abroad", "by_hand"):
        model = get(registry, f"models:/{name}/1", parse=False)
        assert (model.uri, model.name, model.version) == (f"models:/{name}/1", name, "1")
        assert f"models:/{model.model_id}" == registry["treelite"].logged.uri
        assert model.run_id == registry["skops"].run.id


@pytest.mark.usefixtures("copies")
def test_a_copy_whose_original_is_gone_is_refused(registry: Registry) -> None:
    registry["skops"].run.store.delete_registered_model("production")
    refused(
        registry, "models:/abroad/1", "M001.*the version that it was copied from does not exist"
    )


def test_a_version_that_does_not_exist_is_told_with_the_newest_that_do(registry: Registry) -> None:
    client = registry["skops"].run.store
    client.create_registered_model("many")
    refused(registry, "models:/many/1", "M001.*: version 1 does not exist; versions: none[.]")
    refused(registry, "models:/many@best", "M001.*: alias best does not exist; aliases: none[.]")
    for _ in range(12):
        client.create_model_version("many", registry["skops"].logged.uri)
    client.delete_model_version("many", "11")
    says = "M001.*: version 13 does not exist; versions: [.]{3}, 2, 3, .*, 9, 10, 12[.]"
    refused(registry, "models:/many/13", says)
    client.delete_registered_model("many")


def test_a_version_that_was_registered_from_files_is_no_model_of_tipcast(
    registry: Registry,
) -> None:
    client = registry["skops"].run.store
    client.create_registered_model("of_files")
    client.create_model_version("of_files", registry["skops"].folder.as_uri())
    says = (
        "M005. models:/of_files/1: was registered from files, not from a model that tipcast logged"
    )
    assert refused(registry, "models:/of_files/1", says).exit_code == 6
    client.delete_registered_model("of_files")


@pytest.mark.parametrize("format", FORMATS)
def test_a_damaged_model_is_refused_before_it_is_parsed(
    registry: Registry, natives: Any, format: str
) -> None:
    draw = np.random.default_rng(len(format))
    artifacts = registry[format].folder / "artifacts"
    for turn in range(12):
        file = artifacts / (natives[format][0].name if turn % 3 else "manifest.json")
        whole = file.read_bytes()
        content = bytearray(whole)
        if turn % 6 == 1:
            content = content[: int(draw.integers(len(content)))]
        elif turn % 6 == 2:
            content += b"\0"
        else:
            content[int(draw.integers(len(content)))] ^= 1 << int(draw.integers(8))
        file.write_bytes(content)
        refused(registry, f"models:/{format}/1", f"M003.*{file.name}")
        file.write_bytes(whole)
    assert get(registry, f"models:/{format}/1", parse=False).format == format


def rewrite(registry: Registry, format: str, /, **changes: Any) -> None:
    """Change the manifest, and its digest in MLmodel, as one can who may write to the artifact
    store.
    """
    folder = registry[format].folder
    manifest = json.loads((folder / "artifacts" / "manifest.json").read_text()) | changes
    content = json.dumps(manifest).encode()
    (folder / "artifacts" / "manifest.json").write_bytes(content)
    described = yaml.safe_load((folder / "MLmodel").read_text())
    described["metadata"]["tipcast"]["manifest_sha256"] = hashlib.sha256(content).hexdigest()
    (folder / "MLmodel").write_text(yaml.safe_dump(described))


def planted(registry: Registry, format: str, content: bytes) -> None:
    """Put another native file in, with digests that fit."""
    folder = registry[format].folder / "artifacts"
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / manifest["file"]).write_bytes(content)
    digests = manifest["sha256"] | {"model": hashlib.sha256(content).hexdigest()}
    rewrite(registry, format, sha256=digests)


def test_a_manifest_that_cannot_be_followed(registry: Registry, natives: Any) -> None:
    manifest = registry["xgboost-ubj"].folder / "artifacts" / "manifest.json"
    good = json.loads(manifest.read_text())
    changes: list[tuple[str, Any, str]] = [
        (
            "features",
            [BASE[1], BASE[0], *BASE[2:]],
            "M002.*its file has other features than its manifest",
        ),
        ("features", [*BASE, "trip_distance"], "M002"),
        ("features", [BASE[0], *BASE[:-1]], "M002"),
        ("features", None, "M005"),
        ("format", "pickle", "M004"),
        ("format", "treelite", "M007"),
        ("version", 99, "M004"),
        ("file", "../MLmodel", "M005"),
        ("file", "/etc/passwd", "M005"),
        ("file", None, "M005"),
        ("sha256", {}, "M005"),
        ("sha256", {**good["sha256"], "model": ""}, "M003"),
        ("sha256", {**good["sha256"], "model": None}, "M003"),
    ]
    for name, value, says in changes:
        rewrite(registry, "xgboost-ubj", **{**good, name: value})
        assert refused(registry, registry["xgboost-ubj"].logged.uri, says).exit_code == 6
    described = yaml.safe_load((manifest.parents[1] / "MLmodel").read_text())
    for sha256 in ("", "0" * 64):
        described["metadata"]["tipcast"]["manifest_sha256"] = sha256
        (manifest.parents[1] / "MLmodel").write_text(yaml.safe_dump(described))
        refused(registry, registry["xgboost-ubj"].logged.uri, "M003")
        refused(registry, "models:/xgboost-ubj/1", "M003.*the manifest")
    rewrite(registry, "xgboost-ubj", **good)
    booster = xgboost.Booster(model_file=natives["xgboost-ubj"][0])
    booster.feature_names = None
    planted(registry, "xgboost-ubj", bytes(booster.save_raw("ubj")))
    refused(registry, registry["xgboost-ubj"].logged.uri, "M002")


def test_another_good_model_in_its_place(registry: Registry, natives: Any) -> None:
    """Who can write to the artifact store alone makes all its digests fit, and not the
    registry's.
    """
    good = skops.io.load(natives["skops"][0], trusted=list(native.TRUSTED))
    good.classes_ = 1 - good.classes_
    planted(registry, "skops", skops.io.dumps(good))
    for by in ("/1", "@champion"):
        refused(
            registry, f"models:/skops{by}", "M003.*the manifest is not the file that was logged"
        )
    assert get(registry, registry["skops"].logged.uri).format == "skops", "a model like any other"


@pytest.mark.parametrize(
    ("format", "content"),
    [
        ("xgboost-ubj", b""),
        ("treelite", bytes(range(256)) * 64),
        ("skops", b"\x80\x04\x95 pickle"),
    ],
)
def test_a_file_that_is_none_of_its_format_is_refused(
    registry: Registry, format: str, content: bytes
) -> None:
    planted(registry, format, content)
    uri = registry[format].logged.uri
    problem = refused(registry, uri, f"M007. {uri}: its {format} file cannot be parsed: ")
    assert problem.exit_code == 6


@pytest.mark.parametrize("format", FORMATS)
def test_half_of_a_file_is_refused(registry: Registry, natives: Any, format: str) -> None:
    content = natives[format][0].read_bytes()
    planted(registry, format, content[: len(content) // 2])
    refused(registry, registry[format].logged.uri, f"M007.*its {format} file cannot be parsed")


def test_a_file_that_crashes_its_library_ends_no_job(registry: Registry, natives: Any) -> None:
    """Flip bytes of a good file until XGBoost's parser is killed by a signal; this process stays
    alive.
    """
    good = natives["xgboost-ubj"][0].read_bytes()
    draw = np.random.default_rng(8)
    codes = set[str]()
    crashed = ""
    for _ in range(40):
        content = bytearray(good)
        for _ in range(3):
            content[int(draw.integers(len(content)))] = int(draw.integers(256))
        planted(registry, "xgboost-ubj", bytes(content))
        fetched = get(registry, registry["xgboost-ubj"].logged.uri, parse=False)
        try:
            check_parses(fetched)
        except TipcastError as problem:
            codes.add(problem.code)
            crashed = str(problem) if "exit code -" in str(problem) else crashed
        if crashed:
            break
    assert codes <= {"M002", "M007"}
    assert crashed


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """The file that code of a model would make if it was run."""
    return tmp_path / "marker"


def test_a_model_that_is_a_pickle_is_not_run(registry: Registry, marker: Path) -> None:
    class Planted(mlflow.pyfunc.PythonModel):
        def load_context(self, context) -> None:
            marker.touch()

        def predict(self, context, model_input: pd.DataFrame, params=None):
            return model_input

    with mlflow.start_run(run_id=registry["skops"].run.id):
        info = mlflow.pyfunc.log_model(name="pickled", python_model=Planted(), pip_requirements=[])
    mlflow.register_model(info.model_uri, "pickled")
    refused(registry, "models:/pickled/1", "M005")
    assert not marker.exists()


def test_code_that_is_planted_beside_our_files_is_not_run(registry: Registry, marker: Path) -> None:
    folder = registry["skops"].folder
    described = yaml.safe_load((folder / "MLmodel").read_text())
    described["flavors"]["python_function"] |= {
        "loader_module": "evil",
        "code": "code",
        "model_code_path": "evil.py",
    }
    described["flavors"]["sklearn"] = {"pickled_model": "model.pkl"}
    (folder / "MLmodel").write_text(yaml.safe_dump(described))
    code = f"from pathlib import Path\nPath({str(marker)!r}).touch()\n"
    (folder / "code").mkdir()
    for path in (
        folder / "code" / "evil.py",
        folder / "evil.py",
        folder / "artifacts" / "native.py",
    ):
        path.write_text(code)
    (folder / "artifacts" / "features.py").write_text(code)
    assert get(registry, "models:/skops/1").format == "skops"
    assert not marker.exists()


def test_a_description_that_is_not_mlflow_s_is_not_run(registry: Registry, marker: Path) -> None:
    for content in (
        "",
        "[]",
        "{",
        f"!!python/object/apply:os.system ['touch {marker}']",
        "metadata: {}",
    ):
        (registry["skops"].folder / "MLmodel").write_text(content)
        refused(registry, "models:/skops/1", "M005")
    assert not marker.exists()


def test_a_model_that_lacks_its_manifest_is_refused(registry: Registry) -> None:
    (registry["treelite"].folder / "artifacts" / "manifest.json").unlink()
    assert refused(registry, "models:/treelite/1", "T007").exit_code == 5


def test_a_server_must_not_name_files_of_this_machine_or_odd_places(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(mlflow, "get_registry_uri", lambda: "http://127.0.0.1:5000")
    folder = registry["treelite"].folder
    into = tmp_path / "fetched"
    inside = tmp_path / "inside"
    into.mkdir()
    inside.mkdir()
    (inside / "way").symlink_to(folder)

    def fetched(location: str, **options: Any) -> FetchedModel:
        model = SimpleNamespace(model_id="m-0", artifact_location=location, source_run_id="r")
        client = SimpleNamespace(
            tracking_uri="http://127.0.0.1:5000", get_logged_model=lambda _: model
        )
        return fetch(client, "models:/m-0", into, **options)

    places = [
        f"{scheme}{folder}" for scheme in ("", "file://", "FILE://", "file:", "file://localhost")
    ]
    places += [f"{scheme}://host/model" for scheme in ("ftp", "sftp", "hdfs", "dbfs")]
    places += [f"{folder}/../{folder.name}"]
    roots = (None, str(tmp_path / "elsewhere"), str(folder / "deeper"))
    linked = (f"file://{inside / 'way'}", str(inside))  # a link leads out of the shared folder
    for place, root in (*itertools.product(places, roots), linked):
        with pytest.raises(TipcastError, match="T006"):
            fetched(place, root=root)
    assert list(into.iterdir()) == []
    assert (
        fetched(f"file://{folder}", root=str(folder.parents[4]), parse=False).format == "treelite"
    )
