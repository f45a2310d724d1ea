"""A URI names the driver, and whatever is wrong with it is said."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakebed.kv import (
    InvalidStoreUri,
    StoreUri,
    compact_store,
    open_store,
    opening,
    register_driver,
    sqlite_uri,
    store_size,
)
from lakebed.kv.drivers.memory import MemoryStore


@pytest.fixture
def registry() -> Iterator[None]:
    """What a test registers is gone after it."""
    before = dict(opening._DRIVERS)
    yield
    opening._DRIVERS.clear()
    opening._DRIVERS.update(before)


def test_an_unknown_scheme_is_told_what_exists() -> None:
    with pytest.raises(InvalidStoreUri, match=r"no store driver for 'oracle://'; there are: .*mem://, .*sqlite://"):
        open_store("oracle://db")


def test_a_text_without_a_scheme_is_named_unless_it_may_be_a_password() -> None:
    with pytest.raises(InvalidStoreUri, match=r"'nonsense' is not a URI of a store"):
        open_store("nonsense")
    with pytest.raises(InvalidStoreUri) as refused:
        open_store("user:pass@host/db")
    assert "pass" not in str(refused.value)


@pytest.mark.parametrize(
    "uri", ["", "kv.db", "/var/lib/kv.db", "://", "http://[", "mem://?x", "mem://?a=1&a=2", "mem://#x"]
)
def test_a_malformed_uri_is_refused(uri: str) -> None:
    with pytest.raises(InvalidStoreUri):
        open_store(uri)


@pytest.mark.parametrize("module", sorted({*opening._DRIVERS.values()}))
def test_each_driver_does_it_or_says_what_its_database_does_instead(module: str) -> None:
    try:
        driver = importlib.import_module(module)
    except ModuleNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")

    for function, instead in (("size_uri", "NO_SIZE"), ("compact_uri", "NO_COMPACTION")):
        assert hasattr(driver, function) != bool(getattr(driver, instead, "")), instead


def test_a_store_that_is_not_measured_or_compacted_from_here_says_why() -> None:
    with pytest.raises(InvalidStoreUri, match=r"does not tell its size: .*nodetool tablestats"):
        store_size("cassandra://127.0.0.1/lakebed")

    for uri, instead in (
        ("mem://", "nothing of it lies on a disk"),
        ("s3://bucket/lakebed", "each key is an object"),
        ("cassandra://127.0.0.1/lakebed", "`nodetool compact` on each node does it at once"),
        ("dynamodb://eu-central-1/lakebed", "DynamoDB frees the room"),
    ):
        with pytest.raises(InvalidStoreUri, match=f"nothing to compact from here: .*{instead}"):
            compact_store(uri)


def test_an_option_that_the_driver_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidStoreUri, match=r"sqlite: unknown option 'sync'; there are: busy_timeout_s, mode, synchronous"
    ):
        open_store(f"{sqlite_uri(tmp_path / 'kv.db')}?sync=FULL")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ("synchronous=ALWAYS", "synchronous is one of FULL, EXTRA, NORMAL, OFF, not 'ALWAYS'"),
        ("synchronous=", "synchronous is one of"),
        ("busy_timeout_s=soon", "busy_timeout_s is a number of seconds, not 'soon'"),
        ("busy_timeout_s=-1", "busy_timeout_s is a number of seconds"),
        ("busy_timeout_s=nan", "busy_timeout_s is a number of seconds"),
    ],
)
def test_a_senseless_option_is_refused(tmp_path: Path, option: str, complaint: str) -> None:
    with pytest.raises(InvalidStoreUri, match=complaint):
        open_store(f"{sqlite_uri(tmp_path / 'kv.db')}?{option}")


@pytest.mark.parametrize(
    "rest",
    [
        "redis://{}/0",
        "mongodb://{}/lakebed",
        "etcd://{}?name=lakebed",
        "consul://:x@{}?name=lakebed",
        "cosmos://:AA==@{}/lakebed/metadata",
    ],
)
@pytest.mark.parametrize("host", ["h:xx", "h:99999", "h:0", "h:", "h1:1,h2:-1", "[::1]:x"])
def test_a_port_that_is_none_is_refused(rest: str, host: str) -> None:
    with pytest.raises(InvalidStoreUri, match="a port is a number from 1 to 65535"):
        open_store(rest.format(host))


def test_an_error_does_not_repeat_a_password() -> None:
    with pytest.raises(InvalidStoreUri) as caught:
        open_store("oracle://scott:tiger@db/?x=tiger")

    assert "tiger" not in str(caught.value)
    assert "tiger" not in str(caught.value.facts)


def test_a_driver_is_imported_when_it_is_asked_for(
    registry: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "somebodys_driver.py").write_text(
        "from lakebed.kv.drivers.memory import MemoryStore\n\ndef open_uri(uri):\n    return MemoryStore()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    register_driver("somebody", "somebodys_driver")
    assert "somebodys_driver" not in sys.modules

    assert isinstance(open_store("somebody://"), MemoryStore)
    del sys.modules["somebodys_driver"]


def test_a_driver_without_its_library_says_what_to_install(
    registry: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lacking_driver.py").write_text("import a_client_library_that_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    register_driver("lacking", "lacking_driver")

    with pytest.raises(
        InvalidStoreUri, match=r"'a_client_library_that_nobody_has' is not installed.*lakebed\[lacking\]"
    ):
        open_store("lacking://")


def test_a_path_is_decoded_and_options_do_not_leak_into_it() -> None:
    uri = StoreUri("sqlite:///srv/a%20b%3Fc/kv.db?synchronous=NORMAL")

    assert uri.file() == Path("/srv/a b?c/kv.db")
    assert uri.choice("synchronous", "FULL", "NORMAL") == "NORMAL"
    assert uri.seconds("busy_timeout_s", 2.5) == 2.5
    uri.check_all_taken()


def test_sqlite_uri_and_the_driver_agree_on_any_path() -> None:
    for path in (Path("/srv/kv.db"), Path("/srv/a b/ü#?%41&=.db")):
        assert StoreUri(sqlite_uri(path)).file() == path
