"""Scores in an object store: unfinished ones under a prefix of their own, wherever the scores are."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

import pytest
from moto.core import DEFAULT_ACCOUNT_ID as ACCOUNT
from moto.s3.models import s3_backends

from tipcast.datasets import address
from tipcast.scoring import swap
from tipcast.scoring.output_folder import MANIFEST


def made(output: str, obsolete: Collection[str] = (), **files: str) -> None:
    storage = address.storage(output, {})
    with swap.within(output, storage) as work:
        for name, content in files.items():
            address.filesystem(output, storage).pipe_file(f"{work.whole}/{name}", content.encode())
        work.commit(lambda: b"manifest of " + ",".join(files).encode(), obsolete, b"announced")


def found(bucket: Any) -> dict[str, str]:
    bucket.invalidate_cache()
    return {path: bucket.cat_file(path).decode() for path in bucket.find("trips")}


@pytest.mark.parametrize(
    "prefix",
    [
        "scored",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("a/whole/b", "whole")),
        "x/whole/whole",
        "a_tipcast-b/_tipcast-c",
    ],
)
def test_objects_get_their_names_whatever_the_prefix_is_called(bucket: Any, prefix: str) -> None:
    output = f"s3://trips/{prefix}"
    made(output, a="1", **{"2019/whole/b": "2"})
    expected = {"a": "1", "2019/whole/b": "2", MANIFEST: "manifest of a,2019/whole/b"}
    assert found(bucket) == {f"trips/{prefix}/{name}": content for name, content in expected.items()}
    bucket.pipe_file(f"trips/{prefix}/_tipcast-killed/parts/0", b"")
    swap.recover_store(output, address.storage(output, {}))
    assert f"trips/{prefix}/_tipcast-killed/parts/0" in found(bucket), "a job may be at work there"


def test_what_killed_jobs_left_goes_when_it_is_old(bucket: Any) -> None:
    output = "s3://trips/a_tipcast-b/_tipcast-c"
    made(output, a="1")
    bucket.pipe_file(f"{output}/_tipcast-one/parts/0/0", b"")
    (key,) = (key for name, key in s3_backends[ACCOUNT]["aws"].buckets["trips"].keys.items() if "_tipcast-one" in name)
    key.last_modified -= timedelta(seconds=swap.OLD_S + 1)
    bucket.pipe_file(f"{output}/_tipcast-two/whole/a", b"")
    swap.recover_store(output, address.storage(output, {}))
    left = ("a", MANIFEST, "_tipcast-two/whole/a")
    assert set(found(bucket)) == {f"trips/a_tipcast-b/_tipcast-c/{name}" for name in left}
