"""Checksums of stored files, and of the JSON records that list them.

Every open checks a file's size and the CRC-32 of its first and last block, which costs two small
reads. `raygnn doctor` reads complete files. CRC-32 detects damage, not tampering.
"""

from __future__ import annotations

import functools
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from raygnn.data import filesystem
from raygnn.data.filesystem import redact
from raygnn.data.storage_retry import retried
from raygnn.errors import DataError

_BLOCK_BYTES = 4096
_CHUNK_BYTES = 4 << 20
_THREADS = 8
_OWN = "checksum"  # key of a record's own checksum

Folder = str | os.PathLike[str]
RecordT = TypeVar("RecordT")


class Checksum(NamedTuple):
    """CRC-32 of the first and last block of a file, and of all its bytes."""

    ends: int
    whole: int


def checksum(content: bytes) -> Checksum:
    return Checksum(
        zlib.crc32(content[-_BLOCK_BYTES:], zlib.crc32(content[:_BLOCK_BYTES])), zlib.crc32(content)
    )


def file_sizes(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def file_checksums(folder: str | os.PathLike[str], names: Iterable[str]) -> dict[str, Checksum]:
    """Checksums of complete files, read in threads."""
    uris = {name: filesystem.join(os.fspath(folder), name) for name in names}
    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(uris, pool.map(_read_completely, uris.values()), strict=True))


def listing(folder: Path) -> dict[str, Any]:
    """Sizes and checksums of the files of a folder, as fields of a record."""
    sizes = file_sizes(folder)
    return {"file_sizes": sizes, "checksums": file_checksums(folder, sizes)}


def find_damage(
    folder: str | os.PathLike[str], sizes: Mapping[str, int], checksums: Mapping[str, Checksum]
) -> str | None:
    """Describes the first file that is missing, has another size, or differs at its ends.

    Folders that are not on a local disk are checked only for sizes.
    """
    place, remote = os.fspath(folder), filesystem.is_remote(folder)
    files = filesystem.files_below(place) if remote else {}
    for name, size in sizes.items():
        actual = files.get(name) if remote else _size(filesystem.join(place, name))
        if actual != size:
            shown = "is missing" if actual is None else f"has {actual:,} bytes instead of {size:,}"
            return f"{name} {shown}"
        if (
            not remote
            and _checksum_of_ends(filesystem.join(place, name), size) != checksums[name].ends
        ):
            return f"the beginning or end of {name} has changed since it was written"
    return None


def changed_files(folder: str | os.PathLike[str], checksums: Mapping[str, Checksum]) -> list[str]:
    checksums_now = file_checksums(folder, checksums)
    return [name for name, sums in checksums_now.items() if sums.whole != checksums[name].whole]


def dump_record(content: Mapping[str, Any]) -> str:
    """JSON of a record, with a checksum of itself."""
    return json.dumps({**content, _OWN: _checksum_of_record(content)}, indent=1)


def parse_record(text: str | bytes) -> dict[str, Any]:
    """Reads a record. Raises a ValueError if it is damaged."""
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    check_record(content)
    return content


def check_record(content: dict[str, Any]) -> None:
    """Removes and verifies a record's checksum. Raises a ValueError if it is missing or differs."""
    if content.pop(_OWN, None) != _checksum_of_record(content):
        raise ValueError("it has changed since it was written")


def read_listing(content: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, Checksum]]:
    """Sizes and checksums of files. Raises a KeyError or ValueError if they are invalid."""
    sizes = type_adapter(dict[str, int]).validate_python(content["file_sizes"])
    return sizes, type_adapter(dict[str, Checksum]).validate_python(content["checksums"])


@dataclass(frozen=True)
class Seal:
    """A kind of JSON records that complete a folder: written last, and checked when they are read.

    Attributes:
        damaged, outdated: ids of errors.
        remedy: of both.
    """

    format: str
    version: int
    damaged: str
    outdated: str
    remedy: str

    def damage(self, folder: Folder, cause: object) -> DataError:
        """The error of a folder that has changed since it was written."""
        what = redact(os.fspath(folder))
        return DataError(f"{what} is damaged: {cause}. {self.remedy}.", id=self.damaged)

    def check(self, folder: Folder, record: Any, *, completely: bool = False) -> None:
        """Raises a DataError if a file that a record lists is missing, or differs at its ends or,
        `completely`, anywhere.
        """
        damage = find_damage(folder, record.file_sizes, record.checksums)
        if damage is None and completely and (changed := changed_files(folder, record.checksums)):
            damage = f"{changed[0]} has changed since it was written"
        if damage is not None:
            raise self.damage(folder, damage)

    def write(self, folder: Folder, name: str, record: Any) -> None:
        """Writes a record, a dataclass, as `name` in a folder."""
        filesystem.write_text(filesystem.join(os.fspath(folder), name), self.dump(record))

    def dump(self, record: Any) -> str:
        return dump_record({"format": self.format, "version": self.version, **asdict(record)})

    def read(self, folder: Folder, name: str, kind: type[RecordT]) -> RecordT:
        """Reads a record. Raises a DataError if it is damaged, or has another format or version."""
        written = filesystem.read_bytes(filesystem.join(os.fspath(folder), name))
        try:
            content = parse_record(written)
            found = content.get("format"), content.get("version")
            if found == (self.format, self.version):
                record: RecordT = type_adapter(cast("Any", kind)).validate_python(content)
                return record
        except ValueError as error:
            cause = f"{name} is not a valid record: {cause_of(error)}"
            raise self.damage(folder, cause) from error
        words = "format {!r} version {!r}; this raygnn reads {!r} version {!r}"
        raise DataError(
            f"{redact(os.fspath(folder))} cannot be read: it has "
            f"{words.format(*found, self.format, self.version)}. {self.remedy}.",
            id=self.outdated,
        )


@functools.cache
def type_adapter(kind: Any) -> TypeAdapter[Any]:
    """Pydantic's reader of a record type, cached because building it takes milliseconds."""
    return TypeAdapter(kind)


def cause_of(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return f"{type(error).__name__}: {error}"


def _checksum_of_record(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def _checksum_of_ends(path: str, size: int) -> int:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        first = os.pread(descriptor, _BLOCK_BYTES, 0)
        last = os.pread(descriptor, _BLOCK_BYTES, max(size - _BLOCK_BYTES, 0))
    finally:
        os.close(descriptor)
    return zlib.crc32(last, zlib.crc32(first))


@retried
def _read_completely(uri: str) -> Checksum:
    fs, path = filesystem.open_fs(uri)
    first, last, whole = b"", b"", 0
    with fs.open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            first = first or chunk[:_BLOCK_BYTES]
            last = (last + chunk[-_BLOCK_BYTES:])[-_BLOCK_BYTES:]
            whole = zlib.crc32(chunk, whole)
    return Checksum(zlib.crc32(last, zlib.crc32(first)), whole)
