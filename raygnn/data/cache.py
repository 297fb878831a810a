"""Folders of the cache: built once, by one process at a time, for one or several users."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import filelock

from raygnn.data import checksums
from raygnn.data.arrays import sync_entry, sync_folder
from raygnn.data.filesystem import is_remote, redact, write_text
from raygnn.errors import DataError, ResourceError

CACHE_VARIABLE = "RAYGNN_CACHE_DIR"
BUILDING = ".building-"  # how folders begin that are not complete
#: Lists the files that a folder was built with.
NOTE = "written.json"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}  # also where no file is named
_LOCK_MODE = 0o666  # all users of a shared cache wait for the same locks


def cache_folder(cache_dir: str | os.PathLike[str] | None, part: str) -> Path:
    """A folder of the cache, created if missing. Default: $RAYGNN_CACHE_DIR or ~/.cache/raygnn.

    Raises:
        DataError: the cache is not on a local disk.
        ResourceError: it is not writable.
    """
    uri = cache_dir or os.environ.get(CACHE_VARIABLE) or "~/.cache/raygnn"
    if is_remote(uri):
        raise DataError(
            f"data.cache_dir={redact(os.fspath(uri))!r} is invalid: it is not local. Set a local "
            "folder. [data-cache-remote]"
        )
    try:
        folder = Path(os.fspath(uri)).expanduser().absolute() / part
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home
        raise _cache_error(error, Path(uri), f"folder {part}") from error
    return folder


def build_once(
    folder: Path,
    build: Callable[[Path], None],
    what: str = "the graph",
    *,
    is_whole: Callable[[Path], bool] | None = None,
    on_wait: Callable[[], None] = lambda: None,
) -> Path:
    """Builds a folder of the cache if it is missing or damaged.

    One process builds it, and it appears when complete.

    Args:
        build: fills a given folder.
        what: content of the folder, for messages.
        is_whole: whether the folder is complete. Default: compares it with a note of its files
            (`written.json`), which is then written too.
        on_wait: called if another process builds it.
    Raises:
        ResourceError: it must be built, and its parent folder is not writable.
    """
    has_note = is_whole is None
    is_whole = is_whole or is_as_built
    with cache_errors(folder.parent, what):
        if is_whole(folder):
            return folder
        folder.parent.mkdir(exist_ok=True, parents=True)
        with _acquire(_lock(folder.parent, folder.name), on_wait):
            if is_whole(folder):
                return folder
            _remove_dead_builds(folder)
            if folder.exists():
                shutil.rmtree(folder)
            with building(folder) as unfinished:
                build(unfinished)
                if has_note:
                    write_note(unfinished)
    return folder


@contextmanager
def building(folder: Path) -> Iterator[Path]:
    """Yields a folder to fill. It gets its name when it is complete and on the disk.

    If the node of a task dies, the task runs again on another. A node that only seemed dead may
    still run it, so each attempt fills its own folder, and the first one stays.
    """
    beside = folder.with_name(f"{BUILDING}{folder.name}-{uuid.uuid4().hex[:8]}")
    beside.mkdir(parents=True)
    try:
        yield beside
        sync_folder(beside)
        try:
            beside.rename(folder)
        except OSError:
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    sync_entry(folder.parent)


def noted_files(folder: Path) -> tuple[dict[str, int], dict[str, checksums.Checksum]] | None:
    """Sizes and checksums of the files that a folder was built with; None without a valid note."""
    try:
        return checksums.read_listing(checksums.parse_record((folder / NOTE).read_bytes()))
    except (FileNotFoundError, ValueError, KeyError):
        return None


def is_as_built(folder: Path) -> bool:
    noted = noted_files(folder)
    return noted is not None and checksums.find_damage(folder, *noted) is None


def write_note(folder: Path) -> None:
    write_text(folder / NOTE, checksums.dump_record(checksums.listing(folder)))


class Claim:
    """Protects a folder of the cache, which need not exist yet, from `remove_unclaimed`.

    Until the claim is collected, or its process ends in any way. Raises a ResourceError if the
    parent folder is not writable.
    """

    def __init__(self, folder: Path, what: str) -> None:
        with cache_errors(folder.parent, what):
            folder.parent.mkdir(exist_ok=True, parents=True)
            file = os.open(_claim(folder), os.O_RDONLY | os.O_CREAT, _LOCK_MODE)
            weakref.finalize(self, os.close, file)
            fcntl.flock(file, fcntl.LOCK_SH)


def remove_unclaimed(folder: Path, num_kept: int = 0) -> None:
    """Removes the subfolders that no process claims, except the ones with the latest times."""
    subfolders = sorted(
        filter(Path.is_dir, folder.iterdir()), key=lambda path: -path.stat().st_mtime
    )
    for subfolder in subfolders[num_kept:]:
        with suppress(OSError):  # it is claimed, or somebody else's
            file = os.open(_claim(subfolder), os.O_RDWR | os.O_CREAT, _LOCK_MODE)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(subfolder)
            finally:
                os.close(file)


def _claim(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.claim")


def _lock(folder: Path, name: str) -> filelock.BaseFileLock:
    return filelock.FileLock(folder / f"{name}.lock", mode=_LOCK_MODE)


def _acquire(
    lock: filelock.BaseFileLock, on_wait: Callable[[], None]
) -> filelock.AcquireReturnProxy:
    try:
        return lock.acquire(timeout=0)
    except filelock.Timeout:
        on_wait()
        return lock.acquire()


def _remove_dead_builds(folder: Path) -> None:
    for left in folder.parent.glob(f"{BUILDING}*-*"):
        owner = left.name.removeprefix(BUILDING).rpartition("-")[0]
        if owner == folder.name:
            shutil.rmtree(left, ignore_errors=True)
            continue
        # A live build holds its lock. One that this user may not open belongs to somebody else, who
        # cleans up himself.
        lock = _lock(folder.parent, owner)
        with suppress(filelock.Timeout, PermissionError), lock.acquire(timeout=0):
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def cache_errors(folder: Path, what: str) -> Iterator[None]:
    """Reports every failure to read or write a folder of the cache, or a full disk, as one error.

    Other failures, such as of reading a table, pass.
    """
    try:
        yield
    except OSError as error:
        named = os.path.abspath(os.fsdecode(error.filename)) if error.filename else ""
        if error.errno in _FULL or named == str(folder) or named.startswith(f"{folder}/"):
            raise _cache_error(error, folder, what) from error
        raise


def _cache_error(error: Exception, folder: Path, what: str) -> ResourceError:
    return ResourceError(
        f"data.cache_dir: {what} cannot be stored in {folder}: {error}. Set it, or "
        f"${CACHE_VARIABLE}, to a writable folder with enough room. [data-cache-unusable]"
    )
