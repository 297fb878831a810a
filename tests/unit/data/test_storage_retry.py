"""What is tried again, how often, and what is said of it."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

import pytest

from raygnn.data.storage_retry import MAX_TRIES, is_transient, retried


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)


def _failing(error: BaseException, times: int) -> tuple[list[int], Callable[..., str]]:
    calls: list[int] = []

    @retried
    def operation() -> str:
        calls.append(len(calls))
        if len(calls) <= times:
            raise error
        return "done"

    return calls, operation


def test_what_fails_twice_succeeds_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    calls, operation = _failing(OSError(errno.EIO, "at s3://key:secret@host/x"), 2)
    with caplog.at_level(logging.WARNING):
        assert operation() == "done"
    assert len(calls) == 3
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("storage failed: OSError: ")
    assert first.endswith("(2 of 6)")
    assert second.endswith("(3 of 6)")
    assert "secret" not in first


def test_what_stays_down_is_raised_with_the_number_of_tries() -> None:
    calls, operation = _failing(TimeoutError("no answer"), 99)
    with pytest.raises(TimeoutError, match="no answer") as caught:
        operation()
    assert len(calls) == MAX_TRIES
    assert caught.value.__notes__[0].startswith(f"tried {MAX_TRIES} times in ")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EROFS, "Read-only file system"),
        FileNotFoundError("x"),
        PermissionError("x"),
        ValueError("x"),
    ],
)
def test_what_cannot_pass_is_raised_at_once(error: Exception) -> None:
    calls, operation = _failing(error, 1)
    with pytest.raises(type(error)):
        operation()
    assert len(calls) == 1


def test_errors_of_store_clients_may_pass() -> None:
    kind = type("HttpError", (Exception,), {"__module__": "gcsfs.retry"})
    assert is_transient(kind("503"))
    assert is_transient(ConnectionResetError())
    assert not is_transient(KeyError("x"))
    assert not is_transient(OSError("Forbidden: https://storage.googleapis.com/not-mine"))
