"""Reads the tables of a folder, also files that ingest would refuse, and records repairs."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from raygnn.data.filesystem import join, open_fs, redact
from raygnn.data.splits import SPLIT_CODES
from raygnn.data.tables import csv_tables, files
from raygnn.data.tables.source import quoted, select
from raygnn.data.tables.warehouses import source_of
from raygnn.data.transforms.values import is_text_type
from raygnn.errors import DataError
from raygnn.prepare.drafts.columns import Column, type_name, words_of

#: Folder in which a draft writes tables; the next draft of the folder does not read them.
DRAFTED = "_drafted"
_TOTAL = re.compile(r"(?i)(grand |sub)?(totals?|sum|summe|gesamt)\b")
_OTHER_TABLES = re.compile(r"^(?!readme|license).*\.(txt|dat|data|xlsx?|jsonl?|db|sqlite)(\.gz)?$")
_DATES = frozenset(["date", "day", "time"])
_TIMES = _DATES | {"timestamp", "ts", "datetime", "at", "epoch"}
_EPOCH = 631_152_000, 4_102_444_800  # 1990 to 2100, in seconds since 1970
_MONTH_AND_DAY = r"(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])$"
_DIGITS_OF_DATES = (
    (r"^(19|20)\d\d" + _MONTH_AND_DAY, "%Y%m%d"),
    (r"^\d\d" + _MONTH_AND_DAY, "%y%m%d"),
)
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"),
          (codecs.BOM_UTF16_BE, "utf-16"))  # fmt: skip


@dataclass
class Reference:
    """A column whose values are ids of a table.

    Attributes:
        rate: share of non-null rows whose value is an id of the table.
        num_unknown: number of other non-null rows.
        why: the evidence, for people.
    """

    column: str
    table: str
    rate: float = 1.0
    num_unknown: int = 0
    why: str = ""


@dataclass
class Table:
    """A table and the draft's findings.

    Attributes:
        pattern: its files, relative to the folder; or its name or a query in `database`.
        database: URL, if the table is not files.
        declared_key: column that the database declares to be the ids.
        declared_references: columns that it declares to refer to another table.
        comments: of columns, as the database has them.
        columns: by name, with repaired values.
        repairs: differences from the files. A table with repairs is written as a copy.
        source: file pattern of a copy.
        key: the column of ids.
        joined: by column that joins ids of several columns, their names.
        row_key: an id column that edges and training rows do not need.
        references: by column.
        rejected: columns that look like references, and why they are not.
        edge_files: by reference with gaps, the file of its edges.
        unsure: remarks for the user.
        num_added: rows for ids that only other tables have.
        hindsight: by column, why it is not a feature: it is known later than its row.
    """

    name: str
    pattern: str
    columns: dict[str, Column]
    repairs: list[str] = field(default_factory=list)
    source: str = ""
    key: str | None = None
    references: dict[str, Reference] = field(default_factory=dict)
    is_referred: bool = False
    joined: dict[str, tuple[str, ...]] = field(default_factory=dict)
    row_key: str | None = None
    rejected: list[Reference] = field(default_factory=list)
    edge_files: dict[str, str] = field(default_factory=dict)
    unsure: list[str] = field(default_factory=list)
    num_added: int = 0
    hindsight: dict[str, str] = field(default_factory=dict)
    database: str | None = None
    declared_key: str | None = None
    declared_references: set[str] = field(default_factory=set)
    comments: dict[str, str] = field(default_factory=dict)

    @property
    def words(self) -> tuple[str, ...]:
        return words_of(self.name)

    @property
    def num_rows(self) -> int:
        return len(next(iter(self.columns.values())).values) if self.columns else 0

    def select(self, columns: Sequence[tuple[str, str]], given: str) -> str:
        """A query of `database` for columns and their new names, of rows with a given column."""
        assert self.database is not None
        quote = partial(quoted, self.database)
        listed = ", ".join(
            quote(name) if name == new else f"{quote(name)} AS {quote(new)}"
            for name, new in columns
        )
        rows = select(self.database, self.pattern).replace("*", f"DISTINCT {listed}", 1)
        return f"{rows} WHERE {quote(given)} IS NOT NULL"

    def rows(self, pattern: str) -> dict[str, Any]:
        """Keys of graph.yaml that name rows: `pattern`, or a copy of them."""
        if self.database is None or pattern.startswith(f"{DRAFTED}/"):
            return {"files": pattern}
        source = source_of(self.database, pattern)
        return {"read": {"type": source.type, **source.args}}

    def set_column(self, name: str, values: pa.ChunkedArray) -> None:
        self.columns[name] = Column(name, values)


def find_tables(folder: str, without: Collection[str] = ()) -> Iterator[tuple[str, str, list[str]]]:
    """Name, file pattern and URIs of the tables of a folder; `without`: paths to leave out."""
    fs, root = open_fs(folder)
    paths = sorted(fs.find(root)) if fs.isdir(root) else []
    groups: dict[tuple[str, str], list[str]] = {}
    for path in paths:
        inside = PurePosixPath(path[len(root.rstrip("/")) + 1 :])
        found = files.suffix_and_format(inside.name)
        is_hidden = any(part.startswith((".", "_")) for part in inside.parts)
        is_left_out = is_hidden or inside.as_posix() in without
        if found is None or is_left_out or len(inside.parts) > 3:
            continue
        suffix, _ = found
        stem = inside.name[: -len(suffix)]
        parent = inside.parent.as_posix()
        if stem.lower() in SPLIT_CODES and parent != ".":  # tasks/churn/train.parquet
            groups.setdefault((inside.parent.name, f"{parent}/*{suffix}"), []).append(
                inside.as_posix()
            )
            continue
        base = files.NUMBERED_STEM.sub("", stem)
        if base == stem:
            groups.setdefault((stem, inside.as_posix()), []).append(inside.as_posix())
        elif base or parent == ".":
            name = base or stem
            start = f"{parent}/{name}" if parent != "." else name
            groups.setdefault((name, f"{start}*{suffix}"), []).append(inside.as_posix())
        else:
            name = inside.parent.name
            groups.setdefault((name, f"{parent}/*{suffix}"), []).append(inside.as_posix())
    num_named = Counter(type_name(name) for name, _ in groups)
    num_used: Counter[str] = Counter()
    for (name, pattern), inner in groups.items():
        name = type_name(name)
        if num_named[name] > 1:  # old/items.csv and new/items.csv
            name = type_name(re.sub(r"\*?\.[a-z.]+$", "", pattern))
        num_used[name] += 1
        if num_used[name] > 1:  # type names are ASCII: neither of two Chinese names is left
            name = f"{name}_{num_used[name]}"
        yield name, pattern, [join(folder, path) for path in inner]


def list_unread(folder: str) -> list[str]:
    """Names of files that may be tables in another format."""
    fs, root = open_fs(folder)
    names = [PurePosixPath(path).name for path in fs.ls(root, detail=False)]
    return sorted(name for name in names if _OTHER_TABLES.search(name.lower()))


def read_table(name: str, pattern: str, uris: Sequence[str], encoding: str | None = None) -> Table:
    """Reads all rows of a table.

    Args:
        encoding: encoding of text files that are not UTF-8; None detects it.
    Raises:
        DataError: a file is unreadable.
    """
    repairs: list[str] = []
    is_typed = True
    if files.is_parquet(uris[0]):
        parts = [files.read_parquet(uri) for uri in uris]
    else:
        try:  # as ingest does
            header, form = csv_tables.read_header(uris[0], uris[0]), csv_tables.PLAIN_CSV
            if csv_tables.is_row(header):
                form = files.CsvFormat(header=False)
                header = csv_tables.read_header(uris[0], uris[0], form)
            parts = csv_tables.read_together(
                [csv_tables.CsvSniff(uri, uri, header, form) for uri in uris], ids=header
            )
            if not form.header:
                names = _names_of_columns(len(header))
                parts = [part.rename_columns(names) for part in parts]
                repairs.append(f"the first line is a row; its columns are {', '.join(names)}")
        except DataError:
            parts, is_typed = _read_leniently(uris, encoding, repairs), False
    repairs += _missing_columns(uris, parts)
    if not files.is_parquet(uris[0]):
        num_rows = sum(part.num_rows for part in parts)
        parts = [_without_other_lines(part) for part in parts]
        if num_dropped := num_rows - sum(part.num_rows for part in parts):
            repairs.append(
                f"{num_dropped:,} lines left out that are empty, repeat the header or are totals"
            )
            is_typed = False
    table = files.concat_files(parts, uris)
    if not is_typed:
        table = pa.table({name: _typed(table.column(name)) for name in table.column_names})
    columns = {}
    for column in table.column_names:
        values = table.column(column)
        for repair in (_without_null_words, _with_dates):
            values, remark = repair(column, values)
            repairs += [f"{column}: {remark}"] if remark else []
        columns[column] = Column(column, values)
    stems = [PurePosixPath(uri).name.partition(".")[0].lower() for uri in uris]
    has_split = any(column.is_split for column in columns.values())
    if "train" in stems and {*stems} <= SPLIT_CODES.keys() and not has_split:
        splits = pa.array(np.repeat(stems, [part.num_rows for part in parts]))
        columns["split"] = Column("split", pa.chunked_array([splits]))
        repairs.append("split is the name of the file")
    unsure = [
        f"{column.name}: 1.234 is read as a fraction; if it means 1234, write it without the point"
        for column in columns.values()
        if not files.is_parquet(uris[0]) and column.may_have_thousands
    ]
    unsure += [
        f"{column.name}: {len(others):,} rows are no {kind}, such as {others[0].as_py()!r}; all "
        f"rows are read as texts"
        for column in columns.values()
        for kind, others in [column.exceptions]
        if len(others)
    ]
    return Table(name, pattern, columns, repairs, unsure=unsure)


def _missing_columns(uris: Sequence[str], parts: Sequence[pa.Table]) -> Iterator[str]:
    """Remarks about columns that only some of the files of a table have."""
    every = dict.fromkeys(name for part in parts for name in part.column_names)
    for uri, part in zip(uris, parts, strict=True):
        if lacking := [name for name in every if name not in part.column_names]:
            new = [name for name in part.column_names if name not in parts[0].column_names]
            is_one = len(lacking) == 1 == len(new)
            ask = f"; if it is {new[0]}, give both one name" if is_one else ""
            yield f"{PurePosixPath(uri).name} has no column {', '.join(lacking)}{ask}"


def _without_other_lines(table: pa.Table) -> pa.Table:
    """Leaves out empty lines, repeated headers, and a line of totals at the end."""
    names = table.column_names
    is_other = reduce(pc.and_, [column.is_null() for column in table.columns])
    if all(is_text_type(column.type) for column in table.columns):
        trimmed = [pc.utf8_trim_whitespace(column) for column in table.columns]
        is_header = [
            pc.equal(text, name.strip()) for text, name in zip(trimmed, names, strict=True)
        ]
        is_other = pc.or_(is_other, pc.fill_null(reduce(pc.and_, is_header), False))
    table = table.filter(pc.invert(is_other))
    rows = table.slice(max(table.num_rows - 1, 0)).to_pylist()
    first, *others = [str(v) for row in rows for v in row.values() if v is not None] or [""]
    is_total = _TOTAL.match(first) and len(names) > 1 and all(map(csv_tables.is_number, others))
    return table.slice(0, table.num_rows - 1) if is_total else table


def _read_leniently(
    uris: Sequence[str], encoding: str | None, repairs: list[str]
) -> list[pa.Table]:
    """Reads the rows of text files of any encoding as texts, with line breaks in fields and without
    broken rows.
    """
    parts = []
    for uri in uris:
        with files.open_stream(uri) as stream:
            data = stream.read()
        text, found = _decoded(data, encoding, uri)
        if found not in {"utf-8", "utf-8-sig"}:
            repairs.append(f"read as {found}; --encoding reads it as another")
        header, _, rest = text.partition("\n")
        separator = csv_tables.separator_of(uri, header.encode())
        broken: list[pacsv.InvalidRow] = []

        def skip(row: pacsv.InvalidRow, broken: list[pacsv.InvalidRow] = broken) -> str:
            broken.append(row)
            return "skip"

        try:
            names = _distinct_names(header.rstrip("\r"), separator)
            parts.append(
                pacsv.read_csv(
                    pa.BufferReader(rest.encode()),
                    pacsv.ReadOptions(column_names=names, use_threads=False),
                    pacsv.ParseOptions(
                        delimiter=separator, newlines_in_values=True, invalid_row_handler=skip
                    ),
                    pacsv.ConvertOptions(
                        column_types=dict.fromkeys(names, pa.string()),
                        null_values=["", csv_tables.NULL_MARK],
                        strings_can_be_null=True,
                    ),
                )
            )
        except pa.ArrowInvalid as error:
            raise DataError(
                f"{redact(uri)} cannot be read as separated columns: {str(error)[:200]}. Repair "
                "it, or move it out of the folder. [table-csv-unreadable]"
            ) from error
        if broken:
            row = broken[0]
            repairs.append(
                f"{len(broken):,} rows left out that have another number of fields than the "
                f"header (as {row.actual_columns} instead of {row.expected_columns})"
            )
    return parts


def _decoded(data: bytes, encoding: str | None, uri: str) -> tuple[str, str]:
    marked = [name for mark, name in _MARKS if data.startswith(mark)]
    # cp1252 has characters where latin-1 has control codes, and some bytes that are none.
    candidates = [*marked, "utf-8", *([encoding] if encoding else ["cp1252"]), "latin-1"]
    for name in candidates:
        try:
            return data.decode(name), name
        except UnicodeDecodeError:
            continue
        except LookupError as error:
            raise DataError(
                f"--encoding={encoding!r} is invalid: Python has no encoding of that name. Set one "
                "such as cp1252, latin-1 or cp1250. [prepare-encoding]"
            ) from error
    raise AssertionError(f"latin-1 decodes all of {uri}")


def _names_of_columns(num_columns: int) -> list[str]:
    """Names for a file without a header; a file of two columns is a list of edges."""
    if num_columns == 2:
        return ["source", "target"]
    return [f"column_{position}" for position in range(num_columns)]


def _distinct_names(header: str, separator: str) -> list[str]:
    fields = pacsv.read_csv(
        pa.BufferReader(header.encode() + b"\n"),
        pacsv.ReadOptions(autogenerate_column_names=True),
        pacsv.ParseOptions(delimiter=separator),
        pacsv.ConvertOptions(strings_can_be_null=False),
    )
    seen: Counter[str] = Counter()
    names = []
    for position, column in enumerate(fields.columns):
        name = str(column[0].as_py() or f"column_{position}")
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return names


def _typed(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    if not is_text_type(texts.type):
        return texts
    kind = csv_tables.kind_of_values(texts.combine_chunks(), "null")
    if kind == "string":
        return texts
    words = pc.is_in(texts, value_set=pa.array(csv_tables.NULL_WORDS))
    return pc.cast(pc.if_else(words, None, texts), csv_tables.arrow_type(kind, is_id=True))


def _without_null_words(name: str, values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, str | None]:
    r"""Texts without `\N`; numbers that are texts only because of words such as `NA`."""
    if not is_text_type(values.type):
        return values, None
    texts = pc.cast(values, pa.string())
    is_word = pc.is_in(texts, value_set=pa.array(csv_tables.NULL_WORDS))
    if not pc.any(is_word).as_py():
        return values, None
    given = pc.if_else(is_word, None, texts)
    num_gaps = pc.sum(is_word).as_py()
    if given.null_count < len(given):
        kind = csv_tables.kind_of_values(given.combine_chunks(), "null")
        if kind in {"int", "padded", "float"}:
            numbers = pc.cast(given, csv_tables.arrow_type(kind, is_id=True))
            return numbers, f"{num_gaps:,} words for gaps among numbers"
    is_mark = pc.equal(texts, csv_tables.NULL_MARK)
    if not pc.any(is_mark).as_py():
        return values, None
    num_gaps = pc.sum(is_mark).as_py()
    return pc.if_else(is_mark, None, texts), rf"{num_gaps:,} gaps written as \N"


def _with_dates(name: str, values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, str | None]:
    """Converts integers such as 20240521 or 930521 to dates, and seconds or milliseconds since 1970
    to timestamps, in columns named accordingly (`called_at`, `reported`).
    """
    words = {*words_of(name)}
    is_moment = bool(_TIMES & words) or any(word.endswith("ed") for word in words)
    is_float = pa.types.is_floating(values.type)  # integers with gaps, or fractions of seconds
    if not (is_moment and (is_float or pa.types.is_integer(values.type))):
        return values, None
    low, high = pc.min_max(values).as_py().values()
    for unit, size in (("s", 1), ("ms", 1000)):
        if low is not None and _EPOCH[0] * size <= low and high < _EPOCH[1] * size:
            whole = pc.floor(values) if is_float else values
            times = pc.cast(pc.cast(whole, pa.int64()), pa.timestamp(unit))
            return times, f"times, in {unit} since 1970 in the files"
    if is_float or not _DATES & words:
        return values, None
    texts = pc.cast(values, pa.string())
    for pattern, form in _DIGITS_OF_DATES:
        if pc.all(pc.match_substring_regex(texts, pattern)).as_py():
            dates = pc.strptime(texts, form, "s", error_is_null=True)
            if dates.null_count == values.null_count:
                return pc.cast(dates, pa.date32()), f"dates, such as {values[0]} in the files"
    return values, None
