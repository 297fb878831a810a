"""R-MAT graphs for the benchmarks, drawn piece by piece into Parquet shards, and their bundles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import EdgeType
from raygnn.data.ingest.build_bundle import ingest
from raygnn.prepare.synthetic.draws import draw_permutation
from raygnn.prepare.synthetic.node_graphs import draw_rmat_edges

_SHARES = (0.57, 0.19, 0.19)  # as in Graph500
_EDGES_AT_A_TIME = 4_000_000
_ROWS_AT_A_TIME = 250_000
_TRAIN_SHARE = 0.6

NODE: str = "node"
EDGE: EdgeType = ("node", "to", "node")
#: A bipartite pair of relations and one within a type.
HETERO_EDGES: tuple[EdgeType, ...] = (
    ("user", "buys", "item"),
    ("item", "bought_by", "user"),
    ("user", "follows", "user"),
)


@dataclass(frozen=True)
class RmatGraph:
    """A graph that is a pure function of these numbers.

    Attributes:
        columns: of the edges: any of weight and time.
        is_hetero: users and items, half of the nodes each, and a third of the edges of each of
            `HETERO_EDGES`; without features.
        feature_dtype: float32 or float16.
    """

    num_nodes: int
    num_edges: int
    num_features: int = 0
    num_classes: int = 0
    columns: tuple[str, ...] = ()
    is_hetero: bool = False
    feature_dtype: str = "float32"

    @property
    def name(self) -> str:
        """Tells one graph from another."""
        parts = [f"rmat-{self.num_nodes}-{self.num_edges}-{self.num_features}", *self.columns]
        parts += [f"{self.num_classes}-classes"] * (self.num_classes > 0)
        parts += [self.feature_dtype] * (self.feature_dtype != "float32")
        return "-".join([*parts, *(["hetero"] if self.is_hetero else [])])

    @property
    def edge_types(self) -> tuple[EdgeType, ...]:
        """The edge types."""
        return HETERO_EDGES if self.is_hetero else (EDGE,)

    @property
    def node_counts(self) -> dict[str, int]:
        """Nodes by type."""
        if not self.is_hetero:
            return {NODE: self.num_nodes}
        return {"user": self.num_nodes // 2, "item": self.num_nodes // 2}

    def tables(self, work: Path) -> Path:
        """Writes the graph tables, unless they are there; returns their folder."""
        folder = work / "tables" / self.name
        if (folder / "graph.yaml").exists():
            return folder
        for node_type, count in self.node_counts.items():
            self._write_nodes(folder, node_type, count)
        for number, edge_type in enumerate(self.edge_types):
            self._write_edges(folder, number, edge_type)
        (folder / "graph.yaml").write_text(yaml.safe_dump(self._manifest()))
        return folder

    def bundle(self, work: Path) -> Bundle:
        """The bundle; made at the first call."""
        return ingest(self.tables(work), cache_dir=work / "cache")

    def _write_nodes(self, folder: Path, node_type: str, count: int) -> None:
        rng = np.random.default_rng(0)
        for number, start in enumerate(range(0, count, _ROWS_AT_A_TIME)):
            size = min(_ROWS_AT_A_TIME, count - start)
            columns = {"id": pa.array(np.arange(start, start + size))}
            if self.num_features:
                columns["x"] = self._features(rng, size)
            if self.num_classes:
                columns["y"] = pa.array(rng.integers(0, self.num_classes, size))
                split = np.where(rng.random(size) < _TRAIN_SHARE, 1, 2).astype(np.uint8)
                columns["split"] = pa.array(split)
            _write(pa.table(columns), folder / "nodes" / node_type, number)

    def _features(self, rng: np.random.Generator, size: int) -> pa.Array:
        rows = rng.random((size, self.num_features), np.float32).astype(self.feature_dtype)
        kind = pa.binary(rows[0].nbytes)
        return pa.FixedSizeBinaryArray.from_buffers(kind, size, [None, pa.py_buffer(rows)])

    def _write_edges(self, folder: Path, seed: int, edge_type: EdgeType) -> None:
        rng = np.random.default_rng(seed)
        counts = self.node_counts
        size = max(counts.values())
        orders = {t: draw_permutation(seed, t, size).astype(np.int32) for t in counts}
        for number, (source, target) in enumerate(self._draws(seed, size)):
            columns = {
                "s": pa.array(orders[edge_type[0]][source]),
                "t": pa.array(orders[edge_type[2]][target]),
            }
            if "weight" in self.columns:
                columns["w"] = pa.array(rng.random(len(source), np.float32))
            if "time" in self.columns:
                columns["time"] = pa.array(rng.integers(0, 1 << 30, len(source)))
            _write(pa.table(columns), folder / "edges" / edge_type[1], number)

    def _draws(self, seed: int, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        count = self.num_edges // len(self.edge_types)
        for first in range(0, count, _EDGES_AT_A_TIME):
            number = min(_EDGES_AT_A_TIME, count - first)
            yield draw_rmat_edges(size, number, *_SHARES, seed, first)

    def _manifest(self) -> dict[str, object]:
        nodes: dict[str, dict[str, object]] = {}
        for node_type in self.node_counts:
            nodes[node_type] = {"files": f"nodes/{node_type}/*.parquet", "id": "id"}
            if self.num_features:
                feature = {"columns": "x", "dtype": self.feature_dtype}
                nodes[node_type]["features"] = {"x": feature}
            if self.num_classes:
                label = {"columns": "y", "num_classes": self.num_classes}
                nodes[node_type] |= {"labels": {"y": label}, "split": "split"}
        ends = {"source": "s", "target": "t"}
        ends |= {"weight": "w"} if "weight" in self.columns else {}
        ends |= {"time": "time"} if "time" in self.columns else {}
        edges = [
            {"type": list(t), "files": f"edges/{t[1]}/*.parquet", **ends} for t in self.edge_types
        ]
        return {"format": "raygnn/graph-v1", "node_types": nodes, "edge_types": edges}


def _write(rows: pa.Table, folder: Path, number: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{number:05d}.parquet"
    pq.write_table(rows, path, compression="none", use_dictionary=False)
