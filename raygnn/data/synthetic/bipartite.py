"""Users who buy items, in communities: the smallest graph with two node types."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from raygnn.data.convert.split_option import SPLIT_HELP, declare_split
from raygnn.data.synthetic.arguments import checked, field
from raygnn.data.synthetic.draws import draw_integers, draw_permutation, draw_uniform
from raygnn.data.synthetic.planted import class_features
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows

_FIRST_TIME_S = 1_700_000_000  # Unix time of the earliest purchase possible (November 2023)
_YEAR_S = 365 * 24 * 3600


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
    time = _FIRST_TIME_S + draw_integers(seed, "time", len(user), _YEAR_S) if timestamps else None
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
    """Distinct (user, item) pairs, sorted."""
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
