"""Input files by the names that their scores get: the same below the folder of scores as below their own."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tipcast.config.errors import TipcastError
from tipcast.data import address
from tipcast.data.base import ScanRequest
from tipcast.data.listing import PARQUET, expand, patterns


def named(given: Any, request: ScanRequest, key: str) -> dict[str, str]:
    """Find files and name their outputs.

    Parameters
    ----------
    given
        A path, glob, folder or address, or a list of them.
    request
        What is asked of every file.
    key
        The configuration's name for ``given``, for messages.

    Returns
    -------
    dict
        Name below the folder of scores -> address; sorted by name. A folder's files keep their paths below it, those
        of a glob below its fixed part, others their last name. Names of CSV files get ``.parquet`` at their end.

    Raises
    ------
    TipcastError
        C003 two files whose scores would have one name, C004 nothing named, D001 D002 D021 D022 as ``expand``.

    """
    found: dict[str, str] = {}
    for pattern in patterns(given, key):
        base = root(pattern)
        for uri in expand(pattern, request):
            name = output_name(uri, base)
            if set(name.split("/")) & {"", ".", ".."}:
                raise TipcastError("C003", key, f"scores of {address.shown(uri)} would leave their folder", "rename it")
            if found.setdefault(name, uri) != uri:
                what = f"scores of {address.shown(found[name])} and {address.shown(uri)} would both be {name}"
                raise TipcastError("C003", key, what, "score them into two folders, or name a folder above both")
    return dict(sorted(found.items()))


def root(pattern: str) -> str:
    """Return the address below which files of a pattern keep their paths, without a slash at its end."""
    if not address.scheme(pattern):
        path = Path(pattern.removeprefix("file://")).expanduser().absolute()
        if path.is_dir():
            return str(path)
        pattern = str(path)
    elif pattern.endswith("/") or not Path(address.last_name(pattern)).suffix:
        return pattern.rstrip("/")
    fixed = []
    for step in pattern.split("/")[:-1]:
        if glob.has_magic(step):
            break
        fixed.append(step)
    return "/".join(fixed)


def output_name(uri: str, base: str) -> str:
    """Return the name that a file's scores get below the folder of scores."""
    plain = uri.partition("?")[0] if address.scheme(uri).startswith("http") else uri
    name = plain[len(base) :].strip("/") if plain.startswith(f"{base}/") else address.last_name(uri)
    return name if name.lower().endswith(PARQUET) else f"{name}.parquet"


def made_folders(whole: str, names: Sequence[str]) -> None:
    """Make the folders of names below a local folder."""
    if not address.scheme(whole):
        for folder in {os.path.dirname(name) for name in names}:  # noqa: PTH120 - names, not paths of this machine
            (Path(whole) / folder).mkdir(parents=True, exist_ok=True)
