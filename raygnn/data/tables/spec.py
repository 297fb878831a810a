"""The spec of `prepare csv --spec`: which files hold which tables, and how they are to be read."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from raygnn.config.section import Section
from raygnn.config.validation import validate_file
from raygnn.data.edge_types import EdgeType
from raygnn.data.filesystem import read_text, redact
from raygnn.data.transforms.spec import TransformedColumn
from raygnn.errors import RuleError, did_you_mean

FORMAT: Literal["raygnn/tables-v1"] = "raygnn/tables-v1"


def _as_tuple(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return value if isinstance(value, tuple) else (value,)


class Reading(Section):
    """How files are read; what is not set follows the table, then the whole spec.

    Attributes:
        separator: of text files; null finds it in each file. Parquet is known by its suffix.
        header: whether text files begin with column names. Default true.
        skip_lines: lines before the header or the data. Default 0.
        count_line: the first line (after skip_lines) is the number of rows, which is checked.
    """

    separator: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    header: bool | None = None
    skip_lines: Annotated[int, Field(ge=0)] | None = None
    count_line: bool | None = None

    def over(self, other: Reading) -> Reading:
        """These settings, and the other's where these set nothing."""
        names = Reading.model_fields
        return Reading(
            **{
                name: mine if (mine := getattr(self, name)) is not None else getattr(other, name)
                for name in names
            }
        )


class HashShares(Section):
    """A split column that is drawn by the hash of a row's id, or of its unordered pair of ends.

    Attributes:
        hash: shares of train, val and test.
    """

    hash: Annotated[tuple[float, float, float], BeforeValidator(_as_tuple)]
    seed: int = 0


class Files(Reading):
    """Some files of a table.

    Attributes:
        files: pattern, or list of patterns, relative to the data folder.
        add: columns that these files do not have: name -> the value in each row, or shares.
    """

    files: Annotated[tuple[str, ...], BeforeValidator(_as_tuple), Field(min_length=1)]
    add: dict[str, HashShares | str | int | float] = Field(default={})


class Column(Section):
    """A column, by its header or by its position from 0.

    Attributes:
        offset: is added to each value, as -1 for ids from 1.
    """

    column: str | Annotated[int, Field(ge=0)]
    offset: int = 0


class ColumnRange(Section):
    """Neighboring columns, by position; both ends are in it."""

    first: Annotated[int, Field(ge=0)]
    last: Annotated[int, Field(ge=0)]


class RelationColumn(Section):
    """Makes an edge type of each value of a column: prefix and value are the relation."""

    column: str | Annotated[int, Field(ge=0)]
    prefix: str = ""


def _as_column(value: Any) -> Any:
    is_plain = isinstance(value, str | int) and not isinstance(value, bool)
    return {"column": value} if is_plain else value


def _as_files(value: Any) -> Any:
    given = value if isinstance(value, list | tuple) else [value]
    return tuple({"files": item} if isinstance(item, str) else item for item in given)


def _as_columns(value: Any) -> Any:
    given = value if isinstance(value, list | tuple) else [value]
    return tuple(_as_column(item) for item in given)


def _feature_column_kind(value: Any) -> str:
    if isinstance(value, dict):
        keys = set(value)
        if keys & {"first", "last"}:
            return "range"
        return "plain" if keys <= {"column", "offset"} else "transform"
    if isinstance(value, ColumnRange):
        return "range"
    return "plain" if isinstance(value, Column) else "transform"


def _feature_kind(value: Any) -> str:
    is_sparse = isinstance(value, SparseColumns) or (isinstance(value, dict) and "indices" in value)
    return "sparse" if is_sparse else "dense"


ColumnSpec = Annotated[Column, BeforeValidator(_as_column)]
FileSpecs = Annotated[tuple[Files, ...], BeforeValidator(_as_files), Field(min_length=1)]
FeatureColumn = Annotated[
    Annotated[Column, Tag("plain")]
    | Annotated[ColumnRange, Tag("range")]
    | Annotated[TransformedColumn, Tag("transform")],
    Discriminator(_feature_column_kind),
]
DenseColumns = Annotated[
    tuple[FeatureColumn, ...], BeforeValidator(_as_columns), Field(min_length=1)
]


class SparseColumns(Section):
    """A sparse feature: lists of the positions that are not zero.

    Attributes:
        values: lists of the values there; null means that all are 1.
        dim: width of a row; null means the greatest index plus one.
    """

    indices: ColumnSpec
    values: ColumnSpec | None = None
    dim: Annotated[int, Field(gt=0)] | None = None


FeatureSpecs = Annotated[
    Annotated[DenseColumns, Tag("dense")] | Annotated[SparseColumns, Tag("sparse")],
    Discriminator(_feature_kind),
]


