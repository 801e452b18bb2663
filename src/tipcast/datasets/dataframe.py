"""DataFrames of pandas, cuDF and Dask: how one becomes Parquet that ``data=table`` reads."""

from pathlib import Path
from typing import Any

from tipcast.config.errors import failed_to, must_be

TEXT_TYPES = ("interval", "period")
"""Types that Parquet does not hold, by how their names begin: their values become texts."""


def is_dataframe(value: object) -> bool:
    """Tell whether a value is a DataFrame, of whatever library."""
    return hasattr(value, "to_parquet")


def write_dataframe(frame: Any, path: Path, side: str) -> str:
    """Write a DataFrame as Parquet, one of Dask's as a folder of files; return the path.

    ``side`` is ``train`` or ``test``, for messages. Raises D008 for a column whose name is not a
    text, and for one that Parquet does not hold. OSError, as of a full disk, passes.
    """
    where = f"data ({side})"
    if odd := [name for name in frame.columns if not isinstance(name, str)]:
        raise must_be(
            where,
            "named by strings",
            repr(odd[0]),
            "rename the columns: map(str, frame.columns)",
            "D008",
        )

    index = {"write_index": False} if _is_dask(frame) else {"index": False}
    try:
        _with_texts(frame).to_parquet(str(path), **index)
    except OSError:
        raise
    except Exception as problem:  # pandas, cuDF and pyarrow have many
        fix = (
            "give each column one Parquet type, e.g. with astype(str), and a unique name, or leave "
            "it out"
        )
        raise failed_to("written as Parquet", where, problem, fix, "D008") from problem

    return str(path)


def _is_dask(frame: Any) -> bool:
    return hasattr(frame, "npartitions")


def _with_texts(frame: Any) -> Any:
    """Return the frame with texts in place of intervals and periods, also of categories of such."""
    for name, dtype in frame.dtypes.items():
        value_type = getattr(getattr(dtype, "categories", None), "dtype", dtype)
        if not str(value_type).startswith(TEXT_TYPES):
            continue

        meta = {"meta": (name, "string")} if _is_dask(frame) else {}
        texts = frame[name].astype(object).map(str, "ignore", **meta)
        frame = frame.assign(**{name: texts})

    return frame
