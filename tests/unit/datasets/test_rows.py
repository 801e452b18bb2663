"""Rows on the workers: what the driver counts is what is there."""

import dataclasses
import operator
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from types import SimpleNamespace
from typing import Any, cast

import dask
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster
from tests.conftest import NO_PAGES, high_tip_task
from tests.unit.datasets.conftest import PICKUP
from tests.waiting import wait_until

from tipcast.compute.base import Session
from tipcast.compute.cluster import restart, worker_names
from tipcast.compute.frames import CpuFrames
from tipcast.config.errors import TipcastError
from tipcast.datasets import homes, rows
from tipcast.datasets.counts import Counts
from tipcast.datasets.listing import Listing
from tipcast.datasets.parts import merged
from tipcast.datasets.prepare import Recipe, held_out_rows
from tipcast.datasets.random_split import Draw
from tipcast.datasets.taxi.dataset import Taxi
from tipcast.datasets.taxi.files import TripInfo
from tipcast.tasks.base import Task, high_tip
from tipcast.tasks.kinds import MULTICLASS

NAMES = ("pickup_hour", "PULocationID")


def test_a_tip_of_exactly_the_threshold_is_not_high_as_float64_has_it() -> None:
    # as meters show, and some others
    cents = np.array([*range(250, 20_000, 50), 675, 1110, 2345, 5205])
    for more in (-1, 0, 1):
        fare = cents / 100
        tip = (cents // 5 + more) / 100
        high = high_tip({"fare_amount": fare, "tip_amount": tip}, np, threshold=0.2)
        np.testing.assert_array_equal(high, more > 0)
    columns = {
        "fare_amount": fare.astype(np.float32),
        "tip_amount": (cents // 5 / 100).astype(np.float32),
    }
    assert high_tip(columns, np, threshold=np.float64(0.2)).any(), "float32 would flip some of them"


@dataclass(frozen=True)
class Collected:
    """Rows of two files, the second of which has five fares of 0, before and after a day."""

    session: Session
    paths: list[Path]
    earlier: int
    """Clean rows of the second file before that day."""
    splits: list[rows.Rows]
    per_file: dict[str, Counts]


@pytest.fixture
def collected(cpu_session: Session, trip_files: Any) -> Collected:
    def spoil(frame: pd.DataFrame) -> pd.DataFrame:
        frame.loc[:4, "fare_amount"] = 0.0
        return frame

    january = "yellow_tripdata_2019-01.parquet"
    paths = [
        trip_files.write(january, month="2019-01", rows=700, row_group_size=200),
        trip_files.write("yellow_tripdata_2019-02.parquet", spoil, rows=500),
    ]
    day = pd.Timestamp("2019-02-15")
    earlier = int((trip_files.trips(500)[PICKUP][5:] < day).sum())
    recipe = Recipe(Taxi(), high_tip_task(NAMES), cutoff=day.value // 1000)
    listing = trip_files.listing(paths, (*recipe.columns, *recipe.optional))
    started = rows.start(cpu_session, listing, recipe)
    splits, per_file = rows.collect(cpu_session, listing, recipe, started)
    return Collected(cpu_session, paths, earlier, splits, per_file)


def test_counts_are_those_of_the_rows(collected: Collected) -> None:
    for split in collected.splits:
        x, y = (collected.session.client.gather(futures) for futures in (split.x, split.y))
        assert tuple(map(len, x)) == tuple(map(len, y)) == split.part_rows
        assert sum(split.part_rows) == split.counts.rows
        assert sum(int(part.sum()) for part in y) == split.counts.classes[1]
        assert split.summary()["positive_rate"] == split.counts.classes[1] / split.counts.rows
        assert split.counts.bytes == split.counts.rows * (len(NAMES) + 1) * 4


def test_rows_are_split_at_the_day(collected: Collected) -> None:
    counts = [split.counts.rows for split in collected.splits]
    assert counts == [700 + collected.earlier, 495 - collected.earlier]


def test_empty_parts_are_left_out(collected: Collected) -> None:
    assert all(all(split.part_rows) for split in collected.splits)


def test_each_file_tells_what_was_read_and_dropped(collected: Collected) -> None:
    january, february = map(str, collected.paths)
    read = {uri: counts.rows_read for uri, counts in collected.per_file.items()}
    assert read == {january: 700, february: 500}
    assert collected.per_file[february].dropped == {"fare_not_positive": 5}


def test_a_summary_of_no_rows_has_no_rate() -> None:
    nothing = rows.Rows([], [], Counts(0, 0, {}, classes=(0, 0)), ()).summary()
    assert np.isnan(nothing["positive_rate"])
    assert nothing["partitions"] == 0


def test_the_rate_of_positives_counts_weights() -> None:
    counts = Counts(4, 0, {}, classes=(3, 1), weight=8.0, class_weights=(2.0, 6.0))
    assert rows.Rows([], [], counts, (4,)).summary()["positive_rate"] == 0.75


def _fare_class(columns: Any, xp: Any) -> Any:
    """Three classes of fares."""
    return xp.digitize(columns["fare_amount"], [10, 30]).astype(xp.int32)


def test_a_class_that_the_task_does_not_name_is_refused(trip_files: Any) -> None:
    named = {"classes": ("cheap", "usual"), "columns": ("fare_amount",), "function": "fare_class"}
    task = Task("fares", MULTICLASS, NAMES, resolved=_fare_class, **named)
    recipe = Recipe(Taxi(), task)
    listing = trip_files.listing(trip_files.write("t_2019-02.parquet"), recipe.columns)
    says = "D015.*t_2019-02.parquet: the target has 3 classes, but the task names 2. Fix: list"
    with pytest.raises(TipcastError, match=says):
        trip_files.checked(listing, recipe)


def test_the_first_clean_trips(trip_files: Any) -> None:
    recipe = Recipe(Taxi(), high_tip_task((*NAMES, "trip_distance")))
    # such a distance is a reason for no score
    trips = trip_files.trips().assign(trip_distance=[2.5, 2e6] * 500)
    trips.loc[[0, 4], "fare_amount"] = -1.0
    (part,) = trip_files.listing(
        trip_files.write("t_2019-02.parquet", lambda _: trips), recipe.columns
    ).parts
    expected = trips.query("fare_amount > 0 and trip_distance < 1e6")[:10]
    for colour, time in (("yellow", PICKUP), ("green", "lpep_pickup_datetime")):
        columns, frame = held_out_rows(part, recipe, TripInfo(colour=colour), 10)
        assert frame[time].tolist() == expected[PICKUP].tolist()
        assert (
            frame["fare_amount"].tolist()
            == columns["fare_amount"].tolist()
            == expected["fare_amount"].tolist()
        )
        assert {len(values) for values in columns.values()} == {10}


def test_joined_row_groups_give_the_same_rows(cpu_session: Session, trip_files: Any) -> None:
    paths = [trip_files.write("yellow_tripdata_2019-02.parquet", rows=1000, row_group_size=100)]
    paths += [trip_files.write("yellow_tripdata_2019-03.parquet", rows=100, month="2019-03")]
    recipe = Recipe(Taxi(), high_tip_task(NAMES))

    class Eager(CpuFrames):
        batch_values = 350 * len(recipe.columns)

    listing = trip_files.listing(paths, recipe.columns)
    first, other = listing.parts
    parts = (*(dataclasses.replace(first, row_groups=(at,), rows=100) for at in range(10)), other)
    listing = dataclasses.replace(listing, parts=parts)
    found = []
    for opened in (cpu_session, dataclasses.replace(cpu_session, frames=Eager())):
        (only,), _ = rows.collect(opened, listing, recipe, rows.start(opened, listing, recipe))
        found.append((only.part_rows, pd.concat(opened.client.gather(only.x), ignore_index=True)))
    assert [parts for parts, _ in found] == [(100,) * 11, (300, 300, 300, 100, 100)], (
        "no two files are"
    )
    pd.testing.assert_frame_equal(found[0][1], found[1][1])


def numbered_rows(client: Client, homes: list[str]) -> rows.Rows:
    """Return two numbered rows on each of some workers, whose targets are their numbers."""
    parts = [pd.DataFrame({"number": [2 * at, 2 * at + 1]}) for at in range(len(homes))]
    x = [
        client.scatter(part, workers=[home], hash=False)
        for part, home in zip(parts, homes, strict=True)
    ]
    y = client.map(operator.itemgetter("number"), x, pure=False)
    size = 2 * len(homes)
    return rows.Rows(x, list(y), Counts(size, size, {}), (2,) * len(homes))


def test_few_rows_become_one_part(client: Client) -> None:
    (home,) = client.nthreads()
    joined = rows.joined_if_few(client, numbered_rows(client, [home] * 3), most=6)
    x, y = (client.gather(side) for side in (joined.x, joined.y))
    assert joined.part_rows == (6,)
    assert [part["number"].tolist() for part in x] == [[*range(6)]]
    assert [part.tolist() for part in y] == [[*range(6)]]


def test_many_rows_stay_in_parts(client: Client) -> None:
    many = numbered_rows(client, [*client.nthreads()] * 3)
    assert rows.joined_if_few(client, many, most=5) is many


def test_rows_of_two_workers_stay_in_parts(pair: Client) -> None:
    apart = numbered_rows(pair, [*pair.nthreads()])
    assert rows.joined_if_few(pair, apart, most=100) is apart


def test_parts_of_a_csv_file_are_not_joined(trip_files: Any) -> None:
    path = trip_files.write("yellow_tripdata_2019-02.csv")
    text = trip_files.listing(path, block_bytes=20_000).parts
    assert merged(text, 10_000) == text
    assert len(text) > 1


def test_parts_that_are_lost_before_they_are_joined_are_read_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nobody holds the first one at the moment when all are divided among the workers."""
    readable = tmp_path / "readable"
    readable.touch()

    def read(start: int) -> pd.DataFrame:
        wait_until(readable.exists)
        return pd.DataFrame({"number": [start, start + 1]})

    options = {"n_workers": 2, "threads_per_worker": 1, "processes": False, **NO_PAGES}
    with LocalCluster(**options) as local, Client(local, set_as_default=False) as client:
        workers = list(client.nthreads())
        place = {"allow_other_workers": True, "pure": False}
        x = [
            client.submit(read, 2 * at, workers=[address], **place)
            for at, address in enumerate(workers)
        ]

        def lose(parts: list[Any]) -> None:
            client.gather(parts)
            readable.unlink()
            restart(client, workers[:1])

        monkeypatch.setattr(rows, "wait", lose)
        joined = rows.on_each_worker(client, rows.Rows(x, [], Counts(4, 4, {}), (2, 2)))
        readable.touch()
        numbers = pd.concat(client.gather(joined.x))["number"]
    assert sorted(numbers) == [0, 1, 2, 3]


def row_groups(trip_files: Any, recipe: Recipe, number: int) -> Listing:
    """Write a file of row groups of 200 trips; return its listing, with a part for each."""
    path = trip_files.write(
        "yellow_tripdata_2019-02.parquet", rows=200 * number, row_group_size=200
    )
    listing: Listing = trip_files.listing([path], recipe.columns)
    (whole,) = listing.parts
    parts = tuple(dataclasses.replace(whole, row_groups=(at,), rows=200) for at in range(number))
    return dataclasses.replace(listing, parts=parts)


def test_a_part_is_read_by_its_worker_however_busy_that_is(trip_files: Any, tmp_path: Path) -> None:
    """Otherwise a training that draws rows would draw other ones each time."""
    recipe = Recipe(Taxi(), high_tip_task(NAMES))
    listing = row_groups(trip_files, recipe, 8)
    gate = tmp_path / "gate"

    options = {"n_workers": 2, "threads_per_worker": 1, "processes": False, **NO_PAGES}
    with (
        dask.config.set({"distributed.scheduler.work-stealing": False}),
        LocalCluster(**options) as local,
        Client(local, set_as_default=False) as client,
    ):
        first, second = [local.workers[name].address for name in (0, 1)]
        busy = client.submit(wait_until, gate.exists, workers=[first], pure=False)
        session = Session(client, "cpu", CpuFrames(), 2, 2, {})
        started = rows.start(session, listing, recipe).tasks
        wait_until(lambda: sum(future.done() for future in started) >= len(started) // 2)
        gate.touch()
        client.gather([busy, *client.map(bool, started)])
        holding = client.who_has(started)
        assert [list(holding[future.key]) for future in started] == [[first], [second]] * 4


@pytest.mark.parametrize(
    ("sizes", "threads", "number", "places"),
    [
        pytest.param([1, 1, 1, 1], [1, 1], None, "abab", id="in turn"),
        pytest.param([9, 1, 1, 1], [1, 1], None, "abbb", id="one part is large"),
        pytest.param([1, 1, 1, 3], [1, 1], None, "bbba", id="the largest first"),
        pytest.param([1, 1, 1], [2, 1], None, "aba", id="one has more threads"),
        pytest.param([None, None], [1, 1], None, "ab", id="their sizes are not known"),
        pytest.param([1, 1, 1], [1, 1], 1, "aaa", id="one worker will do"),
    ],
)
def test_homes_have_about_as_many_rows_for_each_thread(
    monkeypatch: pytest.MonkeyPatch,
    sizes: list[int | None],
    threads: list[int],
    number: int | None,
    places: str,
) -> None:
    workers = {name: {"name": name, "nthreads": n} for name, n in zip("ab", threads, strict=True)}
    monkeypatch.setattr(homes, "worker_info", lambda _: workers)
    parts: list[Any] = [SimpleNamespace(rows=size) for size in sizes]
    session = Session(cast("Client", None), "cpu", CpuFrames(), 2, sum(threads), homes=number)
    assert "".join(str(home) for home in homes.plan_homes(session, parts)) == places


def test_the_successor_of_a_worker_that_was_lost_while_reading_gets_its_rows(
    short_lived: Client, trip_files: Any, tmp_path: Path
) -> None:
    recipe = Recipe(Taxi(), high_tip_task(NAMES))
    listing = row_groups(trip_files, recipe, 4)
    session = Session(short_lived, "cpu", CpuFrames(), 2, 2)
    gate = tmp_path / "gate"
    names = worker_names(short_lived)
    first, second = sorted(names, key=names.__getitem__)
    process = short_lived.run(os.getpid, workers=[first])[first]

    held_up = short_lived.submit(wait_for_file, gate, workers=[first], pure=False)
    reading = rows.start(session, listing, recipe)
    wait_until(lambda: any(task.done() for task in reading.tasks))
    held_up.release()
    os.kill(process, signal.SIGKILL)
    wait_until(lambda: first not in worker_names(short_lived))
    wait_until(lambda: len(worker_names(short_lived)) == 2)
    gate.touch()

    (split,), _ = rows.collect(session, listing, recipe, reading)
    (successor,) = set(worker_names(short_lived)) - {second}
    for side in (split.x, split.y):
        assert homes.holders_of(short_lived, side) == [successor, second] * 2


def wait_for_file(path: Path) -> None:
    while not path.exists():
        sleep(0.02)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        pytest.param({"a": "0", "b": "b", "c": "c"}, ["a", "b", "c", "a"], id="none is lost"),
        pytest.param({"x": "0", "b": "b", "c": "c"}, ["x", "b", "c", "x"], id="of the same name"),
        pytest.param({"a": "0", "y": "y", "c": "c"}, ["a", "y", "c", "a"], id="without a name"),
        pytest.param({"a": "0", "b": "b"}, ["a", "b", "", "a"], id="no successor"),
        pytest.param(
            {"a": "0", "b": "b", "c": "c", "d": "d"}, ["a", "b", "c", "a"], id="one more worker"
        ),
    ],
)
def test_only_parts_of_a_lost_worker_get_another_home(
    monkeypatch: pytest.MonkeyPatch, now: dict[str, str], expected: list[str]
) -> None:
    monkeypatch.setattr(rows, "worker_names", lambda _: now)
    workers = {"a": "0", "b": "b", "c": "c"}
    reading = rows.Reading([], ["a", "b", "c", "a"], workers)
    assert reading.homes_now(cast("Client", None)) == expected


def test_few_rows_of_several_files_are_read_as_one_part(
    cpu_session: Session, trip_files: Any
) -> None:
    paths = [
        trip_files.write("yellow_tripdata_2019-02.parquet"),
        trip_files.write("yellow_tripdata_2019-03.parquet", month="2019-03"),
    ]
    task = dataclasses.replace(high_tip_task(NAMES), weight="fare_amount")
    recipe = Recipe(Taxi(), task, draw=Draw(0, 0.0, 0.0, 2, ("train",)))
    listing = trip_files.listing(paths, recipe.columns)

    class Eager(CpuFrames):
        batch_values = 10_000

    eager = dataclasses.replace(cpu_session, frames=Eager())
    (split,), _ = rows.collect(eager, listing, recipe, rows.start(eager, listing, recipe))
    sides = [eager.client.gather(side) for side in (split.x, split.y, split.weight, split.fold)]
    assert [[len(part) for part in side] for side in sides] == [[2000]] * 4
    assert split.part_rows == (2000,)
    ((fold,),) = sides[3:]
    second_file = range(rows.ROWS_OF_FILE, rows.ROWS_OF_FILE + 1000)
    assert fold["row"].tolist() == [*range(1000), *second_file]
