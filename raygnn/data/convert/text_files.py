"""Reading of the text files that graphs come in: separated columns, and ragged features as JSON."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.csv as pacsv

from raygnn.config.documents import parse_json
from raygnn.data.filesystem import redact
from raygnn.data.tables.csv_tables import NULL_MARK, open_csv
from raygnn.data.tables.files import open_stream
from raygnn.errors import DataError, RuleError

_SEPARATORS = (",", "\t", ";", "|", " ")
_SNIFFED_BYTES = 1 << 16
_QUOTED = re.compile(r'"[^"]*"')


@dataclass(frozen=True)
class TextFormat:
    """How a file of separated columns is read.

    Attributes:
        separator: None finds it among comma, tab, semicolon, bar and blank.
        has_header: false takes the first line as data too, after any lines that start with # or %.
        skip_lines: lines before all that.
        option: what messages call the separator.
    """

    separator: str | None = None
    has_header: bool = True
    skip_lines: int = 0
    option: str = "--separator"


def read_text_table(uri: str, form: TextFormat = TextFormat()) -> pa.Table:
    """Reads a CSV or TSV file (also .gz) as text columns.

    Raises:
        DataError: the file is missing, its header has a name twice, or its rows do not have the
            same number of fields.
    """
    read, parse, names = _opened(uri, form)
    convert = pacsv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.large_string()),
        null_values=[NULL_MARK],
        strings_can_be_null=True,
    )
    with _readable(uri, form), open_csv(uri, read, parse, convert) as reader:
        return reader.read_all()


def text_columns(uri: str, form: TextFormat) -> list[str]:
    """The names of a text file's columns."""
    return _opened(uri, form)[2]


def _opened(uri: str, form: TextFormat) -> tuple[pacsv.ReadOptions, pacsv.ParseOptions, list[str]]:
    where = redact(uri)
    with _open(uri, where) as stream:
        lines = stream.read(_SNIFFED_BYTES).decode("utf-8", "replace").splitlines()
    num_skipped = form.skip_lines
    if not form.has_header:
        while num_skipped < len(lines) and lines[num_skipped][:1] in ("#", "%"):
            num_skipped += 1
    sample = lines[num_skipped : num_skipped + 2]
    read = pacsv.ReadOptions(autogenerate_column_names=not form.has_header, skip_rows=num_skipped)
    separator = form.separator or _find_separator(sample, where, form.option)
    parse = pacsv.ParseOptions(delimiter=separator)
    with _readable(uri, form), open_csv(uri, read, parse) as reader:
        names = reader.schema.names
    _check_distinct(names, where)
    return read, parse, list(names)


@contextmanager
def _readable(uri: str, form: TextFormat) -> Iterator[None]:
    try:
        yield
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{redact(uri)} cannot be read as separated columns: {error}. Repair the file, or give "
            f"the right {form.option}.",
            id="prepare-csv-unreadable",
        ) from error


def read_ragged_features(uri: str) -> pa.Table:
    """Reads JSON `{id: [feature indices]}`.

    Returns:
        Columns `id` of texts and `indices` of lists.
    Raises:
        DataError: the file is missing, is no such JSON, or an index is no whole number >= 0.
    """
    where = redact(uri)
    with _open(uri, where) as stream:
        try:
            content = parse_json(stream.read(), max_bytes=None)
        except RuleError as error:
            raise DataError(error.text(where, "the file")) from None
    if not isinstance(content, dict):
        raise DataError(
            f"{where} is invalid: must be an object {{id: [feature indices]}}.",
            id="prepare-ragged-features",
        )
    for key, row in content.items():
        if not isinstance(row, list) or not all(type(i) is int and i >= 0 for i in row):
            raise DataError(
                f"{where}: the row of id {key!r} is invalid: must be a list of whole numbers of at "
                "least 0, the indices of its features. Repair it, or give the features as CSV.",
                id="prepare-ragged-features",
            )
    indices = pa.array(content.values(), pa.large_list(pa.int64()))
    return pa.table({"id": pa.array(list(content), pa.large_string()), "indices": indices})


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
