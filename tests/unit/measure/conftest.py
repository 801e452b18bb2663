"""A folder of made-up packages in place of the installed ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def paths() -> list[str]:
    """The folders that packages are really in."""
    return list(sys.path)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paths: list[str]) -> Path:
    """The only folder that packages are looked for in."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


@pytest.fixture
def install(site: Path) -> Callable[..., None]:
    """Write what an installer leaves of a package."""

    def write(name: str, version: str, *files: str, metadata: str = "") -> None:
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}\n")
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
        for file in files:
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            (site / file).touch()

    return write
