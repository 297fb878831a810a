"""What is made once and kept in the cache, by one process at a time, of one or several users."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock

from raygnn.data.arrays import sync_folder
from raygnn.errors import ResourceError

CACHE_VARIABLE = "RAYGNN_CACHE_DIR"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}  # also where no file is named
_LOCK_MODE = 0o666  # whoever shares a cache waits for the same locks


def cache_lock(path: Path | str) -> filelock.BaseFileLock:
    """A lock in the cache, which other users of it may take too."""
    return filelock.FileLock(path, mode=_LOCK_MODE)


@contextmanager
def cache_errors(folder: Path) -> Iterator[None]:
    """Makes one error of everything that keeps this user out of a folder of the cache.

    What fails elsewhere, as a table that is read, passes.

    Raises:
        ResourceError: a file of the folder cannot be read or written, or the disk is full.
    """
    try:
        yield
    except OSError as error:
        named = os.path.abspath(os.fsdecode(error.filename)) if error.filename else ""
        if error.errno in _FULL or named == str(folder) or named.startswith(f"{folder}/"):
            raise cache_error(error, folder) from error
        raise


def cache_error(error: Exception, folder: Path, what: str = "the graph") -> ResourceError:
    """The error of a cache that this user cannot use."""
    return ResourceError(
        f"data.cache_dir: {what} cannot be kept in {folder}: {error}. Set data.cache_dir, or "
        f"${CACHE_VARIABLE}, to a folder that you may read and write, with room for the graph."
    )


def build_once(folder: Path, build: Callable[[Path], None], what: str) -> Path:
    """Gives a folder, building it first where it is not there: by one process, and as a whole.

    Args:
        build: fills the folder that it is given.
        what: what the folder holds, as messages call it.
    Raises:
        ResourceError: it has to be built, and its place cannot be written.
    """
    building = folder.with_name(f".building-{folder.name}-{uuid.uuid4().hex[:8]}")
    try:
        if folder.exists():
            return folder
        folder.parent.mkdir(exist_ok=True, parents=True)
        with cache_lock(folder.parent / f"{folder.name}.lock"):
            if folder.exists():
                return folder
            # A live build holds the lock, so these are of dead ones.
            for stale in folder.parent.glob(f".building-{folder.name}-*"):
                shutil.rmtree(stale, ignore_errors=True)
            building.mkdir()
            build(building)
            sync_folder(building)
            building.rename(folder)
    except OSError as error:
        raise cache_error(error, folder.parents[1], what) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder
