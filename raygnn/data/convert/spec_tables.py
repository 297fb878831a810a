"""The files of a tables spec, and their columns in the types of graph tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.convert.text_files import TextFormat, read_ragged_features, read_text_table
from raygnn.data.filesystem import redact
from raygnn.data.tables.files import is_parquet, match_files, open_parquet, open_stream
from raygnn.data.tables.spec import Column, Files, HashShares, Reading, RelationColumn
from raygnn.data.transforms.values import is_text_type
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
        read: positions of the columns that were read.
    """

    where: str
    place: str
    table: pa.Table
    first_line: int | None
    added: Mapping[str, HashShares | str | int | float]
    has_header: bool
    read: set[int] = field(default_factory=set)

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
        position = self._position(spec.column, role)
        self.read.add(position)
        column = self.table.column(position).combine_chunks()
        if pa.types.is_dictionary(column.type):
            column = pc.cast(column, column.type.value_type)
        return pc.utf8_trim_whitespace(column) if is_text_type(column.type) else column

    @property
    def unread(self) -> str:
        """The columns that were not read; empty where all were."""
        names = enumerate(self.table.column_names)
        left = [(i, name) for i, name in names if i not in self.read]
        return ", ".join(name if self.has_header else str(i) for i, name in left)

    def shown(self, spec: Column) -> str:
        """A column as messages name it: by its name, where it has one."""
        is_place = isinstance(spec.column, int) and self.has_header
        return repr(self.table.column_names[spec.column] if is_place else spec.column)

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
    first_line, has_header = None, True
    if is_parquet(uri):
        with open_parquet(uri) as file:
            table = file.read()
    elif is_json(uri):
        table = read_ragged_features(uri)
    else:
        has_header = reading.header is not False
        num_skipped = (reading.skip_lines or 0) + (reading.count_line is True)
        form = TextFormat(reading.separator, has_header, num_skipped, f"{place}.separator")
        table, first_line = read_text_table(uri, form), num_skipped + has_header + 1
        if reading.count_line:
            _check_count(uri, reading.skip_lines or 0, table.num_rows, where)
    if table.num_rows == 0:
        raise DataError(
            f"{where}: {place}: the file has no rows. Leave it out.",
            id="spec-file-empty",
        )
    return SourceTable(where, place, table, first_line, entry.add, has_header)


def is_json(uri: str) -> bool:
    """Whether a file is read as ragged features."""
    return uri.lower().removesuffix(".gz").endswith(".json")


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
    if is_text_type(column.type):
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
        rule = f"{len(empty):,} ids of column {table.shown(spec)} are missing"
        raise table.error(
            role, rule, empty, "Fill them in, or take these rows out", id="spec-values-missing"
        )
    if pa.types.is_integer(column.type):
        numbers: pa.Array | None = pc.cast(column, pa.int64())
    elif is_text_type(column.type):
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


def numbers(
    table: SourceTable, spec: Column, role: str, remedy: str = "Fill them in"
) -> np.ndarray:
    """A column of numbers as float64, offset added.

    Args:
        remedy: what to do about missing values.
    Raises:
        DataError: some are missing, or no numbers.
    """
    column = table.column(spec, role)
    empty = empty_rows(column)
    if len(empty):
        rule = f"{len(empty):,} values of column {table.shown(spec)} are missing"
        raise table.error(role, rule, empty, remedy, id="spec-values-missing")
    try:
        values = pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _no_number(table, column, spec, role) from error
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
    if not is_text_type(column.type):
        return column
    for kind in (pa.int64(), pa.float64(), pa.timestamp("us")):
        try:
            return pc.cast(column, kind)
        except pa.ArrowInvalid:
            continue
    rule = f"{column[0].as_py()!r} and others are no times of one form"
    remedy = "Write numbers, or timestamps as 2024-01-31T12:00:00"
    raise table.error(role, rule, [0], remedy, id="spec-times")


def joined(columns: Iterable[pa.Array]) -> pa.Array:
    """One array of the narrowest type that holds all: whole numbers, numbers, texts."""
    parts = list(columns)
    kinds = {part.type for part in parts if not pa.types.is_null(part.type)}
    if len(kinds) > 1:
        is_number = all(pa.types.is_integer(k) or pa.types.is_floating(k) for k in kinds)
        is_whole = all(pa.types.is_integer(k) for k in kinds)
        kind = pa.int64() if is_whole else pa.float64() if is_number else pa.large_string()
        parts = [pc.cast(part, kind) for part in parts]
    elif kinds:
        parts = [pc.cast(part, next(iter(kinds))) for part in parts]
    return pa.chunked_array(parts).combine_chunks()


def typed_values(tables: Sequence[SourceTable], spec: Column, role: str) -> pa.Array:
    """A column over files: whole numbers where all are, else numbers, else texts; empty is null."""
    column = joined(table.column(spec, role) for table in tables)
    if not is_text_type(column.type):
        return column
    texts = pc.cast(column, pa.large_string())
    texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, texts.type), texts)
    for kind in (pa.int64(), pa.float64()):
        try:
            return pc.cast(texts, kind)
        except pa.ArrowInvalid:
            continue
    return texts


def _is_whole(text: str) -> bool:
    return text.lstrip("-").isdigit() and str(int(text)) == text


def _no_number(table: SourceTable, column: pa.Array, spec: Column, role: str) -> DataError:
    bad = []
    for i, value in enumerate(column.to_pylist()):
        try:
            float(value)
        except (TypeError, ValueError):
            bad.append(i)
    rows = bad or [0]
    rule = f"{column[rows[0]].as_py()!r} of column {table.shown(spec)} is not a number"
    return table.error(
        role, rule, rows, "Name a column of numbers, or repair the rows", id="spec-not-numbers"
    )
