"""A shop as its raw tables would be: string ids, timestamps, columns of wildly different scales."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import pyarrow as pa

from raygnn.data.convert.split_option import SPLIT_HELP, declare_split
from raygnn.data.synthetic.arguments import checked, field
from raygnn.data.synthetic.draws import draw_integers, draw_normal, draw_permutation, draw_uniform
from raygnn.data.tables.graph_tables import GraphTables, NodeRows, edge_rows

_FIRST_TIME_S = 1_700_000_000  # Unix time of the earliest purchase possible (November 2023)
_YEAR_S = 365 * 24 * 3600
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
    seconds = _FIRST_TIME_S + (time * _YEAR_S).astype(np.int64)
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
    """A table of string ids and of one scalar column for each of `columns`, made raw."""
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
