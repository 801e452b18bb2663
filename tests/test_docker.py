"""docker/compose.yaml as far as it can be checked without Docker: pinned, private, in order, without secrets."""

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")
EXAMPLE = (FOLDER / "example.env").read_text(encoding="utf-8")


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in _texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [str(value)]


def test_every_service_says_when_it_is_ready() -> None:
    for name, service in SERVICES.items():
        assert ("healthcheck" in service) != (service.get("restart") == "no"), name
        for other, wanted in service.get("depends_on", {}).items():
            once = SERVICES[other].get("restart") == "no"
            assert wanted["condition"] == ("service_completed_successfully" if once else "service_healthy")


def test_images_are_pinned() -> None:
    for name, service in SERVICES.items():
        assert "build" in service or re.search(r":.*\d", service["image"]), name
        assert not service["image"].endswith(":latest")
    first = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"^FROM python:3\.\d+-slim-\w+$", first, re.MULTILINE)
    assert re.search(r"^USER (?!root)\w+$", first, re.MULTILINE)


def test_the_server_is_the_version_that_jobs_use() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (wanted,) = (item for item in map(Requirement, project["dependencies"]) if item.name == "mlflow")
    (found,) = re.findall(r"mlflow==(\S+)", (FOLDER / "Dockerfile").read_text(encoding="utf-8"))
    assert found in wanted.specifier
    assert f"mlflow=={found}" in (ROOT / "requirements" / "cpu.txt").read_text(encoding="utf-8")


def test_only_the_server_is_published_and_on_loopback() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert list(published) == ["mlflow"]
    assert all(port.startswith("127.0.0.1:") for port in published["mlflow"])
    assert COMPOSE["networks"]["inside"]["internal"] is True
    assert {name for name, service in SERVICES.items() if service["networks"] == ["inside"]} == {"database", "s3"}


def test_no_secret_is_in_the_files() -> None:
    for name, service in SERVICES.items():
        for key, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD|SECRET", key):
                assert re.fullmatch(r"\$\{\w+:\?[^}]+\}", str(value)), f"{name}.{key}"
        words = " ".join(_texts(service.get("command", [])))
        assert "PASSWORD" not in words, f"{name}: `ps` shows a command"
    for line in EXAMPLE.splitlines():
        if "PASSWORD" in line and not line.startswith("#"):
            assert line.endswith("=")
    assert "/docker/.env" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_every_variable_is_in_the_example() -> None:
    used = {match[1] for text in _texts(SERVICES) for match in VARIABLE.finditer(text)}
    named = set(re.findall(r"^#? ?(\w+)=", EXAMPLE, re.MULTILINE))
    assert used == named
    required = {match[1] for text in _texts(SERVICES) for match in VARIABLE.finditer(text) if match[2] == "?"}
    assert required == set(re.findall(r"^(\w+)=$", EXAMPLE, re.MULTILINE))
