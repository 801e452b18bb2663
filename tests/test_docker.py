"""docker/compose.yaml as far as it can be checked without Docker: pinned, private, in order, without secrets."""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])[^}]*)?\}")
EXAMPLE = (FOLDER / "example.env").read_text(encoding="utf-8")


def _texts(value: Any) -> list[str]:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return [str(value)] if parts is None else [text for part in parts for text in _texts(part)]


def test_every_service_says_when_it_is_ready() -> None:
    for name, service in SERVICES.items():
        assert ("healthcheck" in service) != (service.get("restart") == "no"), name
        for other, wanted in service.get("depends_on", {}).items():
            once = SERVICES[other].get("restart") == "no"
            assert wanted["condition"] == ("service_completed_successfully" if once else "service_healthy")


def test_images_are_pinned_and_the_server_is_the_version_that_jobs_use() -> None:
    for name, service in SERVICES.items():
        assert "build" in service or re.search(r":.*\d", service["image"]), name
    image = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"^FROM python:3\.\d+-slim-\w+$", image, re.MULTILINE)
    assert re.search(r"^USER (?!root)\w+$", image, re.MULTILINE)
    (server,) = re.findall(r"mlflow==(\S+)", image)  # requirements/cpu.txt is held against pyproject.toml
    assert f"mlflow=={server} " in (ROOT / "requirements" / "cpu.txt").read_text(encoding="utf-8")


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
        assert "PASSWORD" not in " ".join(_texts(service.get("command", []))), f"{name}: `ps` shows a command"
    assert not re.search(r"^[^#\n]*PASSWORD\w*=.", EXAMPLE, re.MULTILINE)
    assert "/docker/.env" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_every_variable_is_in_the_example() -> None:
    used = [match.groups() for text in _texts(SERVICES) for match in VARIABLE.finditer(text)]
    assert {name for name, _ in used} == set(re.findall(r"^#? ?(\w+)=", EXAMPLE, re.MULTILINE))
    assert {name for name, kind in used if kind == "?"} == set(re.findall(r"^(\w+)=$", EXAMPLE, re.MULTILINE))
