"""What is refused of a scoring's configuration and model before anything is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tipcast.config.errors import TipcastError
from tipcast.config.schema_score import ScoreConfig
from tipcast.data.kept import ADDED
from tipcast.data.taxi.schema import COLOURS

if TYPE_CHECKING:  # see score_plan
    from tipcast.tracking.models import Fetched

COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "brotli", "none")


def check(config: ScoreConfig) -> None:
    """Refuse values outside their range.

    Raises
    ------
    TipcastError
        C003.

    """
    if config.block_bytes < 1024:
        raise TipcastError("C003", "block_bytes", f"{config.block_bytes} is too little", "use 1024 or more")
    if config.compression not in COMPRESSIONS:
        raise TipcastError(
            "C003", "compression", f"no such compression: {config.compression}", f"use {', '.join(COMPRESSIONS)}"
        )
    if config.colour not in (None, *COLOURS):
        raise TipcastError("C003", "colour", f"no such colour: {config.colour}", f"use null, {' or '.join(COLOURS)}")
    for name in config.keep or ():
        if name in ADDED:
            raise TipcastError("C003", "keep", f"{name} is a column that scoring adds", "leave it out")


def check_model(fetched: Fetched) -> None:
    """Refuse a model that does not predict high tips.

    Raises
    ------
    TipcastError
        M006.

    """
    task, threshold = fetched.manifest.get("task"), fetched.manifest.get("threshold")
    if not isinstance(task, Mapping) or task.get("kind") != "classification" or threshold is None:
        made_for = task.get("name") if isinstance(task, Mapping) else fetched.manifest.get("target", "an unknown task")
        raise TipcastError("M006", fetched.uri, f"is a model for {made_for}, not for high tips", "use one of high_tip")
