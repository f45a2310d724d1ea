"""The Cloud Storage driver keeps the contract on a double of the XML API: no emulator speaks that one."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlsplit

import httpx
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from lakebed.objectstore import (
    BucketMissing,
    Deleter,
    InvalidNamespace,
    ObjectStat,
    ObjectStore,
    ObjectStoreOptions,
    UnlistableKey,
    open_deleter,
    open_objectstore,
)
from lakebed.objectstore.drivers.gcs import ask_of, client_of
from lakebed.objectstore.drivers.remote import RemoteObjectStore
from lakebed.objectstore.drivers.remote_answers import ListingUnasked
from lakebed.testing.contracts import ObjectStoreContract
from lakebed.testing.contracts.objectstore import keys_of, put_many
from tests.kv.servers import Server
from tests.objectstore.cloud_servers import BUCKETS, gcs_double, gcs_options

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with gcs_double() as server:
        yield server


@pytest.fixture
def options(server: Server) -> ObjectStoreOptions:
    return gcs_options(server.port)


class TestCloudStorage(ObjectStoreContract):
    many = 1100

    @pytest.fixture
    def namespace(self) -> str:
        return f"gs://{BUCKETS[0]}/some/prefix-{next(_numbers)}"

    @pytest.fixture
    def objectstore(self, options: ObjectStoreOptions, namespace: str) -> ObjectStore:
        return open_objectstore(namespace, options)

    @pytest.fixture
    def deleter(self, options: ObjectStoreOptions, namespace: str) -> Deleter:
        return open_deleter(namespace, options)


async def test_a_bucket_that_is_missing_is_no_word_about_objects(options: ObjectStoreOptions) -> None:
    objectstore = open_objectstore("gs://no-such-bucket/x", options)
    with pytest.raises(BucketMissing):
        await objectstore.get("x")
    with pytest.raises(BucketMissing):
        await objectstore.put("x", b"", if_absent=True)
    with pytest.raises(BucketMissing):
        await keys_of(objectstore)


async def test_no_url_is_signed_where_no_key_is_at_hand(options: ObjectStoreOptions) -> None:
    objectstore = open_objectstore(f"gs://{BUCKETS[1]}", options)
    assert await objectstore.presign_get("x", expires_s=60) is None
    assert await objectstore.presign_put("x", expires_s=60) is None


@pytest.fixture
def account(tmp_path: Path) -> tuple[Path, rsa.RSAPrivateKey]:
    """A service account's file, and its key."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    file = tmp_path / "account.json"
    fields = {"private_key": pem, "private_key_id": "1", "client_email": "collector@project.example"}
    file.write_text(json.dumps({"type": "service_account", **fields}))
    return file, key


async def test_a_listing_is_signed_with_the_key_of_the_service_account(
    account: tuple[Path, rsa.RSAPrivateKey],
) -> None:
    """As Google's documents of V4 signatures say: the query in order, one header, a body that is not signed."""
    file, key = account
    ask = ask_of("bucket", ObjectStoreOptions(gs_service_account=file))

    url = urlsplit(await ask("list-type=2&prefix=a%2F%2Fb"))

    query = dict(parse_qsl(url.query, keep_blank_values=True))
    assert (url.netloc, url.path) == ("storage.googleapis.com", "/bucket")
    assert (query["list-type"], query["prefix"]) == ("2", "a//b")
    signature = bytes.fromhex(query.pop("X-Goog-Signature"))
    names = "&".join(f"{quote(name, safe='')}={quote(text, safe='')}" for name, text in sorted(query.items()))
    canonical = f"GET\n{url.path}\n{names}\nhost:{url.netloc}\n\nhost\nUNSIGNED-PAYLOAD"
    scope = query["X-Goog-Credential"].partition("/")[2]
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = f"GOOG4-RSA-SHA256\n{query['X-Goog-Date']}\n{scope}\n{digest}"
    key.public_key().verify(signature, text.encode(), padding.PKCS1v15(), hashes.SHA256())


async def test_credentials_that_sign_no_listing_list_all_the_same_but_odd_keys(options: ObjectStoreOptions) -> None:
    async def refusing(prefix: str, after: str, *, delimiter: str = "") -> AsyncIterator[Sequence[ObjectStat]]:
        raise ListingUnasked(f"no key signs here: {prefix} {after} {delimiter}")
        yield []

    client = client_of(BUCKETS[1], options)
    store = RemoteObjectStore(f"gs://{BUCKETS[1]}", client, "unsigned/", NoConditions(), every_key=refusing)
    await put_many(store, ["in/a", "in/sub/x"])
    put_raw(options, "unsigned/in/sub/", b"")

    assert [stat.key async for page in store.list_all("in/") for stat in page] == ["in/a", "in/sub/x"]
    put_raw(options, "unsigned/in//b", b"")
    with pytest.raises(UnlistableKey, match="in//b"):
        await keys_of(store)
    with pytest.raises(UnlistableKey):
        await store.level("in/")


def put_raw(options: ObjectStoreOptions, key: str, data: bytes) -> None:
    url = f"{options.gs_endpoint}/{BUCKETS[1]}/{quote(key)}"
    assert httpx.put(url, content=data, trust_env=False).status_code == 200


class NoConditions:
    async def check_puts(self) -> None:
        """Nothing here puts on a condition."""

    async def check_copies(self) -> None:
        """Nothing here copies."""


def test_a_service_account_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(InvalidNamespace, match="gs://bucket cannot be opened"):
        open_objectstore("gs://bucket/x", ObjectStoreOptions(gs_service_account=Path("/nowhere/account.json")))
