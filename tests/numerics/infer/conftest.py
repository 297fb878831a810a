"""Small trained models, and graphs to use them on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import raygnn.train
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from raygnn.prepare.synthetic import synthetic_tables
from tests.small_runs import small_config

DAY = 86_400_000_000  # us, in which ingest keeps dates
NUM_USERS, NUM_ITEMS, NUM_TASTES, NUM_BUYS = 300, 60, 3, 3_000


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
    rng = np.random.default_rng(2)
    user = np.repeat(np.arange(40), 8)
    item = (user + 5 * rng.integers(0, 4, len(user))) % 25  # most of the same fifth of the items
    x = np.eye(5, 4, dtype=np.float32)[np.arange(40) % 5] + rng.normal(0, 0.3, (40, 4))
    nodes = {"user": node_rows(np.arange(40), {"x": x.astype(np.float32)})}
    nodes["item"] = node_rows(np.arange(25))
    pairs = np.unique(np.stack([user, item]), axis=1)
    tables = GraphTables(nodes, {("user", "buys", "item"): edge_rows(*pairs)})
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
        "model": {
            "type": "HGT",
            "args": {"hidden_channels": 8, "num_heads": 2, "node_embeddings": False},
        },
    }
    return _train(folder, tables, **config)


def _train(folder: Path, tables: GraphTables, **changes: Any) -> Trained:
    graph = str(Path(write_tables(tables, str(folder / "graph"), num_shards=2)).parent)
    unlabelled = str(Path(write_tables(plain(tables), str(folder / "plain"), 2)).parent)
    settings = {"data__uri": graph, "data__cache_dir": str(folder / "cache")}
    config = small_config(folder, scaling__num_workers=0, **settings, **changes)
    metrics = raygnn.train.fit(config).metrics
    return Trained(str(folder / "run"), graph, unlabelled, metrics)


def timed_shop(seed: int = 0) -> tuple[GraphTables, dict[str, np.ndarray]]:
    """Users buy items of their taste; items' features say which taste they are of."""
    rng = np.random.default_rng(seed)
    taste, kind = rng.integers(0, NUM_TASTES, NUM_USERS), np.arange(NUM_ITEMS) % NUM_TASTES
    user = rng.integers(0, NUM_USERS, NUM_BUYS)
    same = rng.random(NUM_BUYS) < 0.9
    item = NUM_TASTES * rng.integers(0, NUM_ITEMS // NUM_TASTES, NUM_BUYS)
    item += np.where(same, taste[user], rng.integers(0, NUM_TASTES, NUM_BUYS))
    days = np.sort(rng.integers(0, 100, NUM_BUYS))
    x = np.eye(NUM_TASTES, dtype=np.float32)[kind] + 0.1 * rng.random((NUM_ITEMS, 1)).astype("f")
    born = rng.integers(0, 100, NUM_USERS)
    tables = GraphTables(
        {
            "user": node_rows(
                np.arange(NUM_USERS),
                {"x": rng.random((NUM_USERS, 2), dtype=np.float32)},
                labels={"y": taste},
                time=dates(born),
            ),
            "item": node_rows(np.arange(NUM_ITEMS), {"x": x}),
        },
        {("user", "buys", "item"): edge_rows(user, item, time=dates(days))},
    )
    return tables, {"user": user, "item": item, "day": days, "taste": taste, "born": born}


def dates(days: np.ndarray) -> np.ndarray:
    return (days * DAY).astype("datetime64[us]")


def write_shop(folder: Path, until: int | None = None, *, timed_users: bool = True) -> str:
    """The tables; with `until`, without the purchases after that day."""
    tables, shop = timed_shop()
    kept = shop["day"] <= (100 if until is None else until)
    nodes = dict(tables.nodes)
    if not timed_users:
        users = nodes["user"]
        nodes["user"] = replace(users, table=users.table.drop(["time"]), time=None)
    rows = edge_rows(shop["user"][kept], shop["item"][kept], time=dates(shop["day"][kept]))
    tables = GraphTables(nodes, {("user", "buys", "item"): rows})
    return str(Path(write_tables(tables, str(folder))).parent)


@pytest.fixture(scope="session")
def temporal_links(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A model of purchases, which are split by their times."""
    folder = tmp_path_factory.mktemp("temporal-links")
    task = {"edge_type": "user__buys__item", "num_random_negatives_eval": 50}
    model = {"out_channels": 16, "normalize_output": True}
    return _train_in_time(folder, "link_prediction", task, model, "auc")


@pytest.fixture(scope="session")
def temporal_labels(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A model of the users' tastes, each known as of a time of its own."""
    folder, model = tmp_path_factory.mktemp("temporal-labels"), {"hidden_channels": 16}
    return _train_in_time(folder, "node_classification", {"blend": False}, model, "accuracy")


def _train_in_time(
    folder: Path, task: str, task_args: dict, model_args: dict, metric: str
) -> Trained:
    graph = write_shop(folder / "graph")
    settings = {
        "task": {"type": task, "args": task_args},
        "data": {
            "uri": graph,
            "cache_dir": str(folder / "cache"),
            "reverse_edges": True,
            "splits": {"type": "temporal", "quantiles": [0.7, 0.8]},
        },
        "sampling": {"fanouts": [10, 10], "temporal": {}},
        "model": {"type": "Hetero", "args": {"conv": "GraphSAGE", **model_args}},
        "metrics": [{"type": metric}],
        "loader": {"batch_size": 128, "eval_batch_size": 128},
        "training": {"max_steps": 150},
        "optimizer": {"type": "Adam", "args": {"lr": 0.01}},
        "scaling__num_workers": 0,
    }
    metrics = raygnn.train.fit(small_config(folder, **settings)).metrics
    return Trained(str(folder / "run"), graph, graph, metrics)
