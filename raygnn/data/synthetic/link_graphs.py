"""Graphs to predict links in: communities of users, a raw shop, and links without any pattern."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import pyarrow as pa

from raygnn.data.convert.split_option import SPLIT_HELP, declare_split
from raygnn.data.edge_types import EdgeType
from raygnn.data.synthetic.arguments import checked, field
from raygnn.data.synthetic.draws import (
    FIRST_TIME_S,
    YEAR_S,
    draw_integers,
    draw_normal,
    draw_permutation,
    draw_uniform,
)
from raygnn.data.synthetic.node_graphs import class_features
from raygnn.data.tables.graph_tables import EdgeRows, GraphTables, NodeRows, edge_rows, node_rows


@checked
def bipartite(
    num_users: Annotated[int, field("the number of users", low=1)] = 2000,
    num_items: Annotated[int, field("the number of items", low=1)] = 1000,
    num_communities: Annotated[int, field("the number of communities", low=1)] = 8,
    avg_degree: Annotated[float, field("the mean number of purchases of a user", low=0)] = 10.0,
    homophily: Annotated[
        float, field("the share of purchases within the own community", low=0, high=1)
    ] = 0.8,
    num_features: Annotated[
        int, field("the length of a feature row of users and of items", low=1)
    ] = 32,
    noise: Annotated[
        float, field("the norm of the features' noise, as a multiple of their signal's", low=0)
    ] = 3.0,
    timestamps: Annotated[bool, field("a time for each purchase, in Unix seconds")] = False,
    split: Annotated[str, field(SPLIT_HELP)] = "hash:0.6,0.2,0.2",
    split_seed: Annotated[int | None, field("the seed of the split (default: seed)")] = None,
    seed: Annotated[int, field("the seed")] = 0,
) -> GraphTables:
    """Node types user and item, edge type (user, buys, item); a user's label is its community.

    Within a community the items' popularity falls linearly from twice the mean to nothing. Repeated
    purchases of the same item are dropped. Features are as in planted_partition, for both types
    around the same centers.
    """
    num_communities = min(num_communities, num_users, num_items)
    user_labels = draw_permutation(seed, "users", num_users) % num_communities
    item_labels = draw_permutation(seed, "items", num_items) % num_communities
    user, item = _draw_purchases(user_labels, item_labels, avg_degree, homophily, seed)

    labels = np.concatenate([user_labels, item_labels])
    features = class_features(labels, num_communities, num_features, noise, seed)
    users = node_rows(np.arange(num_users), {"x": features[:num_users]}, {"y": user_labels})
    users = declare_split(users, split, seed if split_seed is None else split_seed, user_labels)
    items = node_rows(np.arange(num_items), {"x": features[num_users:]})
    time = FIRST_TIME_S + draw_integers(seed, "time", len(user), YEAR_S) if timestamps else None
    return GraphTables(
        {"user": users, "item": items},
        {("user", "buys", "item"): edge_rows(user, item, time=time)},
    )


def _draw_purchases(
    user_labels: np.ndarray,
    item_labels: np.ndarray,
    avg_degree: float,
    homophily: float,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    num_users, num_items = len(user_labels), len(item_labels)
    num_communities = int(item_labels.max()) + 1
    num_draws = round(num_users * avg_degree)
    by_community = np.argsort(item_labels, kind="stable")
    sizes = np.bincount(item_labels, minlength=num_communities)
    starts = np.cumsum(sizes) - sizes

    user = draw_integers(seed, "buyers", num_draws, num_users)
    inside = draw_uniform(seed, "inside", num_draws) < homophily
    elsewhere = draw_integers(seed, "communities", num_draws, num_communities)
    community = np.where(inside, user_labels[user], elsewhere)
    # 1 - sqrt(u) has density 2 (1 - t): the community's first items are bought most
    rank = 1 - np.sqrt(draw_uniform(seed, "purchases", num_draws))
    offset = np.minimum((rank * sizes[community]).astype(np.int64), sizes[community] - 1)
    item = by_community[starts[community] + offset]
    pairs = np.unique(user * num_items + item)
    return pairs // num_items, pairs % num_items


_LATE = 0.9  # share of the year after which cold items are sold
_SCALES = (0.01, 1000.0)  # standard deviation of the first and of the last column
_NOISE = 0.5  # standard deviation within a category, where category means have one of 1
_USER_COLUMNS = 4


@checked
def shop(
    num_users: Annotated[int, field("the number of users", low=1)] = 3000,
    num_items: Annotated[int, field("the number of items", low=1)] = 1000,
    num_purchases: Annotated[int, field("the number of purchases", low=1)] = 40_000,
    num_categories: Annotated[int, field("the number of categories", low=2)] = 6,
    homophily: Annotated[
        float,
        field("the share of purchases drawn from the category of the user's taste", low=0, high=1),
    ] = 0.8,
    cold: Annotated[
        float, field("the share of items sold in the last tenth of the year only", low=0, high=0.5)
    ] = 0.1,
    num_features: Annotated[int, field("the number of feature columns of items", low=2)] = 8,
    split: Annotated[str, field(SPLIT_HELP)] = "hash:0.3,0.2,0.5",
    split_seed: Annotated[int | None, field("the seed of the split (default: seed)")] = None,
    seed: Annotated[int, field("the seed")] = 0,
) -> GraphTables:
    """Node types user and item, edge type (user, buys, item) with timestamps over one year.

    A user's label `taste` is a category; an item's label `category` is its own. Purchases that are
    not drawn from the category of the user's taste are drawn from all items. Within a category the
    items' popularity falls linearly from twice the mean to nothing. The columns of items are
    standard deviations of 0.01 to 1,000 apart and reveal the category; those of users are noise of
    the same scales. Ids are strings with gaps. The split is of users.
    """
    num_categories = min(num_categories, num_users, num_items)
    taste = draw_permutation(seed, "tastes", num_users) % num_categories
    category = draw_permutation(seed, "categories", num_items) % num_categories
    user = draw_integers(seed, "buyers", num_purchases, num_users)
    time = draw_uniform(seed, "times", num_purchases)
    inside = draw_uniform(seed, "inside", num_purchases) < homophily
    elsewhere = draw_integers(seed, "elsewhere", num_purchases, num_categories)
    wanted = np.where(inside, taste[user], elsewhere)
    item = _draw_items(category, wanted, time >= _LATE, cold, seed)

    centers = draw_normal(seed, "centers", (num_categories, num_features))
    noise = draw_normal(seed, "item features", (num_items, num_features))
    users = _rows("user", draw_normal(seed, "user features", (num_users, _USER_COLUMNS)), seed)
    items = _rows("item", centers[category] + _NOISE * noise, seed)
    users = _with_label(users, "taste", taste)
    users = declare_split(users, split, seed if split_seed is None else split_seed, taste)
    seconds = FIRST_TIME_S + (time * YEAR_S).astype(np.int64)
    return GraphTables(
        {"user": users, "item": _with_label(items, "category", category)},
        {
            ("user", "buys", "item"): edge_rows(
                users.table.column("user_id").combine_chunks().take(pa.array(user)),
                items.table.column("item_id").combine_chunks().take(pa.array(item)),
                time=seconds.astype("datetime64[s]"),
            )
        },
    )


def _draw_items(
    category: np.ndarray, wanted: np.ndarray, is_late: np.ndarray, cold: float, seed: int
) -> np.ndarray:
    """int64: an item of each wanted category, by popularity; a cold one only where it is late."""
    num_items = len(category)
    by_category = np.argsort(category, kind="stable")
    sizes = np.bincount(category)
    ends = np.cumsum(sizes)
    rank = np.arange(num_items) - np.repeat(ends - sizes, sizes)
    popularity = 1 - (rank + 0.5) / np.repeat(sizes, sizes)
    is_cold = draw_permutation(seed, "cold", num_items) < round(cold * num_items)
    # a category of cold items only is sold all year
    is_cold &= np.bincount(category, ~is_cold)[category] > 0
    draws = draw_uniform(seed, "items", len(wanted))
    item = np.empty(len(wanted), np.int64)
    for late in (False, True):
        weights = popularity * (late | ~is_cold[by_category])
        total = np.concatenate([[0.0], np.cumsum(weights)])
        low, high = total[(ends - sizes)[wanted]], total[ends[wanted]]
        place = np.searchsorted(total, low + draws * (high - low), side="right") - 1
        item = np.where(is_late == late, by_category[np.minimum(place, num_items - 1)], item)
    return item


def _rows(node_type: str, columns: np.ndarray, seed: int) -> NodeRows:
    num_rows, num_columns = columns.shape
    numbers = np.cumsum(1 + draw_integers(seed, f"{node_type} ids", num_rows, 9))
    ids = pa.array([f"{node_type}-{number}" for number in numbers])
    scales = np.geomspace(*_SCALES, num_columns)
    names = [f"feature_{i}" for i in range(num_columns)]
    # means are as far from zero as raw columns' often are
    raw = {name: scales[i] * (5.0 + columns[:, i]) for i, name in enumerate(names)}
    table = pa.table({f"{node_type}_id": ids, **raw})
    return NodeRows(table, f"{node_type}_id", {"x": names})


def _with_label(rows: NodeRows, name: str, category: np.ndarray) -> NodeRows:
    names = pa.array([f"category_{i}" for i in category])
    return NodeRows(rows.table.append_column(name, names), rows.id, rows.features, {name: name})


@checked
def noise(
    num_nodes: Annotated[int, field("the number of nodes that links start from", low=2)] = 2000,
    num_targets: Annotated[
        int, field("the number of nodes of a second type, that links lead to; 0: one type", low=0)
    ] = 0,
    num_links: Annotated[int, field("the number of links of each relation", low=0)] = 20_000,
    num_relations: Annotated[int, field("the number of relations", low=1)] = 1,
    num_hard_negatives: Annotated[
        int, field("the number of hard negatives of each relation, as label edges", low=0)
    ] = 0,
    num_features: Annotated[int, field("the length of a feature row", low=1)] = 8,
    seed: Annotated[int, field("the seed")] = 0,
) -> GraphTables:
    """Random links with random timestamps over one year between nodes with random features.

    Edge types are (node, links_0, node) and so on, with a second type (node, links_0, target). Ends
    and timestamps are drawn uniformly, so that links may be parallel; no node is linked to itself.
    Ids are strings.
    """
    sizes = {"node": num_nodes} | ({"target": num_targets} if num_targets else {})
    nodes = {name: _nodes(name, size, num_features, seed) for name, size in sizes.items()}
    target = "target" if num_targets else "node"
    edges: dict[EdgeType, EdgeRows] = {}
    labels: dict[tuple[EdgeType, str], EdgeRows] = {}
    for relation in range(num_relations):
        edge_type = ("node", f"links_{relation}", target)
        edges[edge_type] = _pairs(nodes, edge_type, num_links, f"links {relation}", seed)
        if num_hard_negatives:
            drawn = _pairs(nodes, edge_type, num_hard_negatives, f"negatives {relation}", seed)
            labels[edge_type, "negative"] = drawn
    return GraphTables(nodes, edges, label_edges=labels)


def _nodes(name: str, size: int, num_features: int, seed: int) -> NodeRows:
    ids = np.array([f"{name}-{number}" for number in range(size)])
    return node_rows(ids, {"x": draw_normal(seed, f"{name} features", (size, num_features))})


def _pairs(
    nodes: dict[str, NodeRows], edge_type: EdgeType, num: int, stream: str, seed: int
) -> EdgeRows:
    first, _, second = edge_type
    sizes = [len(nodes[name].table) for name in (first, second)]
    source = draw_integers(seed, f"{stream} sources", num, sizes[0])
    if first == second:
        step = 1 + draw_integers(seed, f"{stream} targets", num, sizes[1] - 1)
        target = (source + step) % sizes[1]
    else:
        target = draw_integers(seed, f"{stream} targets", num, sizes[1])
    seconds = FIRST_TIME_S + draw_integers(seed, f"{stream} times", num, YEAR_S)
    return edge_rows(
        _ids(nodes[first], source),
        _ids(nodes[second], target),
        time=seconds.astype("datetime64[s]"),
    )


def _ids(rows: NodeRows, chosen: np.ndarray) -> pa.Array:
    return rows.table.column(rows.id).combine_chunks().take(pa.array(chosen))
