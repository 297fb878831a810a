"""Tries again what failed at a disk or a store in a way that may pass."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tenacity import (
    RetryCallState,
    retry,
    retry_if_exception,
    stop_after_attempt,
    wait_exponential,
    wait_random,
)

from raygnn.redaction import redact_text

_STORE_CLIENTS = {"adlfs", "aiohttp", "botocore", "gcsfs", "google", "requests", "s3fs"}

MAX_TRIES = 6
_FIRST_WAIT_S, _LONGEST_WAIT_S, _JITTER_S = 0.5, 8.0, 0.25  # 15.5 s of waiting in all, at least

# A retry would fail too: files stay missing or forbidden, and disks full.
_LASTING = (
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
_LASTING_NUMBERS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EINVAL,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.ENOTEMPTY,
}

_LOGGER = logging.getLogger("raygnn.storage")

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def is_storage_error(error: BaseException) -> bool:
    """Whether a disk or a store failed. Clients of stores raise their own exceptions."""
    package = type(error).__module__.partition(".")[0]
    return isinstance(error, OSError) or package in _STORE_CLIENTS


def is_transient(error: BaseException) -> bool:
    """Whether a disk or a store failed in a way that may pass."""
    if not is_storage_error(error) or isinstance(error, _LASTING):
        return False
    if str(error).startswith("Forbidden: "):  # 403, by gcsfs
        return False
    return getattr(error, "errno", None) not in _LASTING_NUMBERS


def is_of_content(error: BaseException) -> bool:
    """Whether an error is pyarrow's OSError for damaged content, which has no errno."""
    return type(error) is OSError and error.errno is None


def retried(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Retries a repeatable function with growing pauses, and logs the retries.

    Raises the last exception, with a note about the number of tries.
    """
    return retry(
        retry=retry_if_exception(is_transient),
        stop=stop_after_attempt(MAX_TRIES),
        wait=wait_exponential(_FIRST_WAIT_S, _LONGEST_WAIT_S) + wait_random(0, _JITTER_S),
        before_sleep=_tell,
        retry_error_callback=_give_up,
    )(function)


def _tell(state: RetryCallState) -> None:
    assert state.next_action is not None
    _LOGGER.warning(
        "storage failed: %s; trying again in %.1f s (%d of %d)",
        _describe(state),
        state.next_action.sleep,
        state.attempt_number + 1,
        MAX_TRIES,
    )


def _give_up(state: RetryCallState) -> None:
    assert state.outcome is not None
    error = state.outcome.exception()
    assert error is not None
    if is_transient(error):
        error.add_note(f"tried {MAX_TRIES} times in {state.seconds_since_start:.0f} s")
    raise error


def _describe(state: RetryCallState) -> str:
    assert state.outcome is not None
    error = state.outcome.exception()
    return f"{type(error).__name__}: {redact_text(str(error))}"
