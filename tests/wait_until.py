"""Waiting for a condition instead of for a time, so that a busy machine fails no test."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable


def wait_until(
    is_there: Callable[[], bool],
    process: subprocess.Popen[bytes] | subprocess.Popen[str] | None = None,
    told: Callable[[], str] = str,
    limit_s: float = 400.0,
) -> None:
    """Returns as soon as a condition holds.

    Args:
        process: brings the condition about; the test fails when it ends before.
        told: what is shown where the test fails, such as the log of a process.
        limit_s: several times as long as an idle machine needs, as others may use it too.
    """
    end_s = time.monotonic() + limit_s
    while not is_there():
        assert process is None or process.poll() is None, told()
        assert time.monotonic() < end_s, told()
        time.sleep(0.2)
