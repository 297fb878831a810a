"""Drafts `graph.yaml` from a folder of tables: keys, references, roles, transforms; to be edited.

A column is a key where each row has another value. A column refers to a key where its values are
among the key's; of numbers, which are among those of many keys, the names have to agree too, or the
keys have gaps that the numbers would hit by chance.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raygnn.config.documents import dump_yaml
from raygnn.data.filesystem import join, open_fs, redact, write_text
from raygnn.data.manifest import FORMAT, manifest_uri
from raygnn.data.splits import SPLIT_CODES
from raygnn.data.tables.csv_tables import (
    CsvSniff,
    arrow_type,
    read_batches,
    read_header,
    sniff,
    unify,
)
from raygnn.data.tables.files import is_parquet, open_parquet, suffix_and_format
from raygnn.data.transforms.fit import looks_like_ids
from raygnn.data.transforms.values import is_number_type, is_text_type, looks_like_times
from raygnn.errors import DataError

_NUMBERED = re.compile(r"[-_.]?(part[-_.]?)?\d+([-_]of[-_]\d+)?$")
_ENDS = (("source", "src", "from", "head", "sender"), ("target", "dst", "to", "tail", "receiver"))
_KEYS = ("id", "key", "code", "sku", "uid", "uuid")
_TIMES = ("time", "timestamp", "date", "day", "created", "created_at", "updated_at")
_LABELS = ("label", "labels", "target", "class", "y")
# What a column of a table is called that refers to another row of it.
_OF_ITS_OWN = ("manager", "supervisor", "boss", "parent", "mentor", "referrer", "referred")
# Where a draft writes tables; the next draft of the folder does not read them.
_DRAFTED = "_drafted"
_END_OF_KEY = re.compile(
    r"(?i:[-_ ]?(id|key|code)|[-_ ](no|nr|num|number))$|(?<=[a-z])(No|Nr|Num|Number)$"
)
_BY_CHANCE = 1e-6  # of numbers to be among the keys
_CONTAINED = 0.99  # share of the distinct values of a reference that are keys
_REPEATED = 0.01  # share of the rows of a key that may repeat one, which is an error of the table
_MOST_CLASSES = 100
_FEW_CLASSES, _MOST_EXAMPLES = 20, 4  # of columns that are named as examples of labels
# Texts that people read as dates and numbers.
_OPEN_DATE = r"^\d{1,2}/\d{1,2}/\d{2,4}\b"
_AMOUNT = r"^(\p{L}{3} |\p{Sc} ?)?-?\d[\d.,']*( ?(\p{Sc}|%|\p{L}{3}))?$"
_SEPARATORS = (";", "|")  # of lists in a text; commas are in sentences and names too


@dataclass
class Column:
    """A column of a table, and what it may be."""

    name: str
    values: pa.ChunkedArray
    distinct: pa.Array = field(init=False)

    def __post_init__(self) -> None:
        kind = self.values.type
        hashable = is_number_type(kind) or is_text_type(kind)
        self.distinct = self.values.unique().drop_null() if hashable else pa.array([], pa.null())

    @cached_property
    def as_reference(self) -> pa.Array:
        """The distinct values as they refer: pandas writes whole numbers with gaps as floats."""
        if not pa.types.is_floating(self.values.type):
            return self.distinct
        try:
            return pc.cast(self.distinct, pa.int64())
        except pa.ArrowInvalid:
            return self.distinct

    @property
    def num_given(self) -> int:
        """Rows that are not null."""
        return len(self.values) - int(self.values.null_count)

    @cached_property
    def kind(self) -> str:
        """int, text, number, time, list or other."""
        type_ = self.values.type
        if pa.types.is_timestamp(type_) or pa.types.is_date(type_):
            return "time"
        if is_text_type(type_) and looks_like_times(self.distinct):
            return "time"
        if pa.types.is_integer(type_):
            return "int"
        if is_text_type(type_):
            return "text"
        if is_number_type(type_) or pa.types.is_boolean(type_):
            return "number"
        is_list = pa.types.is_list(type_) or pa.types.is_large_list(type_)
        return "list" if is_list or pa.types.is_fixed_size_list(type_) else "other"

    @property
    def can_be_id(self) -> bool:
        """Whether each row has a value of a kind that ids are of."""
        is_whole = len(self.values) > 0 and self.values.null_count == 0
        return is_whole and self.kind in {"int", "text"}

    @cached_property
    def is_unique(self) -> bool:
        """Whether each row has a value of its own that can be an id."""
        return self.can_be_id and self.num_repeated == 0

    @cached_property
    def is_nearly_unique(self) -> bool:
        """Whether each row has a value of its own that can be an id, but for errors."""
        return self.can_be_id and 0 < self.num_repeated <= _REPEATED * len(self.values)

    @property
    def num_repeated(self) -> int:
        """Rows whose value an earlier row has."""
        return self.num_given - len(self.distinct)

    @property
    def is_free_text(self) -> bool:
        """Whether most rows have a text of their own: an id, a name or a sentence."""
        return self.kind == "text" and looks_like_ids(len(self.distinct), self.num_given)

    @property
    def is_split(self) -> bool:
        """Whether the values are words of a split column, training among them."""
        if self.kind != "text" or not 2 <= len(self.distinct) <= len(SPLIT_CODES):
            return False
        words = {text.strip().lower() for text in self.distinct.to_pylist()}
        return "train" in words and words <= SPLIT_CODES.keys()


@dataclass
class Table:
    """The files of one table.

    Attributes:
        pattern: of its files, relative to the folder.
        key: the column of ids, of a table of nodes.
        references: the table that a column refers to, by column.
        edge_files: of a column with gaps, the file of its edges.
        set_aside: columns that are left out for a reason in `unsure`.
        unsure: what a person should look at.
    """

    name: str
    pattern: str
    columns: dict[str, Column]
    key: str | None = None
    references: dict[str, str] = field(default_factory=dict)
    edge_files: dict[str, str] = field(default_factory=dict)
    set_aside: set[str] = field(default_factory=set)
    unsure: list[str] = field(default_factory=list)

    @property
    def words(self) -> str:
        """The name as names of columns have it: in the singular, letters and digits."""
        return _plain(_singular(self.name))


def draft(folder: str) -> tuple[str, list[str], dict[str, pa.Table]]:
    """Drafts the manifest of a folder.

    Args:
        folder: with Parquet and CSV tables, each a file or a folder of files. Any fsspec URI.
    Returns:
        The YAML text; a line for each thing that is worth a look; and tables of ids that have none,
        by the name of the Parquet file that the text expects.
    Raises:
        DataError: there are no tables, none of them can be nodes, or one cannot be read.
    """
    tables = [_read(name, pattern, uris) for name, pattern, uris in _find_tables(folder)]
    if not tables:
        raise DataError(
            f"folder {redact(folder)!r} is invalid: it holds no Parquet, CSV or TSV files. Name "
            "the folder of the tables.",
            id="prepare-no-tables",
        )
    for table in tables:
        table.key = _own_key(table, tables)
    for table in tables:
        _find_references(table, tables)
    _keep_keys_of_nodes(tables)
    made = {**_tables_of_missing_nodes(tables), **_edges_without_gaps(tables)}
    nodes = [table for table in tables if table.key is not None]
    if not nodes:
        names = ", ".join(table.name for table in tables)
        raise DataError(
            f"folder {redact(folder)!r} is invalid: no table of it has a column of ids that are "
            f"there once, and none refers to another ({names}). Write graph.yaml by hand: "
            "docs/graph-format.md.",
            id="prepare-no-nodes",
        )
    if not any(table.references for table in tables):
        nodes[0].unsure.append(
            "no column refers to another table or row: there are no edges, which training needs"
        )
    text = "".join(_lines(tables))
    return text, list(_notes(text)), made


def _notes(text: str) -> Iterator[str]:
    """The lines with a question mark, each behind the type that it is of."""
    place = ""
    for line in text.splitlines():
        words = line.strip()
        if words.startswith("# ? "):
            yield f"{place}{words.removeprefix('# ? ')}"
        elif re.match(r"  \S", line):
            place = f"{words.removeprefix('- type:').rstrip(':').strip()}: "


def _find_tables(folder: str) -> Iterator[tuple[str, str, list[str]]]:
    """Name, pattern and URIs of each table."""
    fs, root = open_fs(folder)
    paths = sorted(fs.find(root)) if fs.isdir(root) else []
    groups: dict[tuple[str, str], list[str]] = {}
    for path in paths:
        inside = PurePosixPath(path[len(root.rstrip("/")) + 1 :])
        found = suffix_and_format(inside.name)
        is_hidden = any(part.startswith((".", "_")) for part in inside.parts)
        if found is None or is_hidden or len(inside.parts) > 3:
            continue
        suffix, _ = found
        stem = inside.name[: -len(suffix)]
        parent = inside.parent.as_posix()
        base = _NUMBERED.sub("", stem)
        if base == stem:
            groups.setdefault((stem, inside.as_posix()), []).append(inside.as_posix())
        elif base or parent == ".":
            name = base or stem
            start = f"{parent}/{name}" if parent != "." else name
            groups.setdefault((name, f"{start}*{suffix}"), []).append(inside.as_posix())
        else:
            name = inside.parent.name
            groups.setdefault((name, f"{parent}/*{suffix}"), []).append(inside.as_posix())
    for (name, pattern), inner in groups.items():
        yield _type_name(name), pattern, [join(folder, path) for path in inner]


def _read(name: str, pattern: str, uris: Sequence[str]) -> Table:
    if is_parquet(pattern):
        parts = []
        for uri in uris:
            with open_parquet(uri) as file:
                parts.append(file.read())
        table = pa.concat_tables(parts, promote_options="permissive")
    else:
        shapes = [sniff(CsvSniff(uri, uri, read_header(uri, uri))) for uri in uris]
        header = shapes[0].header
        types = {
            column: arrow_type(unify([shape.kinds.get(column, "null") for shape in shapes]))
            for column in header
        }
        schema = pa.schema(list(types.items()))
        batches = [batch for uri in uris for batch in read_batches(uri, uri, types)]
        table = pa.Table.from_batches(batches, schema)
    columns = {column: Column(column, table.column(column)) for column in table.column_names}
    return Table(name, pattern, columns)


def _own_key(table: Table, tables: Sequence[Table]) -> str | None:
    """The column of a table's own ids: by its name, or as another table has one of that name."""
    columns = table.columns.values()
    unique = [column.name for column in columns if column.is_unique]
    return _chosen_key(table, tables, unique) or _chosen_key(
        table, tables, [column.name for column in columns if column.is_nearly_unique]
    )