class NodeColumns(Reading):
    """The columns of a table of nodes."""

    files: FileSpecs | None = None
    id: ColumnSpec | None = None
    features: dict[str, FeatureSpecs] = Field(default={})
    labels: dict[str, ColumnSpec] = Field(default={})
    split: ColumnSpec | None = None
    time: ColumnSpec | None = None

    @model_validator(mode="after")
    def _has_files_and_ids(self) -> NodeColumns:
        if self.files is not None and self.id is None:
            raise RuleError(
                "a table of nodes needs a column of ids", "Set id", id="spec-id-missing"
            )
        has_columns = self.id or self.features or self.labels or self.split or self.time
        if self.files is None and has_columns:
            raise RuleError(
                "there are columns, but no files",
                "Set files, or take the columns out",
                id="spec-files-missing",
            )
        return self


class NodeSpec(NodeColumns):
    """One node type. Without files its nodes are `count` ids, or the ids that edges name.

    Attributes:
        more: further tables of the same nodes, which are joined by id.
        add_unlisted: ids that only `more` or edges name become nodes too; else they are errors.
        normalize_features: row: divides each row of a feature without transforms by its sum.
    """

    count: Annotated[int, Field(gt=0)] | None = None
    first_id: int = 0
    more: Annotated[tuple[NodeColumns, ...], BeforeValidator(_as_tuple)] = Field(default=())
    add_unlisted: bool = False
    normalize_features: Literal["row"] | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> NodeSpec:
        if any(table.files is None for table in self.more):
            raise RuleError(
                "a table of more has no files", "Set its files", id="spec-files-missing"
            )
        if self.files is not None and self.count is not None:
            raise RuleError(
                "count is for nodes without a table", "Take count or files out", id="spec-count"
            )
        if self.count is None and "first_id" in self.model_fields_set:
            raise RuleError(
                "first_id goes with count", "Set count, or take first_id out", id="spec-count"
            )
        return self


class EdgeSpec(Reading):
    """One edge type, or one for each relation in a column."""

    type: Annotated[tuple[str, str | RelationColumn, str], BeforeValidator(_as_tuple)]
    files: FileSpecs
    source: ColumnSpec
    target: ColumnSpec
    features: dict[str, DenseColumns] = Field(default={})
    labels: dict[str, ColumnSpec] = Field(default={})
    weight: ColumnSpec | None = None
    time: ColumnSpec | None = None
    split: ColumnSpec | None = None
    directed: bool = True
    reverse_of: Annotated[EdgeType, BeforeValidator(_as_tuple)] | None = None


class LabelEdgeSpec(Reading):
    """One set of label edges, or one for each relation in a column."""

    type: Annotated[tuple[str, str | RelationColumn, str], BeforeValidator(_as_tuple)]
    files: FileSpecs
    source: ColumnSpec
    target: ColumnSpec
    sign: Literal["positive", "negative"] = "positive"
    labels: dict[str, ColumnSpec] = Field(default={})
    weight: ColumnSpec | None = None
    time: ColumnSpec | None = None
    split: ColumnSpec | None = None


class TablesSpec(Reading):
    """The whole spec."""

    format: Literal["raygnn/tables-v1"]
    node_types: dict[str, NodeSpec] = Field(min_length=1)
    edge_types: list[EdgeSpec] = Field(default=[])
    label_edges: list[LabelEdgeSpec] = Field(default=[])

    @model_validator(mode="after")
    def _edges_join_known_types(self) -> TablesSpec:
        given: list[EdgeSpec | LabelEdgeSpec] = [*self.edge_types, *self.label_edges]
        for edges in given:
            for node_type in (edges.type[0], edges.type[2]):
                if node_type not in self.node_types:
                    hint = did_you_mean(node_type, self.node_types)
                    raise RuleError(
                        f"edges name node type {node_type!r}, which is not among node_types",
                        f"{hint}Use one of {sorted(self.node_types)}, or declare it, as "
                        f"{node_type}: {{}} where it has no table",
                        id="graph-node-type-undeclared",
                    )
        return self

    @classmethod
    def load(cls, uri: str) -> TablesSpec:
        """Reads a spec.

        Raises:
            DataError: it is missing, does not parse or breaks a rule; all broken rules are listed
                with file, line, key, rule and remedy.
        """
        return cls.parse(read_text(uri), redact(uri))

    @classmethod
    def parse(cls, text: str, name: str = "tables.yaml") -> TablesSpec:
        """Reads a spec from its YAML text; see `load`."""
        return validate_file(cls, text, name, "prepare.md")
