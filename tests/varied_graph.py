"""Tables with all kinds of columns and edge types, some rows of which may be bad."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from tests.graph_writer import cut, write_shards

_MANIFEST = """
format: raygnn/graph-v1
node_types:
  user:
    files: user/*.parquet
    id: id
    features: {x: x, tags: {indices: tags, dim: 5}}
    labels: {y: y}
    split: split
  item: {files: item/*.csv, id: id, features: {price: {columns: [price]}}, time: born}
edge_types:
  - {type: [user, knows, user], files: knows/*.parquet, source: s, target: t, directed: false,
     time: when, weight: w, features: {f: f}, labels: {kind: kind}}
  - {type: [user, bought, item], files: bought/*.parquet, source: s, target: t, time: when,
     split: split, features: {f: f}, labels: {stars: stars}}
  - {type: [item, like, item], files: like/*.csv, source: s, target: t}
label_edges:
  - {type: [user, returned, item], files: returned/*.parquet, source: s, target: t, time: when}
"""


TABLES = ("user", "item", "knows", "bought", "like", "returned")


def write_varied_graph(folder: Path, bad: Collection[str] = (), num_edges: int = 1000) -> Path:
    """Writes users with text ids, items with integers as ids, and edges of four types.

    Args:
        bad: tables of which some rows lack an id, repeat one, end at no node, or hold a NaN.
    """
    rng = np.random.default_rng(0)
    users = [f"user-{i}" for i in rng.permutation(150)]
    items = (rng.permutation(90) * 1_000_003).tolist()
    tables = {
        "user": _users(users, rng),
        "item": pa.table({"id": items, "price": rng.random(90), "born": rng.integers(0, 99, 90)}),
        "knows": _edges(users, users, num_edges, rng),
        "bought": _edges(users, items, num_edges, rng),
        "like": _edges(items, items, num_edges, rng).select(["s", "t"]),
        "returned": _edges(users, items, num_edges, rng).select(["s", "t", "when"]),
    }
    for name, table in tables.items():
        suffix = ".csv" if name in {"item", "like"} else ".parquet"
        rows = _spoilt(table) if name in bad else table
        write_shards(folder / name, cut(rows, 3), suffix, row_group_size=40)
    (folder / "graph.yaml").write_text(_MANIFEST)
    return folder


def _users(ids: Sequence[str], rng: np.random.Generator) -> pa.Table:
    return pa.table(
        {
            "id": ids,
            "x": list(rng.normal(size=(len(ids), 4)).astype("f4")),
            "tags": [[i % 5] * (i % 3) for i in range(len(ids))],
            "y": rng.choice(["red", "green", "blue"], len(ids)),
            "split": rng.choice(["train", "val", "test"], len(ids)),
        }
    )


def _edges(
    sources: Sequence[str | int], targets: Sequence[str | int], count: int, rng: np.random.Generator
) -> pa.Table:
    return pa.table(
        {
            "s": rng.choice(sources, count),
            "t": rng.choice(targets, count),
            "when": rng.integers(0, 9, count),
            "w": rng.random(count),
            "f": list(rng.normal(size=(count, 3)).astype("f4")),
            "kind": rng.choice(["friend", "colleague", "cousin"], count),
            "stars": rng.integers(0, 5, count),
            "split": rng.choice(["train", "val", "test"], count),
        }
    )


def _spoilt(table: pa.Table) -> pa.Table:
    """With a repeated first row, a row without its first column, and a stranger or a NaN."""
    first = table.column_names[0]
    alone = table.slice(1, 1).set_column(0, first, pa.nulls(1, table.schema.field(0).type))
    odd = table.slice(2, 1)
    if first == "s":
        odd = odd.set_column(0, first, pa.array(["nobody"] if _is_text(table) else [-7]))
    elif "price" in table.column_names:
        odd = odd.set_column(1, "price", pa.array([float("nan")]))
    return pa.concat_tables([table, table.slice(0, 1), alone, odd.cast(table.schema)])


def _is_text(table: pa.Table) -> bool:
    return pa.types.is_string(table.schema.field(0).type)
