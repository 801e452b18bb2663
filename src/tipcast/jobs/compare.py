"""`tipcast compare RUN RUN ...`: what differs between runs, their models on the same test rows, their curves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tipcast.compute.session import session
from tipcast.config.disk import temporary_folder
from tipcast.config.errors import TipcastError
from tipcast.config.job_schemas import CompareConfig
from tipcast.config.plain import tested
from tipcast.config.schema import DataSpec, Output
from tipcast.evaluation import report
from tipcast.evaluation.base import Evaluation, Evaluator, evaluator
from tipcast.evaluation.paired import Difference
from tipcast.jobs import closing
from tipcast.jobs.promote import rows_to_test_on, score_all
from tipcast.jobs.promote_gate import described
from tipcast.tracking.facts import SECTIONS, Facts, config_text, facts, find_run, table
from tipcast.tracking.models import Fetched, fetch
from tipcast.tracking.store import failures, open_store, resolve

MISSING = "-"
NAMES, WIDTH = 40, 32
"""Of a column: names; values, of which a run's whole id is the longest."""
LABEL = 28
"""Characters of a run's name in a figure."""
NONE = ("M001", "M005", "M023", "D")
"""What the codes of errors begin with that tell why there is no paired difference: of models, and of data."""
SHORT = 6
"""Characters of an id that tell runs of one name apart."""


@dataclass(frozen=True)
class Paired:
    """Models on the same rows."""

    judge: Evaluator
    rows: str
    """In words."""
    evaluations: Sequence[Evaluation]
    differences: Sequence[Difference]
    """Of each model but the first: its headline less the first's."""

    @property
    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        found = [(each.value, each.interval.low, each.interval.high) for each in self.differences]
        return {
            "metric": self.judge.headline.name,
            "rows": self.evaluations[0].rows,
            "values": [each.headline for each in self.evaluations],
            "differences": [dict(zip(("value", "low", "high"), each, strict=True)) for each in found],
        }


def run(config: CompareConfig, command: str) -> Mapping[str, Any]:
    """Run the job; return what it says."""
    if len(config.runs) < 2:
        what, fix = f"{len(config.runs)} run is named", "name two or more, as tipcast compare RUN RUN"
        raise TipcastError("C003", "runs", what, fix)
    if config.out is not None:
        _check_picture(Path(config.out))
    client = open_store(config.tracking)
    with failures(resolve(config.tracking)):
        ids = [find_run(client, name, config.tracking.experiment) for name in config.runs]
        found = [facts(client, run_id) for run_id in ids]
        if config.out is not None:
            _draw(client, found, config.out)
        paired = _paired(client, config, found) if config.paired else "it is not asked for"
    differing = {name: _differences([each.sections[name] for each in found]) for name in SECTIONS}
    told = {"paired": paired.plain} if isinstance(paired, Paired) else {"paired": None, "why": paired}
    result = {"runs": ids, **differing, **told, "figure": config.out, "command": command}
    if config.print is not Output.text:
        return closing.say(result, config.print)
    _row("", [each.name for each in found])
    _row("run", ids)
    _say(paired, found)
    for section, lines in differing.items():
        print(section if lines else f"{section}: the same")
        for name, values in lines.items():
            _row(f"  {name}", values, _change(values))
    if config.out is not None:
        print(f"figure: {config.out}")
    return result


def _check_picture(out: Path) -> None:
    if out.suffix != ".png":
        raise TipcastError("C003", "out", f"{out} does not end in .png", "use out=curves.png")
    folder = out.absolute().parent
    if not folder.is_dir():
        raise TipcastError("C003", "out", f"there is no folder {folder}", "make it, or name a file in another folder")


