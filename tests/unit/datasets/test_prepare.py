"""From raw trips to features and a label, on a small file whose rows are known."""

from typing import Any

import numpy as np
import pandas as pd
from tests.unit.datasets.conftest import PICKUP, RECIPE

from tipcast.datasets.prepare import prepare_part


def test_one_part(trip_files: Any, frames: Any) -> None:
    trips = trip_files.trips()
    trips.loc[:1, "fare_amount"] = [-5.0, np.nan]
    trips.loc[2, "passenger_count"] = np.nan
    (part,) = trip_files.listing(
        trip_files.write("t_2019-02.parquet", lambda _: trips), RECIPE.columns
    ).parts
    (rows,) = prepare_part(part, frames, RECIPE)
    trips = trips[2:].assign(pickup_hour=trips[PICKUP].dt.hour).fillna(-1).reset_index(drop=True)
    pd.testing.assert_frame_equal(rows.x, trips[[*RECIPE.task.features]].astype("float32"))
    assert rows.y.dtype == np.int32
    assert (
        rows.y.tolist() == (trips["tip_amount"] / trips["fare_amount"] > 0.2).astype(int).tolist()
    )
    assert (rows.counts.rows, rows.counts.rows_read) == (998, 1000)
    assert rows.counts.dropped == {"fare_not_positive": 1, "fare_missing": 1}
    assert rows.counts.classes == (998 - rows.y.sum(), rows.y.sum())
