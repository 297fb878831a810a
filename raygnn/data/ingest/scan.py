"""The scan stage: shards, row counts and one schema per table, and a fingerprint of all tables."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from raygnn.data.filesystem import open_fs, redact
from raygnn.data.ingest.schedule import Schedule, in_threads
from raygnn.data.manifest import Manifest
from raygnn.data.tables.csv_tables import CsvSniff, common_types, sniff
from raygnn.data.tables.files import TableFile, open_parquet
from raygnn.data.transforms.fitted import FittedColumn
from raygnn.errors import DataError, with_id

# Footers are small reads that mostly wait for the disk or the store.


@dataclass(frozen=True)
class Shard:
    """One file of a table.

    Attributes:
        row_groups: rows of each row group; a CSV file counts as one.
        row_group_bytes: uncompressed size of each row group.
        row_start: row of the table at which the file starts.
    """

    file: TableFile
    row_groups: tuple[int, ...]
    row_group_bytes: tuple[int, ...]
    row_start: int

    @property
    def num_rows(self) -> int:
        return sum(self.row_groups)


@dataclass(frozen=True)
class ScannedTable:
    """A table after the scan.

    Attributes:
        name: `node_types.user` or `edge_types.user__buys__item`.
        types: Arrow type of each needed column, in plain form (no dictionaries or views).
        fitted: transforms by column, for features with any.
    """

    name: str
    shards: tuple[Shard, ...]
    types: Mapping[str, pa.DataType]
    fitted: Mapping[str, tuple[FittedColumn | None, ...]] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        return sum(shard.num_rows for shard in self.shards)


@dataclass(frozen=True)
class _Footer:
    names: tuple[str, ...]
    types: Mapping[str, pa.DataType]
    row_groups: tuple[int, ...]
    row_group_bytes: tuple[int, ...]


@dataclass(frozen=True)
class TableColumns:
    """The needed columns of a table.

    Attributes:
        names: distinct names of all.
        quantities: columns whose numbers may become floats: not ids, labels, splits and times.
        id: column of ids that are not ids of another table. Its leading zeros count.
    """

    names: Sequence[str]
    quantities: Collection[str]
    id: str | None = None


def scan_tables(
    tables: Sequence[tuple[str, Sequence[TableFile], TableColumns]], schedule: Schedule
) -> list[ScannedTable]:
    """Reads footers (Parquet) or whole files (CSV) of tables, each (name, files, needed columns).

    Raises a DataError if a column is missing, repeated, or differs in type between shards. Problems
    of all tables are listed.
    """
    sniffs = [
        CsvSniff(file.uri, file.name, tuple(columns.names), file.csv)
        for _, files, columns in tables
        for file in files
        if file.format == "csv"
    ]
    shapes = iter(schedule(sniff, sniffs, "scanning CSV files") if sniffs else [])
    scanned, problems = [], []
    for name, files, columns in tables:
        footers = _parquet_footers(files)
        texts = {i: next(shapes) for i, file in enumerate(files) if file.format == "csv"}
        csv_types = common_types(list(texts.values()), columns.names, [columns.id])
        for i, shape in texts.items():
            footers[i] = _Footer(shape.header, {}, (shape.num_rows,), (files[i].size,))
        table, wrong = _join_shards(name, files, footers, columns, csv_types)
        scanned.append(table)
        problems.extend(wrong)
    if problems:
        raise DataError("\n".join(problems))
    return scanned


def check_rows(table: ScannedTable) -> None:
    if table.num_rows == 0:
        raise DataError(
            f"{table.name}: no rows in {', '.join(shard.file.name for shard in table.shards[:5])}. "
            "Write the rows, or take the type out of graph.yaml. [table-empty]"
        )


def plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(pa.field("item", plain_type(kind.value_type)), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("item", plain_type(kind.value_type)))
    return kind


def _parquet_footers(files: Sequence[TableFile]) -> dict[int, _Footer]:
    chosen = [i for i, file in enumerate(files) if file.format == "parquet"]
    if not chosen:
        return {}
    footers = in_threads(_read_footer, [files[i] for i in chosen], "reading footers", _THREADS)
    return dict(zip(chosen, footers, strict=True))


def _read_footer(file: TableFile) -> _Footer:
    with open_parquet(file.uri, footer_only=True) as parquet:
        schema, metadata = parquet.schema_arrow, parquet.metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        return _Footer(
            tuple(schema.names),
            {field.name: plain_type(field.type) for field in schema},
            tuple(group.num_rows for group in groups),
            tuple(group.total_byte_size for group in groups),
        )


def _join_shards(
    name: str,
    files: Sequence[TableFile],
    footers: Mapping[int, _Footer],
    columns: TableColumns,
    csv_types: Mapping[str, pa.DataType],
) -> tuple[ScannedTable, list[str]]:
    problems: list[str] = []
    types: dict[str, tuple[pa.DataType, str]] = {}
    shards, row_start = [], 0
    for i, file in enumerate(files):
        footer = footers[i]
        for column in columns.names:
            if column not in footer.names:
                # The first line of a text that has none of the columns may be no header.
                is_header = (
                    file.format == "parquet"
                    or not file.csv.header
                    or any(c in footer.names for c in columns.names)
                )
                missing = _missing(file.name, column, footer.names, is_header)
                problems.append(f"{name}: {missing}")
                continue
            if (times := footer.names.count(column)) > 1:
                problem = with_id(
                    f"{name}: {file.name} has {times} columns {column!r}: it is ambiguous which "
                    f"of them is meant. Give each column its own name.",
                    id="table-column-twice",
                )
                problems.append(problem)
                continue
            kind = csv_types[column] if file.format == "csv" else footer.types[column]
            first, first_file = types.setdefault(column, (kind, file.name))
            wider = _wider(first, kind, may_be_float=column in columns.quantities)
            if wider is not None:
                types[column] = (wider, first_file if wider == first else file.name)
            else:
                problem = with_id(
                    f"{name}: column {column!r} is {first} in {first_file} but {kind} in "
                    f"{file.name}. Write all shards with one schema.",
                    id="table-column-types",
                )
                problems.append(problem)
        shards.append(Shard(file, footer.row_groups, footer.row_group_bytes, row_start))
        row_start += shards[-1].num_rows
    plain = {column: kind for column, (kind, _) in types.items()}
    return ScannedTable(name, tuple(shards), plain), problems


def _wider(a: pa.DataType, b: pa.DataType, *, may_be_float: bool) -> pa.DataType | None:
    """The type that can represent both; None if there is none."""
    if a == b or pa.types.is_null(b):
        return a
    if pa.types.is_null(a):
        return b
    if pa.types.is_list(a) and pa.types.is_list(b):
        item = _wider(a.value_type, b.value_type, may_be_float=may_be_float)
        return None if item is None else pa.list_(pa.field("item", item))
    if pa.types.is_integer(a) and pa.types.is_integer(b):
        return None if pa.uint64() in (a, b) else pa.int64()
    numbers = [pa.types.is_floating(kind) or pa.types.is_integer(kind) for kind in (a, b)]
    are_floats = pa.types.is_floating(a) and pa.types.is_floating(b)
    return pa.float64() if all(numbers) and (may_be_float or are_floats) else None


def _missing(file: str, column: str, names: Sequence[str], is_header: bool) -> str:
    close = difflib.get_close_matches(column, names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    shown = ", ".join(map(repr, names)) or "none"
    has = shown if is_header else f"{len(names)} others"
    return with_id(
        f"{file} has no column {column!r}.{hint} It has {has}. "
        "Name one of them in graph.yaml, or write the column.",
        id="table-column-missing",
    )


# Small files are what people edit by hand, and a Parquet footer does not change with every value;
# reading this much takes about 20 ms.
_WHOLE_CONTENT_BYTES = 16 << 20
_THREADS = 16
_MAGIC = b"PAR1"


def fingerprint(
    manifest: Manifest,
    options: Mapping[str, Any],
    files: Mapping[str, Sequence[TableFile]],
    format_version: int,
) -> str:
    flat = [(table, file) for table, listed in files.items() for file in listed]
    marks = in_threads(content_mark, [file for _, file in flat], "reading files", _THREADS)
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
    """A text that changes with the file's content.

    The store's etag if it has one; the hash of the content for CSV and small files; for large
    Parquet files the hash of the footer and, on a local disk, the time of the last change.
    """
    if file.version is not None:
        return f"version:{file.version}"
    if file.format == "csv" or file.size <= _WHOLE_CONTENT_BYTES:
        return f"content:{_hash_content(file)}"
    return f"footer:{_hash_footer(file)}:{file.modified}"


def _hash_content(file: TableFile) -> str:
    fs, path = open_fs(file.uri)
    with fs.open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _hash_footer(file: TableFile) -> str:
    fs, path = open_fs(file.uri)
    tail: bytes = fs.cat_file(path, start=file.size - 8, end=file.size)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or length + 8 > file.size:
        raise DataError(
            f"{redact(file.name)} cannot be read as Parquet: its footer is missing. Write the file "
            "again; it may be cut off. [table-parquet-unreadable]"
        )
    footer: bytes = fs.cat_file(path, start=file.size - 8 - length, end=file.size - 8)
    return hashlib.sha256(footer).hexdigest()