def _chosen_key(table: Table, tables: Sequence[Table], unique: Sequence[str]) -> str | None:
    of_name = [name for name in unique if table.words in (_plain(name), _plain(_node_name(name)))]
    plain = [name for name in unique if name.lower() in _KEYS]
    ending = [name for name in unique if _plain(name).endswith("id")]
    others = {name for other in tables if other is not table for name in other.columns}
    shared = [name for name in unique if name in others and _node_name(name)]
    found = [*of_name, *plain, *ending[:1], *shared]
    return found[0] if found else None


def _find_references(table: Table, tables: Sequence[Table]) -> None:
    for column in table.columns.values():
        has_gaps = table.key is not None and column.as_reference is not column.distinct
        is_id = column.kind in {"int", "text"} or has_gaps
        if column.name == table.key or not is_id:
            continue
        fitting = [other for other in tables if other.key and _refers(table, column, other)]
        if not fitting:
            _set_aside_digits(table, column, tables)
            continue
        fitting.sort(key=lambda other: (not _names(column.name, other), other.name))
        table.references[column.name] = fitting[0].name
        if fitting[1:] and not _names(column.name, fitting[0]):
            others = ", ".join(other.name for other in fitting[1:])
            table.unsure.append(f"{column.name} refers to {fitting[0].name}, or to {others}")


