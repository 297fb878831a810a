"""Conditional writes: under a lock, or if an object's generation is unchanged."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from raygnn.data.filesystem import is_remote, open_fs, retried, write_bytes

# Errors of a file system that has no locks.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL}
# gcsfs uploads larger objects in parts, without a generation.
_MAX_BYTES = 50 << 20

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


@retried
def generation(uri: str) -> int | None:
    """Version of an object, 0 if it does not exist. None on stores without versions."""
    fs, path = open_fs(uri)
    if "gs" not in fs.protocol:
        return None
    fs.invalidate_cache()
    try:
        return int(fs.info(path)["generation"])
    except FileNotFoundError:
        return 0


def write_if_unchanged(uri: str, content: bytes, version: int | None) -> None:
    """Writes a file like `write_bytes`, if its generation is still the given one.

    Args:
        version: from `generation`; None writes in any case, as does content above 50 MiB.
    Raises:
        FileExistsError: the object has changed.
    """
    if version is None or len(content) >= _MAX_BYTES:
        write_bytes(uri, content)
    else:
        _upload(uri, content, version)


@retried
def _upload(uri: str, content: bytes, version: int) -> None:
    fs, path = open_fs(uri)
    bucket, key, _ = fs.split_path(path)
    fs.call(
        "POST",
        fs.base.replace("/storage/", "/upload/storage/", 1) + "b/{}/o",
        bucket,
        uploadType="media",
        name=key,
        ifGenerationMatch=version,
        data=content,
        headers={"Content-Type": "application/octet-stream"},
    )
    fs.invalidate_cache()
