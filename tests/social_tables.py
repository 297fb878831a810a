"""Tables of users and items with columns and edges of every kind, for tests of whole graphs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.graph_writer import cut, write_shards

MANIFEST = {
    "node_types": {
        "user": {
            "files": "user/*.parquet",
            "id": "id",
            "split": "split",
            "time": "since",
            "features": {
                "x": {"columns": ["age", "height"]},
                "z": {"columns": [{"column": "age", "transform": "standard"}]},
                "words": {"indices": "word", "values": "weight", "dim": 9},
            },
            "labels": {"group": "group", "kind": "kind"},
        },
        "item": {"files": "item/*.parquet", "id": "id", "features": {"x": "x"}},
    },
    "edge_types": [
        {
            "type": ["user", "knows", "user"],
            "files": "knows/*.parquet",
            "source": "s",
            "target": "t",
            "time": "time",
            "weight": "w",
            "features": {"row": "row"},
            "directed": False,
        },
        {
            "type": ["user", "buys", "item"],
            "files": "buys/*.parquet",
            "source": "s",
            "target": "t",
            "features": {"row": "row"},
        },
    ],
    "label_edges": [
        {
            "type": ["user", "likes", "item"],
            "files": "likes/*.parquet",
            "source": "s",
            "target": "t",
            "split": "split",
        }
    ],
}  # fmt: skip

Tables = dict[str, pa.Table]


def social_tables(num_users: int, num_items: int, seed: int) -> Tables:
    """Users with text ids and items with integer ids that have gaps, and edges among them."""
    rng = np.random.default_rng(seed)
    users = np.array([f"ü{i * 7}" for i in rng.permutation(num_users)])
    items = rng.permutation(np.unique(rng.integers(-(2**40), 2**40, num_items)))
    split = ["train", *rng.choice(["train", "val", "test", None], num_users - 1)]
    lengths = rng.integers(0, 4, num_users)
    words = [rng.choice(9, n, replace=False).tolist() for n in lengths]

    def edges(sources: np.ndarray, targets: np.ndarray, count: int) -> dict[str, Any]:
        chosen = {"s": rng.choice(sources, count), "t": rng.choice(targets, count)}
        return {**chosen, "row": np.arange(count, dtype="f4")}

    knows = edges(users, users, 5 * num_users)
    knows["time"] = rng.integers(0, 4, len(knows["s"]))
    knows["w"] = rng.random(len(knows["s"]), np.float32)
    likes = edges(users, items, num_users)
    likes["split"] = rng.integers(0, 4, num_users)
    return {
        "user": pa.table(
            {
                "id": users,
                "split": pa.array(split),
                "since": rng.integers(0, 9, num_users),
                "age": rng.random(num_users, np.float32),
                "height": rng.random(num_users, np.float32),
                "word": pa.array(words, pa.list_(pa.int32())),
                "weight": pa.array([[float(i) for i in row] for row in words]),
                "group": rng.choice(["b", "a", "ç"], num_users),
                "kind": rng.integers(-1, 5, num_users),
            }
        ),
        "item": pa.table({"id": items, "x": rng.random(len(items), np.float32)}),
        "knows": pa.table(knows),
        "buys": pa.table(edges(users, items, 3 * num_users)),
        "likes": pa.table(likes),
    }


def write_social(folder: Path, tables: Tables, num_shards: int = 2) -> Path:
    folder.mkdir()
    for name, table in tables.items():
        write_shards(folder / name, cut(table, num_shards))
    (folder / "graph.yaml").write_text(json.dumps({"format": "raygnn/graph-v1", **MANIFEST}))
    return folder
