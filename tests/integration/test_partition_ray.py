"""A partition by Ray's tasks: the same bytes as in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from raygnn.data.ingest import pieces
from raygnn.data.ingest.build_bundle import IngestOptions
from raygnn.data.partition.build import Partitioning
from raygnn.data.partition.part import open_partitioned
from raygnn.data.tables.graph_tables import write_tables
from raygnn.prepare.synthetic import synthetic_tables
from raygnn.runtime import ingest as where
from raygnn.runtime.ingest import partition_tables
from tests.folders import contents

pytestmark = [pytest.mark.slow, pytest.mark.ray]


def test_parts_are_the_same_byte_for_byte(
    ray_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 20_000)
    tables = synthetic_tables(
        "planted_partition", num_nodes=300, num_classes=3, avg_degree=6, num_features=5
    )
    graph = write_tables(tables, str(tmp_path / "tables"), num_shards=3)
    how, options = Partitioning(3), IngestOptions()
    partition_tables(graph, str(tmp_path / "here"), how, options)
    monkeypatch.setattr(where, "MIN_SCHEDULED_BYTES", 0)
    partition_tables(graph, str(tmp_path / "there"), how, options)
    assert contents(tmp_path / "here") == contents(tmp_path / "there")
    assert open_partitioned(tmp_path / "there", tmp_path / "cache").num_nodes("node") == 300