def _set_aside_digits(table: Table, column: Column, tables: Sequence[Table]) -> None:
    """Says of texts as 00123 that they would refer to a table, of which ids are read as numbers."""
    if column.kind != "text" or not len(column.distinct):
        return
    if not _all_match(column, r"^[0-9]{1,18}$"):
        return
    numbers = Column(column.name, pa.chunked_array([pc.cast(column.distinct, pa.int64())]))
    for other in tables:
        if other is not table and other.key and _refers(table, numbers, other):
            table.set_aside.add(column.name)
            table.unsure.append(
                f"{column.name} is left out: it holds ids of {other.name} as text, and those of "
                f"{other.pattern} are integers (007 is 7 in CSV). Write both as integers, or both "
                "as text in Parquet"
            )
            return


def _refers(table: Table, column: Column, other: Table) -> bool:
    assert other.key is not None
    key = other.columns[other.key]
    values = column.as_reference
    is_number = pa.types.is_integer(values.type)
    if is_number != (key.kind == "int") or not len(values):
        return False
    has_name = _names(column.name, other) or any(column.name.lower() in ends for ends in _ENDS)
    if table is other:
        has_name |= any(word in _plain(column.name) for word in _OF_ITS_OWN)
        if not has_name and not is_number:
            return False
    if is_number and not has_name and not _is_sparse(values, key.distinct):
        return False
    found = pc.sum(pc.is_in(values, value_set=key.distinct)).as_py() or 0
    return bool(found >= _CONTAINED * len(values))


