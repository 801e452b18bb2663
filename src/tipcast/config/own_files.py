"""Composing by Hydra's Compose API, which runs nothing, and what files of a user's own may not set of Hydra's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hydra
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from tipcast.config import conf_files
from tipcast.config.errors import TipcastError

ACTIVE = ["mode", "launcher", "sweeper", "callbacks", "hydra_logging", "job_logging", "job.env_set", "job.chdir"]
"""Keys below ``hydra`` that can name classes, and so run code, or change the process."""


def composed_by_api(job: str, overrides: Sequence[str], *, own: bool = True) -> DictConfig:
    """Compose a job, with Hydra's own configuration below ``hydra``, by the Compose API, whose errors are raised."""
    GlobalHydra.instance().clear()
    folders = conf_files.search_path() if own else []
    with hydra.initialize_config_dir(str(conf_files.conf_dir()), version_base="1.3"):
        return hydra.compose(job, [*overrides, *folders], return_hydra_config=True)


def check_own(job: str, overrides: Sequence[str], *, several: bool) -> None:
    """Refuse what files of a user's own set of Hydra's that could run code, before Hydra makes objects of it.

    With ``--multirun`` Hydra takes its launcher, its sweeper and its callbacks from the overrides of one value, and
    the logging of each run from all.
    """
    shipped = _active(job, [], own=False)
    words = [list(overrides)]
    if several:
        with hydra.initialize_config_dir(str(conf_files.conf_dir()), version_base="1.3"):
            loader = GlobalHydra.instance().config_loader()  # which glob(*) asks for options
            parsed = OverridesParser.create(loader).parse_overrides(list(overrides))
            single = [str(each.input_line) for each in parsed if not each.is_sweep_override()]
            words = [single, *BasicSweeper.split_arguments(parsed, None)[0]]
    if any(_active(job, each, own=True) != shipped for each in words):
        what = "a file there sets keys of Hydra's"
        raise TipcastError("C006", "--config-dir", what, "leave what is below hydra alone")


def _active(job: str, overrides: Sequence[str], *, own: bool) -> list[Any]:
    """Return what Hydra would make objects of, or change the process by."""
    asked = composed_by_api(job, overrides, own=own).hydra
    return [OmegaConf.to_container(OmegaConf.create({key: OmegaConf.select(asked, key)})) for key in ACTIVE]
