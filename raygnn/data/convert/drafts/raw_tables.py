"""The tables of a folder, and what a column of one may be by its values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath

import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.filesystem import join, open_fs
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
from raygnn.data.transforms.spec import Format
from raygnn.data.transforms.values import (
    is_number_type,
    is_text_type,
    looks_like_times,
    written_numbers,
)

DATE_FORMATS: tuple[Format, ...] = ("day_first", "month_first")
NUMBER_FORMATS: tuple[Format, ...] = ("decimal_point", "decimal_comma")
FEW_CLASSES = 20
#: Names of the columns of an edge's ends, and of columns of ids.
ENDS = (("source", "src", "from", "head", "sender"), ("target", "dst", "to", "tail", "receiver"))
KEYS = ("id", "key", "code", "sku", "uid", "uuid")
_END_OF_KEY = re.compile(
    r"(?i:[-_ ]?(id|key|code|nr)|[-_ ](no|num|number))$|(?<=[a-z])(No|Num|Number)$"
)
_OPEN_DATE = r"^\d{1,2}[/-]\d{1,2}[/-]\d{2,4}\b"  # that people read as a date
_NUMBERED = re.compile(r"[-_.]?(part[-_.]?)?\d+([-_]of[-_]\d+)?$")
_REPEATED = 0.01  # share of the rows of a key that may repeat one, which is an error of the table


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
        """The distinct values; whole floats as integers, as pandas writes integers with gaps."""
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
        """Whether each row has a value that can be an id."""
        is_whole = len(self.values) > 0 and self.values.null_count == 0
        return is_whole and self.kind in {"int", "text"}

    @cached_property
    def is_unique(self) -> bool:
        """Whether each row has a distinct value that can be an id."""
        return self.can_be_id and self.num_repeated == 0

    @cached_property
    def is_nearly_unique(self) -> bool:
        """As `is_unique`, with a few repeated rows allowed."""
        return self.can_be_id and 0 < self.num_repeated <= _REPEATED * len(self.values)

    @property
    def num_repeated(self) -> int:
        """Rows whose value an earlier row has."""
        return self.num_given - len(self.distinct)

    @property
    def is_free_text(self) -> bool:
        """Whether most texts are distinct: ids, names or sentences."""
        return self.kind == "text" and looks_like_ids(len(self.distinct), self.num_given)

    @cached_property
    def formats(self) -> tuple[Format, ...]:
        """Formats in which texts can be read as dates or numbers, the likeliest first."""
        texts = self.distinct
        if self.kind != "text" or len(texts) == 0:
            return ()
        if self.all_match(_OPEN_DATE):
            return tuple(form for form in DATE_FORMATS if looks_like_times(texts, form))
        if len(texts) <= FEW_CLASSES or self.all_match(r"^\d+$"):
            return ()
        read = {form: written_numbers(texts, form) for form in NUMBER_FORMATS}
        fit = [form for form, (_, unreadable) in read.items() if not unreadable.any()]
        if len(fit) == 2 and (read[fit[0]][0] == read[fit[1]][0]).all():
            return (fit[0],)
        # Each group has three digits: thousands rather than thousandths.
        return tuple(sorted(fit, key=lambda form: -float(read[form][0].sum())))

    def all_match(self, pattern: str) -> bool:
        return bool(pc.all(pc.match_substring_regex(self.distinct, pattern)).as_py())

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
        rewritten: references whose values are written as the ids that they refer to.
        unsure: what a person should look at.
    """

    name: str
    pattern: str
    columns: dict[str, Column]
    key: str | None = None
    references: dict[str, str] = field(default_factory=dict)
    edge_files: dict[str, str] = field(default_factory=dict)
    rewritten: list[str] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)

    @property
    def words(self) -> str:
        """The table's name in the singular, letters and digits only."""
        return plain(singular(self.name))


def find_tables(folder: str) -> Iterator[tuple[str, str, list[str]]]:
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
        yield type_name(name), pattern, [join(folder, path) for path in inner]


def read_table(name: str, pattern: str, uris: Sequence[str]) -> Table:
    """Reads all rows of a table.

    Raises:
        DataError: a file cannot be read.
    """
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


def node_name(column: str) -> str:
    """`user_id` as `user`; nothing where a name does not end so."""
    name = _END_OF_KEY.sub("", column)
    return type_name(name) if name and name != column else ""


def type_name(name: str) -> str:
    """A name as `graph.yaml` takes it."""
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_") or "node"


def singular(name: str) -> str:
    """An English plural's singular, by its ending."""
    for ending, instead in (("ies", "y"), ("sses", "ss"), ("s", "")):
        if name.lower().endswith(ending) and not name.lower().endswith("ss"):
            return name[: -len(ending)] + instead
    return name


def plain(name: str) -> str:
    """Letters and digits alone, in lower case."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
