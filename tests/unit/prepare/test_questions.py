"""Labels of questions against loops in pandas over random tables, and the places of errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from raygnn.data.manifest import Manifest
from raygnn.prepare.label_query import QueryTables, longest, parse_questions
from tests.errors import raises

duckdb = pytest.importorskip("duckdb")

DAY = pd.Timedelta(days=1)
START = pd.Timestamp("2024-01-01")
GRAPH = """\
format: raygnn/graph-v1
node_types:
  users: {files: users.csv, id: user_id}
  products: {files: products.csv, id: sku}
  categories: {files: categories.csv, id: category_id}
  orders: {files: orders.csv, id: order_id, time: day}
  refunds: {files: refunds.csv, id: refund_id, time: day}
  games: {files: games.csv, id: game_id, time: day}
edge_types:
  - {type: [orders, user, users], files: orders.csv, source: order_id, target: user_id}
  - {type: [orders, product, products], files: drafted.csv, source: order_id, target: product}
  - {type: [products, category, categories], files: products.csv, source: sku, target: category_id}
  - {type: [refunds, order, orders], files: refunds.csv, source: refund_id, target: order_id}
  - {type: [games, winner, users], files: games.csv, source: game_id, target: winner_id}
  - {type: [games, loser, users], files: games.csv, source: game_id, target: loser_id}
  - {type: [users, likes, products], files: likes.csv, source: user_id, target: sku, time: day}
