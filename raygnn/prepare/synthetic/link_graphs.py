"""Graphs for link prediction: purchases, ratings, likes, and links without any pattern."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
import pyarrow as pa

from raygnn.data.edge_types import EdgeType
from raygnn.data.links.split import pair_split
from raygnn.data.tables.clean_up import with_hash_split
from raygnn.data.tables.columns import split_column
from raygnn.data.tables.graph_tables import EdgeRows, GraphTables, NodeRows, edge_rows, node_rows
from raygnn.prepare.synthetic.draws import (
    FIRST_TIME_S,
    YEAR_S,
    checked,
    draw_integers,
    draw_normal,
    draw_permutation,
    draw_uniform,
    field,
)

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
    users = with_hash_split(users, seed, 0.3, 0.2, 0.5)
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
    """int64: an item of each wanted category, by popularity; cold ones only where it is late."""
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


_MEAN, _LEAST, _MOST = 3.4, 1, 5
_ID_STEP, _FIRST_ID = 7, 1001
_SHOWN = 0.5  # share of the variance of a taste that the features of its user show


@checked
def ratings(
    num_users: Annotated[int, field("the number of users", low=1)] = 2000,
    num_films: Annotated[int, field("the number of films", low=2)] = 500,
    num_ratings: Annotated[int, field("the number of draws of a rating", low=1)] = 40_000,
    num_genres: Annotated[int, field("the number of genres", low=2)] = 6,
    noise: Annotated[
        float, field("the standard deviation of what nothing explains, in stars", low=0)
    ] = 0.7,
    classes: Annotated[bool, field("ratings as classes '1' to '5', not as numbers")] = False,
    seed: Annotated[int, field("the seed")] = 0,
) -> GraphTables:
    """Node types user and film, edge type (user, rates, film) with label `rating` and timestamps.

    A user likes each genre more or less; a film has one genre and is more or less good. A rating of
    1 to 5 stars is their sum with noise, rounded. The features of a film show its genre and, with
    noise, how good it is; those of a user show half of the taste, and the other half only the
    genres of the films that the user rates. A user rates a film once, and the label `favorite` is
    the genre that a user likes most.
    """
    taste = draw_normal(seed, "tastes", (num_users, num_genres))
    hidden = draw_normal(seed, "hidden tastes", (num_users, num_genres))
    shown, taste = taste, np.sqrt(_SHOWN) * taste + np.sqrt(1 - _SHOWN) * hidden
    genre = draw_integers(seed, "genres", num_films, num_genres)
    goodness = draw_normal(seed, "goodness", (num_films,))
    user, film = _draw_pairs(taste, genre, num_ratings, seed)

    liking = 0.8 * taste[user, genre[film]] + 0.5 * goodness[film]
    stars = _MEAN + liking + noise * draw_normal(seed, "noise", (len(user),))
    stars = np.clip(np.rint(stars), _LEAST, _MOST).astype(np.float32)
    of_film = draw_normal(seed, "film features", (num_films, num_genres + 1)) * 0.5
    of_film[np.arange(num_films), genre] += 2
    of_film[:, -1] += goodness
    favorite = {"favorite": taste.argmax(axis=1)}
    users = node_rows(_film_ids(np.arange(num_users)), {"x": shown}, labels=favorite)
    films = node_rows(_film_ids(np.arange(num_films)), {"x": of_film})
    time = FIRST_TIME_S + draw_integers(seed, "time", len(user), YEAR_S)
    given = pa.array(stars.astype(np.int64)).cast(pa.string()) if classes else stars
    rates = edge_rows(_film_ids(user), _film_ids(film), time=time, labels={"rating": given})
    rates = _with_split(rates, seed)
    return GraphTables({"user": users, "film": films}, {("user", "rates", "film"): rates})


@checked
def likes(
    num_users: Annotated[int, field("the number of users", low=1)] = 943,
    num_films: Annotated[int, field("the number of films", low=2)] = 1682,
    num_likes: Annotated[int, field("about how many films all users like together", low=1)] = (
        100_000
    ),
    num_series: Annotated[int, field("the number of series of films", low=1)] = 250,
    num_tastes: Annotated[int, field("the dimensions of a taste", low=1)] = 16,
    seed: Annotated[int, field("the seed")] = 0,
) -> GraphTables:
    """Node types user and film, edge type (user, likes, film) with timestamps, as MovieLens-100k.

    A user likes the films of the largest sum of a taste (of a few dimensions, shared by the films
    of a series), a series that the user follows (which no few dimensions express), popularity, and
    noise; some users like many times the films of others. The features of a film show half of its
    taste and those of a user some of theirs. So item-item regression recommends better than
    factors of few dimensions, and these better than popularity.
    """
    taste = draw_normal(seed, "user tastes", (num_users, num_tastes))
    series = draw_integers(seed, "series", num_films, num_series)
    centers = draw_normal(seed, "series tastes", (num_series, num_tastes))
    own = draw_normal(seed, "film tastes", (num_films, num_tastes))
    of_film = np.sqrt(0.6) * centers[series] + np.sqrt(0.4) * own
    follows = _gumbel(seed, "follows", (num_users, num_series)) - 0.577
    activity = np.exp(draw_normal(seed, "activity", (num_users,)).astype(np.float64))
    num = 0.95 * num_likes / num_users * activity / activity.mean()
    num = np.minimum(np.maximum(num, 20), max(num_films // 2, 1)).astype(np.int64)
    score = 1.5 * taste @ of_film.T / np.sqrt(num_tastes)
    score += 2 * np.maximum(follows[:, series] - 1.5, 0)
    score += 1.6 * draw_normal(seed, "popularity", (num_films,))
    score += _gumbel(seed, "noise", (num_users, num_films))
    order = np.argsort(-score, axis=1, kind="stable")
    user = np.repeat(np.arange(num_users), num)
    film = order[np.arange(num_films) < num[:, None]]
    time = FIRST_TIME_S + draw_integers(seed, "time", len(user), YEAR_S)
    noise = draw_normal(seed, "shown", (num_users + num_films, num_tastes))
    users = node_rows(
        _film_ids(np.arange(num_users)), {"x": (taste + 2 * noise[:num_users])[:, :4]}
    )
    shown = (of_film + noise[num_users:])[:, : (num_tastes + 1) // 2]
    films = node_rows(_film_ids(np.arange(num_films)), {"x": shown})
    pairs = edge_rows(_film_ids(user), _film_ids(film), time=time)
    return GraphTables({"user": users, "film": films}, {("user", "likes", "film"): pairs})


def _gumbel(seed: int, stream: str, shape: tuple[int, int]) -> np.ndarray:
    uniform = draw_uniform(seed, stream, shape[0] * shape[1]).reshape(shape)
    return -np.log(-np.log(uniform + 2.0**-54))


def _film_ids(numbers: np.ndarray) -> np.ndarray:
    return _FIRST_ID + _ID_STEP * numbers


def _draw_pairs(
    taste: np.ndarray, genre: np.ndarray, num: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    num_users, num_films = len(taste), len(genre)
    user = draw_integers(seed, "raters", num, num_users)
    share = np.exp(taste.astype(np.float64))
    share[:, np.bincount(genre, minlength=taste.shape[1]) == 0] = 0
    bounds = np.cumsum(share, axis=1)
    position = draw_uniform(seed, "wanted", num) * bounds[user, -1]
    wanted = (position[:, None] >= bounds[user]).sum(axis=1)
    by_genre = np.argsort(genre, kind="stable")
    sizes = np.bincount(genre, minlength=taste.shape[1])
    starts = np.cumsum(sizes) - sizes
    # 1 - sqrt(u) has density 2 (1 - t): the first films of a genre are rated most
    rank = 1 - np.sqrt(draw_uniform(seed, "films", num))
    offset = np.minimum((rank * sizes[wanted]).astype(np.int64), sizes[wanted] - 1)
    pairs = np.unique(user * num_films + by_genre[starts[wanted] + offset])
    return pairs // num_films, pairs % num_films


def _with_split(rates: EdgeRows, seed: int) -> EdgeRows:
    users, films = (rates.table.column(name).combine_chunks() for name in ("source", "target"))
    codes = pair_split(("user", users), ("film", films), (0.8, 0.1, 0.1), seed)
    return replace(
        rates, table=rates.table.append_column("split", split_column(codes)), split="split"
    )
