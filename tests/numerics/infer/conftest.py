"""Two small trained models, and graphs to use them on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import raygnn.train
from raygnn.data.synthetic.generators import synthetic_tables
from raygnn.data.tables.graph_tables import GraphTables, write_tables
from tests.small_runs import small_config


@dataclass(frozen=True)
class Trained:
    """A run, the graph that it trained on, and the same graph without labels and splits."""

    run: str
    graph: str
    plain_graph: str
    metrics: dict[str, Any]


def named(tables: GraphTables, prefixes: dict[str, str]) -> GraphTables:
    """The same graph with strings as ids and as classes."""

    def text(values: pa.ChunkedArray, prefix: str) -> pa.Array:
        return pa.array([f"{prefix}{value.as_py():03d}" for value in values])

    def renamed(table: pa.Table, columns: dict[str, str]) -> pa.Table:
        for column, prefix in columns.items():
            if column in table.column_names:
                place = table.column_names.index(column)
                table = table.set_column(place, column, text(table.column(column), prefix))
        return table

    nodes = {
        name: replace(rows, table=renamed(rows.table, {rows.id: prefixes[name], "y": "class-"}))
        for name, rows in tables.nodes.items()
    }
    edges = {
        key: replace(
            rows,
            table=renamed(
                rows.table, {rows.source: prefixes[key[0]], rows.target: prefixes[key[2]]}
            ),
        )
        for key, rows in tables.edges.items()
    }
    return GraphTables(nodes, edges)


def plain(tables: GraphTables) -> GraphTables:
    """The same graph without labels and splits."""
    nodes = {
        name: replace(
            rows,
            labels={},
            split=None,
            table=rows.table.drop(
                [column for column in ("y", "split") if column in rows.table.column_names]
            ),
        )
        for name, rows in tables.nodes.items()
    }
    return GraphTables(nodes, tables.edges)


@pytest.fixture(scope="session")
def node_model(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """GraphSAGE with a head on 150 papers, whose ids and classes are strings."""
    folder = tmp_path_factory.mktemp("node-model")
    tables = synthetic_tables(
        "planted_partition", num_nodes=150, num_classes=3, num_features=6, seed=3
    )
    tables = named(tables, {"node": "n"})
    config = {
        "model": {"type": "GraphSAGE", "args": {"hidden_channels": 8, "out_channels": 5}},
        "metrics": [{"type": "accuracy"}],
        "training__eval": "exact",
        "training__global_batch_size": 16,
        "loader__batch_size": None,
    }
    return _train(folder, tables, **config)


@pytest.fixture(scope="session")
def link_model(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """HGT on 40 users, who have features, and 25 items, which have learned rows."""
    folder = tmp_path_factory.mktemp("link-model")
    tables = synthetic_tables("bipartite", num_users=40, num_items=25, num_features=4, seed=2)
    items = tables.nodes["item"]
    items = replace(items, table=items.table.select([items.id]), features={})
    tables = GraphTables({"user": tables.nodes["user"], "item": items}, tables.edges)
    config = {
        "task": {
            "type": "link_prediction",
            "args": {
                "edge_type": "user__buys__item",
                "num_random_negatives": 8,
                "num_random_negatives_eval": 10,
            },
        },
        "data__reverse_edges": True,
        "data__splits": {"type": "hash"},
        "metrics": [{"type": "auc"}],
        "model": {"type": "HGT", "args": {"hidden_channels": 8, "num_heads": 2}},
    }
    return _train(folder, tables, **config)


def _train(folder: Path, tables: GraphTables, **changes: Any) -> Trained:
    graph = str(Path(write_tables(tables, str(folder / "graph"), num_shards=2)).parent)
    unlabelled = str(Path(write_tables(plain(tables), str(folder / "plain"), 2)).parent)
    settings = {"data__uri": graph, "data__cache_dir": str(folder / "cache")}
    config = small_config(folder, scaling__num_workers=0, **settings, **changes)
    metrics = raygnn.train.fit(config).metrics
    return Trained(str(folder / "run"), graph, unlabelled, metrics)
