"""Graphs in memory and in parts, for tests that compare tasks over the two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raygnn.config import LoadedConfig, build, load_config
from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import edge_type_name
from raygnn.data.ingest.build_bundle import IngestOptions
from raygnn.data.partition.build import Partitioning, partition
from raygnn.data.partition.part import Outline, Pairs, open_partitioned
from raygnn.data.tables.graph_tables import (
    GraphTables,
    TrainingRows,
    edge_rows,
    node_rows,
    write_tables,
)
from raygnn.loops.task import TaskEnvironment
from raygnn.runtime.data_checks import pairs_read
from raygnn.sampling.parts import PartitionedGraph, map_parts
from tests.small_runs import small_config

NUM_USERS, NUM_ITEMS = 60, 25
LIKES = ("user", "likes", "item")


def friends() -> GraphTables:
    """Users of one type, with parallel edges, loops and edges both ways."""
    rng = np.random.default_rng(3)
    source, target = rng.integers(0, NUM_USERS, (2, 500))
    source[:60], target[:60] = target[60:120], source[60:120]
    columns: dict[str, Any] = {
        "features": {"row": np.arange(500, dtype=np.float32)},
        "weight": rng.random(500, np.float32),
        "time": rng.integers(0, 100, 500),
    }
    return GraphTables(
        {"user": node_rows(np.arange(NUM_USERS) * 7, {"x": rng.random((NUM_USERS, 3))})},
        {("user", "knows", "user"): edge_rows(source * 7, target * 7, **columns)},
    )


def shop() -> GraphTables:
    """Users and items, two relations between them, and label edges of both signs with times."""
    rng = np.random.default_rng(4)

    def rows(count: int, **columns: Any) -> Any:
        ends = rng.integers(0, NUM_USERS, count), 1000 + rng.integers(0, NUM_ITEMS, count)
        return edge_rows(*ends, time=rng.integers(0, 100, count), **columns)

    return GraphTables(
        {
            "user": node_rows(np.arange(NUM_USERS), {"x": rng.random((NUM_USERS, 3))}),
            "item": node_rows(1000 + np.arange(NUM_ITEMS), {"x": rng.random((NUM_ITEMS, 4))}),
        },
        {
            ("user", "buys", "item"): rows(300, weight=rng.random(300, np.float32)),
            ("user", "sees", "item"): rows(200),
        },
        label_edges={
            (LIKES, "positive"): rows(150),
            (LIKES, "negative"): rows(60),
        },
    )


def ratings() -> GraphTables:
    """Users and films; ratings with a label, two features and a time, label edges with a label."""
    rng = np.random.default_rng(5)

    def rows(count: int, **columns: Any) -> Any:
        ends = rng.integers(0, NUM_USERS, count), 1000 + rng.integers(0, NUM_ITEMS, count)
        stars = rng.random(count, np.float32)
        return edge_rows(
            *ends, labels={"stars": stars}, time=rng.integers(0, 100, count), **columns
        )

    mood = rng.random((300, 2), np.float32)
    return GraphTables(
        {
            "user": node_rows(np.arange(NUM_USERS), {"x": rng.random((NUM_USERS, 3))}),
            "film": node_rows(1000 + np.arange(NUM_ITEMS), {"x": rng.random((NUM_ITEMS, 4))}),
        },
        {("user", "rates", "film"): rows(300, features={"mood": mood})},
        label_edges={(("user", "likes", "film"), "positive"): rows(150)},
    )


def asked_shop() -> GraphTables:
    """The shop with a training table: users at times, several rows of each, with two labels."""
    rng, tables = np.random.default_rng(6), shop()
    rows = {
        "user": rng.integers(0, NUM_USERS, 200),
        "at": rng.integers(0, 110, 200),
        "y": rng.integers(0, 3, 200),
        "word": rng.choice(["in", "out"], 200),
    }
    labels = {"y": "y", "word": "word"}
    return replace(
        tables,
        label_edges={},
        training_tables={"churn": TrainingRows(rows, "user", "user", labels, "at", window=30)},
    )


@dataclass(frozen=True)
class Parted:
    """The parts of a graph, and the same graph opened whole."""

    parts: Path
    whole: Bundle

    @classmethod
    def make(
        cls, folder: Path, tables: GraphTables, num_parts: int, options: IngestOptions
    ) -> Parted:
        uri = write_tables(tables, str(folder / "tables"), num_shards=2)
        partition(uri, folder / "parts", Partitioning(num_parts), options)
        return cls(folder / "parts", open_partitioned(folder / "parts", folder / "cache"))

    def assert_same_batches(self, settings: Mapping[str, Any]) -> None:
        """Batches of train, val and test of a task are the same over the parts as in memory.

        Args:
            settings: changes to a small config.
        """
        loaded = load_config(small_config("runs", **settings))
        pairs = pairs_read(loaded.config, self.whole)
        outline = Outline.build(self.parts, self.parts.parent / "cache", pairs)
        tasks = (
            _task(loaded, outline, map_parts(self.parts, outline)),
            _task(loaded, self.whole, None),
        )
        for split in ("train", "val", "test"):
            found, expected = (list(task.loader(split).iterate(1)) for task in tasks)
            assert sum(len(edges.e_id) for b in expected for edges in b.edges.values())
            assert len(found) == len(expected) > 0
            for batch, wanted in zip(found, expected, strict=True):
                assert_same(batch, wanted)
        for task in tasks:
            task.close()
        _assert_lean(outline, pairs or {})


def _task(loaded: LoadedConfig, bundle: Bundle, parts: PartitionedGraph | None) -> Any:
    task = build(loaded.config.task, "task", ())
    task.setup(TaskEnvironment(loaded, bundle, 0, 1, torch.device("cpu"), None, parts))
    return task


def _assert_lean(outline: Bundle, pairs: Pairs) -> None:
    """A worker's folder has the pairs of the links, and no other edges, features or weights."""
    files = [p.relative_to(outline.path).as_posix() for p in outline.path.rglob("*.npy")]
    columns = {name.split("/")[-1] for name in files if name.startswith(("edges/", "nodes/"))}
    assert not columns & {"x.npy", "row.npy", "weight.npy"}
    held = {name.split("/")[1] for name in files if name.startswith("edges/")}
    assert held == set(map(edge_type_name, pairs))


def assert_same(found: Any, expected: Any) -> None:
    """Of records of arrays, tensors, sequences and dictionaries, to any depth."""
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            assert_same(found[key], value)
    elif hasattr(expected, "__dataclass_fields__"):
        for name in expected.__dataclass_fields__:
            assert_same(getattr(found, name), getattr(expected, name))
    elif hasattr(expected, "dtype"):
        assert found.dtype == expected.dtype
        assert np.array_equal(np.asarray(found), np.asarray(expected))
    else:
        assert found == expected
