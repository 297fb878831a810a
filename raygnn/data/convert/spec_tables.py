"""The files of a tables spec, and their columns in the types of graph tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.convert.text_files import read_text_table
from raygnn.data.filesystem import redact
from raygnn.data.tables.files import match_files, open_parquet, open_stream
from raygnn.data.tables.spec import Column, ColumnRange, Files, HashShares, Reading, RelationColumn
from raygnn.errors import DataError

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
                    "split column, and no other. Use it as split, or add a value.",
                    id="spec-hash-shares",
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
        self, role: str, rule: str, rows: Sequence[int] | np.ndarray, remedy: str, *, id: str
    ) -> DataError:
        """The error of some rows of a column."""
        return DataError(
            f"{self.where}: {self.lines(rows)}: {self.place}.{role}: {rule}. {remedy}.", id=id
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
            f"it has {len(names)} columns, from 0, of {known}{added}. Name one of these.",
            id="spec-column-missing",
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
                    f"{redact(folder)}. Check the pattern, which is relative to --data.",
                    id="data-files-missing",
                )
            for uri, _ in found:
                yield _read(uri, reading, entry, place)


def _read(uri: str, reading: Reading, entry: Files, place: str) -> SourceTable:
    where = redact(uri)
    if uri.lower().endswith((".parquet", ".pq")):
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
        raise DataError(
            f"{where}: {place}: the file has no rows. Take it out of the spec.",
            id="spec-file-empty",
        )
    return SourceTable(where, place, table, first_line, entry.add, has_header)


def _check_count(uri: str, skip_lines: int, num_rows: int, where: str) -> None:
    with open_stream(uri) as stream:
        lines = stream.read(1 << 16).decode("utf-8", "replace").splitlines()
    line = lines[skip_lines].strip() if skip_lines < len(lines) else ""
    if not line.isdigit():
        raise DataError(
            f"{where}: line {skip_lines + 1}: {line!r} is no number of rows. Take count_line out.",
            id="spec-count-line",
        )
    if int(line) != num_rows:
        raise DataError(
            f"{where}: line {skip_lines + 1} says {int(line):,} rows, but {num_rows:,} follow. "
            "The file may be cut off; or take count_line out and set skip_lines one higher.",
            id="spec-row-count",
        )


def empty_rows(column: pa.Array) -> np.ndarray:
    """Positions of nulls and of empty texts."""
    empty = column.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        is_blank = pc.fill_null(pc.equal(column, ""), True)
        empty = empty | is_blank.to_numpy(zero_copy_only=False)
    return np.flatnonzero(empty)


def ids(table: SourceTable, spec: Column, role: str) -> pa.Array:
    """Original ids: int64 where all are whole numbers, else texts; the offset is added.

    Raises:
        DataError: some are missing, of another type, or no numbers to add an offset to.
    """
    column = table.column(spec, role)
    empty = empty_rows(column)
    if len(empty):
        rule = f"{len(empty):,} ids are missing"
        raise table.error(
            role, rule, empty, "Fill them in, or take these rows out", id="spec-values-missing"
        )
    if pa.types.is_integer(column.type):
        numbers: pa.Array | None = pc.cast(column, pa.int64())
    elif _is_text(column):
        column = pc.cast(column, pa.large_string())
        numbers = whole_numbers(column)
    else:
        raise DataError(
            f"{table.where}: {table.place}.{role}={spec.column!r} is invalid: the column is "
            f"{column.type}. Ids are whole numbers or texts; name a column of these.",
            id="spec-id-type",
        )
    if spec.offset:
        if numbers is None:
            bad = [i for i, text in enumerate(column.to_pylist()) if not _is_whole(text)]
            rule = f"offset {spec.offset} cannot be added to {column[bad[0]].as_py()!r}"
            raise table.error(
                role, rule, bad, "Take offset out, or repair the ids", id="spec-offset"
            )
        numbers = pc.add(numbers, pa.scalar(spec.offset, pa.int64()))
    return column if numbers is None else numbers


def whole_numbers(texts: pa.Array) -> pa.Array | None:
    """Texts as int64, where each is written as a whole number is: 007 and 7 stay different ids."""
    try:
        numbers = pc.cast(texts, pa.int64())
    except pa.ArrowInvalid:
        return None
    return numbers if pc.cast(numbers, texts.type).equals(texts) else None


def numbers(table: SourceTable, spec: Column, role: str) -> np.ndarray:
    """A column of numbers as float64, offset added.

    Raises:
        DataError: some are missing, or no numbers.
    """
    column = table.column(spec, role)
    empty = empty_rows(column)
    if len(empty):
        raise table.error(
            role,
            f"{len(empty):,} values are missing",
            empty,
            "Fill them in",
            id="spec-values-missing",
        )
    try:
        values = pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _no_number(table, column, role) from error
    return np.asarray(values + spec.offset if spec.offset else values)


def times(table: SourceTable, spec: Column, role: str) -> pa.Array:
    """A column of times: whole numbers, numbers, or timestamps as ISO 8601 writes them.

    Raises:
        DataError: some are missing, or of none of these forms.
    """
    column = table.column(spec, role)
    empty = empty_rows(column)
    if len(empty):
        raise table.error(
            role,
            f"{len(empty):,} times are missing",
            empty,
            "Fill them in",
            id="spec-values-missing",
        )
    if not _is_text(column):
        return column
    for kind in (pa.int64(), pa.float64(), pa.timestamp("us")):
        try:
            return pc.cast(column, kind)
        except pa.ArrowInvalid:
            continue
    rule = f"{column[0].as_py()!r} and others are no times of one form"
    remedy = "Write numbers, or timestamps as 2024-01-31T12:00:00"
    raise table.error(role, rule, [0], remedy, id="spec-times")


def labels(table: SourceTable, spec: Column, role: str) -> pa.Array:
    """Labels: whole numbers where all are, else numbers, else texts; empty is unlabelled."""
    column = table.column(spec, role)
    if not _is_text(column):
        return column
    texts = pc.cast(column, pa.large_string())
    texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, texts.type), texts)
    for kind in (pa.int64(), pa.float64()):
        try:
            return pc.cast(texts, kind)
        except pa.ArrowInvalid:
            continue
    return texts


def feature_rows(
    table: SourceTable, specs: Sequence[Column | ColumnRange], role: str
) -> np.ndarray:
    """float32 [num_rows, width]: numbers, and lists of numbers of one width, concatenated.

    Raises:
        DataError: a value is missing or no number, or a list has another width.
    """
    parts: list[np.ndarray] = []
    for spec in specs:
        if isinstance(spec, ColumnRange):
            if spec.last < spec.first:
                raise DataError(
                    f"{table.place}.{role} is invalid: columns {spec.first} to {spec.last} are "
                    "none. Set first to the lower of the two.",
                    id="spec-column-range",
                )
            for position in range(spec.first, spec.last + 1):
                parts.append(numbers(table, Column(column=position), role).reshape(-1, 1))
            continue
        column = table.column(spec, role)
        parts.append(
            _list_rows(table, column, role)
            if pa.types.is_nested(column.type)
            else numbers(table, spec, role).reshape(-1, 1)
        )
    return np.concatenate(parts, axis=1).astype(np.float32)


def _list_rows(table: SourceTable, column: pa.Array, role: str) -> np.ndarray:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    are_lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(is_list(column.type) for is_list in are_lists):
        rule = f"the column is {column.type}, which holds no numbers"
        raise table.error(
            role, rule, [0], "Name a column of numbers, or of lists of them", id="spec-not-numbers"
        )
    lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(lengths != max(int(lengths[0]), 1))
    if len(wrong):
        rule = f"lists have not one width ({int(lengths[0])} in the first row)"
        raise table.error(role, rule, wrong, "Write rows of one width", id="spec-list-width")
    flat = column.flatten()
    if flat.null_count or not (pa.types.is_floating(flat.type) or pa.types.is_integer(flat.type)):
        raise table.error(
            role, "lists hold no numbers, or nulls", [0], "Write numbers", id="spec-not-numbers"
        )
    return flat.to_numpy(zero_copy_only=False).reshape(len(column), -1)


def _is_text(column: pa.Array) -> bool:
    return pa.types.is_string(column.type) or pa.types.is_large_string(column.type)


def _is_whole(text: str) -> bool:
    return text.lstrip("-").isdigit() and str(int(text)) == text


def _no_number(table: SourceTable, column: pa.Array, role: str) -> DataError:
    bad = []
    for i, value in enumerate(column.to_pylist()):
        try:
            float(value)
        except (TypeError, ValueError):
            bad.append(i)
    rows = bad or [0]
    rule = f"{column[rows[0]].as_py()!r} is no number"
    return table.error(
        role, rule, rows, "Name a column of numbers, or repair the rows", id="spec-not-numbers"
    )
