"""Pieces: the units of work of an ingest, each a run of row groups of one file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.ingest.scan import ScannedTable, Shard
from raygnn.data.tables import csv_tables
from raygnn.data.tables.files import TableFormat, open_parquet

# A piece is large against the cost of a task and small against a worker's memory.
PIECE_BYTES = 128 << 20
# Rows that are held and checked at once, by their uncompressed bytes.
_BLOCK_BYTES = 16 << 20
_MIN_BLOCK_ROWS = 1024
_MAX_BLOCK_ROWS = 1 << 18


@dataclass(frozen=True)
class Piece:
    """Some row groups of one file.

    Attributes:
        row_groups: their numbers in the file; none for CSV, which is read whole.
        row_start: first row in the table.
        file_row_start: first row in the file, counted from 0.
        block_rows: rows to read at once.
    """

    uri: str
    name: str
    format: TableFormat
    row_groups: tuple[int, ...]
    row_start: int
    file_row_start: int
    num_rows: int
    block_rows: int


def cut_table(table: ScannedTable) -> list[Piece]:
    """Cuts the shards of a table into pieces, in the order of the rows."""
    return [piece for shard in table.shards for piece in _cut_shard(shard) if piece.num_rows]


def _cut_shard(shard: Shard) -> Iterator[Piece]:
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
        yield Piece(
            file.uri,
            file.name,
            file.format,
            groups,
            shard.row_start + row,
            row,
            num_rows,
            max(_MIN_BLOCK_ROWS, min(block, _MAX_BLOCK_ROWS)),
        )
        start, row = stop, row + num_rows


def read_blocks(
    piece: Piece, types: Mapping[str, pa.DataType]
) -> Iterator[tuple[int, Mapping[str, pa.Array]]]:
    """Reads the columns of a piece, block by block.

    Args:
        types: plain type of each column to read.
    Yields:
        Offset of the block in the piece, and its columns without dictionaries.
    """
    offset = 0
    if piece.format == "csv":
        for batch in csv_tables.read_batches(piece.uri, piece.name, types):
            yield offset, _columns(batch, list(types))
            offset += batch.num_rows
        return
    columns = list(types)
    with open_parquet(piece.uri) as file:
        for batch in file.iter_batches(
            batch_size=piece.block_rows, row_groups=list(piece.row_groups), columns=columns
        ):
            yield offset, _columns(batch, columns)
            offset += batch.num_rows


def _columns(batch: pa.RecordBatch, names: Sequence[str]) -> dict[str, pa.Array]:
    return {name: _decoded(batch.column(name)) for name in names}


def _decoded(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        return pc.cast(column, column.type.value_type)
    return column
