"""Snapshots: rows of a source as Parquet files in the cache, so that runs repeat.

A snapshot is named by its content, and its record is written last. Readers of a source use its
current snapshot.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raygnn.console import say
from raygnn.data import cache
from raygnn.data.arrays import sync_folder
from raygnn.data.file_lock import locked
from raygnn.data.filesystem import read_text, write_text
from raygnn.data.tables.source import UNFIT, Source
from raygnn.errors import DataError
from raygnn.redaction import redact

RECORD = "snapshot.json"
_CURRENT = "current"
_NUM_KEPT = 5
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
        left_out: types of columns that cannot be stored, by name.
    """

    source: dict[str, Any]
    time: str
    num_rows: int
    sha256: str
    left_out: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        columns = _list_types(self.left_out)
        text = f"{self.num_rows:,} rows of {self.time}, sha256 {self.sha256[:16]}"
        return f"{text}; left out, as they cannot be stored{columns}" if columns else text


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
        return cls(redact(content), cache.cache_folder(cache_dir, "snapshots") / key[:20])

    def current(self) -> Path | None:
        """The snapshot to read; None if there is none, or it has lost files."""
        pointer = self.folder / _CURRENT
        path = self.folder / read_text(pointer) if pointer.exists() else None
        return path if path is not None and cache.is_as_built(path) else None

    def take(self, batches: Iterable[pa.RecordBatch]) -> Path:
        """Stores all rows as a snapshot, which `use` makes current.

        Raises a DataError without columns, a ResourceError if the cache has no room, or an error of
        `batches`. Then nothing is stored.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with cache.cache_errors(self.folder, "rows"), locked(str(self.folder / "lock"), say):
            for left in self.folder.glob(f"{cache.BUILDING}*"):  # of a process that died
                shutil.rmtree(left)
            unfinished = self.folder / f"{cache.BUILDING}{uuid.uuid4().hex[:8]}"
            unfinished.mkdir()
            try:
                record = self._write(unfinished, batches)
                path = self.folder / record.sha256[:16]
                if not cache.is_as_built(path):
                    shutil.rmtree(path, ignore_errors=True)
                    unfinished.rename(path)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
        return path

    def _write(self, folder: Path, batches: Iterable[pa.RecordBatch]) -> SnapshotRecord:
        time = datetime.now(UTC).isoformat(timespec="seconds")
        num_rows, digest, columns = 0, hashlib.sha256(), _Columns()
        for path, rows in list(_write_files(folder, map(columns.storable, batches))):
            names = pq.read_schema(path).names
            if not columns.left_out.keys().isdisjoint(names):
                names = [name for name in names if name not in columns.left_out]
                pq.write_table(pq.read_table(path, columns=names), path)
            num_rows += rows
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        content = dict(self.source), time, num_rows, digest.hexdigest(), columns.left_out
        record = SnapshotRecord(*content)
        write_text(folder / RECORD, json.dumps(asdict(record), indent=1, default=str))
        cache.write_note(folder)
        sync_folder(folder)
        return record

    def use(self, path: Path) -> None:
        write_text(self.folder / _CURRENT, path.name)
        os.utime(path)

    def remove_old(self) -> None:
        """Removes all but the latest 5 snapshots, and those that a process keeps."""
        cache.remove_unclaimed(self.folder, _NUM_KEPT)


def _list_types(columns: Mapping[str, str]) -> str:
    return "".join(f", {name} ({types})" for name, types in columns.items()).replace(", ", ": ", 1)


def read_record(path: Path) -> SnapshotRecord:
    return SnapshotRecord(**json.loads(read_text(path / RECORD)))


def _write_files(folder: Path, tables: Iterable[pa.Table]) -> Iterator[tuple[Path, int]]:
    """Writes files of one schema each, and yields them with their rows. Files do not depend on the
    sizes of the batches.
    """
    writer: pq.ParquetWriter | None = None
    number = num_groups = num_rows = 0
    path = folder
    for group in _row_groups(tables):
        is_full = num_groups == _ROW_GROUPS
        if writer is not None and (is_full or not writer.schema.equals(group.schema)):
            writer.close()
            yield path, num_rows
            writer = None
        if writer is None:
            path = folder / f"part-{number:05d}.parquet"
            # Dictionaries of numbers take four times as long, and more room.
            texts = [f.name for f in group.schema if not pa.types.is_primitive(f.type)]
            writer = pq.ParquetWriter(path, group.schema, use_dictionary=texts)
            number, num_groups, num_rows = number + 1, 0, 0
        writer.write_table(group)
        num_groups, num_rows = num_groups + 1, num_rows + group.num_rows
    if writer is None:
        raise DataError("it has no rows and no columns. Check it. [source-no-rows]")
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


class _Columns:
    """Leaves out columns that Parquet cannot store, or whose types in two batches differ in kind.

    Attributes:
        left_out: their types, by name.
    """

    def __init__(self) -> None:
        self.left_out: dict[str, str] = {}
        self._schemas: dict[str, pa.Schema] = {}

    def storable(self, batch: pa.RecordBatch | pa.Table) -> pa.Table:
        """Rows in types that Parquet and ingest have. Raises a DataError if no column is left."""
        table = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
        names, columns = [], []
        for given, column in zip(table.schema, table.columns, strict=True):
            if (kinds := (given.metadata or {}).get(UNFIT)) is not None:
                self.left_out.setdefault(given.name, kinds.decode())
            elif given.name not in self.left_out:
                try:
                    columns.append(self._checked(given.name, _plain(given, column)))
                    names.append(given.name)
                except pa.ArrowException:
                    fields = [*self._schemas.get(given.name, ()), given]
                    kinds = dict.fromkeys(str(each.type) for each in fields)
                    self.left_out[given.name] = " and ".join(kinds)
        if not columns:
            raise DataError(
                f"it has no columns that can be stored{_list_types(self.left_out)}. Convert them "
                "in a query. [source-no-columns]"
            )
        return pa.Table.from_arrays(columns, names)

    def _checked(self, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Raises an error of Arrow if the column cannot be stored beside its earlier values."""
        before, schema = self._schemas.get(name), pa.schema([pa.field(name, column.type)])
        if before is None:
            pq.ParquetWriter(io.BytesIO(), schema).close()
        elif not before.equals(schema):
            schema = pa.unify_schemas([before, schema], promote_options="permissive")
        self._schemas[name] = schema
        return column


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