def _is_sparse(values: pa.Array, keys: pa.Array) -> bool:
    """Whether numbers of this range would hardly be among the keys unless they refer to them."""
    low, high = pc.min_max(values).as_py().values()
    is_within = pc.and_(pc.greater_equal(keys, low), pc.less_equal(keys, high))
    share = (pc.sum(is_within).as_py() or 0) / (high - low + 1)
    return bool(share ** len(values) < _BY_CHANCE)


def _names(column: str, other: Table) -> bool:
    """Whether a column is called like a table or its key."""
    plain, key = _plain(column), _plain(other.key or "")
    return other.words in plain or (key not in _KEYS and plain.endswith(key))


def _keep_keys_of_nodes(tables: Sequence[Table]) -> None:
    """Rows that join two nodes, and that nothing refers to, are edges: their ids are not needed."""
    wanted = {name for table in tables for name in table.references.values()}
    for table in tables:
        if table.key is not None and table.name not in wanted and len(table.references) > 1:
            table.key = None


def _tables_of_missing_nodes(tables: list[Table]) -> dict[str, pa.Table]:
    """Node types for columns of ids, in tables of edges, that no table of their own lists."""
    made: dict[str, pa.Table] = {}
    found: dict[str, list[tuple[Table, Column]]] = {}
    for table in tables:
        if table.key is not None or len(table.references) > 1:
            continue
        ends = [
            column
            for column in table.columns.values()
            if column.name not in table.references
            and column.kind in {"int", "text"}
            and (_node_name(column.name) or any(column.name.lower() in end for end in _ENDS))
        ]
        if len(ends) + len(table.references) < 2:
            continue
        for column in ends[: 2 - len(table.references)]:
            found.setdefault(_node_name(column.name) or "node", []).append((table, column))
    for name, users in found.items():
        # ids of two tables may be of several integer types, or of numbers here and texts there
        kind = pa.string() if any(c.kind == "text" for _, c in users) else pa.int64()
        ids = pa.concat_arrays([pc.cast(column.distinct, kind) for _, column in users]).unique()
        file = f"{_DRAFTED}/{name}_ids.parquet"
        made[file] = pa.table({"id": ids.take(pc.sort_indices(ids))})
        columns = {"id": Column("id", made[file].column("id"))}
        table = Table(name, file, columns, "id")
        table.unsure.append(f"no table lists these nodes; their ids are written to {file}")
        tables.append(table)
        for user, column in users:
            user.references[column.name] = name
    return made


