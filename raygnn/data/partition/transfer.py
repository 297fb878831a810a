"""Moves the parts of a graph between a bucket and a disk."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from raygnn.console import Pace, compact
from raygnn.data.cache import build_once
from raygnn.data.checksums import find_damage
from raygnn.data.filesystem import delete, exists, is_remote, join, open_fs, write_bytes
from raygnn.data.partition.record import (
    PART_NAME,
    RECORD_NAME,
    Folder,
    PartitionRecord,
    check_part,
    part_folder,
    part_name,
)
from raygnn.data.storage_retry import retried
from raygnn.errors import DataError

Progress = Callable[[str], None]

_FILES_AT_ONCE = 8


def part_on_disk(
    folder: Folder, record: PartitionRecord, part: int, cache: Path, progress: Progress
) -> Path:
    """A part on a disk, fetched into the cache if it is in a bucket.

    Raises:
        DataError: the part is missing, damaged, or of another partition.
        ResourceError: the cache is not writable, or full.
    """
    uri = join(os.fspath(folder), part_name(part))
    listed = check_part(uri, record.fingerprint, part)
    if not is_remote(uri):
        return Path(uri)
    return build_once(
        cache / f"{record.fingerprint}-fetched-{part_name(part)}",
        lambda target: _fetch(uri, listed.file_sizes, target, f"part {part}", progress),
        f"part {part} of the graph",
        is_whole=lambda built: (
            built.exists() and find_damage(built, listed.file_sizes, listed.checksums) is None
        ),
    )


@contextmanager
def parts_on_disk(
    folder: Folder,
    record: PartitionRecord,
    scratch: Path,
    is_read: Callable[[str], bool],
    progress: Progress,
) -> Iterator[list[Path]]:
    """Folders with files of all parts, with temporary copies of parts in a bucket below `scratch`.

    `is_read`: whether a file of a part, by relative path, is fetched. Raises a DataError if a part
    is missing, damaged, or of another partition.
    """
    uris = [join(os.fspath(folder), part_name(part)) for part in range(record.num_parts)]
    if not is_remote(folder):
        yield [Path(uri) for uri in uris]
        return
    targets = [scratch / part_name(part) for part in range(record.num_parts)]
    try:
        for part, (uri, target) in enumerate(zip(uris, targets, strict=True)):
            sizes = check_part(uri, record.fingerprint, part).file_sizes
            read = {name: size for name, size in sizes.items() if is_read(name)}
            _fetch(uri, read, target, f"part {part}", progress)
        yield targets
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def send_parts(folder: Path, uri: str, record: PartitionRecord, progress: Progress) -> None:
    """Copies a partitioned graph into a bucket: its record last, and each part's part.json last.

    Parts that are already there are not sent again. Raises a DataError if a part is not complete
    here.
    """
    for part in range(record.num_parts):
        there = join(uri, part_name(part))
        sizes = check_part(part_folder(folder, part), record.fingerprint, part).file_sizes
        if exists(join(there, PART_NAME)):
            try:
                check_part(there, record.fingerprint, part)
            except DataError:  # it is sent anew
                delete(there)
            else:
                continue
        source = part_folder(folder, part)
        copy = partial(_send, source, there)
        _copy_all(copy, sizes, f"part {part}", "sent", progress)
        write_bytes(join(there, PART_NAME), (source / PART_NAME).read_bytes())
    write_bytes(join(uri, RECORD_NAME), (folder / RECORD_NAME).read_bytes())


def _fetch(uri: str, sizes: Mapping[str, int], target: Path, what: str, progress: Progress) -> None:
    for folder in {(target / name).parent for name in sizes}:
        folder.mkdir(parents=True, exist_ok=True)
    _copy_all(partial(_get, uri, target), sizes, what, "fetched", progress)


def _copy_all(
    copy: Callable[[str], None], sizes: Mapping[str, int], what: str, done: str, progress: Progress
) -> None:
    total, num_bytes = sum(sizes.values()), 0
    started, pace = time.monotonic(), Pace(what, total, "B", progress)
    with ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="copy") as threads:
        names = sorted(sizes, key=lambda name: -sizes[name])
        copied = {threads.submit(copy, name): name for name in names}
        for future in as_completed(copied):
            future.result()
            num_bytes += sizes[copied[future]]
            pace.reached(num_bytes)
    seconds = time.monotonic() - started
    progress(f"{what}: {compact(total)}B {done} in {seconds:,.0f} s")


@retried
def _get(uri: str, target: Path, name: str) -> None:
    fs, there = open_fs(join(uri, name))
    fs.get_file(there, str(target / name))


@retried
def _send(source: Path, uri: str, name: str) -> None:
    fs, there = open_fs(join(uri, name))
    fs.put_file(str(source / name), there)
