"""Runs on a partitioned graph, and the runs in memory that they must equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raygnn.data.partition.build import Partitioning, partition
from raygnn.data.partition.steps import Method
from raygnn.data.tables.graph_tables import write_tables
from raygnn.prepare.synthetic import synthetic_tables
from tests.small_runs import small_config


def planted_parts(folder: Path, num_parts: int, method: Method = "hash") -> Path:
    """A graph of 300 nodes and 3 classes, in parts."""
    tables = synthetic_tables(
        "planted_partition", num_nodes=300, num_classes=3, num_features=8, seed=1
    )
    partition(
        write_tables(tables, str(folder / "tables"), num_shards=2),
        folder / "parts",
        Partitioning(num_parts, method),
    )
    return folder / "parts"


#: Changes to a run that make it learn the edges of the graph.
LINKS: dict[str, Any] = {
    "task": {"type": "link_prediction", "args": {"num_random_negatives": 16}},
    "data__splits": {"type": "hash", "fractions": [0.8, 0.1, 0.1]},
    "loader": {"batch_size": 64},
    "metrics": [{"type": "mrr"}, {"type": "auc"}],
}


def parts_config(storage_path: Path, parts: Path, **changes: Any) -> dict[str, Any]:
    """A run on the parts, in this process unless the changes say otherwise."""
    given = {"data": {"mode": "partitioned", "uri": str(parts)}, "scaling__num_workers": 0}
    return small_config(storage_path, **{**given, **changes})
