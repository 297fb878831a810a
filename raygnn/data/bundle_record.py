"""`bundle.json`: content of a bundle. Written last, so its presence means completeness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, PlainValidator, ValidationInfo

from raygnn.data.checksums import Checksum, Seal, listing
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.data.id_map import IdIndex
from raygnn.data.transforms.fitted import FittedFeature
from raygnn.errors import DataError

INDPTR = "indptr.npy"
INDICES = "indices.npy"
NODES = "nodes.npy"
SPLIT = "split.npy"
#: Column with the row of its table that each edge comes from; no column of a user has this name.
ROW = "_row"


def column_path(folder: Path, name: str, part: str = "") -> Path:
    """File of a column; sparse columns have the parts indptr, indices and values."""
    return folder / "columns" / (f"{name}.{part}.npy" if part else f"{name}.npy")


RECORD_NAME = "bundle.json"
FORMAT = "raygnn/bundle"
# Part of the fingerprint: bundles of another layout are never opened, only built anew beside.
FORMAT_VERSION = 7


def node_folder(folder: Path, node_type: str) -> Path:
    return folder / "nodes" / node_type


def edge_folder(edge_type: EdgeType) -> str:
    """Folder of an edge type, relative to the bundle."""
    return f"edges/{edge_type_name(edge_type)}"


def label_edge_folder(edge_type: EdgeType, sign: str) -> str:
    """Folder of a set of supervision edges, relative to the bundle or graph tables."""
    return f"label_edges/{edge_type_name(edge_type)}.{sign}"


def training_table_folder(name: str) -> str:
    return f"training_tables/{name}"


@dataclass(frozen=True)
class ColumnStatistics:
    """Statistics of each element of a column over all rows.

    `std` is exactly 0 if all rows are equal; `num_zeros` and `num_ones` count exact 0 and 1.
    """

    count: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    num_zeros: tuple[int, ...]
    num_ones: tuple[int, ...]


def _file_name(name: str) -> str:
    if "/" in name or name in ("", ".", ".."):
        raise ValueError(f"{name!r} is no name")
    return name


#: A type, column or fingerprint, which is also a file name.
Name = Annotated[str, AfterValidator(_file_name)]


def _read_transforms(content: Any, info: ValidationInfo) -> FittedFeature | None:
    name = f"feature {info.data.get('name')!r}"
    return None if content is None else FittedFeature.of_content(content, name)


@dataclass(frozen=True)
class ColumnInfo:
    """One column of a node or edge type.

    Attributes:
        dtype: element type on disk.
        shape: shape of a row: () for a scalar, (width,), (dim,) when sparse.
        num_classes: number of classes: one more than the greatest, or from the manifest; for a
            multi-label, its width.
        class_names: sorted names of a string label; class i is class_names[i].
        unit: "us" for times that are dates: microseconds since 1970; else null.
        statistics: of a non-empty dense feature, or a time of a partitioned graph.
    """

    name: Name
    role: Literal["feature", "label", "weight", "time", "split", "row"]
    dtype: str
    shape: tuple[int, ...]
    sparse: bool = False
    num_classes: int | None = None
    class_names: tuple[str, ...] | None = None
    unit: str | None = None
    statistics: ColumnStatistics | None = None
    transforms: Annotated[FittedFeature | None, PlainValidator(_read_transforms)] = None

    @property
    def width(self) -> int:
        return int(self.shape[-1]) if self.shape else 1


@dataclass(frozen=True)
class NodeRecord:
    num_nodes: int
    ids: IdIndex
    columns: tuple[ColumnInfo, ...]
    has_split: bool


@dataclass(frozen=True)
class EdgeRecord:
    """One edge type of a bundle. If it is not directed, it is its own reverse."""

    type: tuple[Name, Name, Name]
    num_edges: int
    directed: bool
    columns: tuple[ColumnInfo, ...]
    reverse: EdgeType | None = None


@dataclass(frozen=True)
class LabelEdgeRecord:
    type: tuple[Name, Name, Name]
    sign: Literal["positive", "negative"]
    num_edges: int
    columns: tuple[ColumnInfo, ...]

    @property
    def folder(self) -> str:
        return label_edge_folder(self.type, self.sign)


@dataclass(frozen=True)
class TrainingTableRecord:
    name: Name
    node_type: Name
    num_rows: int
    columns: tuple[ColumnInfo, ...]
    window: str | float | None = None

    @property
    def folder(self) -> str:
        return training_table_folder(self.name)


@dataclass(frozen=True)
class PartsFit:
    """Rows that transforms and statistics of features of a partitioned graph were fitted on.

    Attributes:
        rows: in words.
        digest: of the rows; see `FitRows`.
        until: the latest time of a training row; null if time does not choose the rows.
        num_edges: number of edges up to this time, by name of edge type, if the edges or their
            sources have times.
    """

    rows: str
    digest: str
    until: int | float | None = None
    num_edges: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class BundleRecord:
    """The content of bundle.json.

    Attributes:
        is_of_parts: the graph was partitioned.
        fit: of a partitioned graph; null fits on all rows.
    """

    fingerprint: Name
    nodes: Mapping[Name, NodeRecord]
    edges: tuple[EdgeRecord, ...]
    label_edges: tuple[LabelEdgeRecord, ...] = ()
    training_tables: tuple[TrainingTableRecord, ...] = ()
    is_of_parts: bool = False
    fit: PartsFit | None = None
    file_sizes: Mapping[str, int] = field(default_factory=dict)
    checksums: Mapping[str, Checksum] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        SEAL.write(folder, RECORD_NAME, replace(self, **listing(folder)))

    @classmethod
    def load(cls, folder: Path) -> BundleRecord:
        """Reads bundle.json and checks that every file is complete.

        Raises a DataError if there is no bundle, it has another version, or a file is damaged.
        """
        if not (folder / RECORD_NAME).exists():
            raise DataError(
                f"{folder} is not a bundle: it has no {RECORD_NAME}. Name another. [bundle-missing]"
            )
        record = SEAL.read(folder, RECORD_NAME, cls)
        SEAL.check(folder, record)
        return record


SEAL = Seal(
    FORMAT,
    FORMAT_VERSION,
    damaged="bundle-damaged",
    outdated="bundle-format",
    remedy="Remove the folder; the next run builds it again from its tables",
)
