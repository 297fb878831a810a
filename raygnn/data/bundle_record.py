"""`bundle.json`: what a bundle holds, written last, so that its presence means completeness."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.data.filesystem import write_text
from raygnn.data.id_map import IdIndex
from raygnn.data.quantization import Quantization
from raygnn.data.transforms.state import FittedFeature
from raygnn.errors import DataError

INDPTR = "indptr.npy"
INDICES = "indices.npy"
SPLIT = "split.npy"


def column_path(folder: Path, name: str, part: str = "") -> Path:
    """The file of a column; sparse columns have the parts indptr, indices and values."""
    return folder / "columns" / (f"{name}.{part}.npy" if part else f"{name}.npy")


RECORD_NAME = "bundle.json"
FORMAT = "raygnn/bundle"
# Part of the fingerprint: bundles of another layout are never opened, only built anew beside.
FORMAT_VERSION = 5


def label_edge_folder(edge_type: EdgeType, sign: str) -> str:
    """The folder of a set of supervision edges, below that of a bundle or of graph tables."""
    return f"label_edges/{edge_type_name(edge_type)}.{sign}"


@dataclass(frozen=True)
class ColumnStatistics:
    """What ingest has measured of each element of a column's rows, over all rows.

    Attributes:
        count: rows.
        mean: of the values as they are stored.
        std: standard deviation; exactly 0 where all rows have one value.
        low, high: the least and the greatest value.
        num_zeros, num_ones: rows that are exactly 0, and exactly 1.
    """

    count: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    num_zeros: tuple[int, ...]
    num_ones: tuple[int, ...]


@dataclass(frozen=True)
class ColumnInfo:
    """One column of a node or edge type.

    Attributes:
        dtype: element type on disk.
        shape: shape of a row: () for a scalar, (width,), (dim,) when sparse.
        sparse: whether rows are stored as CSR.
        num_classes: of a label with classes, one more than the greatest, or as the manifest says;
            of a multi-label, its width.
        class_names: of a label that was given as strings, sorted; class i is class_names[i].
        unit: "us" of a time column that held dates: microseconds since 1970; else null.
        statistics: of a dense feature with at least one row.
        transforms: of a feature of which any column has one.
        quantization: of floats that are stored as int8.
    """

    name: str
    role: Literal["feature", "label", "weight", "time", "split"]
    dtype: str
    shape: tuple[int, ...]
    sparse: bool = False
    num_classes: int | None = None
    class_names: tuple[str, ...] | None = None
    unit: str | None = None
    statistics: ColumnStatistics | None = None
    transforms: FittedFeature | None = None
    quantization: Quantization | None = None

    @property
    def width(self) -> int:
        """The number of elements of a row, 1 of a scalar."""
        return int(self.shape[-1]) if self.shape else 1


@dataclass(frozen=True)
class NodeRecord:
    """One node type of a bundle."""

    num_nodes: int
    ids: IdIndex
    columns: tuple[ColumnInfo, ...]
    has_split: bool


@dataclass(frozen=True)
class EdgeRecord:
    """One edge type of a bundle.

    Attributes:
        directed: false where rows stand for their reverse as well.
        reverse: the edge type that holds the same edges the other way round; itself where it is
            not directed.
    """

    type: EdgeType
    num_edges: int
    directed: bool
    columns: tuple[ColumnInfo, ...]
    reverse: EdgeType | None = None


@dataclass(frozen=True)
class LabelEdgeRecord:
    """One set of supervision edges: those of one type and sign."""

    type: EdgeType
    sign: Literal["positive", "negative"]
    num_edges: int
    columns: tuple[ColumnInfo, ...]

    @property
    def folder(self) -> str:
        """The set's folder, below the bundle's."""
        return label_edge_folder(self.type, self.sign)


@dataclass(frozen=True)
class BundleRecord:
    """The whole of bundle.json.

    Attributes:
        file_sizes: bytes of each file, by its path in the bundle.
    """

    fingerprint: str
    nodes: Mapping[str, NodeRecord]
    edges: tuple[EdgeRecord, ...]
    label_edges: tuple[LabelEdgeRecord, ...] = ()
    file_sizes: Mapping[str, int] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Notes the sizes of all files in the folder and writes bundle.json beside them."""
        content = {"format": FORMAT, "version": FORMAT_VERSION, **asdict(self)}
        content["file_sizes"] = file_sizes(folder)
        write_text(str(folder / RECORD_NAME), json.dumps(content, indent=1))

    @classmethod
    def of_content(cls, content: Mapping[str, Any]) -> BundleRecord:
        """The record of what `asdict` has made of one, and JSON of that."""
        return cls(
            content["fingerprint"],
            {name: _node_record(node) for name, node in content["nodes"].items()},
            tuple(_edge_record(edge) for edge in content["edges"]),
            tuple(_label_edge_record(edges) for edges in content["label_edges"]),
            dict(content["file_sizes"]),
        )

    @classmethod
    def load(cls, folder: Path) -> BundleRecord:
        """Reads bundle.json and checks that every file is there in full.

        Raises:
            DataError: there is no bundle, it is of another version, or a file is damaged.
        """
        content = _read(folder)
        try:
            record = cls.of_content(content)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"bundle {folder} is damaged: {RECORD_NAME} is no record of one: "
                f"{type(error).__name__}: {error}. Remove the folder; the next run builds it "
                "again.",
                id="bundle-damaged",
            ) from error
        if damage := find_damage(folder, record.file_sizes):
            raise DataError(
                f"bundle {folder} is damaged: {damage}. "
                "Remove the folder; the next run builds it again.",
                id="bundle-damaged",
            )
        return record


