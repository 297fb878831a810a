"""The files of a tables spec, read: columns by name or position, still as they are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.convert.text_files import read_text_table
from raygnn.data.filesystem import redact
from raygnn.data.tables.files import match_files, open_parquet, open_stream
from raygnn.data.tables.spec import Column, Files, HashShares, Reading, RelationColumn
from raygnn.errors import DataError

_PARQUET = (".parquet", ".pq")
_EXAMPLES = 5


@dataclass(frozen=True)
class SourceTable:
    """One file of a table.

    Attributes:
        where: the file, as messages name it.
        place: the spec's entry, as messages name it.
        table: columns of text, or those of a Parquet file.
        first_line: line of the first row; null for Parquet, whose rows count from 0.
        added: columns that the spec adds.
        has_header: whether columns have names.
    """

    where: str
    place: str
    table: pa.Table
    first_line: int | None
    added: Mapping[str, HashShares | str | int | float]
    has_header: bool

    @property
    def num_rows(self) -> int:
        """Rows of the file."""
        return int(self.table.num_rows)

    def column(self, spec: Column | RelationColumn, role: str) -> pa.Array:
        """A column's values, its text without surrounding blanks.

        Raises:
            DataError: there is no such column.
        """
        if isinstance(spec.column, str) and spec.column in self.added:
            value = self.added[spec.column]
            if isinstance(value, HashShares):
                raise DataError(
                    f"{self.place}.{role}={spec.column!r} is invalid: shares of a hash make a "
                    "split column, and no other. Use it as split, or add a value."
                )
            return pa.array([value] * self.num_rows)
        column = self.table.column(self._position(spec.column, role)).combine_chunks()
        if pa.types.is_dictionary(column.type):
            column = pc.cast(column, column.type.value_type)
        is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        return pc.utf8_trim_whitespace(column) if is_text else column

    def shares(self, spec: Column) -> HashShares | None:
        """The shares that a column stands for, if it does."""
        value = self.added.get(spec.column) if isinstance(spec.column, str) else None
        return value if isinstance(value, HashShares) else None

    def lines(self, rows: Sequence[int] | np.ndarray) -> str:
        """Where rows stand in the file, for messages."""
        shown = [int(row) + (self.first_line or 0) for row in rows[:_EXAMPLES]]
        word = "row" if self.first_line is None else "line"
        more = ", ..." if len(rows) > _EXAMPLES else ""
        return f"{word}{'s' if len(rows) > 1 else ''} {', '.join(map(str, shown))}{more}"

    def error(
        self, role: str, rule: str, rows: Sequence[int] | np.ndarray, remedy: str
    ) -> DataError:
        """The error of some rows of a column."""
        return DataError(
            f"{self.where}: {self.lines(rows)}: {self.place}.{role}: {rule}. {remedy}."
        )

    def _position(self, column: str | int, role: str) -> int:
        names = self.table.column_names
        if isinstance(column, int) and column < len(names):
            return column
        if self.has_header and column in names:
            return int(names.index(column))
        known = ", ".join(map(repr, names)) if self.has_header else "no names (header: false)"
        added = f", and added ones {', '.join(map(repr, self.added))}" if self.added else ""
        raise DataError(
            f"{self.where}: {self.place}.{role}={column!r} is invalid: there is no such column; "
            f"it has {len(names)} columns, from 0, of {known}{added}. Name one of these."
        )


def read_files(
    folder: str, files: Sequence[Files], table: Reading, whole: Reading, place: str
) -> Iterator[SourceTable]:
    """Reads the files of a table, in the order of the spec and of their names.

    Args:
        folder: where patterns start.
        table: settings of the table, under those of its files.
        whole: settings of the spec.
        place: what messages call the spec's entry.
    Raises:
        DataError: a pattern matches nothing, a file cannot be read, has no rows, or has not as many
            as its first line says.
    """
    for entry in files:
        reading = entry.over(table).over(whole)
        for pattern in entry.files:
            found = match_files(folder, pattern, f"{place}.files")
            if not found:
                raise DataError(
                    f"{place}.files={pattern!r} is invalid: no file matches it in "
                    f"{redact(folder)}. Check the pattern, which is relative to --data."
                )
            for uri, _ in found:
                yield _read(uri, reading, entry, place)


def _read(uri: str, reading: Reading, entry: Files, place: str) -> SourceTable:
    where = redact(uri)
    if uri.lower().endswith(_PARQUET):
        with open_parquet(uri) as file:
            table = file.read()
        first_line, has_header = None, True
    else:
        has_header = reading.header is not False
        num_skipped = (reading.skip_lines or 0) + (reading.count_line is True)
        option = f"{place}.separator"
        text = read_text_table(uri, reading.separator, has_header, num_skipped, option)
        table, first_line = text.table, num_skipped + has_header + 1
        if reading.count_line:
            _check_count(uri, reading.skip_lines or 0, table.num_rows, where)
    if table.num_rows == 0:
        raise DataError(f"{where}: {place}: the file has no rows. Take it out of the spec.")
    return SourceTable(where, place, table, first_line, entry.add, has_header)


def _check_count(uri: str, skip_lines: int, num_rows: int, where: str) -> None:
    with open_stream(uri) as stream:
        lines = stream.read(1 << 16).decode("utf-8", "replace").splitlines()
    line = lines[skip_lines].strip() if skip_lines < len(lines) else ""
    if not line.isdigit():
        raise DataError(
            f"{where}: line {skip_lines + 1}: {line!r} is no number of rows. Take count_line out."
        )
    if int(line) != num_rows:
        raise DataError(
            f"{where}: line {skip_lines + 1} says {int(line):,} rows, but {num_rows:,} follow. "
            "The file may be cut off; or take count_line out and set skip_lines one higher."
        )


def empty_rows(column: pa.Array) -> np.ndarray:
    """Positions of nulls and of empty texts."""
    empty = column.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        is_blank = pc.fill_null(pc.equal(column, ""), True)
        empty = empty | is_blank.to_numpy(zero_copy_only=False)
    return np.flatnonzero(empty)