def _edges_without_gaps(tables: Sequence[Table]) -> dict[str, pa.Table]:
    """Pairs of ids for columns of nodes that refer in some rows only: an edge has two ends."""
    made: dict[str, pa.Table] = {}
    for table in tables:
        if table.key is None:
            continue
        for name in table.references:
            column = table.columns[name]
            is_whole = column.as_reference is column.distinct
            if is_whole and not column.values.null_count:
                continue
            ids = column.values if is_whole else pc.cast(column.values, pa.int64())
            pairs = pa.table({table.key: table.columns[table.key].values, name: ids})
            file = f"{_DRAFTED}/{table.name}_{_type_name(name)}.parquet"
            made[file] = pairs.filter(pc.is_valid(pairs.column(name)))
            table.edge_files[name] = file
            table.unsure.append(f"{name} has gaps; the others are written to {file}")
    return made


def _lines(tables: Sequence[Table]) -> Iterator[str]:
    yield (
        "# A draft: look at the lines with '?'. docs/graph-format.md has every key.\n"
        f"format: {FORMAT}\n"
    )
    for table in tables:
        if table.key is None and len(table.references) < 2:
            yield f"# ? {table.pattern} is left out: {_why_unused(table)}\n"
            yield from (f"# ? {table.pattern}: {note}\n" for note in table.unsure)
    if (note := _label_note(tables)) is not None:
        yield f"# ? {note}\n"
    yield "node_types:\n"
    edges: list[str] = []
    for table in tables:
        if table.key is not None:
            yield from _node_lines(table, tables)
        edges.extend(_edge_lines(table, tables))
    if edges:
        yield "edge_types:\n"
        yield from edges


def _why_unused(table: Table) -> str:
    """Of a table that is neither nodes nor edges."""
    nearest = max(
        (column for column in table.columns.values() if column.kind in {"int", "text"}),
        key=lambda column: (_plain(column.name).endswith(_KEYS), len(column.distinct)),
        default=None,
    )
    if nearest is None:
        return "no column of it can hold ids"
    empty, repeated = int(nearest.values.null_count), nearest.num_repeated
    others = " and ".join(sorted(set(table.references.values()))) or "no table that is taken"
    return (
        f"it refers to {others}, and no column has an id of its own in each row "
        f"({nearest.name}: {repeated:,} rows repeat one, {empty:,} have none)"
    )


def _doubts(table: Table, tables: Sequence[Table]) -> Iterator[str]:
    """What is wrong in rows of a table that is taken all the same."""
    keys = {other.name: other.columns[other.key] for other in tables if other.key is not None}
    if table.key is not None and (repeated := table.columns[table.key].num_repeated):
        rows = "row repeats" if repeated == 1 else "rows repeat"
        yield f"{table.key}: {repeated:,} {rows} an id; data.on_error: drop keeps the first"
    for name, other in table.references.items():
        column = table.columns[name]
        values = column.values
        if column.as_reference is not column.distinct:
            values = pc.cast(values, pa.int64())
        known = pc.sum(pc.is_in(values.drop_null(), value_set=keys[other].distinct)).as_py() or 0
        # Nodes without a reference have no edge; an edge without an end is an error.
        num_rows = len(column.values) if table.key is None else column.num_given
        if known < num_rows:
            yield (
                f"{name}: {num_rows - known:,} of {num_rows:,} rows name no {other}; "
                "data.on_error: drop leaves them out"
            )


def _node_lines(table: Table, tables: Sequence[Table]) -> Iterator[str]:
    yield f"  {_quoted(table.name)}:\n"
    for note in (*table.unsure, *_doubts(table, tables)):
        yield f"    # ? {note}\n"
    yield f"    files: {_quoted(table.pattern)}\n    id: {_quoted(table.key or '')}\n"
    split, time, label, rest = _roles(table)
    yield from _feature_lines(rest, "x")
    if label is not None:
        yield f"    labels: {{{_quoted(_type_name(label.name))}: {_quoted(label.name)}}}\n"
    if split is not None:
        yield f"    split: {_quoted(split.name)}\n"
    if time is not None:
        yield f"    time: {_quoted(time.name)}\n"