def file_sizes(folder: Path) -> dict[str, int]:
    """Bytes of each file of a folder, by path below it."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def find_damage(
    folder: Path, sizes: Mapping[str, int], found_sizes: Mapping[str, int] | None = None
) -> str | None:
    """Says of the first file that is not there in full what is wrong with it.

    Args:
        found_sizes: of the files of a folder that is not on a disk.
    """
    for name, size in sizes.items():
        if found_sizes is not None:
            found = found_sizes.get(name)
        else:
            path = folder / name
            found = path.stat().st_size if path.exists() else None
        if found != size:
            what = "is missing" if found is None else f"has {found:,} bytes instead of {size:,}"
            return f"{name} {what}"
    return None


def _read(folder: Path) -> dict[str, Any]:
    path = folder / RECORD_NAME
    try:
        content: dict[str, Any] = dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise DataError(
            f"{folder} is no bundle: it has no {RECORD_NAME}. Name a folder that ingest made.",
            id="bundle-missing",
        ) from error
    except (ValueError, TypeError) as error:
        raise DataError(
            f"bundle {folder} is damaged: {RECORD_NAME} does not parse: {error}. "
            "Remove the folder; the next run builds it again.",
            id="bundle-damaged",
        ) from error
    if content.get("format") != FORMAT or content.get("version") != FORMAT_VERSION:
        raise DataError(
            f"bundle {folder} has format {content.get('format')!r} version "
            f"{content.get('version')!r}; this raygnn reads {FORMAT!r} version {FORMAT_VERSION}. "
            "Build it again from its tables with this raygnn.",
            id="bundle-format",
        )
    return content


def _columns(content: list[dict[str, Any]]) -> tuple[ColumnInfo, ...]:
    columns = []
    for given in content:
        names, measured = given.pop("class_names"), given.pop("statistics")
        transforms = given.pop("transforms", None)  # older bundles have none
        if transforms is not None:
            transforms = FittedFeature.of_content(transforms, f"feature {given['name']!r}")
        if measured is not None:
            count = measured.pop("count")
            rows = {name: tuple(row) for name, row in measured.items()}
            measured = ColumnStatistics(count, **rows)
        quantization = given.pop("quantization", None)  # as of transforms
        if quantization is not None:
            quantization = Quantization(**{k: tuple(row) for k, row in quantization.items()})
        columns.append(
            ColumnInfo(
                **{**given, "shape": tuple(given["shape"])},
                class_names=None if names is None else tuple(names),
                statistics=measured,
                transforms=transforms,
                quantization=quantization,
            )
        )
    return tuple(columns)


def _node_record(content: dict[str, Any]) -> NodeRecord:
    return NodeRecord(
        content["num_nodes"],
        IdIndex(**content["ids"]),
        _columns(content["columns"]),
        content["has_split"],
    )


def _edge_record(content: dict[str, Any]) -> EdgeRecord:
    reverse = content["reverse"]
    return EdgeRecord(
        _edge_type(content["type"]),
        content["num_edges"],
        content["directed"],
        _columns(content["columns"]),
        None if reverse is None else _edge_type(reverse),
    )


def _label_edge_record(content: dict[str, Any]) -> LabelEdgeRecord:
    return LabelEdgeRecord(
        _edge_type(content["type"]),
        content["sign"],
        content["num_edges"],
        _columns(content["columns"]),
    )


def _edge_type(content: list[str]) -> EdgeType:
    source, relation, target = content
    return source, relation, target
