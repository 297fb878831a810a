"""Locks of local files, against other threads, processes and NFS clients."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from raygnn.data.filesystem import is_remote, open_fs

# Errors of a file system that has no locks.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL}

_held = threading.local()


@contextmanager
def locked(path: str, say: Callable[[str], None]) -> Iterator[None]:
    """Runs a block while holding a file's lock, against other threads, processes and NFS clients.

    The kernel releases the lock when its process dies. The lock is reentrant per thread. Object
    stores have no locks, so their URIs are not locked.

    Args:
        path: lock file, which is created and stays.
        say: called if the lock must be waited for, or cannot be taken.
    """
    paths = _held.__dict__.setdefault("paths", set())
    if is_remote(path) or path in paths:
        yield
        return
    local = open_fs(path)[1]
    os.makedirs(os.path.dirname(local), exist_ok=True)
    with open(local, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that writes the same files: it holds {local}")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            say(f"{local} cannot be locked ({error.strerror}): do not start a run twice")
        paths.add(path)
        try:
            yield
        finally:
            paths.remove(path)