def _differences(sections: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return name -> the value of each run, where these differ; None where one has none."""
    names = dict.fromkeys(name for section in sections for name in section)
    found = {name: [section.get(name) for section in sections] for name in names}
    return {name: values for name, values in found.items() if any(value != values[0] for value in values)}


def _draw(client: Any, found: Sequence[Facts], out: str) -> None:
    """Draw the curves of all runs over each other, from the tables that they have kept.

    Raises
    ------
    TipcastError
        C003 where not all of them have the same kind of curve, C021 where the file cannot be written.

    """
    shown = [each.name if len(each.name) <= LABEL else f"{each.name[: LABEL - 1]}…" for each in found]
    names = Counter(shown)
    for path, (kind, overlay) in report.overlays().items():
        tables = [table(client, each.id, path) for each in found]
        if None in tables:
            continue
        headline = evaluator(kind).headline
        labels = [
            f"{name}{f' {each.id[:SHORT]}' if names[name] > 1 else ''}: {headline.title} "
            f"{each.sections['metrics'].get(f'test/{headline.name}', math.nan):.4f}"
            for name, each in zip(shown, found, strict=True)
        ]
        periods = dict.fromkeys(str(each.sections["data"].get("data.test_period", "")) for each in found)
        picture = overlay(dict(zip(labels, tables, strict=True)), f"test rows of {', '.join(periods)}")
        try:
            Path(out).write_bytes(picture)
        except OSError as problem:
            what = f"cannot be written: {problem.strerror}"
            raise TipcastError("C021", out, what, "name a file in another folder") from problem
        return
    what = "not all of the runs have a curve of one kind, as a ROC curve of test rows"
    raise TipcastError("C003", "out", what, "compare runs of tipcast train or sweep of two classes or of numbers")


def _paired(client: Any, config: CompareConfig, found: Sequence[Facts]) -> Paired | str:
    """Score the test rows of the first run with the models of all; where models or data are not there, return why."""
    try:
        with temporary_folder() as folder:
            models = []
            for at, each in enumerate(found):
                (folder / str(at)).mkdir()
                uri, root = f"runs:/{each.id}/model", config.tracking.artifact_root
                models.append(fetch(client, uri, folder / str(at), root=root))
            return _scored(client, config, found, models)
    except TipcastError as problem:
        if not problem.code.startswith(NONE):
            raise
        return f"{problem.where}: {problem.what}"


def _scored(client: Any, config: CompareConfig, found: Sequence[Facts], models: Sequence[Fetched]) -> Paired | str:
    """See ``_paired``; a row is one that all runs were tested on."""
    first = models[0]
    for key, name in (("target", "target"), ("data_test_digest", "test files"), ("test_period", "test rows")):
        other = next((each for each in models if each.manifest.get(key) != first.manifest.get(key)), None)
        if other is not None:
            return f"the runs have not the same {name}: run {other.run_id}'s differs from the first run's"
    if any(model.manifest.get(key) is None for model in models for key in ("task", "data_test_digest")):
        return "a model's manifest does not tell what it was tested on"
    text = config_text(client, first.run_id, "train it again")
    data = tested(text, DataSpec(test=None), f"run {first.run_id}")
    seeds = [str(each.sections["configuration"].get("seed", 0)) for each in found]
    listing, recipe = rows_to_test_on(models, data, int(min(seeds)))
    if recipe.draw is not None and listing.period is None and len(set(seeds)) > 1:
        drawn = next(each.id for each, seed in zip(found, seeds, strict=True) if seed != seeds[0])
        return f"the runs were tested on other draws of the same files: the seed of run {drawn} is not the first's"
    if listing.digest != first.manifest["data_test_digest"]:
        return "the test files are not what they were"
    with session(config.backend, config.cluster) as workers:
        scored = score_all(workers, models, listing, recipe, data.limits)
        if not scored.test.y:
            return "there is no target that the models could be compared by"
        differences = [
            scored.difference(at, 0, replicates=config.replicates, seed=config.seed) for at in range(1, len(models))
        ]
    return Paired(scored.judge, f"{listing.name} of {described(listing)}", scored.evaluations, differences)


def _say(paired: Paired | str, found: Sequence[Facts]) -> None:
    if isinstance(paired, str):
        metrics = [each.sections["metrics"] for each in found]
        known = {name for of_run in metrics for name in of_run if name.startswith("test/")}
        for name in sorted(name for name in known if f"{name}_low" in known):  # the headline alone has an interval
            _row(name, [of_run.get(name) for of_run in metrics])
        print(f"paired difference: none, for {paired}")
        return
    headline = paired.judge.headline
    print(f"paired, on the same {paired.evaluations[0].rows:,} {paired.rows}")
    _row(f"  {headline.name}", [each.headline for each in paired.evaluations])
    cells = [
        f"{each.value:+.5f} ({each.interval.low:+.5f} to {each.interval.high:+.5f})" for each in paired.differences
    ]
    _row("  less the first's (95 %)", ["", *cells])


def _row(name: str, values: Sequence[Any], change: str = "") -> None:
    cells = "  ".join(f"{_cell(value):<{WIDTH}}" for value in values)
    print(f"{name:<{NAMES}}  {cells}  {change}".rstrip())


def _change(values: Sequence[Any]) -> str:
    """Return the second of two numbers less the first."""
    if len(values) > 2 or not all(isinstance(value, float) for value in values):
        return ""
    return f"{values[1] - values[0]:+.4g}"


def _cell(value: Any) -> str:
    if value is None:
        return MISSING
    shown = f"{value:.6g}" if isinstance(value, float) else str(value)
    return shown if len(shown) <= WIDTH else f"{shown[: WIDTH - 1]}…"
