"""Snapshots: rows of a source as Parquet files in the cache, so that runs repeat.

A snapshot is named by its content, and its record is written last. Readers of a source use its
current snapshot.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raygnn.console import say
from raygnn.data.arrays import sync_folder
from raygnn.data.cache import BUILDING, cache_errors, cache_folder, is_as_built, write_note
from raygnn.data.filesystem import locked, read_text, write_text
from raygnn.data.tables.source import Source
from raygnn.errors import DataError
from raygnn.redaction import redact

RECORD = "snapshot.json"
_CURRENT = "current"
_ROW_GROUP_BYTES = 64 << 20
_MAX_ROW_GROUP_ROWS = 1 << 17
_ROW_GROUPS = 16  # of a file


@dataclass(frozen=True)
class SnapshotRecord:
    """Content of a snapshot.

    Attributes:
        source: type and arguments of the source, without secrets.
        time: start of the reading, UTC.
        sha256: of the files.
    """

    source: dict[str, Any]
    time: str
    num_rows: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.num_rows:,} rows of {self.time}, sha256 {self.sha256[:16]}"


@dataclass(frozen=True)
class Snapshots:
    """The snapshots of one source, in a folder of the cache."""

    source: Mapping[str, Any]
    folder: Path

    @classmethod
    def of(cls, source: Source, cache_dir: str | None) -> Snapshots:
        """`source`: with absolute paths."""
        content = {"type": source.type, **source.args}
        key = hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()
        return cls(redact(content), cache_folder(cache_dir, "snapshots") / key[:20])

    def current(self) -> Path | None:
        """The snapshot to read; None if there is none, or it has lost files."""
        pointer = self.folder / _CURRENT
        path = self.folder / read_text(pointer) if pointer.exists() else None
        return path if path is not None and is_as_built(path) else None

    def take(self, batches: Iterable[pa.RecordBatch]) -> Path:
        """Stores all rows as a snapshot, which `use` makes current.

        Raises a DataError for a column that Parquet cannot store, a ResourceError if the cache has
        no room, or an error of `batches`. Then nothing is stored.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with cache_errors(self.folder, "rows"), locked(str(self.folder / "lock"), say):
            for left in self.folder.glob(f"{BUILDING}*"):  # of a process that died
                shutil.rmtree(left)
            unfinished = self.folder / f"{BUILDING}{uuid.uuid4().hex[:8]}"
            unfinished.mkdir()
            try:
                record = self._write(unfinished, batches)
                path = self.folder / record.sha256[:16]
                if not is_as_built(path):
                    shutil.rmtree(path, ignore_errors=True)
                    unfinished.rename(path)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
        return path

    def _write(self, folder: Path, batches: Iterable[pa.RecordBatch]) -> SnapshotRecord:
        time = datetime.now(UTC).isoformat(timespec="seconds")
        num_rows, digest = 0, hashlib.sha256()
        for path, rows in _write_files(folder, batches):
            num_rows += rows
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        record = SnapshotRecord(dict(self.source), time, num_rows, digest.hexdigest())
        write_text(folder / RECORD, json.dumps(asdict(record), indent=1, default=str))
        write_note(folder)
        sync_folder(folder)
        return record

    def use(self, path: Path) -> None:
        write_text(self.folder / _CURRENT, path.name)


def read_record(path: Path) -> SnapshotRecord:
    return SnapshotRecord(**json.loads(read_text(path / RECORD)))


def _write_files(folder: Path, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Path, int]]:
    """Writes files of one schema each, and yields them with their rows. Files do not depend on the
    sizes of the batches.
    """
    writer: pq.ParquetWriter | None = None
    number = num_groups = num_rows = 0
    path = folder
    for group in _row_groups(map(_storable, batches)):
        is_full = num_groups == _ROW_GROUPS
        if writer is not None and (is_full or not writer.schema.equals(group.schema)):
            writer.close()
            yield path, num_rows
            writer = None
        if writer is None:
            path = folder / f"part-{number:05d}.parquet"
            writer = pq.ParquetWriter(path, group.schema)
            number, num_groups, num_rows = number + 1, 0, 0
        writer.write_table(group)
        num_groups, num_rows = num_groups + 1, num_rows + group.num_rows
    if writer is None:
        raise DataError("it has no rows, and no columns. Check it.", id="source-no-columns")
    writer.close()
    yield path, num_rows


def _row_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Tables of equal numbers of rows, and the rest before each change of schema."""
    held: list[pa.Table] = []
    size = num_held = 0
    is_first = True
    for table in tables:
        if held and not held[0].schema.equals(table.schema):
            if num_held or is_first:
                yield pa.concat_tables(held)
            held, num_held, is_first = [], 0, False
        if not size and table.num_rows:
            of_row = max(1, table.nbytes // table.num_rows)
            size = max(
                1024, min(_MAX_ROW_GROUP_ROWS, 1 << (_ROW_GROUP_BYTES // of_row).bit_length())
            )
        held.append(table)
        num_held += table.num_rows
        while size and num_held >= size:
            joined = pa.concat_tables(held)
            yield joined.slice(0, size)
            held, num_held, is_first = [joined.slice(size)], num_held - size, False
    if num_held or (held and is_first):
        yield pa.concat_tables(held)


def _storable(batch: pa.RecordBatch | pa.Table) -> pa.Table:
    """Rows in types that Parquet and ingest have."""
    table = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
    fields, columns = [], []
    for field, column in zip(table.schema, table.columns, strict=True):
        columns.append(_plain(field, column))
        fields.append(pa.field(field.name, columns[-1].type))
        _check_type(fields[-1])
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _plain(field: pa.Field, column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = field.type
    if isinstance(kind, pa.BaseExtensionType):
        storage = pa.chunked_array([c.storage for c in column.chunks], kind.storage_type)
        if getattr(kind, "type_name", None) == "numeric":  # a text, in ADBC's PostgreSQL
            return pc.cast(storage, pa.float64())
        if kind.extension_name == "arrow.uuid":
            texts = [v if v is None else str(uuid.UUID(bytes=v)) for v in storage.to_pylist()]
            return pa.chunked_array([pa.array(texts, pa.string())])
        return storage
    if pa.types.is_decimal(kind):
        return pc.cast(column, pa.float64() if kind.scale else pa.int64())
    return column


def _check_type(field: pa.Field) -> None:
    try:
        pq.ParquetWriter(io.BytesIO(), pa.schema([field])).close()
    except pa.ArrowNotImplementedError as error:
        raise DataError(
            f"column {field.name!r} is of type {field.type}, which cannot be stored. Convert it in "
            "the query, or leave it out.",
            id="source-column-type",
        ) from error
