"""Parts of a graph that lie in a bucket, on the disk of this machine."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from raygnn.data.bundle_record import find_damage
from raygnn.data.cache import build_once
from raygnn.data.filesystem import absolute, is_remote, join, open_fs, retried
from raygnn.data.partition.record import Folder, PartitionRecord, check_part, part_name

Progress = Callable[[str], None]

_FILES_AT_ONCE = 8
_REPORT_EVERY_S = 10.0


def absolute_folder(folder: Folder) -> str:
    """The folder of a partitioned graph, as any working folder names it: a path or a URI."""
    return absolute(folder)


def part_on_disk(
    folder: Folder, record: PartitionRecord, part: int, cache: Path, progress: Progress
) -> Path:
    """A part on a disk, fetched into the cache where it is in a bucket.

    Args:
        folder: of the partitioned graph, absolute.
        cache: folder of fetched parts.
    Raises:
        DataError: the part is missing, damaged, or of another partition.
        ResourceError: the cache cannot be written, or is full.
    """
    uri = join(os.fspath(folder), part_name(part))
    sizes = check_part(uri, record.fingerprint, part)
    if not is_remote(uri):
        return Path(uri)
    return build_once(
        cache / f"{record.fingerprint}-fetched-{part_name(part)}",
        lambda target: _fetch(uri, sizes, target, f"part {part}", progress),
        f"part {part} of the graph",
        is_whole=lambda built: built.exists() and find_damage(built, sizes) is None,
    )


@contextmanager
def parts_on_disk(
    folder: Folder,
    record: PartitionRecord,
    scratch: Path,
    is_read: Callable[[str], bool] = lambda _: True,
    progress: Progress = lambda _: None,
) -> Iterator[list[Path]]:
    """Folders with files of all parts; of parts in a bucket they are here meanwhile.

    Args:
        folder: of the partitioned graph, absolute.
        scratch: folder for what is fetched; it is removed at the end.
        is_read: whether a file of a part, by its path in it, is fetched.
    Raises:
        DataError: a part is missing, damaged, or of another partition.
    """
    uris = [join(os.fspath(folder), part_name(part)) for part in range(record.num_parts)]
    if not is_remote(folder):
        yield [Path(uri) for uri in uris]
        return
    targets = [scratch / part_name(part) for part in range(record.num_parts)]
    try:
        for part, (uri, target) in enumerate(zip(uris, targets, strict=True)):
            sizes = check_part(uri, record.fingerprint, part)
            read = {name: size for name, size in sizes.items() if is_read(name)}
            _fetch(uri, read, target, f"part {part}", progress)
        yield targets
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _fetch(uri: str, sizes: Mapping[str, int], target: Path, what: str, progress: Progress) -> None:
    """Copies files of a folder in a bucket."""
    total, done = sum(sizes.values()), 0
    started = reported = time.monotonic()
    lock = threading.Lock()

    def fetch(name: str) -> None:
        nonlocal done, reported
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        _copy(join(uri, name), path)
        with lock:
            done, now = done + sizes[name], time.monotonic()
            if now - reported >= _REPORT_EVERY_S and done < total:
                left_s = (now - started) / done * (total - done) if done else 0.0
                progress(
                    f"{what}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB fetched, "
                    f"about {left_s:,.0f} s left"
                )
                reported = now

    with ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="fetch") as threads:
        list(threads.map(fetch, sizes))
    progress(f"{what}: {total / 1e6:,.0f} MB fetched in {time.monotonic() - started:,.0f} s")


@retried
def _copy(uri: str, path: Path) -> None:
    fs, there = open_fs(uri)
    fs.get_file(there, str(path))
