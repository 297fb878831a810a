"""Reading of the text files that graphs come in: separated columns, and ragged features as JSON."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from raygnn.config.documents import DocumentError, parse_json
from raygnn.data.filesystem import redact
from raygnn.data.tables.columns import SparseRows
from raygnn.data.tables.csv_tables import open_csv
from raygnn.data.tables.files import open_stream
from raygnn.errors import DataError

_SEPARATORS = (",", "\t", ";", "|", " ")
_SNIFFED_BYTES = 1 << 16
_QUOTED = re.compile(r'"[^"]*"')


@dataclass(frozen=True)
class TextTable:
    """A file of separated columns, all of them still as text."""

    where: str
    table: pa.Table
    has_header: bool

    def column_name(self, wanted: str | None, position: int, option: str) -> str:
        """The column that an option names, by header or by position; else the one at `position`.

        Raises:
            DataError: there is no such column.
        """
        names = self.table.column_names
        if wanted is None and position < len(names):
            return names[position]
        if wanted in names and self.has_header:
            return str(wanted)
        if wanted is not None and not self.has_header and wanted.isdigit():
            position = int(wanted)
            if position < len(names):
                return names[position]
        choices = ", ".join(names) if self.has_header else f"0 to {len(names) - 1}"
        given = f"{option}={wanted!r} is invalid" if wanted else f"{option} is needed"
        raise DataError(
            f"{self.where}: {given}: there is no such column. Choose from: {choices}.",
            id="prepare-column-missing",
        )

    def texts(self, name: str) -> pa.Array:
        """A column without surrounding blanks.

        Raises:
            DataError: some fields are empty.
        """
        column = pc.utf8_trim_whitespace(self.table.column(name)).combine_chunks()
        empty = np.flatnonzero(pc.equal(column, "").to_numpy(zero_copy_only=False))
        if len(empty):
            raise DataError(
                f"{self.where}: column {name!r} has {len(empty):,} empty fields, first in rows "
                f"{empty[:5].tolist()}. Fill them in, or take these rows out.",
                id="prepare-fields-empty",
            )
        return column

    def numbers(self, names: Sequence[str]) -> np.ndarray:
        """float32 [num_rows, len(names)].

        Raises:
            DataError: a field is no number.
        """
        columns = []
        for name in names:
            try:
                columns.append(pc.cast(self.texts(name), pa.float64()).to_numpy())
            except pa.ArrowInvalid as error:
                raise DataError(
                    f"{self.where}: column {name!r} is no feature: {error}. Keep only numbers "
                    "beside the id column.",
                    id="prepare-not-numbers",
                ) from error
        return np.stack(columns, axis=1).astype(np.float32)


def read_text_table(
    uri: str,
    separator: str | None = None,
    has_header: bool = True,
    skip_lines: int = 0,
    option: str = "--separator",
) -> TextTable:
    """Reads a CSV or TSV file (also .gz) as text columns.

    Args:
        separator: None finds it among comma, tab, semicolon, bar and blank.
        has_header: false takes the first line as data too, after any lines that start with # or %.
        skip_lines: lines before all that.
        option: what messages call the separator.
    Raises:
        DataError: the file is missing, its header has a name twice, or its rows do not have the
            same number of fields.
    """
    where = redact(uri)
    with _open(uri, where) as stream:
        lines = stream.read(_SNIFFED_BYTES).decode("utf-8", "replace").splitlines()
    num_skipped = skip_lines
    if not has_header:
        while num_skipped < len(lines) and lines[num_skipped][:1] in ("#", "%"):
            num_skipped += 1
    sample = lines[num_skipped : num_skipped + 2]
    read = pacsv.ReadOptions(autogenerate_column_names=not has_header, skip_rows=num_skipped)
    parse = pacsv.ParseOptions(delimiter=separator or _find_separator(sample, where, option))
    try:
        with open_csv(uri, read, parse) as reader:
            names = reader.schema.names
        _check_distinct(names, where)
        convert = pacsv.ConvertOptions(column_types=dict.fromkeys(names, pa.large_string()))
        with open_csv(uri, read, parse, convert) as reader:
            table = reader.read_all()
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{where} cannot be read as separated columns: {error}. Repair the file, or give the "
            f"right {option}.",
            id="prepare-csv-unreadable",
        ) from error
    return TextTable(where, table, has_header)


def read_ragged_features(uri: str) -> tuple[pa.Array, SparseRows, int]:
    """Reads JSON `{id: [feature indices]}`.

    Returns:
        The ids as text, their binary feature rows, and how many repeated indices were dropped.
    Raises:
        DataError: the file is missing, is no such JSON, or an index is no whole number >= 0.
    """
    where = redact(uri)
    with _open(uri, where) as stream:
        try:
            content = parse_json(stream.read(), max_bytes=None)
        except DocumentError as error:
            raise DataError(error.text(where, "the file")) from None
    if not isinstance(content, dict):
        raise DataError(
            f"{where} is invalid: must be an object {{id: [feature indices]}}.",
            id="prepare-ragged-features",
        )
    lengths = []
    for key, row in content.items():
        if not isinstance(row, list) or not all(type(i) is int and i >= 0 for i in row):
            raise DataError(
                f"{where}: the row of id {key!r} is invalid: must be a list of whole numbers of at "
                "least 0, the indices of its features. Repair it, or give --features as CSV.",
                id="prepare-ragged-features",
            )
        lengths.append(len(row))
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    indices = np.fromiter((i for row in content.values() for i in row), np.int64, indptr[-1])
    dim = int(indices.max(initial=-1)) + 1
    rows = SparseRows(indptr, indices, None, dim).canonical()
    ids = pa.array(list(content), pa.large_string())
    return ids, SparseRows(rows.indptr, rows.indices, None, dim), len(indices) - len(rows.indices)


@contextmanager
def _open(uri: str, where: str) -> Iterator[pa.NativeFile]:
    try:
        with open_stream(uri) as stream:
            yield stream
    except (FileNotFoundError, IsADirectoryError) as error:
        raise DataError(
            f"{where}: there is no such file. Check the path.", id="prepare-file-missing"
        ) from error


def _check_distinct(names: Sequence[str], where: str) -> None:
    repeated = ", ".join(repr(name) for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise DataError(
            f"{where}: its header has {repeated} more than once. Give each "
            "column a name of its own.",
            id="prepare-header-repeated",
        )


def _find_separator(sample: Sequence[str], where: str, option: str) -> str:
    bare = [_QUOTED.sub("", line) for line in sample]
    for separator in _SEPARATORS:
        counts = {line.count(separator) for line in bare}
        if counts and 0 not in counts and len(counts) == 1:
            return separator
    shown = sample[0][:60] if sample else ""
    raise DataError(
        f"{where}: no separator divides its first lines alike: {shown!r}. Give {option}, such as "
        "';' or '\\t'; any will do for a file of one column.",
        id="prepare-separator",
    )
