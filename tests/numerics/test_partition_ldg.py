"""Partitions by neighbors: what they cut, how even parts are, and whether pieces matter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raygnn.data.edge_types import EdgeType
from raygnn.data.ingest import pieces
from raygnn.data.ingest.build_bundle import IngestOptions
from raygnn.data.partition.build import Partitioning, partition
from raygnn.data.partition.record import PartitionRecord
from raygnn.data.partition.steps import Method
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables

NUM_USERS, NUM_ITEMS, NUM_GROUPS = 2000, 800, 40


def _communities() -> GraphTables:
    """Of 40 groups of users and items, 90 % of the edges are within a group."""
    rng = np.random.default_rng(0)
    groups = {"user": rng.integers(0, NUM_GROUPS, NUM_USERS)}
    groups["item"] = rng.integers(0, NUM_GROUPS, NUM_ITEMS)
    members = {
        name: [np.flatnonzero(of == g) for g in range(NUM_GROUPS)] for name, of in groups.items()
    }

    def edges(target_type: str, count: int) -> object:
        source = rng.integers(0, NUM_USERS, count)
        inside = [rng.choice(members[target_type][g]) for g in groups["user"][source]]
        anywhere = rng.integers(0, len(groups[target_type]), count)
        return edge_rows(source, np.where(rng.random(count) < 0.9, inside, anywhere))

    return GraphTables(
        {"user": node_rows(np.arange(NUM_USERS)), "item": node_rows(np.arange(NUM_ITEMS))},
        {
            ("user", "knows", "user"): edges("user", 12_000),
            ("user", "buys", "item"): edges("item", 8_000),
        },
    )


def _cuts(record: PartitionRecord) -> dict[EdgeType, float]:
    return {
        edge.type: sum(found.cut) / sum(found.counts)
        for edge, found in zip(record.whole.edges, record.edges, strict=True)
    }


@pytest.mark.parametrize("num_parts", [2, 4])
def test_communities_stay_together_and_parts_are_even(tmp_path: Path, num_parts: int) -> None:
    uri = write_tables(_communities(), str(tmp_path / "tables"))
    methods: tuple[Method, ...] = ("hash", "ldg")
    records = [partition(uri, tmp_path / m, Partitioning(num_parts, m)) for m in methods]
    hashed, found = map(_cuts, records)
    for edge_type, cut in found.items():
        assert hashed[edge_type] > 0.95 * (1 - 1 / num_parts)
        assert cut < 0.3 * hashed[edge_type], edge_type
    for counts in records[1].nodes.values():
        assert max(counts) <= np.ceil(1.05 * sum(counts) / num_parts)
        assert min(counts) > 0


def test_parts_do_not_depend_on_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = write_tables(_communities(), str(tmp_path / "tables"), num_shards=3)
    one = partition(uri, tmp_path / "one", Partitioning(3, "ldg"))
    monkeypatch.setattr(pieces, "PIECE_BYTES", 9000)
    other = partition(uri, tmp_path / "other", Partitioning(3, "ldg"))
    assert one == other
    for path in sorted((tmp_path / "one").rglob("*.npy")):
        same = tmp_path / "other" / path.relative_to(tmp_path / "one")
        assert same.read_bytes() == path.read_bytes(), path


def test_dropped_rows_have_no_part(tmp_path: Path) -> None:
    tables = _communities()
    nodes = dict(tables.nodes)
    nodes["item"] = node_rows(np.arange(NUM_ITEMS - 5).repeat([2, *[1] * (NUM_ITEMS - 6)]))
    uri = write_tables(GraphTables(nodes, tables.edges), str(tmp_path / "tables"))
    record = partition(uri, tmp_path / "out", Partitioning(2, "ldg"), IngestOptions("drop"))
    assert sum(record.nodes["item"]) == NUM_ITEMS - 5
    assert sum(record.nodes["user"]) == NUM_USERS
