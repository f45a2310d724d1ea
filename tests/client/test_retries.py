"""What is sent again, how often, and what never is."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from lakebed.base import OutcomeUnknown, Unavailable
from tests.client.support import Breaking, Script, client_of, failed

REF = httpx.Response(200, json={"id": "main", "commit_id": "c"})
STATS = {
    "path": "a",
    "path_type": "object",
    "physical_address": "data/x",
    "checksum": "5d41402abc4b2a76b9719d911017c592",
    "mtime": 0,
    "size_bytes": 5,
}


@pytest.mark.parametrize(
    "trouble",
    [failed(503), failed(429), httpx.ConnectError("refused"), httpx.ReadError("reset"), httpx.ReadTimeout("")],
)
def test_a_read_is_sent_again_until_it_succeeds(trouble: httpx.Response | Exception) -> None:
    script = Script(trouble, trouble, REF)

    assert client_of(script).branches.get("lake", "main").commit_id == "c"
    assert len(script.requests) == 3


def test_a_read_is_given_up_after_the_last_attempt() -> None:
    script = Script(failed(503, "busy"))

    with pytest.raises(Unavailable, match="busy"):
        client_of(script, attempts=4).branches.get("lake", "main")

    assert len(script.requests) == 4
    assert len(script.waits) == 3


def test_waits_grow() -> None:
    script = Script(failed(503))

    with pytest.raises(Unavailable):
        client_of(script, attempts=5).branches.get("lake", "main")

    assert all(0.1 * 2**n <= wait <= 0.2 * 2**n for n, wait in enumerate(script.waits))


@pytest.mark.parametrize(("header", "at_least"), [("7", 7.0), ("100000", 60.0), ("soon", 0.0), ("-1", 0.0)])
def test_retry_after_is_heeded_but_not_for_ever(header: str, at_least: float) -> None:
    script = Script(failed(503, "busy", **{"Retry-After": header}), REF)

    client_of(script).branches.get("lake", "main")

    assert at_least <= script.waits[0] <= max(at_least, 1.0)


def test_a_fault_of_the_server_is_not_retried() -> None:
    script = Script(failed(500, "boom"))

    with pytest.raises(OutcomeUnknown, match="boom"):
        client_of(script).branches.get("lake", "main")

    assert len(script.requests) == 1


@pytest.mark.parametrize("trouble", [failed(503, "busy"), failed(429, "busy"), httpx.ConnectError("refused")])
def test_a_commit_is_never_sent_twice_and_known_not_to_have_happened(trouble: httpx.Response | Exception) -> None:
    script = Script(trouble)

    with pytest.raises(Unavailable):
        client_of(script).history.commit("lake", "main", "m")

    assert len(script.requests) == 1


@pytest.mark.parametrize("trouble", [httpx.ReadError("reset"), httpx.ReadTimeout("slow"), httpx.WriteError("reset")])
def test_a_commit_whose_answer_is_lost_may_have_happened(trouble: Exception) -> None:
    script = Script(trouble)

    with pytest.raises(OutcomeUnknown, match="before you repeat it"):
        client_of(script).history.commit("lake", "main", "m")

    assert len(script.requests) == 1


@pytest.mark.parametrize("operation", ["reset", "hard_reset"])
def test_a_reset_is_a_put_that_is_not_repeated(operation: str) -> None:
    """It would take away what somebody wrote between the two."""
    script = Script(httpx.ReadError("reset"))
    branches = client_of(script).branches

    with pytest.raises(OutcomeUnknown):
        branches.reset("lake", "main") if operation == "reset" else branches.hard_reset("lake", "main", ref="v1")

    assert len(script.requests) == 1


def test_an_upload_is_sent_again_from_its_start(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"hello")
    script = Script(httpx.WriteError("reset"), failed(503), httpx.Response(201, json=STATS))
    moved: list[int] = []

    client_of(script).files.upload("lake", "main", "a", tmp_path / "a", progress=moved.append)

    assert [request.content for request in script.requests] == [b"hello"] * 3
    assert sum(moved) == 5


def test_a_conditional_upload_is_sent_once(tmp_path: Path) -> None:
    """Sent again it could meet its own success, and report a conflict."""
    (tmp_path / "a").write_bytes(b"hello")
    script = Script(httpx.ReadError("reset"))

    with pytest.raises(OutcomeUnknown):
        client_of(script).files.upload("lake", "main", "a", tmp_path / "a", if_absent=True)

    assert len(script.requests) == 1


def test_a_body_that_breaks_off_is_reported() -> None:
    script = Script(httpx.Response(200, stream=Breaking(b'{"id"')))

    with pytest.raises(Unavailable):
        client_of(script).branches.get("lake", "main")
