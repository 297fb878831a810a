"""The name of a bundle: a hash over everything that its content follows from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from raygnn.data.filesystem import open_fs, redact
from raygnn.data.manifest import Manifest
from raygnn.data.tables.files import TableFile
from raygnn.errors import DataError

# Small files are what people edit by hand, and a Parquet footer does not change with every value;
# reading this much takes some 20 ms.
_WHOLE_CONTENT_BYTES = 16 << 20
_CHUNK_BYTES = 4 << 20
_THREADS = 16
_MAGIC = b"PAR1"


def fingerprint(
    manifest: Manifest,
    options: Mapping[str, Any],
    files: Mapping[str, Sequence[TableFile]],
    format_version: int,
) -> str:
    """Names the bundle of these tables under these options.

    Args:
        options: ingest options, as JSON values.
        files: the files of each table, in their order.
        format_version: version of the bundle's own layout.
    Returns:
        32 hexadecimal digits.
    """
    flat = [(table, file) for table, listed in files.items() for file in listed]
    with ThreadPoolExecutor(_THREADS) as pool:
        marks = list(pool.map(content_mark, [file for _, file in flat]))
    content = {
        "bundle_version": format_version,
        "manifest": manifest.model_dump(mode="json"),
        "options": dict(options),
        "files": [
            [table, file.name, file.size, mark]
            for (table, file), mark in zip(flat, marks, strict=True)
        ],
    }
    # Keys keep their order: types and columns are listed in the manifest's.
    text = json.dumps(content, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def content_mark(file: TableFile) -> str:
    """A text that changes when the file's content does.

    The store's etag where it has one; the hash of the content for CSV and for small files; for
    large Parquet files the hash of the footer and, on a local disk, the time of the last change.
    """
    if file.version is not None:
        return f"version:{file.version}"
    if file.format == "csv" or file.size <= _WHOLE_CONTENT_BYTES:
        return f"content:{_hash_content(file)}"
    return f"footer:{_hash_footer(file)}:{file.modified}"


def _hash_content(file: TableFile) -> str:
    fs, path = open_fs(file.uri)
    digest = hashlib.sha256()
    with fs.open(path, "rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _hash_footer(file: TableFile) -> str:
    fs, path = open_fs(file.uri)
    tail: bytes = fs.cat_file(path, start=file.size - 8, end=file.size)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or length + 8 > file.size:
        raise DataError(
            f"{redact(file.name)} cannot be read as Parquet: its last bytes are not those of a "
            "footer. Write the file again; it may be cut off or of another format.",
            id="table-parquet-unreadable",
        )
    footer: bytes = fs.cat_file(path, start=file.size - 8 - length, end=file.size - 8)
    return hashlib.sha256(footer).hexdigest()
