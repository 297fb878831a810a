from __future__ import annotations

import threading

import pytest

from raygnn.outputs.checkpoints.checkpointer import Uploads


def test_work_goes_on_beside_the_caller_and_is_waited_for() -> None:
    uploads, go, done = Uploads(), threading.Event(), []

    def work() -> None:
        assert go.wait(5)
        done.append(True)

    uploads.start(work)
    uploads.raise_failure()
    assert not done
    go.set()
    uploads.wait()
    assert done
    uploads.close()


def test_what_work_raises_is_raised_once_it_is_asked_for() -> None:
    uploads = Uploads()

    def work() -> None:
        raise OSError("the store is gone")

    uploads.start(work)
    with pytest.raises(OSError, match="the store is gone"):
        uploads.wait()
    uploads.start(work)
    uploads.close()
    with pytest.raises(OSError, match="the store is gone"):
        uploads.raise_failure()
