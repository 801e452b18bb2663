"""Tables that packages carry, and what benchmarks/other_tables.py asks of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from sklearn import datasets


@dataclass(frozen=True)
class Table:
    """A table of a package, and what is asked of it."""

    name: str
    package: str
    read: Callable[[Path], pd.DataFrame]
    target: str
    model: str
    form: str = "csv"
    """Of the file that is trained on: csv or parquet."""
    words: tuple[str, ...] = ()
    """Of the command, beside those of the fields below."""
    time: str = ""
    """Column of dates, of which the last are tested on; else rows are drawn."""
    group: str = ""
    """Column whose equal values keep rows together; `tipcast train` draws the rows to test on."""
    weight: str = ""
    """Column of weights of rows."""
    balanced: bool = False
    """Whether all classes count the same in a fit; only without weights."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The words of the command that these say."""
        said = {"data.time": self.time, "data.group": self.group, "task.weight": self.weight}
        said["task.class_weight"] = "balanced" if self.balanced else ""
        return (*self.words, *(f"{key}={value}" for key, value in said.items() if value))


def csv(path: str, **how: Any) -> Callable[[Path], pd.DataFrame]:
    """Return how to read a CSV file of a package."""
    return lambda folder: pd.read_csv(folder / path, **how)


def named_classes(loaded: Any) -> pd.DataFrame:
    """Return a table of scikit-learn's with its classes by their names."""
    return loaded.frame.assign(target=loaded.target_names[loaded.frame["target"]])


def cars(folder: Path) -> pd.DataFrame:
    """Return a table whose years are dates."""
    return pd.read_json(folder / "vega_datasets/_data/cars.json", convert_dates=["Year"])


TABLES = (
    Table(
        "breast_cancer",
        "scikit-learn",
        lambda _: named_classes(datasets.load_breast_cancer(as_frame=True)),
        "target",
        "logistic",
        "parquet",
    ),
    Table(
        "wine",
        "scikit-learn",
        lambda _: named_classes(datasets.load_wine(as_frame=True)),
        "target",
        "extra_trees",
    ),
    Table(
        "diabetes",
        "scikit-learn",
        lambda _: datasets.load_diabetes(as_frame=True, scaled=False).frame,
        "target",
        "ridge",
        "parquet",
    ),
    Table(
        "penguins-raw",
        "palmerpenguins",
        csv("palmerpenguins/data/penguins-raw.csv"),
        "Sex",
        "logistic",
    ),
    Table(
        "diamonds",
        "plotnine",
        csv("plotnine/data/diamonds.csv"),
        "price",
        "hist_gradient_boosting",
        "parquet",
    ),
    Table("txhousing", "plotnine", csv("plotnine/data/txhousing.csv"), "median", "extra_trees"),
    Table("Wage", "islp", csv("ISLP/data/Wage.csv"), "wage", "linear", "parquet"),
    Table("OJ", "islp", csv("ISLP/data/OJ.csv"), "Purchase", "xgboost"),
    Table(
        "seattle-weather",
        "vega-datasets",
        csv("vega_datasets/_data/seattle-weather.csv"),
        "weather",
        "xgboost",
    ),
    Table(
        "cars",
        "vega-datasets",
        cars,
        "Miles_per_Gallon",
        "ridge",
        "parquet",
        time="Year",
    ),
    Table(
        "titanic",
        "causaldata",
        lambda folder: pd.read_stata(folder / "causaldata/titanic/titanic.dta"),
        "survived",
        "xgboost",
        "parquet",
        words=("task.categorical=[class]",),
    ),
    Table(
        "nhefs",
        "causaldata",
        lambda folder: pd.read_stata(folder / "causaldata/nhefs/nhefs.dta"),
        "qsmk",
        "hist_gradient_boosting",
    ),
    Table("fair", "statsmodels", csv("statsmodels/datasets/fair/fair.csv"), "affairs", "poisson"),
    Table(
        "canadian_senators",
        "lifelines",
        csv("lifelines/datasets/canadian_senators.csv"),
        "reason",
        "extra_trees",
        "parquet",
    ),
    Table(
        "NYSE",
        "islp",
        csv("ISLP/data/NYSE.csv", parse_dates=["date"]),
        "log_volatility",
        "ridge",
        words=("data.types.date=date",),
    ),
    Table(
        "midwest",
        "plotnine",
        csv("plotnine/data/midwest.csv"),
        "inmetro",
        "logistic",
        "parquet",
        weight="popadults",
    ),
    Table(
        "gapminder",
        "causaldata",
        csv("causaldata/gapminder/gapminder.csv"),
        "lifeExp",
        "hist_gradient_boosting",
        group="country",
        weight="pop",
    ),
    Table(
        "modechoice",
        "statsmodels",
        csv("statsmodels/datasets/modechoice/modechoice.csv", sep=";"),
        "choice",
        "logistic",
        group="individual",
        balanced=True,
    ),
    Table(
        "scorecard",
        "causaldata",
        lambda folder: pd.read_stata(folder / "causaldata/scorecard/scorecard.dta"),
        "pred_degree_awarded_ipeds",
        "extra_trees",
        "parquet",
        group="unitid",
        weight="count_working",
    ),
)
