"""What the S3 driver says to who may not: a key that may not delete, a wrong secret, a key that nobody knows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from lakebed.objectstore import ObjectStoreOptions, ObjectStoreUnavailable, open_deleter, open_objectstore
from lakebed.testing.contracts.bodies import large_body, md5_of
from lakebed.testing.contracts.objectstore import keys_of, put_many
from tests.objectstore.s3_servers import make_bucket, planner_of, real_endpoint, serve_s3


@pytest.fixture(scope="module")
def options() -> Iterator[ObjectStoreOptions]:
    with serve_s3() as options:
        yield options


@pytest.fixture
def uri(options: ObjectStoreOptions) -> str:
    return f"s3://{make_bucket(options)}/a/repo"


async def test_who_may_not_delete_reads_writes_and_lists(options: ObjectStoreOptions, uri: str) -> None:
    objectstore = open_objectstore(uri, planner_of(options))
    await objectstore.put("small", b"s", if_absent=True)
    await objectstore.put("large", large_body(), if_absent=True)
    await objectstore.copy("small", "copy")
    assert await keys_of(objectstore) == ["copy", "large", "small"]
    assert await md5_of(objectstore.stream("large")) == await md5_of(large_body())
    assert (await objectstore.level()).keys == ["copy", "large", "small"]


@pytest.mark.parametrize("count", [1, 3, 1200])
async def test_each_key_that_one_may_not_delete_is_returned(options: ObjectStoreOptions, uri: str, count: int) -> None:
    keys = [f"data/{n:04d} &<é>" for n in range(count)]
    objectstore = open_objectstore(uri, options)
    powerful, powerless = open_deleter(uri, options), open_deleter(uri, planner_of(options))
    await put_many(objectstore, keys[:30])

    failures = await powerless.delete(keys)

    assert [failure.key for failure in failures] == keys
    assert all("refused" in failure.reason for failure in failures)
    assert await keys_of(objectstore) == keys[:30]
    assert not await powerful.delete(keys)
    assert await keys_of(objectstore) == []


@pytest.mark.parametrize(("key_id", "secret"), [(None, "wrong"), ("nobody-at-all", None)])
async def test_wrong_credentials_are_refused_in_every_method(
    options: ObjectStoreOptions, uri: str, key_id: str | None, secret: str | None
) -> None:
    if real_endpoint() is None:
        pytest.skip("the server of these tests looks at no signatures")
    await open_objectstore(uri, options).put("x", b"")
    wrong = replace(
        options,
        s3_access_key_id=key_id or options.s3_access_key_id,
        s3_secret_access_key=secret or options.s3_secret_access_key,
    )
    objectstore = open_objectstore(uri, wrong)
    with pytest.raises(ObjectStoreUnavailable, match="refused"):
        await objectstore.get("x")
    with pytest.raises(ObjectStoreUnavailable, match="refused"):
        await objectstore.stat("x")
    with pytest.raises(ObjectStoreUnavailable, match="refused"):
        await objectstore.put("x", b"")
    with pytest.raises(ObjectStoreUnavailable, match="refused"):
        await objectstore.put("y", b"", if_absent=True)
    with pytest.raises(ObjectStoreUnavailable, match="refused"):
        await objectstore.copy("x", "y")
    with pytest.raises(ObjectStoreUnavailable, match="refused"):
        await keys_of(objectstore)
    with pytest.raises(ObjectStoreUnavailable, match="refused"):
        await objectstore.level()
    assert [failure.key for failure in await open_deleter(uri, wrong).delete(["x"])] == ["x"]
    assert await keys_of(open_objectstore(uri, options)) == ["x"]