"""
Tables = dict[str, pd.DataFrame]


def make_tables(seed: int) -> Tables:
    """Few values, so that all kinds of rows occur, with gaps in references and columns."""
    rng = np.random.default_rng(seed)

    def days(num: int) -> pd.Series:
        return pd.Series(START + rng.integers(0, 120, num) * DAY)

    def with_gaps(values: Any) -> pd.Series:
        return pd.Series(values).astype("object").where(rng.random(len(values)) > 0.1, None)

    users = pd.DataFrame({"user_id": range(12), "country": with_gaps(rng.choice(["DE", "FR"], 12))})
    categories = pd.DataFrame({"category_id": range(3), "name": ["Coffee", "Tea", "Cake"]})
    products = pd.DataFrame({"sku": [f"s{i}" for i in range(9)]})
    products["category_id"] = with_gaps(rng.integers(0, 3, 9)).astype("Int64")
    products["price"] = with_gaps(rng.integers(1, 9, 9)).astype("Float64")
    orders = pd.DataFrame({"order_id": range(200), "day": days(200)})
    orders["user_id"] = with_gaps(rng.integers(0, 10, 200)).astype("Int64")
    orders["product"] = with_gaps(rng.choice(products.sku, 200))
    orders["amount"] = with_gaps(rng.integers(1, 9, 200)).astype("Float64")
    refunds = pd.DataFrame({"refund_id": range(60), "order_id": rng.integers(0, 200, 60)})
    refunds["day"] = orders.day[refunds.order_id].to_numpy() + rng.integers(0, 30, 60) * DAY
    games = pd.DataFrame({"game_id": range(150), "day": days(150)})
    for side in ("winner_id", "loser_id"):
        games[side] = with_gaps(rng.integers(0, 9, 150)).astype("Int64")
    likes = pd.DataFrame({"user_id": rng.integers(0, 12, 40), "day": days(40)})
    likes["sku"] = rng.choice(products.sku, 40)
    return {
        "users": users,
        "categories": categories,
        "products": products,
        "orders": orders,
        "refunds": refunds,
        "games": games,
        "likes": likes,
    }


def query_tables(tables: Tables) -> QueryTables:
    return QueryTables(Manifest.parse(GRAPH), {k: [*t.columns] for k, t in tables.items()})


def answer(tables: Tables, times: list[pd.Timestamp], query: Any) -> dict[tuple, Any]:
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        connection.register("timestamps", pd.DataFrame({"timestamp": times}))
        rows = connection.sql(query.sql.replace("{window}", query.window)).fetchall()
    found = {(time, user): label for time, user, label in rows if label is not None}
    assert len({(time, user) for time, user, _ in rows}) == len(rows)
    return found


def events_of(tables: Tables) -> dict[str, pd.DataFrame]:
    """Events with the columns that they reach, one row for each of their users."""
    products = tables["products"].merge(tables["categories"], "left", on="category_id")
    orders = tables["orders"].merge(
        products.rename(columns={"sku": "product"}), "left", on="product"
    )
    orders = orders.merge(tables["users"], "left", on="user_id").assign(user=orders.user_id)
    refunds = tables["refunds"].merge(orders.drop(columns="day"), "left", on="order_id")
    games = tables["games"]
    winners, losers = (games.assign(user=games[side]) for side in ("winner_id", "loser_id"))
    likes = tables["likes"].assign(user=tables["likes"].user_id)
    both = pd.concat([winners, losers]).drop_duplicates(["game_id", "user"])
    return {
        "orders": orders,
        "refunds": refunds,
        "winners": winners,
        "games": both,
        "likes": likes.merge(products, "left", on="sku"),
    }


Events = dict[str, pd.DataFrame]
Label = Callable[[pd.DataFrame], Any]


def num(mask: Any) -> int:
    return int(mask.fillna(False).astype(bool).sum())


#: Question, table, window and offset in days, label of the events of a user in the window.
QUESTIONS: list[tuple[str, str, int, int, Label]] = [
    ("count(orders) over 30d", "orders", 30, 0, len),
    ("count(orders) over 30d after 15d", "orders", 30, 15, len),
    ("count(orders.amount) over 4w", "orders", 28, 0, lambda x: x.amount.notna().sum()),
    ("count(refunds) over 30d > 0", "refunds", 30, 0, lambda x: int(len(x) > 0)),
    (
        "count(orders where products.price > 4) over 30d",
        *("orders", 30, 0),
        lambda x: num(x.price > 4),
    ),
    (
        "count(orders where categories.name = 'Coffee') over 30d",
        *("orders", 30, 0),
        lambda x: num(x["name"] == "Coffee"),
    ),
    (
        "sum(orders.amount where product.category.name in ('Tea', 'Cake')) over 30d",
        *("orders", 30, 0),
        lambda x: x.amount[x["name"].isin(["Tea", "Cake"])].sum(),
    ),
    (
        "exists(orders where price between 2 and 5 and name like 'C%') over 30d",
        *("orders", 30, 0),
        lambda x: int(num((x.price >= 2) & (x.price <= 5) & x["name"].str.startswith("C")) > 0),
    ),
    (
        "count(orders where amount is null or price = null) over 30d",
        *("orders", 30, 0),
        lambda x: num(x.amount.isna() | x.price.isna()),
    ),
    (
        "count(orders where amount != null) over 30d where not users.country = 'DE'",
        *("orders", 30, 0),
        lambda x: num(x.amount.notna() & (x.country == "FR")),
    ),
    (
        "count(refunds where orders.amount > 3 and orders.products.price < 6) over 60d",
        *("refunds", 60, 0),
        lambda x: num((x.amount > 3) & (x.price < 6)),
    ),
    (
        "count(refunds where product.price > 4) over 60d",
        *("refunds", 60, 0),
        lambda x: num(x.price > 4),
    ),
    (
        "mean(orders.products.price) over 30d",
        *("orders", 30, 0),
        lambda x: None if x.price.isna().all() else x.price.mean(),
    ),
    (
        "distinct(orders.categories.name) over 45d >= 2",
        *("orders", 45, 0),
        lambda x: int(x["name"].nunique() >= 2),
    ),
    ("count(games by winner) over 30d", "winners", 30, 0, len),
    ("count(games by winner_id) over 30d after 1w", "winners", 30, 7, len),
    ("count(games) over 30d", "games", 30, 0, len),
    (
        "count(likes where products.category.name = 'Tea') over 60d = 0",
        *("likes", 60, 0),
        lambda x: int((x["name"] == "Tea").sum() == 0),
    ),
]
#: `--for` and `--active`, with the condition on a user and on the user's earlier events.
ROWS: list[tuple[str, str | None, Callable[[Any], bool], Callable[[Events, Any], bool]]] = [
    ("users", None, lambda user: True, lambda past, time: True),
    (
        "users where country = 'DE'",
        "40d",
        lambda user: user.country == "DE",
        lambda past, time: any((events.day > time - 40 * DAY).any() for events in past.values()),
    ),
    (
        "users",
        "count(orders where price > 3) over 60d > 1",
        lambda user: True,
        lambda past, time: num(past["orders"][past["orders"].day > time - 60 * DAY].price > 3) > 1,
    ),
    (
        "users where country is null or country in ('FR')",
        "count(games by winner) over 30d after 10d < 2",
        lambda user: user.country != "DE",
        lambda past, time: (
            past["winners"].day.between(time - 40 * DAY, time - 10 * DAY, "right").sum() < 2
        ),
    ),
]


@pytest.mark.parametrize("seed", range(4))
def test_questions_are_loops_in_pandas(seed: int) -> None:
    tables = make_tables(seed)
    events = events_of(tables)
    # A refund, too, is an event of the user whose order it refers to.
    first = pd.concat([each[["user", "day"]] for each in events.values()]).groupby("user").day.min()
    times = [START + days * DAY for days in (20, 40, 65)]
    for index, (question, name, window, offset, label) in enumerate(QUESTIONS):
        for entities, active, is_chosen, is_active in ROWS if index % 4 == seed else ROWS[:1]:
            query = parse_questions([question], entities, query_tables(tables), active)
            expected = {}
            for time in times:
                for user in tables["users"].itertuples():
                    if user.user_id not in first or first[user.user_id] > time:
                        continue
                    mine = {key: rows[rows.user == user.user_id] for key, rows in events.items()}
                    past = {key: rows[rows.day <= time] for key, rows in mine.items()}
                    if not (is_chosen(user) and is_active(past, time)):
                        continue
                    start = time + offset * DAY
                    inside = mine[name].day.between(start, start + window * DAY, "right")
                    if (value := label(mine[name][inside])) is not None:
                        expected[time, user.user_id] = value
            assert len(expected) > 2, (question, entities, active)
            assert answer(tables, times, query) == pytest.approx(expected), (question, entities)
            assert longest(query.window) in {f"{window + offset}d", f"{window // 7}w"}


def _amounts(events: pd.DataFrame, time: Any, days: int) -> pd.Series:
    rows = events[events.day.between(time, time + days * DAY, "right")].dropna(subset="amount")
    return rows.sort_values(["day", "amount"]).amount


def _num(events: pd.DataFrame, time: Any, days: int) -> int:
    return int(events.day.between(time, time + days * DAY, "right").sum())


#: Question, label of a user's events after a time, and its window.
JOINT: list[tuple[str, Callable[[Events, Any], Any], str]] = [
    (
        "count(orders) over 30d > 2 and not exists(refunds) over 20d",
        lambda mine, time: int(
            _num(mine["orders"], time, 30) > 2 and _num(mine["refunds"], time, 20) == 0
        ),
        "30d",
    ),
    (
        "count(refunds) over 30d > 0 or count(orders) over 10d = 0 and count(games) over 30d > 3",
        lambda mine, time: int(
            _num(mine["refunds"], time, 30) > 0
            or (_num(mine["orders"], time, 10) == 0 and _num(mine["games"], time, 30) > 3)
        ),
        "30d",
    ),
    (
        "(exists(refunds) over 30d or exists(likes) over 30d) and exists(orders) over 36h",
        lambda mine, time: int(
            (_num(mine["refunds"], time, 30) > 0 or _num(mine["likes"], time, 30) > 0)
            and _num(mine["orders"], time, 1) > 0
        ),
        "30d",
    ),
    (
        "count(orders) over 30d - 2 * count(refunds) over 45d + 1",
        lambda mine, time: _num(mine["orders"], time, 30) - 2 * _num(mine["refunds"], time, 45) + 1,
        "45d",
    ),
    (
        "count(orders) over 30d > count(games) over 30d",
        lambda mine, time: int(_num(mine["orders"], time, 30) > _num(mine["games"], time, 30)),
        "30d",
    ),
    (
        "sum(orders.amount) over 30d / count(orders.amount) over 30d",
        lambda mine, time: _amounts(mine["orders"], time, 30).mean(),
        "30d",
    ),
    ("avg(orders.amount) over 4w", lambda m, t: _amounts(m["orders"], t, 28).mean(), "4w"),
    (
        "first(orders.amount) over 30d",
        lambda mine, time: next(iter(_amounts(mine["orders"], time, 30)), None),
        "30d",
    ),
    (
        "last(orders.amount) over 30d",
        lambda mine, time: next(iter(_amounts(mine["orders"], time, 30)[::-1]), None),
        "30d",
    ),
    (
        "last(orders.product) over 30d in ('s1', 's2', 's3')",
        lambda mine, time: _of_last_product(mine, time, lambda sku: sku in {"s1", "s2", "s3"}),
        "30d",
    ),
    (
        "not last(ORDERS.product) over 30d like '%{4' or LAST(orders.product) over 30d == 's4'",
        lambda mine, time: _of_last_product(mine, time, lambda sku: True),
        "30d",
    ),
    (
        "max(orders.amount) over 30d not between 3 and 7",
        lambda mine, time: (
            None
            if (found := _amounts(mine["orders"], time, 30)).empty
            else int(not 3 <= found.max() <= 7)
        ),
        "30d",
    ),
    (
        "last(orders.product) over 9d <> 's1'",
        lambda mine, time: _of_last_product(mine, time, lambda sku: sku != "s1", 9),
        "9d",
    ),
    (
        "count(orders) over 1mo after 10d",
        lambda mine, time: int(
            mine["orders"]
            .day.between(time + 10 * DAY, time + 10 * DAY + pd.DateOffset(months=1), "right")
            .sum()
        ),
        "41d",
    ),
    (
        "min(orders.amount) over 10d is null",
        lambda mine, time: int(_amounts(mine["orders"], time, 10).empty),
        "10d",
    ),
]


def _of_last_product(mine: Events, time: Any, test: Callable[[str], bool], days: int = 30) -> Any:
    rows = mine["orders"].dropna(subset="product")
    rows = rows[rows.day.between(time, time + days * DAY, "right")].sort_values(["day", "product"])
    return int(test(rows["product"].iloc[-1])) if len(rows) else None


def test_joined_aggregates_are_loops_in_pandas() -> None:
    tables = make_tables(0)
    events = events_of(tables)
    first = pd.concat([each[["user", "day"]] for each in events.values()]).groupby("user").day.min()
    times = [START + days * DAY for days in (20, 40, 65)]
    active = "count(orders) over 30d > 1 and not exists(refunds) over 5d"
    for question, label, window in JOINT:
        query = parse_questions([question], "users", query_tables(tables), active)
        expected = {}
        for time in times:
            for user in first.index[first <= time]:
                mine = {key: rows[rows.user == user] for key, rows in events.items()}
                past = {key: rows[rows.day <= time] for key, rows in mine.items()}
                is_active = (past["orders"].day > time - 30 * DAY).sum() > 1
                if not is_active or (past["refunds"].day > time - 5 * DAY).any():
                    continue
                if not pd.isna(value := label(mine, time)):
                    expected[time, int(user)] = value
        assert len(expected) > 2, question
        assert len(set(expected.values())) > 1 or "{" in question
        assert answer(tables, times, query) == pytest.approx(expected), question
        assert longest(query.window) == window


def test_assumed_questions_choose_rows() -> None:
    tables = make_tables(1)
    times = [START + days * DAY for days in (20, 40, 65)]

    def rows(questions: list[str], *more: Any) -> dict[tuple, Any]:
        return answer(
            tables, times, parse_questions(questions, "users", query_tables(tables), *more)
        )

    question, assumed = "sum(orders.amount) over 20d", "exists(games) over 7d after 30d"
    every, holds = rows([question]), rows([assumed])
    expected = {key: label for key, label in every.items() if holds[key]}
    assert 3 < len(expected) < len(every)
    assert rows([question], None, None, 1, assumed) == expected
    query = parse_questions([question], "users", query_tables(tables), assuming=assumed)
    assert longest(query.window) == "37d"


def test_lists_leave_out_the_reference_to_the_entity() -> None:
    query = parse_questions(
        ["list(games.loser_id by winner) over 30d"], "users", query_tables(make_tables(0))
    )
    assert query.target_type == "users"


@pytest.mark.parametrize(
    ("question", "place", "values"),
    [
        ("last(orders.product) over 30d in (s1)", "in", ["left over"]),
        ("median(orders) over 30d", "median", ["mean"]),
        ("cuont(orders) over 30d", "cuont", ["count"]),
        ("count(ordrs) over 30d > 0", "ordrs", ["orders"]),
        ("count orders over 30d", "orders", ["parenthesis"]),
        ("count(orders where amonut > 3) over 30d", "amonut", ["amount"]),
        ("count(orders where amount > 3) ovr 30d", "ovr", ["over"]),
        ("count(orders where products.prise > 3) over 30d", "products.prise", ["price"]),
        ("count(orders) over soon", "soon", ["30d"]),
        ("count(orders) over 30d > many", "many", ["number"]),
        ("count(orders) over 30d > 3 please", "please", ["please"]),
        ("count(games by won) over 30d", "won", ["winner", "loser"]),
        ("count(games where country = 'DE') over 30d", "country", ["winner", "loser"]),
        ("sum(orders) over 30d", "orders", ["column"]),
        ("count(orders) over 30d > 0 and count(games) over 9d", "count(games", ["comparison"]),
        ("(count(orders) over 30d > 0) + 1", "(count", ["not a number"]),
        ("list(orders.product) over 30d > 1", "list", ["list"]),
        ("3 > 2", "3", ["aggregate"]),
        ("products.category > 3", "products", ["country"]),
        ("count(products) over 30d", "products", ["time"]),
    ],
)
def test_errors_name_their_place(question: str, place: str, values: list[str]) -> None:
    with raises("labels-question", *values) as raised:
        parse_questions([question], "users", query_tables(make_tables(0)))
    *_, line, caret = str(raised.value).removesuffix(" [labels-question]").splitlines()
    assert line.strip() == question
    assert caret.index("^") - 4 == question.index(place)


def test_an_unknown_entity_is_named() -> None:
    with raises("labels-node-type", "users"):
        parse_questions(["count(orders) over 30d"], "usres", query_tables(make_tables(0)))
