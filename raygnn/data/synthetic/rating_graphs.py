"""Ratings of films by users, which depend on what both ends show and on what they do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
import pyarrow as pa

from raygnn.data.convert.split_option import parse_split
from raygnn.data.links.split import pair_split
from raygnn.data.synthetic.arguments import checked, field
from raygnn.data.synthetic.draws import (
    FIRST_TIME_S,
    YEAR_S,
    draw_integers,
    draw_normal,
    draw_uniform,
)
from raygnn.data.tables.columns import split_column
from raygnn.data.tables.graph_tables import EdgeRows, GraphTables, edge_rows, node_rows
from raygnn.errors import ConfigError

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
    split: Annotated[
        str, field("hash:TRAIN,VAL,TEST (shares of the pairs of user and film) or none")
    ] = "hash:0.8,0.1,0.1",
    split_seed: Annotated[int | None, field("the seed of the split (default: seed)")] = None,
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
    users = node_rows(_ids(np.arange(num_users)), {"x": shown}, labels=favorite)
    films = node_rows(_ids(np.arange(num_films)), {"x": of_film})
    time = FIRST_TIME_S + draw_integers(seed, "time", len(user), YEAR_S)
    given = pa.array(stars.astype(np.int64)).cast(pa.string()) if classes else stars
    rates = edge_rows(_ids(user), _ids(film), time=time, labels={"rating": given})
    rates = _with_split(rates, split, seed if split_seed is None else split_seed)
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
    users = node_rows(_ids(np.arange(num_users)), {"x": (taste + 2 * noise[:num_users])[:, :4]})
    shown = (of_film + noise[num_users:])[:, : (num_tastes + 1) // 2]
    films = node_rows(_ids(np.arange(num_films)), {"x": shown})
    pairs = edge_rows(_ids(user), _ids(film), time=time)
    return GraphTables({"user": users, "film": films}, {("user", "likes", "film"): pairs})


def _gumbel(seed: int, stream: str, shape: tuple[int, int]) -> np.ndarray:
    uniform = draw_uniform(seed, stream, shape[0] * shape[1]).reshape(shape)
    return -np.log(-np.log(uniform + 2.0**-54))


def _ids(numbers: np.ndarray) -> np.ndarray:
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


def _with_split(rates: EdgeRows, split: str, seed: int) -> EdgeRows:
    option = parse_split(split)
    if option.kind == "none":
        return rates
    if option.kind != "hash":
        raise ConfigError(
            f"split={split!r} is invalid: pairs of user and film have no classes. Set "
            "hash:0.8,0.1,0.1 or none.",
            id="split-option",
        )
    users, films = (rates.table.column(name).combine_chunks() for name in ("source", "target"))
    codes = pair_split(("user", users), ("film", films), option.numbers, seed)
    return replace(
        rates, table=rates.table.append_column("split", split_column(codes)), split="split"
    )
