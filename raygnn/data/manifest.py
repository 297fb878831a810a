"""The manifest `graph.yaml`: files by type, and the meaning of their columns.

docs/graph-format.md describes all keys.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    field_validator,
    model_serializer,
    model_validator,
)

from raygnn.config.loader_section import Window
from raygnn.config.section import Section
from raygnn.config.validation import validate_file
from raygnn.data.edge_types import REVERSE_PREFIX, SEPARATOR, EdgeType, edge_type_name
from raygnn.data.filesystem import is_below, is_remote, join, read_text, reading_input, redact
from raygnn.data.tables.files import PLAIN_CSV, CsvFormat
from raygnn.data.tables.source import Source
from raygnn.data.transforms.values import ColumnTransform, DateFormat, NumberFormat
from raygnn.documents import dump_yaml
from raygnn.errors import DataError, RuleError

MANIFEST_NAME = "graph.yaml"
FORMAT: Literal["raygnn/graph-v1"] = "raygnn/graph-v1"

# Names become file names and parts of config keys, so nothing that a shell or a URI reads.
_NAME = re.compile(r"[^\W_][\w.\-]*")  # letters of any script
_RESERVED_COLUMNS = frozenset({"id", "split", "time", "weight"})
_SPARSE_PARTS = frozenset({"indptr", "indices", "values"})

FeatureDtype = Literal["float16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64"]


def _as_tuple(value: Any) -> Any:
    if isinstance(value, str | int):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


_AsTuple = BeforeValidator(_as_tuple, json_schema_input_type=str | int | list[str | int])
_ANY_FORM: Any = str | int | list[Any] | dict[str, Any]
Names = Annotated[tuple[str, ...], _AsTuple, Field(min_length=1)]
Patterns = Annotated[tuple[str, ...], _AsTuple]


def _column_kind(value: Any) -> str:
    return "name" if isinstance(value, str | int) else "transform"


def _as_columns(value: Any) -> Any:
    return (value,) if isinstance(value, dict | ColumnTransform) else _as_tuple(value)


Columns = Annotated[
    tuple[
        Annotated[
            Annotated[str, Tag("name")] | Annotated[ColumnTransform, Tag("transform")],
            Discriminator(_column_kind),
        ],
        ...,
    ],
    BeforeValidator(_as_columns, json_schema_input_type=_ANY_FORM),
    Field(min_length=1),
]


class _Section(Section):
    # A list is a tuple of names; a column without a header is named by its position.
    model_config = ConfigDict(strict=False, coerce_numbers_to_str=True)


class DenseFeature(_Section):
    """One dense feature: its columns, concatenated in order, make one row of numbers.

    `dtype`: element type of fixed-size binary columns (little endian). Default: float32.
    """

    columns: Columns
    dtype: FeatureDtype | None = None

    @property
    def transforms(self) -> tuple[ColumnTransform | None, ...]:
        return tuple(None if isinstance(column, str) else column for column in self.columns)

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(
            column if isinstance(column, str) else column.column for column in self.columns
        )


class SparseFeature(_Section):
    """One sparse feature: each row lists positions, and values if these are not all 1."""

    indices: str
    values: str | None = None
    dim: int = Field(gt=0)


class Label(_Section):
    """One label. Without a kind, the type of its columns decides."""

    columns: Names
    kind: Literal["class", "multilabel", "regression"] | None = None
    num_classes: int | None = Field(default=None, gt=0)
    format: NumberFormat | None = None

    @model_validator(mode="after")
    def _format_is_of_numbers(self) -> Label:
        if self.format is not None and self.kind not in {None, "regression"}:
            rule = f"format: {self.format} is of numbers to be regressed, and kind is {self.kind}"
            raise RuleError(rule, "Leave one of them out", id="labels-format-kind")
        return self


def _read_label(value: Any) -> Any:
    if isinstance(value, dict) and isinstance(value.get("column"), str | int):
        return {"columns": value["column"], **{k: v for k, v in value.items() if k != "column"}}
    return {"columns": value} if isinstance(value, str | int | list | tuple) else value


def _read_columns(value: Any) -> Any:
    is_column = isinstance(value, dict) and "column" in value
    return {"columns": value} if is_column or isinstance(value, str | int | list | tuple) else value


def _feature_kind(value: Any) -> str:
    is_sparse = isinstance(value, SparseFeature) or (isinstance(value, dict) and "indices" in value)
    return "sparse" if is_sparse else "dense"


FeatureSpec = Annotated[
    Annotated[DenseFeature, Tag("dense")] | Annotated[SparseFeature, Tag("sparse")],
    Discriminator(_feature_kind),
    BeforeValidator(_read_columns, json_schema_input_type=_ANY_FORM),
]
LabelSpec = Annotated[Label, BeforeValidator(_read_label, json_schema_input_type=_ANY_FORM)]
EdgeLabels = dict[str, LabelSpec]


def _check_column_names(features: dict[str, Any], labels: dict[str, Any]) -> None:
    for name in (*features, *labels):
        if not _NAME.fullmatch(name):
            rule = f"column name {name!r} must be letters, digits, '_', '.' or '-', no mark first"
            raise RuleError(rule, id="graph-column-name")
        if name in _RESERVED_COLUMNS:
            remedy = f"Use none of {sorted(_RESERVED_COLUMNS)}"
            raise RuleError(f"column name {name!r} is reserved", remedy, id="graph-column-reserved")
        base, _, part = name.rpartition(".")
        if part in _SPARSE_PARTS and isinstance(features.get(base), SparseFeature):
            rule = f"column name {name!r} is a file of the sparse feature {base!r}"
            raise RuleError(rule, "Use another name on the left", id="graph-column-reserved")
    both = sorted(set(features) & set(labels))
    if both:
        raise RuleError(f"{both} are features and labels", "Rename one", id="graph-column-twice")


class TimeColumn(_Section):
    """The column of times, and the format of its dates; in `graph.yaml` also its name alone."""

    column: str
    model_config = ConfigDict(json_schema_extra={"type": ["object", "string", "integer"]})

    format: DateFormat | None = None

    @model_validator(mode="before")
    @classmethod
    def _accept_name(cls, value: Any) -> Any:
        return {"column": value} if isinstance(value, str | int) else value

    @model_serializer
    def _as_short_as_given(self) -> Any:
        return (
            self.column if self.format is None else {"column": self.column, "format": self.format}
        )


class _TableSection(_Section):
    """Rows of files, or of a source that is read into a snapshot first."""

    read: Source | None = None
    _added: ClassVar[tuple[str, ...]] = ("read",)

    @model_validator(mode="after")
    def _names_are_usable(self) -> Self:
        _check_column_names(getattr(self, "features", {}), getattr(self, "labels", {}))
        if bool(getattr(self, "files", ())) == (self.read is not None):
            remedy = "Set files to a pattern, or read as in {type: sql, url: ..., table: ...}"
            raise RuleError("a table has either files or read", remedy, id="graph-table-rows")
        return self

    @model_serializer(mode="wrap")
    def _without_read(self, dump: SerializerFunctionWrapHandler) -> Any:
        # Fingerprints of tables without them do not depend on these keys.
        return {key: value for key, value in dump(self).items() if key not in self._added or value}


class NodeTable(_TableSection):
    files: Patterns = ()
    id: str
    features: dict[str, FeatureSpec] = Field(default={})
    labels: dict[str, LabelSpec] = Field(default={})
    split: str | None = None
    time: TimeColumn | None = None
    csv: CsvFormat | None = None


class EdgeTable(_TableSection):
    """The table of one edge type. Types named `r` and `rev_r` are reverses without `reverse_of`."""

    type: EdgeType
    files: Patterns = ()
    source: str
    target: str
    features: dict[str, FeatureSpec] = Field(default={})
    labels: EdgeLabels = Field(default={})
    weight: str | None = None
    time: TimeColumn | None = None
    split: str | None = None
    directed: bool = True
    reverse_of: EdgeType | None = None
    csv: CsvFormat | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> EdgeTable:
        sparse = sorted(k for k, spec in self.features.items() if isinstance(spec, SparseFeature))
        if sparse:
            rule = f"{sparse} are sparse, which only features of nodes can be"
            raise RuleError(rule, "Write dense columns", id="graph-sparse-edges")
        if not self.directed and self.type[0] != self.type[2]:
            rule = "directed: false needs equal source and target types"
            raise RuleError(rule, "Declare a reverse edge type", id="graph-undirected-types")
        return self


class LabelEdgeTable(_TableSection):
    """Edges to learn from, as links or by their labels. Sampling never follows them."""

    type: EdgeType
    files: Patterns = ()
    source: str
    target: str
    sign: Literal["positive", "negative"] = "positive"
    labels: EdgeLabels = Field(default={})
    split: str | None = None
    weight: str | None = None
    time: TimeColumn | None = None
    csv: CsvFormat | None = None

    @property
    def name(self) -> str:
        return f"{edge_type_name(self.type)}.{self.sign}"


class TrainingTable(_TableSection):
    """Rows to learn or predict: an entity at a time. They are not nodes of the graph.

    Rows keep the order of the files. An entity may have any number of rows. `weight`: column of
    numbers; a row of weight 2 counts as two rows.
    """

    _added = ("read", "weight")

    files: Patterns = ()
    node_type: str
    node: str
    labels: dict[str, LabelSpec] = Field(default={})
    weight: str | None = None
    split: str | None = None
    time: TimeColumn | None = None
    window: Window | None = None
    csv: CsvFormat | None = None


Table = NodeTable | EdgeTable | LabelEdgeTable | TrainingTable


class Manifest(_Section):
    """The content of `graph.yaml`."""

    format: Literal["raygnn/graph-v1"] = FORMAT
    node_types: dict[str, NodeTable] = Field(min_length=1)
    edge_types: list[EdgeTable] = Field(default=[])
    label_edges: list[LabelEdgeTable] = Field(default=[])
    training_tables: dict[str, TrainingTable] = Field(default={})

    @field_validator("node_types", "training_tables")
    @classmethod
    def _names_are_usable(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            check_type_name(name)
        return value

    @model_validator(mode="after")
    def _tables_have_known_types(self) -> Manifest:
        for name, rows in self.training_tables.items():
            self._check_is_declared(rows.node_type, f"training table {name!r}")
        edges: list[EdgeTable | LabelEdgeTable] = [*self.edge_types, *self.label_edges]
        for table in edges:
            source, relation, target = table.type
            check_type_name(relation)
            for node_type in (source, target):
                self._check_is_declared(node_type, f"edge type {list(table.type)}")
        return self

    def _check_is_declared(self, node_type: str, where: str) -> None:
        if node_type not in self.node_types:
            rule = f"{where} names node type {node_type!r}, not one of {sorted(self.node_types)}"
            raise RuleError(rule, id="graph-node-type-undeclared")

    @model_validator(mode="after")
    def _edges_are_declared_once(self) -> Manifest:
        for edge_type, count in Counter(table.type for table in self.edge_types).items():
            if count > 1:
                rule = f"edge type {edge_type_name(edge_type)} is declared twice"
                remedy = "List all files under one entry, or rename a relation"
                raise RuleError(rule, remedy, id="graph-edge-type-twice")
        for (edge_type, sign), count in Counter((t.type, t.sign) for t in self.label_edges).items():
            if count > 1:
                rule = f"{sign} label edges of type {edge_type_name(edge_type)} are declared twice"
                remedy = "List all files under one entry"
                raise RuleError(rule, remedy, id="graph-label-edges-twice")
        reverses(self.edge_types)
        return self

    @property
    def tables(self) -> dict[str | EdgeType, NodeTable | EdgeTable]:
        """Tables of nodes and edges, by type."""
        tables: dict[str | EdgeType, NodeTable | EdgeTable] = {}
        tables.update(self.node_types)
        tables.update((table.type, table) for table in self.edge_types)
        return tables

    @property
    def all_tables(self) -> dict[str, Table]:
        """All tables by their name in messages, such as `edge_types.user__bought__item`."""
        return {
            **{f"node_types.{name}": table for name, table in self.node_types.items()},
            **{f"edge_types.{edge_type_name(table.type)}": table for table in self.edge_types},
            **{f"label_edges.{table.name}": table for table in self.label_edges},
            **{f"training_tables.{name}": table for name, table in self.training_tables.items()},
        }

    def with_files(self, files: Mapping[str, Sequence[str]]) -> Manifest:
        """A copy whose tables are files: patterns by name of `all_tables`."""

        def tables(group: str, entries: Mapping[str, Any]) -> dict[str, Any]:
            return {
                name: table.model_copy(
                    update={"files": tuple(files[f"{group}.{name}"]), "read": None}
                )
                for name, table in entries.items()
            }

        edges = {edge_type_name(table.type): table for table in self.edge_types}
        label_edges = {table.name: table for table in self.label_edges}
        return self.model_copy(
            update={
                "node_types": tables("node_types", self.node_types),
                "edge_types": [*tables("edge_types", edges).values()],
                "label_edges": [*tables("label_edges", label_edges).values()],
                "training_tables": tables("training_tables", self.training_tables),
            }
        )

    @classmethod
    def parse(cls, text: str, name: str = MANIFEST_NAME) -> Manifest:
        """Reads a manifest from YAML. Raises a DataError with all broken rules."""
        return validate_file(cls, text, name)

    @classmethod
    def load(cls, uri: str | os.PathLike[str], allow_outside: Sequence[str] = ()) -> Manifest:
        """Reads the manifest of a graph folder, or the manifest file itself.

        `allow_outside`: folders besides the graph's own that it may link into. Raises a DataError
        if it is missing, not allowed, does not parse or breaks a rule.
        """
        location = manifest_uri(uri)
        is_found = location != os.fspath(uri) and not is_remote(location)  # not named by the user
        if is_found and not is_below(location, [os.fspath(uri), *allow_outside]):
            raise DataError(
                f"uri={redact(location)!r} is invalid: it is a link out of its folder. Allow the "
                "folder that has the file with data.allow_outside. [data-outside]"
            )
        with reading_input(location):
            text = read_text(location)
        return cls.parse(text, redact(location))

    def dump(self) -> str:
        """The manifest as YAML, in the short forms that people write."""
        content = self.model_dump(mode="json", exclude_none=True)
        for group in content.values():
            if isinstance(group, list | dict):
                for table in group.values() if isinstance(group, dict) else group:
                    _shorten(table)
        for name in ("label_edges", "training_tables"):
            if not content[name]:
                del content[name]
        return dump_yaml(content, flow_leaves=True)


def manifest_uri(uri: str | os.PathLike[str]) -> str:
    text = os.fspath(uri)
    return text if text.endswith((".yaml", ".yml")) else join(text, MANIFEST_NAME)


def manifest_folder(uri: str | os.PathLike[str]) -> str:
    """The folder that file patterns of the manifest are relative to."""
    location = manifest_uri(uri)
    folder, _, _ = location.rpartition("/")
    return folder or ("/" if location.startswith("/") else ".")


def reverses(tables: Sequence[EdgeTable]) -> dict[EdgeType, EdgeType]:
    """Each edge type's reverse, in both directions. Raises a ValueError for wrong ones."""
    known = {table.type for table in tables}
    pairs: dict[EdgeType, EdgeType] = {}
    for table in tables:
        source, relation, target = table.type
        reverse = table.reverse_of
        if reverse is None and relation.startswith(REVERSE_PREFIX):
            guess = (target, relation.removeprefix(REVERSE_PREFIX), source)
            reverse = guess if guess in known else None
        if reverse is None:
            continue
        place = f"edge type {edge_type_name(table.type)}: reverse_of={list(reverse)}"
        if reverse not in known or reverse == table.type:
            rule = f"{place} is not another edge type"
            raise RuleError(rule, "Name one of edge_types", id="graph-reverse-unknown")
        if (reverse[2], reverse[0]) != (source, target):
            rule = f"{place} does not join {target!r} to {source!r}"
            raise RuleError(rule, "Name a type that does", id="graph-reverse-ends")
        for one, other in ((table.type, reverse), (reverse, table.type)):
            if pairs.setdefault(one, other) != other:
                names = " and ".join(map(edge_type_name, (pairs[one], other)))
                rule = f"edge type {edge_type_name(one)} has two reverses, {names}"
                raise RuleError(rule, "Keep one of them", id="graph-reverse-twice")
    return pairs


def check_type_name(name: str) -> None:
    """Raises a RuleError unless a type or table can have the name."""
    if not _NAME.fullmatch(name) or SEPARATOR in name or name.endswith("_"):
        rule = f"type name {name!r} must be letters, digits, '.', '-' and single '_' between them"
        raise RuleError(rule, id="graph-type-name")


def _shorten(table: dict[str, Any]) -> None:
    if csv := table.get("csv"):
        defaults = PLAIN_CSV.model_dump()
        table["csv"] = {key: value for key, value in csv.items() if value != defaults[key]}
    if len(table["files"]) == 1:
        table["files"] = table["files"][0]
    elif not table["files"]:
        del table["files"]
    for group in ("features", "labels"):
        for name, spec in table.get(group, {}).items():
            if len(spec.get("columns", ())) == 1:
                spec["columns"] = spec["columns"][0]
            table[group][name] = spec["columns"] if spec.keys() == {"columns"} else spec
        if not table.get(group, True):
            del table[group]
