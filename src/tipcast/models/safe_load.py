"""Load an untrusted model file in a subprocess first, so that a crash stays there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tipcast.config.errors import TipcastError
from tipcast.models import native

EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception)\b")
"""How the last line of a traceback begins; libraries add more lines."""
AGAIN = "train and register it again"
LIMIT_S = 120.0
"""How long a parse may take."""


def check(path: Path, format: str, features: Sequence[str], where: str, kind: str = "classification") -> None:
    """Parse a model file in a child process, score two rows there, and hold its features against the manifest's.

    ``features`` are in the order of the manifest, ``where`` is the model for messages, ``kind`` says what its task
    predicts. M002 other features than the manifest's, M007 a file that does not parse or crashes its library.
    """
    found = _parsed(path, format, where)
    if not _fits(np.asarray(found["predictions"]), kind):
        raise TipcastError("M007", where, f"its {format} file does not predict as a model for {kind} does", AGAIN)
    if found["number"] != len(features):
        what = f"its file has {found['number']} features, its manifest {len(features)}"
        raise TipcastError("M002", where, what, AGAIN)
    if not found["names"] and format == "xgboost-ubj":  # the other formats know no names
        raise TipcastError("M002", where, "its file does not name its features", AGAIN)
    names = native.booster_names(list(features))
    for at, (own, wanted) in enumerate(zip(found["names"] or names, names, strict=True), 1):
        if own != wanted:
            what = f"feature {at} is {own!r} in its file and {wanted!r} in its manifest"
            raise TipcastError("M002", where, what, AGAIN)


def _fits(predictions: NDArray[np.float64], kind: str) -> bool:
    """Whether two rows' predictions are what ``Scorer.score`` returns for a kind of task."""
    columns = predictions.shape[1:]
    fitting = {
        "classification": columns == (),
        "multiclass": len(columns) == 1 and columns[0] > 1,
        "regression": columns == (),
        "clustering": columns == (2,),
    }
    shares = kind in ("classification", "multiclass")
    inside = not shares or bool(((predictions >= 0) & (predictions <= 1)).all())
    return len(predictions) == 2 and fitting.get(kind, False) and inside


def _parsed(path: Path, format: str, where: str) -> dict[str, Any]:
    words = [sys.executable, "-P", "-m", "tipcast.models.safe_load", str(path.resolve()), format]
    roots = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, roots))}
    try:
        ended = subprocess.run(  # noqa: S603 - fixed words
            words, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=variables
        )
    except subprocess.TimeoutExpired as problem:
        raise TipcastError("M007", where, f"its {format} file was not parsed within {LIMIT_S:g} s", AGAIN) from problem
    if ended.returncode:
        said = [line for line in ended.stderr.splitlines() if EXCEPTION.match(line)]
        how = said[-1] if said else f"exit code {ended.returncode}"
        if ended.returncode < 0:
            how = f"it crashed its library by signal {-ended.returncode}"
        raise TipcastError("M007", where, f"its {format} file does not parse: {how}", AGAIN)
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def facts(path: Path, format: str) -> dict[str, Any]:
    """Load a model; return its number of features, their names where its file has them, and what two rows get."""
    scorer = native.load(path, format, "cpu", 1)
    booster = getattr(scorer, "booster", None)
    number = int(scorer.model.n_features_in_ if booster is None else booster.num_features())
    scores = np.asarray(scorer.score(np.zeros((2, number), dtype=np.float32)), dtype=np.float64)
    return {"number": number, "names": getattr(booster, "feature_names", None), "predictions": scores.tolist()}


if __name__ == "__main__":
    print(json.dumps(facts(Path(sys.argv[1]), sys.argv[2])))
