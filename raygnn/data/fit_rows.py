"""Rows that transforms and standardization are fitted on, without test rows."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raygnn.data.arrays import extremes, row_blocks
from raygnn.data.bundle import Bundle, SeedRows
from raygnn.data.bundle_record import ColumnInfo, ColumnStatistics
from raygnn.data.cache import build_once
from raygnn.data.checksums import type_adapter
from raygnn.data.edge_types import EdgeType, type_name
from raygnn.data.filesystem import write_text
from raygnn.data.ingest.column_plan import plan_time
from raygnn.data.ingest.decode import dense_rows
from raygnn.data.ingest.describe import measure_chosen_rows
from raygnn.data.ingest.findings import FindingCollector
from raygnn.data.ingest.fit_features import FeatureTable, RowChoice, fit_features
from raygnn.data.ingest.plan_bundle import GraphSource, IngestOptions, feature_tables
from raygnn.data.ingest.schedule import in_process
from raygnn.data.manifest import Manifest
from raygnn.data.splits import SPLIT_CODES, make_splits
from raygnn.data.time_units import AsOf
from raygnn.data.transforms.fitted import FittedColumn, FittedFeature, Transforms

_FOLDER = "fitted"


@dataclass(frozen=True)
class FitRows:
    """Rows to fit on, from a task's split.

    Attributes:
        until: in a split by time, the latest time of a training row. Later rows of every type are
            left out.
        unit: unit of `until`. Types with times of another unit are fitted on all rows.
        node_type: in another split of nodes, their type.
        train: int64, dense ids of its training nodes.
    """

    until: int | float | None = None
    unit: str | None = None
    node_type: str | None = None
    train: np.ndarray | None = None

    @classmethod
    def until_last(cls, times: np.ndarray | None, unit: str | None) -> FitRows:
        """Rows that are not later than the last of these times; all rows without times."""
        return cls() if times is None or not len(times) else cls(times.max().item(), unit)

    @classmethod
    def of_seeds(cls, seeds: SeedRows, train: np.ndarray) -> FitRows:
        """Rows that are not later than the last training row, or nodes of training rows without
        times. `train`: positions of training rows.
        """
        if seeds.time is None:
            return cls.of_nodes(seeds, train)
        if not len(train):
            return cls()
        return cls(extremes(seeds.time, train)[1], seeds.time_unit)

    @classmethod
    def of_nodes(cls, seeds: SeedRows, train: np.ndarray) -> FitRows:
        """The nodes of training rows."""
        if seeds.nodes is None or not len(train):
            return cls(node_type=seeds.node_type, train=train)
        is_seed = np.zeros(extremes(seeds.nodes, train)[1] + 1, bool)
        for some in row_blocks(len(train)):
            is_seed[seeds.nodes[train[some]]] = True
        return cls(node_type=seeds.node_type, train=np.flatnonzero(is_seed))

    @classmethod
    def earliest(cls, row_sets: Sequence[FitRows]) -> FitRows:
        """The rows of several tasks: those until the end that is first; all rows without ends."""
        if len(row_sets) == 1:
            return row_sets[0]
        ends = [rows for rows in row_sets if rows.until is not None]
        return min(ends, key=lambda rows: rows.until or 0, default=cls())

    @property
    def are_all(self) -> bool:
        return self.until is None and self.train is None

    def __str__(self) -> str:
        if self.until is not None:
            return f"rows not later than {AsOf('time', self.until, self.unit)}"
        if self.train is not None:
            return f"the {len(self.train):,} training rows of {self.node_type}"
        return "all rows"

    def mask(self, bundle: Bundle, type_: str | EdgeType) -> np.ndarray | None:
        """bool [num_rows], by dense node id or `e_id`. None selects all rows."""
        if self.until is not None:
            if not self.limit(bundle.columns(type_)):
                return None
            chosen = bundle.dense(type_, "time") <= self.until
            return chosen if chosen.any() else None
        if self.train is None or type_ != self.node_type:
            return None
        chosen = np.zeros(bundle.num_nodes(self.node_type), bool)
        chosen[self.train] = True
        return chosen

    def limit(self, columns: Mapping[str, ColumnInfo]) -> bool:
        """Whether rows with these columns have times to choose by."""
        time = columns.get("time")
        return self.until is not None and time is not None and time.unit == self.unit

    @property
    def digest(self) -> str:
        named = json.dumps([self.until, self.unit, self.node_type])
        ids = b"" if self.train is None else np.ascontiguousarray(self.train).tobytes()
        return hashlib.sha256(named.encode() + ids).hexdigest()[:20]


def declared_fit_rows(bundle: Bundle) -> FitRows:
    """Training rows of all training tables, and of lists with times and splits.

    Without a config, so by split columns and the default rule.
    """
    row_sets = []
    for seeds in bundle.training_tables.values():
        if seeds.time is None and seeds.split is None:
            continue
        for label in [name for name, info in seeds.columns.items() if info.role == "label"]:
            splits = make_splits(bundle, seeds, None, label, 0, may_be_empty=True)
            row_sets.append(FitRows.of_seeds(seeds, splits.train))
    for links in bundle.label_edges:
        is_list = links.sign == "positive" and links.edge_type not in bundle.edge_types
        if is_list and links.time is not None and links.split is not None:
            times = links.time[links.split == SPLIT_CODES["train"]]
            row_sets.append(FitRows.until_last(times, links.time_unit))
    return FitRows.earliest(row_sets)


def has_transforms(bundle: Bundle) -> bool:
    return any(info.transforms for type_ in bundle.types for info in bundle.columns(type_).values())


def statistics(
    bundle: Bundle, type_: str | EdgeType, column: str, rows: FitRows
) -> ColumnStatistics | None:
    """Statistics of a dense feature over the rows to fit on.

    Computed at the first call, then stored in the bundle's folder. A partitioned graph, whose
    features no process has, was measured when it was written.
    """
    info = bundle.columns(type_)[column]
    chosen = None if bundle.is_of_parts else rows.mask(bundle, type_)
    if info.statistics is None or chosen is None or not chosen.any():
        return info.statistics

    def build(folder: Path) -> None:
        measured = measure_chosen_rows(bundle.dense(type_, column), chosen)
        assert measured is not None
        write_text(folder / "statistics.json", json.dumps(asdict(measured)))

    name = f"{type_name(type_)}.{column}.{rows.digest}"
    folder = build_once(bundle.path / _FOLDER / name, build, "statistics of features")
    return type_adapter(ColumnStatistics).validate_json((folder / "statistics.json").read_bytes())


def fit_transforms(
    manifest_uri: str | os.PathLike[str],
    options: IngestOptions,
    bundle: Bundle,
    rows: FitRows,
    progress: Callable[[str], None],
) -> Transforms:
    """Fits the transforms of a graph again, on some rows of its tables.

    Computed at the first call, then stored in the bundle's folder. `bundle` has the same tables
    with any transforms.
    """

    def build(folder: Path) -> None:
        source = GraphSource.open(manifest_uri, options)
        manifest, scanned = source.manifest, source.scan(in_process)
        tables = {
            type_: replace(table, choice=_choice(manifest, table, bundle, type_, rows))
            for type_, table in feature_tables(manifest, scanned).items()
        }
        made = fit_features(list(tables.values()), {}, in_process, progress)
        content: dict[str, dict[str, Any]] = {}
        for type_, table in tables.items():
            columns, fitted = bundle.columns(type_), made[table.scanned.name].fitted
            content[type_name(type_)] = {
                name: _merged(columns[name].transforms, parts).to_content()
                for name, parts in fitted.items()
            }
        write_text(folder / "transforms.json", json.dumps(content))

    folder = build_once(bundle.path / _FOLDER / rows.digest, build, "transforms")
    content = json.loads((folder / "transforms.json").read_bytes())
    return {
        name: {
            feature: FittedFeature.of_content(fitted, f"feature {feature!r}")
            for feature, fitted in features.items()
        }
        for name, features in content.items()
    }


def _choice(
    manifest: Manifest, table: FeatureTable, bundle: Bundle, type_: str | EdgeType, rows: FitRows
) -> RowChoice | None:
    if isinstance(type_, str):
        chosen, ids = rows.mask(bundle, type_), manifest.node_types[type_].id
        if chosen is None:
            return None

        def is_chosen(block: Mapping[str, pa.Array]) -> np.ndarray:
            dense = bundle.id_map(type_).lookup(block[ids])
            mask: np.ndarray = (dense >= 0) & chosen[dense]
            return mask

        return RowChoice((ids,), is_chosen)
    if not _has_earlier_edges(bundle, type_, rows):
        return None
    time, until = manifest.tables[type_].time, rows.until
    assert time is not None
    assert until is not None
    plan = plan_time(table.scanned, time)

    def is_not_later(block: Mapping[str, pa.Array]) -> np.ndarray:
        unread = FindingCollector("")  # ingest reports them
        unread.start_block("", 0, len(block[time.column]))
        times = dense_rows(plan, block, unread)
        mask: np.ndarray = (times <= until) & ~unread.bad
        return mask

    return RowChoice((time.column,), is_not_later)


def _has_earlier_edges(bundle: Bundle, edge_type: EdgeType, rows: FitRows) -> bool:
    if not bundle.is_of_parts:
        return rows.mask(bundle, edge_type) is not None
    columns = bundle.columns(edge_type)
    if rows.until is None or not rows.limit(columns):
        return False
    measured = columns["time"].statistics
    return measured is not None and measured.low[0] <= rows.until


def _merged(before: FittedFeature | None, fitted: Sequence[FittedColumn | None]) -> FittedFeature:
    assert before is not None
    parts = zip(before.parts, fitted, strict=True)
    return replace(before, parts=tuple(new or old for old, new in parts))
