"""A graph for several tasks: users of groups follow each other and rate films of genres."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows

_SPLITS = np.array(["train", "val", "test"])


def social_films(
    num_users: int = 90, num_films: int = 45, seed: int = 0, *, noise: bool = False
) -> GraphTables:
    """Films have a genre, users a group: of their own group users follow others, and like films.

    Args:
        noise: labels, links and ratings are drawn at random.
    """
    rng = np.random.default_rng(seed)
    group, genre = rng.integers(0, 3, num_users), rng.integers(0, 3, num_films)
    users = np.repeat(np.arange(num_users), 8)
    followed = rng.integers(0, num_users, len(users))
    alike = rng.random(len(users)) < 0.85
    for i in np.flatnonzero(alike):
        followed[i] = rng.choice(np.flatnonzero(group == group[users[i]]))
    rated = np.unique(rng.integers(0, num_users * num_films, num_users * 10))
    raters, films = rated // num_films, rated % num_films
    rating = 2.0 + 2.0 * (group[raters] == genre[films]) + rng.normal(0, 0.3, len(raters))
    shown = genre
    if noise:
        shown, followed = rng.permutation(genre), rng.integers(0, num_users, len(users))
        rating = rng.permutation(rating)

    def features(of: np.ndarray) -> np.ndarray:
        return (np.eye(3)[of] + rng.normal(0, 1.0, (len(of), 3))).astype(np.float32)

    def with_split(rows: Any) -> Any:
        drawn = _SPLITS[rng.choice(3, len(rows.table), p=[0.6, 0.2, 0.2])]
        return replace(
            rows, table=rows.table.append_column("split", pa.array(drawn)), split="split"
        )

    x = {name: features(of) for name, of in (("user", group), ("film", genre))}
    nodes = {
        "user": node_rows(np.arange(num_users), {"x": x["user"]}),
        "film": with_split(
            node_rows(np.arange(num_films), {"x": x["film"]}, labels={"genre": shown})
        ),
    }
    follows = np.unique(np.stack([users, followed]), axis=1)
    follows = follows[:, follows[0] != follows[1]]
    # A link and its opposite are one pair, of one split.
    pairs = np.unique(np.sort(follows, axis=0), axis=1)
    pairs = np.where(rng.random(pairs.shape[1]) < 0.5, pairs, pairs[::-1])
    edges = {
        ("user", "follows", "user"): with_split(edge_rows(*pairs)),
        ("user", "rates", "film"): with_split(
            edge_rows(raters, films, labels={"rating": rating.astype(np.float32)})
        ),
    }
    return GraphTables(nodes, edges)


def without_held_out(tables: GraphTables, edge_types: Any) -> GraphTables:
    """The tables without the edges of validation and test of some types, by name."""
    edges = {}
    for edge_type, rows in tables.edges.items():
        if "__".join(edge_type) in set(edge_types):
            rows = replace(rows, table=rows.table.filter(pc.equal(rows.table["split"], "train")))
        edges[edge_type] = rows
    return replace(tables, edges=edges)
