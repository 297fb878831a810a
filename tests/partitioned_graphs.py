"""Graphs in memory and in parts, for tests that compare tasks over the two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from raygnn.config import LoadedConfig, build, load_config
from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import edge_type_name
from raygnn.data.ingest.build_bundle import IngestOptions
from raygnn.data.partition.build import Partitioning, partition
from raygnn.data.partition.part import Outline, Pairs, open_partitioned
from raygnn.data.partition.record import PartitionRecord
from raygnn.data.tables.graph_tables import (
    EdgeRows,
    GraphTables,
    NodeRows,
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
        label_edges={(LIKES, "positive"): rows(150), (LIKES, "negative"): rows(60)},
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


_BUYERS, _GOODS, _EVENTS, _DAYS, _LAST_DAY = 50, 40, 400, 100, 79  # of training
_TEXTS = ["a red coat", "a blue hat", "shoes in red", "hats and coats", "a bag"]
_COLUMNS = [
    "size",
    {"column": "age", "transform": "rank_gauss"},
    {"column": "place", "transform": "category", "min_frequency": 1},
    {"column": "words", "transform": "tfidf"},
    {"column": "seen", "transform": "time"},
]


def _dates(days: np.ndarray) -> pd.Series:
    return pd.Series(pd.Timestamp("2024-01-01") + pd.to_timedelta(days, unit="D"))


def late_shop(seed: int = 0) -> GraphTables:
    """Users who buy items, with columns to fit, and rows that ask about users.

    `seed`: of all rows after the last training row.
    """
    rng, late_rng = np.random.default_rng(0), np.random.default_rng(seed)

    def known(days: np.ndarray, drawn: Any, other: Any) -> Any:
        """Values of rows up to the last training row, and others after it."""
        return np.where(days <= _LAST_DAY, drawn, other if seed else drawn)

    def days(count: int) -> np.ndarray:
        drawn = rng.permutation(np.arange(count) * _DAYS // count)
        moved = late_rng.integers(_LAST_DAY + 1, 3 * _DAYS, count)
        return np.where(drawn <= _LAST_DAY, drawn, moved if seed else drawn)

    users = pd.DataFrame({"user": np.arange(_BUYERS) * 3, "bmi": rng.normal(25, 4, _BUYERS)})
    since = days(_GOODS)
    items = pd.DataFrame(
        {
            "item": np.arange(_GOODS) * 7,
            "size": known(since, rng.normal(1e3, 1, _GOODS), late_rng.normal(0, 1e9, _GOODS)),
            "age": known(since, rng.normal(5, 2, _GOODS), late_rng.normal(0, 1e9, _GOODS)),
            "place": known(since, rng.choice(list("abcd"), _GOODS), "nowhere"),
            "words": known(since, rng.choice(_TEXTS, _GOODS), "never read before"),
            "seen": _dates(since + 5),
            "since": _dates(since),
        }
    )
    bought = days(_EVENTS)
    buys = pd.DataFrame(
        {
            "user": rng.integers(0, _BUYERS, _EVENTS) * 3,
            "item": rng.integers(0, _GOODS, _EVENTS) * 7,
            "amount": known(bought, rng.random(_EVENTS), late_rng.normal(0, 1e9, _EVENTS)),
            "paid": known(bought, rng.random(_EVENTS), late_rng.normal(0, 1e9, _EVENTS)),
            "at": _dates(bought),
        }
    )
    asked = np.repeat(np.arange(9, _DAYS, 10), _BUYERS)  # the eighth time of ten ends training
    rows = pd.DataFrame(
        {
            "user": np.tile(np.arange(_BUYERS) * 3, 10),
            "at": _dates(asked),
            "spent": known(asked, rng.normal(50, 9, len(asked)), late_rng.normal(0, 1e9)),
        }
    )
    # Visits are more than users by the end of training, claims only later.
    events = {name: days(count) for name, count in (("visit", 100), ("claim", 60))}
    columns = ["amount", {"column": "paid", "transform": "standard"}]
    return GraphTables(
        {
            "user": NodeRows(users, "user", {"x": "bmi"}),
            "item": NodeRows(items, "item", {"x": _COLUMNS}, time="since"),
            **{
                name: NodeRows(
                    pd.DataFrame({"id": np.arange(len(drawn)), "at": _dates(drawn)}),
                    "id",
                    time="at",
                )
                for name, drawn in events.items()
            },
        },
        {
            ("user", "buys", "item"): EdgeRows(
                buys, "user", "item", {"edge_attr": columns}, time="at"
            ),
            **{
                (name, "of", "user"): EdgeRows(
                    pd.DataFrame(
                        {"id": np.arange(len(drawn)), "user": np.arange(len(drawn)) % _BUYERS * 3}
                    ),
                    "id",
                    "user",
                )
                for name, drawn in events.items()
            },
        },
        training_tables={"spent": TrainingRows(rows, "user", "user", {"y": "spent"}, "at")},
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
        on_parts = task_on_parts(loaded, self.parts, self.parts.parent / "cache")
        tasks = on_parts, _task(loaded, self.whole, None)
        for split in ("train", "val", "test"):
            found, expected = (list(task.loader(split).iterate(1)) for task in tasks)
            assert sum(len(edges.e_id) for b in expected for edges in b.edges.values())
            assert len(found) == len(expected) > 0
            for batch, wanted in zip(found, expected, strict=True):
                assert_same(batch, wanted)
        for task in tasks:
            task.close()
        _assert_lean(on_parts.env.bundle, pairs_read(loaded.config, self.whole) or {})


def task_on_parts(loaded: LoadedConfig, parts: Path, cache: Path) -> Any:
    """The task of a config on the parts of a graph; without a model."""
    schema = Bundle(parts, PartitionRecord.load(parts).whole)
    outline = Outline.build(parts, cache, pairs_read(loaded.config, schema))
    return _task(loaded, outline, map_parts(parts, outline))


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
