"""What a training run records: parameters, data, metrics, plots, the note and the portable model."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tipcast.backends.base import Session
from tipcast.config.plain import flatten, to_plain
from tipcast.config.schema import TrainConfig
from tipcast.data import features, raw, split
from tipcast.data.fragments import Listing
from tipcast.estimators.base import Fitted
from tipcast.evaluation import plots, report
from tipcast.tracking import portable
from tipcast.tracking.run import Run, open_run

if TYPE_CHECKING:
    from tipcast.jobs.train import Data, Outcome, Plan

CHECK_ROWS = 1000
"""Held-out rows that the portable model must score as the estimator does."""


def opened(config: TrainConfig, plan: Plan, command: str) -> AbstractContextManager[Run]:
    """Open the run and record what is known before any worker starts."""
    plain = to_plain(config)
    params = flatten({name: plain[name] for name in ("backend", "cluster", "data", "task", "model", "seed")})
    ...
