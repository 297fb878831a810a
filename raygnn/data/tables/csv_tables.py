"""CSV and TSV files: the kinds of their columns over all shards, and reading by blocks.

Arrow infers types from the first block only when streaming, so a first pass reads the needed
columns as text and finds possible types; the second pass reads them with the types.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from raygnn.data.filesystem import redact
from raygnn.data.storage_retry import is_of_content, is_transient
from raygnn.data.tables.files import PLAIN_CSV, CsvFormat, is_tab_separated, open_stream
from raygnn.errors import DataError

#: "padded": whole numbers, some with leading zeros (007). As ids they are texts.
CsvKind = Literal["null", "int", "padded", "float", "bool", "string"]

_BLOCK_BYTES = 8 << 20
#: A gap in any column, as MySQL and PostgreSQL export it.
NULL_MARK = r"\N"
#: Gaps in columns of numbers, as pandas and spreadsheets write them. Among texts they are texts.
NULL_WORDS = (
    NULL_MARK,
    "NA",
    "N/A",
    "n/a",
    "#N/A",
    "<NA>",
    "NULL",
    "null",
    "NaN",
    "nan",
    "None",
    "-",
    "?",
)
_HEADER_BYTES = 1 << 16
_QUOTED = re.compile(r'"[^"]*"')
_SEPARATORS = (",", ";", "|", "\t")
_QUOTED_LINE = re.compile(r"(Expected \d+ columns, got \d+): .*", re.DOTALL)
_TYPES: dict[CsvKind, pa.DataType] = {
    "null": pa.float64(),
    "int": pa.int64(),
    "padded": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
}


@dataclass(frozen=True)
class CsvSniff:
    uri: str
    name: str
    columns: tuple[str, ...]
    form: CsvFormat = PLAIN_CSV

    @property
    def files(self) -> tuple[str, ...]:
        return (self.uri,)


@dataclass(frozen=True)
class CsvShape:
    """Number of rows and column names of a CSV file, and the possible kind of needed columns."""

    num_rows: int
    header: tuple[str, ...]
    kinds: Mapping[str, CsvKind]


def sniff(item: CsvSniff) -> CsvShape:
    """Counts the rows of a CSV file and finds the kinds of its needed columns."""
    header = read_header(item.uri, item.name, item.form)
    wanted = [name for name in item.columns if name in header]
    kinds: dict[str, CsvKind] = dict.fromkeys(wanted, "null")
    num_rows = 0
    # Counting rows needs a column, even if the file has none of the needed columns.
    columns = wanted or list(header[:1])
    types = dict.fromkeys(columns, pa.string())
    for batch in read_batches(item.uri, item.name, types, item.form):
        num_rows += batch.num_rows
        for name in wanted:
            kinds[name] = kind_of_values(batch.column(name), kinds[name])
    return CsvShape(num_rows, header, kinds)


def unify(kinds: Sequence[CsvKind]) -> CsvKind:
    distinct = set(kinds) - {"null"}
    if not distinct:
        return "null"
    if len(distinct) == 1:
        return distinct.pop()
    if distinct == {"int", "padded"}:
        return "padded"
    return "float" if distinct <= {"int", "padded", "float"} else "string"


def arrow_type(kind: CsvKind, is_id: bool) -> pa.DataType:
    return pa.string() if is_id and kind == "padded" else _TYPES[kind]


def common_types(
    shapes: Sequence[CsvShape], columns: Sequence[str], ids: Collection[str | None]
) -> dict[str, pa.DataType]:
    """The narrowest types of the columns of several files. Leading zeros of `ids` count."""
    kinds = {c: unify([shape.kinds.get(c, "null") for shape in shapes]) for c in columns}
    return {column: arrow_type(kind, column in ids) for column, kind in kinds.items()}


def read_batches(
    uri: str, name: str, types: Mapping[str, pa.DataType], form: CsvFormat
) -> Iterator[pa.RecordBatch]:
    """Reads the columns in `types`, block by block.

    An empty field and `NULL_MARK` are null. In columns other than text, so are `NULL_WORDS`. Raises
    a DataError if a row has another number of fields, or a field does not fit its type.
    """
    if not form.header:
        types = {f"f{column}": kind for column, kind in types.items()}  # Arrow's names
    convert = pa.csv.ConvertOptions(
        include_columns=list(types),
        column_types=dict(types),
        null_values=["", *NULL_WORDS],
        strings_can_be_null=False,
    )
    try:
        with _open_table(uri, form, convert) as reader:
            for batch in reader:
                batch = _with_gaps(batch)
                yield batch if form.header else batch.rename_columns(_positions(batch.schema))
    except (pa.ArrowInvalid, pa.ArrowKeyError, OSError) as error:
        if is_transient(error) and not is_of_content(error):
            raise
        raise DataError(
            f"{redact(name)} cannot be read as {_format(uri)}: {_cause(error)}. Write equally many "
            "fields in each line. [table-csv-unreadable]"
        ) from error


def read_together(files: Sequence[CsvSniff], ids: Collection[str]) -> list[pa.Table]:
    """Reads the needed columns of each file of a table, of the narrowest common kinds.

    Leading zeros of `ids` count. Raises a DataError as `read_batches`, or if a file lacks a column
    that it needs.
    """
    columns = list(dict.fromkeys(name for file in files for name in file.columns))
    common = common_types([sniff(file) for file in files], columns, ids)
    tables = []
    for file in files:
        types = {name: common[name] for name in file.columns}
        batches = read_batches(file.uri, file.name, types, file.form)
        tables.append(pa.Table.from_batches(batches, pa.schema(list(types.items()))))
    return tables


def _with_gaps(batch: pa.RecordBatch) -> pa.RecordBatch:
    gaps = pa.array(["", NULL_MARK])
    columns = [
        pc.if_else(pc.is_in(column, gaps), None, column) if column.type == pa.string() else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


@contextmanager
def _open_table(
    uri: str, form: CsvFormat, convert: pa.csv.ConvertOptions | None = None
) -> Iterator[pa.csv.CSVStreamingReader]:
    read = pa.csv.ReadOptions(
        skip_rows=form.skip_lines,
        autogenerate_column_names=not form.header,
        block_size=_BLOCK_BYTES,
    )
    parse = pa.csv.ParseOptions(delimiter=form.separator or ",")
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(open_stream(uri))
            if form.separator is None:
                parse.delimiter = separator_of(uri, stream.read(_HEADER_BYTES), form.skip_lines)
                # A compressed stream goes forward only.
                if stream.seekable():
                    stream.seek(0)
                else:
                    stream = stack.enter_context(open_stream(uri))
            reader = pa.csv.open_csv(stream, read, parse, convert)
        except pa.ArrowInvalid:
            # Arrow sees a header only where a line ends: one that is all of a file may lack that.
            with open_stream(uri) as again:
                header = again.read(_BLOCK_BYTES)
            is_one_line = header.count(b"\n") == form.skip_lines and len(header) < _BLOCK_BYTES
            if not header.strip() or not is_one_line:
                raise
            reader = pa.csv.open_csv(pa.BufferReader(header + b"\n"), read, parse, convert)
        yield stack.enter_context(reader)


def _positions(schema: pa.Schema) -> list[str]:
    return [name[1:] for name in schema.names]


def read_header(uri: str, name: str, form: CsvFormat = PLAIN_CSV) -> tuple[str, ...]:
    """The column names of a CSV file, or the positions 0, 1, ... without a header.

    Raises a DataError if it has no header line, or is unreadable.
    """
    try:
        with _open_table(uri, form) as reader:
            return tuple(reader.schema.names if form.header else _positions(reader.schema))
    except (pa.ArrowInvalid, UnicodeDecodeError, OSError) as error:
        if is_transient(error) and not is_of_content(error):
            raise
        raise DataError(
            f"{redact(name)} cannot be read as {_format(uri)}: {_cause(error)}. Write a header "
            "line, then rows. [table-csv-unreadable]"
        ) from error


def is_row(header: Sequence[str]) -> bool:
    """Whether the first line of a file contains only numbers, and so is a row.

    0, 1, 2, ... are the names that pandas writes for unnamed columns.
    """
    is_numbered = list(header) == [str(position) for position in range(len(header))]
    return not is_numbered and all(map(is_number, header))


def is_number(value: object) -> bool:
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def _cause(error: Exception) -> str:
    return _QUOTED_LINE.sub(r"\1", str(error))


def separator_of(uri: str, start: bytes, num_skipped: int = 0) -> str:
    """The separator: the most frequent candidate in the first line, a comma at a tie."""
    if is_tab_separated(uri):
        return "\t"
    line, *_ = start.split(b"\n", num_skipped + 1)[num_skipped:] or [b""]
    names = _QUOTED.sub("", line.decode("utf-8", "replace"))
    return max(_SEPARATORS, key=names.count)


def _format(uri: str) -> str:
    return "TSV" if is_tab_separated(uri) else "CSV"


def _has_leading_zero(numbers: pa.Array) -> bool:
    is_long = pc.greater(pc.binary_length(numbers), 1)
    return bool(pc.any(pc.and_(pc.starts_with(numbers, "0"), is_long)).as_py())


def kind_of_values(values: pa.Array, so_far: CsvKind) -> CsvKind:
    if so_far == "string":
        return "string"
    is_word = pc.is_in(values, pa.array(NULL_WORDS))
    present = values.filter(pc.invert(is_word)) if pc.any(is_word).as_py() else values
    if present.null_count == len(present):
        return so_far
    candidates: tuple[CsvKind, ...] = ("int", "float", "bool")
    for kind in candidates:
        try:
            pc.cast(present, _TYPES[kind])
        except pa.ArrowInvalid:
            continue
        return unify([so_far, "padded" if kind == "int" and _has_leading_zero(present) else kind])
    return "string"
