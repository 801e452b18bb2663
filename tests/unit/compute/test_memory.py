"""Peak memory of the driver and the workers."""

from pathlib import Path

import psutil
from distributed import Client
from tests.conftest import python

from tipcast.compute.session import peak_bytes, peaks


def test_the_peak_is_at_least_what_is_held_now() -> None:
    held = psutil.Process().memory_info().rss
    assert 0.9 * held < peak_bytes() < psutil.virtual_memory().total
    block = bytearray(80 << 20)
    block[::4096] = b"x" * len(block[::4096])
    after = peak_bytes()
    del block
    assert after >= 80 << 20
    assert peak_bytes() >= after - (1 << 20), "a peak does not fall, but for pages that Linux counts late"


def test_a_process_does_not_count_what_started_it(tmp_path: Path) -> None:
    block = bytearray(200 << 20)
    block[::4096] = b"x" * len(block[::4096])
    program = "from tipcast.compute.session import peak_bytes; print(peak_bytes())"
    assert int(python(tmp_path, "-c", program).stdout) < len(block) < peak_bytes()


def test_the_workers_are_asked(client: Client) -> None:
    found = peaks(client)
    assert set(found) == {"driver", "worker"}
    assert all(value > 20 << 20 for value in found.values())
