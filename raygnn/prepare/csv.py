"""`prepare csv`: graph tables from an edge list and tables of its nodes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.filesystem import naming_missing, redact
from raygnn.data.tables.clean_up import normalize_rows, split_nodes, undirected_edges
from raygnn.data.tables.columns import Features, SparseRows
from raygnn.data.tables.csv_tables import QUOTED, is_number, is_row, read_batches, read_header
from raygnn.data.tables.files import CsvFormat, is_parquet, open_parquet, open_stream
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows
from raygnn.data.transforms.values import is_text_type
from raygnn.documents import parse_json
from raygnn.errors import DataError, RuleError

_EDGE_TYPE = ("node", "to", "node")
_EXAMPLES = 5
_SEPARATORS = (",", "\t", ";", "|", " ")
_SNIFFED_BYTES = 1 << 16


@dataclass(frozen=True)
class CsvSource:
    """Files and column names. A column that is None is identified by position.

    Attributes:
        edges: edge list; source and target default to its first two columns.
        nodes: labels; id and label default to its first two columns.
        features: numbers and an id column, or `{id: [feature indices]}` (.json).
        has_header: false counts columns from 0, in all files. A file whose first line contains
            numbers only, perhaps after comments, has no header in any case.
    """

    edges: str
    source: str | None = None
    target: str | None = None
    nodes: str | None = None
    id: str | None = None
    label: str | None = None
    features: str | None = None
    separator: str | None = None
    has_header: bool = True


def csv_tables(
    files: CsvSource,
    directed: bool = False,
    split: str | None = None,
    split_seed: int = 0,
    normalize: bool = False,
) -> GraphTables:
    """Converts an edge list and tables of its nodes. Arguments are options of `raygnn prepare csv`.

    Nodes are all ids of all files: ascending integers if every id is one, else texts in the order
    of appearance.

    Raises:
        DataError: a file or column is missing or malformed, an id repeats, or a node has no row in
            a feature table.
    """
    if files.separator is not None and len(files.separator) != 1:
        raise DataError(
            f"--separator={files.separator!r} is invalid: it is not one character. Set one, such "
            "as ';' or '\\t'.",
            id="prepare-separator",
        )
    notes: list[str] = []
    edges = _File(files.edges, files)
    ends = [edges.ids(files.source, 0, "--source"), edges.ids(files.target, 1, "--target")]
    tables = []
    if files.nodes is not None:
        tables.append(_read_labels(_File(files.nodes, files), files))
    if files.features is not None:
        tables.append(_read_features(_File(files.features, files), files, notes))
    named = [*(table.ids for table in tables), *ends]
    if not all(pa.types.is_integer(ids.type) for ids in named):
        named = [pc.cast(ids, pa.large_string()) for ids in named]
    known = pc.unique(pa.chunked_array(named))
    if pa.types.is_integer(known.type):
        known = known.take(pc.array_sort_indices(known))
    features: dict[str, Features] = {}
    labels: dict[str, pa.Array] = {}
    for table, ids in zip(tables, named, strict=False):
        position = pc.fill_null(pc.index_in(known, ids), -1).to_numpy().astype(np.int64)
        if isinstance(table.values, pa.Array):
            labels["y"] = _place_labels(table, position, notes)
        else:
            rows = _place_features(table, position, known, notes)
            features["x"] = normalize_rows(rows) if normalize else rows
    if not tables:
        notes.append(f"node type node: its {len(known):,} nodes are the ids that edges name")
    for file in (*(table.file for table in tables), edges):
        if file.first_line is not None and file.has_header and is_row(file.names, "\t"):
            notes.append(
                f"{file.where}: the first line, {','.join(file.names)}, is read as the header; "
                "--no-header reads it as a row"
            )
        if file.unread:
            notes.append(f"{file.where}: columns not written: {file.unread}")
    source, target = named[-2:]
    if directed:
        notes.append("edges are not changed, because of --directed")
    else:
        source, target, note = _undirected(known, source, target)
        notes.append(note)
    nodes, split_notes = split_nodes(
        node_rows(known, features, labels),
        {},
        _class_codes(labels["y"]) if labels else None,
        split,
        split_seed,
        edges.where,
    )
    edge_types = {_EDGE_TYPE: edge_rows(source, target)}
    return GraphTables({"node": nodes}, edge_types, (*notes, *split_notes))


class _File:
    """One file: text columns, or the columns of a Parquet file.

    Attributes:
        where: the file's name in messages.
        first_line: line of the first row; None for Parquet, whose rows count from 0.
        unread: names of unread columns.
    """

    def __init__(self, uri: str, files: CsvSource) -> None:
        self.where = redact(uri)
        self.first_line: int | None = None
        self.has_header = True
        self.is_json = uri.lower().removesuffix(".gz").endswith(".json")
        if is_parquet(uri):
            with open_parquet(uri) as file:
                self.table = file.read()
        elif self.is_json:
            self.table = _read_ragged(uri)
        else:
            self.table, self.first_line, self.has_header = _read_text(uri, files)
        self.has_numbers = not (files.has_header and self.has_header)
        self.names = (
            self.table.column_names
            if self.has_header
            else [*map(str, range(len(self.table.schema)))]
        )
        if self.table.num_rows == 0:
            raise DataError(
                f"{self.where}: the file has no rows. Leave it out.", id="spec-file-empty"
            )
        self._read: set[int] = set()

    @property
    def unread(self) -> str:
        return ", ".join(name for i, name in enumerate(self.names) if i not in self._read)

    def position(self, name: str | None, default: int, option: str) -> int:
        given: str | int = name or ""
        if name is None:
            given = default
        elif name in self.names:
            given = self.names.index(name)
        elif self.has_numbers and name.isdigit():
            given = int(name)
        if isinstance(given, int) and given < len(self.names):
            return given
        known = ", ".join(map(repr, self.names)) if self.has_header else "no names (--no-header)"
        raise DataError(
            f"{self.where}: {option}={given!r} is invalid: the file has no such column, only "
            f"{len(self.names)} columns, from 0, of {known}. Name one of these.",
            id="spec-column-missing",
        )

    def column(self, position: int) -> pa.Array:
        self._read.add(position)
        column = self.table.column(position).combine_chunks()
        if pa.types.is_dictionary(column.type):
            column = pc.cast(column, column.type.value_type)
        return pc.utf8_trim_whitespace(column) if is_text_type(column.type) else column

    def ids(self, name: str | None, default: int, option: str) -> pa.Array:
        """Original ids: int64 if all are written as integers, else texts. 007 is a text."""
        position = self.position(name, default, option)
        column = self.column(position)
        self._check_complete(column, position, option, "Fill them in, or take these rows out")
        if pa.types.is_integer(column.type):
            return pc.cast(column, pa.int64())
        if not is_text_type(column.type):
            raise DataError(
                f"{self.where}: {option}={self.names[position]!r} is invalid: the column is "
                f"{column.type}. Ids are whole numbers or texts; name a column of these.",
                id="spec-id-type",
            )
        texts = pc.cast(column, pa.large_string())
        try:
            numbers = pc.cast(texts, pa.int64())
        except pa.ArrowInvalid:
            is_number = pc.match_substring_regex(texts, r"^\d+$").to_numpy(zero_copy_only=False)
            if not self.has_header and len(texts) > 1 and not is_number[0] and is_number[1:].all():
                raise self.error(
                    option,
                    f"{texts[0].as_py()!r} is a name among numbers",
                    [0],
                    "Leave out --no-header: files without a header are recognized",
                    id="prepare-header",
                ) from None
            return texts
        return numbers if pc.cast(numbers, texts.type).equals(texts) else texts

    def numbers(self, position: int, option: str) -> np.ndarray:
        """A column of numbers or of lists of one width: float64 [num_rows, width]."""
        column = self.column(position)
        self._check_complete(column, position, option, "Fill them in")
        try:
            if not pa.types.is_nested(column.type):
                return pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False)[:, None]
            return np.stack(pc.cast(column, pa.list_(pa.float64())).to_numpy(zero_copy_only=False))
        except (ValueError, TypeError, NotImplementedError, pa.ArrowException) as error:
            bad = [i for i, value in enumerate(column.to_pylist()) if not is_number(value)] or [0]
            rule = f"{column[bad[0]].as_py()!r} of column {self.names[position]!r} is not a number"
            if pa.types.is_nested(column.type):
                rule = (
                    f"column {self.names[position]!r} does not hold numbers, or lists of one width"
                )
            raise self.error(
                option,
                rule,
                bad,
                "Name a column of numbers, or repair the rows",
                id="spec-not-numbers",
            ) from error

    def _check_complete(self, column: pa.Array, position: int, option: str, remedy: str) -> None:
        empty = column.is_null()
        if is_text_type(column.type):
            empty = pc.or_(empty, pc.fill_null(pc.equal(column, ""), True))
        rows = np.flatnonzero(empty.to_numpy(zero_copy_only=False))
        if len(rows):
            rule = f"{len(rows):,} values of column {self.names[position]!r} are missing"
            raise self.error(option, rule, rows, remedy, id="spec-values-missing")

    def error(
        self, option: str, rule: str, rows: Sequence[int] | np.ndarray, remedy: str, *, id: str
    ) -> DataError:
        shown = ", ".join(str(int(row) + (self.first_line or 0)) for row in rows[:_EXAMPLES])
        word = f"{'row' if self.first_line is None else 'line'}{'s' * (len(rows) > 1)}"
        more = ", ..." * (len(rows) > _EXAMPLES)
        return DataError(f"{self.where}: {word} {shown}{more}: {option}: {rule}. {remedy}.", id=id)


@dataclass(frozen=True)
class _LoadedFile:
    file: _File
    ids: pa.Array
    values: pa.Array | Features


def _read_labels(file: _File, files: CsvSource) -> _LoadedFile:
    ids = file.ids(files.id, 0, "--id")
    id_position = file.position(files.id, 0, "--id")
    others = [name for i, name in enumerate(file.names) if i != id_position]
    if files.label is None and len(others) > 1:
        raise DataError(
            f"{file.where}: --label is needed: the file has {len(file.names)} columns. "
            f"Choose from: {', '.join(others)}.",
            id="prepare-label-missing",
        )
    values = file.column(file.position(files.label, 0 if id_position else 1, "--label"))
    return _table(file, ids, _typed(values))


def _read_features(file: _File, files: CsvSource, notes: list[str]) -> _LoadedFile:
    if file.is_json:
        lists = file.column(1)
        indices = lists.flatten().to_numpy()
        indptr = lists.offsets.to_numpy()
        rows = SparseRows(indptr, indices, None, int(indices.max(initial=0)) + 1).canonical()
        if num_repeats := len(indices) - len(rows.indices):
            notes.append(f"{file.where}: {num_repeats:,} repeated feature indices dropped")
        return _table(file, file.ids(None, 0, "--features"), replace(rows, values=None))
    name = files.id if files.id in file.names or file.has_numbers else None
    ids, id_position = file.ids(name, 0, "--id"), file.position(name, 0, "--id")
    others = [i for i in range(len(file.names)) if i != id_position]
    if not others:
        raise DataError(
            f"{file.where}: has no column besides {file.names[0]!r}. Give numbers per id.",
            id="prepare-features-missing",
        )
    rows_2d = np.concatenate([file.numbers(i, "--features") for i in others], axis=1)
    return _table(file, ids, rows_2d.astype(np.float32))


def _table(file: _File, ids: pa.Array, values: pa.Array | Features) -> _LoadedFile:
    counts = pc.value_counts(ids)
    repeated = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        raise DataError(
            f"{file.where}: {len(repeated):,} ids are given more than once, such as "
            f"{', '.join(map(str, repeated[:_EXAMPLES].to_pylist()))}. Keep one row per id.",
            id="prepare-ids-repeated",
        )
    return _LoadedFile(file, ids, values)


def _typed(column: pa.Array) -> pa.Array:
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


def _place_labels(table: _LoadedFile, position: np.ndarray, notes: list[str]) -> pa.Array:
    num_missing = int((position < 0).sum())
    if num_missing:
        notes.append(f"{num_missing:,} nodes have no row in {table.file.where}: no label")
    return table.values.take(pa.array(position, mask=position < 0))


def _place_features(
    table: _LoadedFile, position: np.ndarray, known: pa.Array, notes: list[str]
) -> Features:
    missing = np.flatnonzero(position < 0)
    where = table.file.where
    if isinstance(table.values, SparseRows):
        if len(missing):
            notes.append(f"{len(missing):,} nodes have no row in {where}: no features set")
        return table.values.take(position)
    if len(missing):
        examples = ", ".join(str(known[int(row)].as_py()) for row in missing[:_EXAMPLES])
        raise DataError(
            f"{where}: {len(missing):,} nodes have no row, such as {examples}. Add a row of "
            "numbers for each id that edges and other tables name.",
            id="prepare-features-incomplete",
        )
    return table.values[position]


def _undirected(
    known: pa.Array, source: pa.Array, target: pa.Array
) -> tuple[pa.Array, pa.Array, str]:
    rows, columns = (
        pc.index_in(ids, known).to_numpy().astype(np.int64) for ids in (source, target)
    )
    edges = undirected_edges(rows, columns, len(known))
    return known.take(edges.source), known.take(edges.target), edges.note


def _class_codes(labels: pa.Array) -> np.ndarray | None:
    """Classes as int64, -1 for unlabelled. None if labels are numbers."""
    if pa.types.is_floating(labels.type):
        return None
    codes = labels.dictionary_encode().indices if is_text_type(labels.type) else labels
    return pc.fill_null(codes, -1).to_numpy().astype(np.int64)


def _read_text(uri: str, files: CsvSource) -> tuple[pa.Table, int, bool]:
    """Reads the columns as texts. Returns also the line of the first row, and whether the file has
    a header.
    """
    where = redact(uri)
    with _open(uri, where) as stream:
        lines = stream.read(_SNIFFED_BYTES).decode("utf-8", "replace").splitlines()
    num_skipped = 0
    while num_skipped < len(lines) and lines[num_skipped][:1] in ("#", "%"):
        num_skipped += 1
    has_header = files.has_header
    if has_header:
        num_skipped, has_header = _find_header(lines[: num_skipped + 1])
    sample = lines[num_skipped : num_skipped + 2]
    separator = files.separator or _find_separator(sample, where)
    form = CsvFormat(separator=separator, header=has_header, skip_lines=num_skipped)
    names = read_header(uri, where, form)
    if form.header and is_row(names, separator):
        form = form.model_copy(update={"header": False})
        names = read_header(uri, where, form)
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(
            f"{where}: its header has {', '.join(map(repr, repeated))} more than once. Give "
            "each column a name of its own.",
            id="prepare-header-repeated",
        )
    types = dict.fromkeys(names, pa.string())
    table = pa.Table.from_batches(read_batches(uri, where, types, form), pa.schema(types))
    # A column may have more than the 2 GiB of `string`.
    table = table.cast(pa.schema(dict.fromkeys(names, pa.large_string())))
    return table, num_skipped + form.header + 1, form.header


def _find_header(lines: Sequence[str]) -> tuple[int, bool]:
    """The number of lines before the header or the first row, and whether there is a header.

    Above a row of numbers, only the last comment can be the header, if it has as many columns. In
    other files, the first line is the header.

    Args:
        lines: the comments at the top of a file and the line after them.
    """
    *comments, row = lines or [""]
    values = re.split(r"[,;|\t]| +", row.strip())
    if not comments or not all(map(is_number, values)):
        return 0, True
    separator = row.strip()[len(values[0]) : len(values[0]) + 1]
    names = comments[-1].strip().split(separator)
    is_header = len(names) == len(values) and not any(map(is_number, names))
    return len(comments) - is_header, is_header


def _find_separator(sample: Sequence[str], where: str) -> str:
    bare = [QUOTED.sub("", line) for line in sample]
    for separator in _SEPARATORS:
        counts = {line.count(separator) for line in bare}
        if counts and 0 not in counts and len(counts) == 1:
            return separator
    shown = sample[0][:60] if sample else ""
    raise DataError(
        f"{where}: no separator splits its first lines into equal numbers of columns: {shown!r}. "
        "Give --separator, such as ';' or '\\t'; any will do for a file of one column.",
        id="prepare-separator",
    )


def _read_ragged(uri: str) -> pa.Table:
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
    with naming_missing(where), open_stream(uri) as stream:
        yield stream