def _roles(table: Table) -> tuple[Column | None, Column | None, Column | None, list[Column]]:
    """Of a table of nodes: the columns of its split, its time and its label, and its features."""
    taken = {table.key, *table.references, *table.set_aside}
    columns = [column for column in table.columns.values() if column.name not in taken]
    split = next((column for column in columns if column.is_split), None)
    time = next((c for c in columns if c.kind == "time" and c.name.lower() in _TIMES), None)
    rest = [column for column in columns if column is not split and column is not time]
    label = _label(rest, split is not None)
    return split, time, label, [column for column in rest if column is not label]


def _edge_roles(table: Table) -> tuple[Column | None, Column | None, list[Column]]:
    """Of a table of edges: the columns of its split and its time, and its features."""
    taken = {*table.references, *table.set_aside}
    rest = [column for column in table.columns.values() if column.name not in taken]
    time = next((column for column in rest if column.kind == "time"), None)
    time = time or next((c for c in rest if c.kind == "int" and c.name.lower() in _TIMES), None)
    split = next((column for column in rest if column.is_split), None)
    return split, time, [column for column in rest if column is not time and column is not split]


def _label_note(tables: Sequence[Table]) -> str | None:
    """How a column is made a label, with those that look like one; None where there are labels."""
    found: list[tuple[str, int]] = []
    for table in tables:
        if table.key is not None:
            _, _, label, rest = _roles(table)
        elif len(table.references) > 1:
            label, rest = None, _edge_roles(table)[-1]
        else:
            continue
        if label is not None:
            return None
        found += [
            (f"{table.name}.{column.name}", len(column.distinct))
            for column in rest
            if 2 <= len(column.distinct) <= min(_FEW_CLASSES, column.num_given // 2)
            and column.kind in {"int", "text"}
        ]
    fewest = min((num_classes for _, num_classes in found), default=0)
    names = [name for name, num_classes in found if num_classes == fewest][:_MOST_EXAMPLES]
    such = f" (as {' or '.join(names)})" if names else ""
    return (
        f"no labels: to predict a column{such}, take it out of the features of its table and add "
        "labels: {NAME: COLUMN} there"
    )


def _label(columns: Sequence[Column], has_split: bool) -> Column | None:
    """The column to be predicted: by its name, or the last one of classes beside a split."""
    named = [column for column in columns if column.name.lower() in _LABELS]
    if named or not has_split:
        return named[0] if named else None
    of_classes = [
        column
        for column in columns
        if column.kind == "text" and 2 <= len(column.distinct) <= _MOST_CLASSES
    ]
    return of_classes[-1] if of_classes else None


def _feature_lines(columns: Sequence[Column], name: str) -> Iterator[str]:
    reasons = {column.name: _why_no_feature(column) for column in columns}
    kept = [column for column in columns if reasons[column.name] is None]
    if kept:
        yield f"    features:\n      {name}:\n"
        for column in kept:
            yield f"        - {{column: {_quoted(column.name)}, {_transform(column)}}}\n"
    for column_name, reason in reasons.items():
        if reason is not None:
            yield f"    # ? {column_name} is left out: it holds {reason}\n"


def _why_no_feature(column: Column) -> str | None:
    """What a column holds that no transform reads; None where one does."""
    if column.kind == "other" or not column.num_given:
        return "nothing that becomes numbers"
    if len(column.distinct) == 1 and not column.values.null_count:
        return f"{column.distinct[0].as_py()!r} in all rows"
    if column.kind == "text" and _all_match(column, _OPEN_DATE):
        return "dates as 05/06/2024, of May or of June: write 2024-06-05"
    if not column.is_free_text:
        return None
    if _all_match(column, _AMOUNT) and not _all_match(column, r"^\d+$"):
        return "numbers as people write them (EUR 12,345): write 12345"
    return "texts of their own"


def _all_match(column: Column, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(column.distinct, pattern)).as_py())


