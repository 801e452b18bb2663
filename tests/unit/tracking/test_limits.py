"""Names and values that every store takes, whatever columns and classes are called."""

from __future__ import annotations

from mlflow.utils.validation import path_not_unique, validate_param_and_metric_name

from tipcast.config.schema import TrackingSpec
from tipcast.tracking import limits
from tipcast.tracking.run import open_run
from tipcast.tracking.store import open_store

ODD = [
    "petal length (cm)", "petal length [cm]", "a//b", "/a", "a/", "..", "..x", "a/../b", "", ".", "x\n", "$", "(", "[",
]  # fmt: skip
LONG = ["x" * 251, "x" * 252, "(" * 300]


def test_names_are_mlflows_and_stay_distinct() -> None:
    usual = ["test/auc", "km/h", "a:b c", "Größe", "x" * limits.MAX_NAME]
    assert [limits.name_of(name) for name in usual] == usual
    found = [limits.name_of(name) for name in (*usual, *ODD, *LONG)]
    assert len(set(found)) == len(found)
    assert all(validate_param_and_metric_name(name) and not path_not_unique(name) for name in found)
    assert max(map(len, found)) == limits.MAX_NAME
    assert found == [limits.name_of(name) for name in found], "a name that is taken is left as it is"


def test_a_run_with_odd_names_and_megabytes_ends_well(spec: TrackingSpec) -> None:
    values = {
        f"unscored/{name}": float(at) for at, name in enumerate((*ODD, *LONG, *(f"ENSG{at}(x)" for at in range(3000))))
    }
    huge = "x" * 3_000_000
    with open_run(spec, name="n", tags={"a (b)": huge}, params={"data.columns.a (b)": huge, "c": huge[:6000]}) as run:
        run.log_metrics(values)
        run.log_dataset("made://x", "d", huge, "train", {})
        run.log_params({"data.columns.a (b)": "another"})
    found = open_store(spec).get_run(run.id)
    assert found.info.status == "FINISHED"
    assert sorted(found.data.metrics.values()) == sorted(values.values())
    assert found.data.tags[limits.name_of("a (b)")] == "x" * 7999 + "…"
    assert found.data.params == {limits.name_of("data.columns.a (b)"): "x" * 5999 + "…", "c": "x" * 6000}
