"""Pieces: the units of work of an ingest, some row groups of a file or some small files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.ingest.scan import ScannedTable, Shard, plain_type
from raygnn.data.tables import csv_tables
from raygnn.data.tables.files import TableFile, open_parquet

# A piece is large against the cost of a task and small against a worker's memory.
PIECE_BYTES = 128 << 20
# Files are put together into pieces of at least this size, and, if there is enough of them, into
# no fewer pieces than that.
_MIN_PIECE_BYTES = 1 << 20
_MIN_PIECES = 64
# Uncompressed bytes of the rows that are in memory and checked together.
_BLOCK_BYTES = 16 << 20
_MIN_BLOCK_ROWS = 1024
_MAX_BLOCK_ROWS = 1 << 18


@dataclass(frozen=True)
class Span:
    """Some row groups of one file.

    Attributes:
        row_groups: their numbers in the file; empty for CSV, which is read whole.
        file_row_start: first row in the file, counted from 0.
    """

    file: TableFile
    row_groups: tuple[int, ...]
    file_row_start: int
    num_rows: int
    block_rows: int


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a table: a part of one large file, or many small files."""

    spans: tuple[Span, ...]
    row_start: int

    @property
    def num_rows(self) -> int:
        return sum(span.num_rows for span in self.spans)

    @property
    def row_stop(self) -> int:
        return self.row_start + self.num_rows


class PieceTask:
    """Base of the tasks that read a piece."""

    piece: Piece

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(span.file.uri for span in self.piece.spans)


class Block(NamedTuple):
    """Rows of one file that are in memory together, without dictionaries."""

    offset: int
    file: str
    file_row: int
    columns: Mapping[str, pa.Array]


def cut_table(table: ScannedTable) -> list[Piece]:
    spans = [
        (span, size) for shard in table.shards for span, size in _cut_shard(shard) if span.num_rows
    ]
    # Small files share a task, but leave tasks for many processors.
    limit = min(PIECE_BYTES, max(_MIN_PIECE_BYTES, sum(size for _, size in spans) // _MIN_PIECES))
    pieces: list[Piece] = []
    held: list[Span] = []
    held_bytes = row = 0
    for span, size in spans:
        if held and held_bytes + size > limit:
            pieces.append(Piece(tuple(held), row))
            row = pieces[-1].row_stop
            held, held_bytes = [], 0
        held.append(span)
        held_bytes += size
    return [*pieces, Piece(tuple(held), row)] if held else pieces


def _cut_shard(shard: Shard) -> Iterator[tuple[Span, int]]:
    file = shard.file
    start, row = 0, 0
    while start < len(shard.row_groups):
        stop, size = start + 1, shard.row_group_bytes[start]
        while stop < len(shard.row_groups) and size + shard.row_group_bytes[stop] <= PIECE_BYTES:
            size += shard.row_group_bytes[stop]
            stop += 1
        num_rows = sum(shard.row_groups[start:stop])
        block = _BLOCK_BYTES * num_rows // max(size, 1)
        groups = tuple(range(start, stop)) if file.format == "parquet" else ()
        block_rows = max(_MIN_BLOCK_ROWS, min(block, _MAX_BLOCK_ROWS))
        yield Span(file, groups, row, num_rows, block_rows), size
        start, row = stop, row + num_rows


def read_blocks(piece: Piece, types: Mapping[str, pa.DataType]) -> Iterator[Block]:
    """Reads columns of a piece block by block, each of one file."""
    offset = 0
    for span in piece.spans:
        file_row = span.file_row_start
        for batch in _read_span(span, types, is_small=len(piece.spans) > 1):
            columns = {name: _decoded(batch.column(name), kind) for name, kind in types.items()}
            yield Block(offset, span.file.name, file_row, columns)
            offset += batch.num_rows
            file_row += batch.num_rows


def read_column(table: ScannedTable, column: str) -> Iterator[pa.Array]:
    """Reads one column of a table block by block."""
    for piece in cut_table(table):
        for block in read_blocks(piece, {column: table.types[column]}):
            yield block.columns[column]


def _read_span(
    span: Span, types: Mapping[str, pa.DataType], *, is_small: bool
) -> Iterator[pa.RecordBatch]:
    file = span.file
    if file.format == "csv":
        yield from csv_tables.read_batches(file.uri, file.name, types, file.csv)
        return
    with open_parquet(file.uri) as parquet:
        yield from parquet.iter_batches(
            batch_size=span.block_rows,
            row_groups=list(span.row_groups),
            columns=list(types),
            use_threads=not is_small,  # threads cost more than they save
        )


def _decoded(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """Without dictionaries, and of the table's type, which another file may have widened."""
    if pa.types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    if pa.types.is_null(column.type) or plain_type(column.type) == type_:
        return column
    return pc.cast(column, type_, safe=False)  # whole numbers above 2^53 become the next float