def _transform(column: Column) -> str:
    """`auto`, which does not look into texts: these may be lists."""
    for separator in _SEPARATORS if column.kind == "text" else ():
        parts = pc.split_pattern(column.distinct, separator)
        lengths = pc.list_value_length(parts)
        words = pc.list_flatten(parts).unique()
        if pc.max(lengths).as_py() > 1 and 2 * len(words) <= len(column.distinct):
            return f'transform: multi_hot, separator: "{separator}"'
    return "transform: auto"


def _edge_lines(table: Table, tables: Sequence[Table]) -> Iterator[str]:
    references = list(table.references.items())
    if table.key is not None:
        for column, other in references:
            relation = _type_name(_node_name(column) or column)
            edge_type = (table.name, relation, other)
            yield from _edge(table, edge_type, table.key, column)
        return
    if len(references) < 2:
        return
    (source, source_type), (target, target_type) = _ordered(references)[:2]
    yield from _edge(table, (source_type, table.name, target_type), source, target)
    for note in (*table.unsure, *_doubts(table, tables)):
        yield f"    # ? {note}\n"
    split, time, rest = _edge_roles(table)
    if time is not None:
        yield f"    time: {_quoted(time.name)}\n"
    if split is not None:
        yield f"    split: {_quoted(split.name)}\n"
    for column in rest:
        if column.is_unique:
            yield f"    # ? {column.name} is left out: each row has another value\n"
    yield from _feature_lines([column for column in rest if not column.is_unique], "edge_attr")
    for column, other in _ordered(references)[2:]:
        yield f"    # ? {column} refers to {other}: an edge has two ends\n"


def _edge(table: Table, edge_type: tuple[str, str, str], source: str, target: str) -> Iterator[str]:
    names = ", ".join(_quoted(name) for name in edge_type)
    yield f"  - type: [{names}]\n"
    yield f"    files: {_quoted(table.edge_files.get(target, table.pattern))}\n"
    yield f"    source: {_quoted(source)}\n    target: {_quoted(target)}\n"
    if edge_type[0] == edge_type[2]:
        yield "    # ? directed: false, where a row stands for both directions\n"


def _ordered(references: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The source before the target, where names say which is which."""

    def place(reference: tuple[str, str]) -> int:
        words = re.split(r"[^a-z]+", reference[0].lower())
        return 0 if set(words) & set(_ENDS[0]) else 2 if set(words) & set(_ENDS[1]) else 1

    return sorted(references, key=place)


def _node_name(column: str) -> str:
    """`user_id` as `user`; nothing where a name does not end so."""
    name = _END_OF_KEY.sub("", column)
    return _type_name(name) if name and name != column else ""


def _type_name(name: str) -> str:
    """A name as `graph.yaml` takes it."""
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_") or "node"


def _singular(name: str) -> str:
    for ending, instead in (("ies", "y"), ("sses", "ss"), ("s", "")):
        if name.lower().endswith(ending) and not name.lower().endswith("ss"):
            return name[: -len(ending)] + instead
    return name


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _quoted(text: str) -> str:
    """The text as YAML: in quotes where it would be read as something else."""
    return dump_yaml([text], flow_leaves=True).strip()[1:-1]


def write_draft(folder: str, overwrite: bool = False) -> tuple[str, list[str]]:
    """Writes the draft, and tables of ids that have none, into the folder.

    Returns:
        URI of the manifest, and a line for each thing that is worth a look.
    Raises:
        DataError: as `draft`; or there is a graph.yaml, and it is not to be replaced.
    """
    uri = manifest_uri(folder)
    fs, path = open_fs(uri)
    if fs.exists(path) and not overwrite:
        raise DataError(
            f"folder {redact(folder)!r} is invalid: it has a graph.yaml already. Train on it, or "
            "replace it with --overwrite.",
            id="prepare-graph-exists",
        )
    text, notes, made = draft(folder)
    for name, table in made.items():
        path = open_fs(join(folder, name))[1]
        fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        with fs.open(path, "wb") as file:
            pq.write_table(table, file)
    write_text(uri, text)
    return uri, notes
