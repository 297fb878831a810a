"""PQL as questions."""

from __future__ import annotations

import pytest

from raygnn.prepare.label_query import parse_questions
from raygnn.prepare.pql import translate
from tests.errors import raises
from tests.unit.prepare.test_questions import make_tables, query_tables


@pytest.mark.parametrize(
    ("pql", "expected"),
    [
        (
            "PREDICT COUNT(orders.*, 0, 30, days) = 0 FOR EACH users.user_id\n"
            "WHERE COUNT(orders.*, -90, 0, days) > 0;",
            ("count(orders) over 30d = 0", "users", "count(orders) over 90d > 0"),
        ),
        (
            "predict sum(orders.amount where orders.amount > 3 and product contains 'x', 30, 90) "
            "for users.user_id",
            (
                "sum(orders.amount where orders.amount > 3 and product LIKE '%x%') over 60d "
                "after 30d",
                "users",
                None,
            ),
        ),
        (
            "PREDICT COUNT(orders.*, 0, 2, weeks) > 1 OR NOT COUNT(games.*, 0, 1, months) > 0 "
            "FOR EACH users.user_id WHERE users.country = 'D, E' AND (COUNT(orders.*, -8, -1, "
            "days) > 1 OR COUNT(games.*, -8, 0) > 1)",
            (
                "count(orders) over 2w > 1 OR NOT count(games) over 1mo > 0",
                "users where users.country = 'D, E'",
                "(count(orders) over 7d after 1d > 1 OR count(games) over 8d > 1)",
            ),
        ),
        (
            "PREDICT COUNT_DISTINCT(orders.product, 0, 30) FOR EACH users.user_id "
            "WHERE users.user_id BETWEEN 2 AND 9 AND country IS NOT NULL",
            (
                "distinct(orders.product) over 30d",
                "users where (users.user_id BETWEEN 2 AND 9) and (country IS NOT NULL)",
                None,
            ),
        ),
        (
            "PREDICT users.country CONTAINS 'D' FOR EACH users.user_id WHERE users.user_id > 2",
            ("users.country LIKE '%D%'", "users where users.user_id > 2", None),
        ),
        (
            "PREDICT LIST_DISTINCT(orders.product, 0, 30, days) RANK TOP 10 FOR EACH users.user_id",
            ("list(orders.product) over 30d", "users", None),
        ),
        (
            "PREDICT LAST(orders.amount, 0, 30, days) FOR users.user_id IN (1, 2)",
            ("last(orders.amount) over 30d", "users", None),
        ),
        (
            "PREDICT LAST(ORDERS.product, 0, 1, months) NOT CONTAINS 's1' FOR EACH USERS.user_id "
            'WHERE users.country = "D\'E" AND LIST_DISTINCT(orders.product, -90, -2) '
            "NOT CONTAINS 's2' AND COUNT(games.*, -INF, -1, weeks) > 0",
            (
                "last(ORDERS.product) over 1mo NOT LIKE '%s1%'",
                "USERS where users.country = 'D''E'",
                "(not exists(orders where product = 's2') over 88d after 2d) and "
                "(count(games) over 1000y after 1w > 0)",
            ),
        ),
        (
            "PREDICT SUM(orders.amount, 0, 7, days) FORECAST 4 TIMEFRAMES FOR EACH users.user_id "
            "WHERE orders.day < 2024-02-01 12:45:30 AND orders.product IS IN ('s1', 's2')",
            (
                "sum(orders.amount) over 7d where (orders.day < '2024-02-01 12:45:30') and "
                "(orders.product IN ('s1', 's2'))",
                "users",
                None,
            ),
        ),
        (
            "PREDICT COUNT(orders.*, 0, 30) FOR EACH users.user_id ASSUMING COUNT(games.*, 0, 7) "
            "> 2 AND SUM(orders.amount, 0, 7) > 10",
            ("count(orders) over 30d", "users", None),
        ),
    ],
)
def test_queries_become_questions_of_the_graph(
    pql: str, expected: tuple[str, str, str | None]
) -> None:
    found = translate(pql, {"users": "user_id", "orders": "order_id"})
    assert (found.predict, found.entities, found.active) == expected
    assert bool(found.notes) == ("RANK" in pql or "user_id IN " in pql)
    assert found.horizons == (4 if "FORECAST" in pql else 1)
    assumed = "count(games) over 7d > 2 AND sum(orders.amount) over 7d > 10"
    assert found.assuming == (assumed if "ASSUMING" in pql else None)
    more = (found.active, None, found.horizons, found.assuming)
    parse_questions([found.predict], found.entities, query_tables(make_tables(0)), *more)


@pytest.mark.parametrize(
    ("pql", "place", "values"),
    [
        (
            "PREDICT LIST_DISTINCT(o.p, 0, 3) CLASSIFY FOR EACH u.id",
            "FOR",
            ["exists(", "--predict"],
        ),
        ("PREDICT COUNT(o.*, 0, 3) FORECAST 4 FOR EACH u.id", "4 FOR", ["TIMEFRAMES"]),
        ("COUNT(orders.*, 0, 30)", "COUNT", ["PREDICT"]),
        ("PREDICT COUNT(orders.*, 0, 30)", "PREDICT", ["FOR"]),
        ("PREDICT COUNT(orders.*, -INF, 0) FOR EACH u.id", "-INF", ["window"]),
        ("PREDICT COUNT(orders.*, -30, 0) FOR EACH u.id", "-30", ["begins"]),
        ("PREDICT COUNT(orders.*) FOR EACH u.id", "orders.*", ["window"]),
        ("PREDICT COUNT(o.*, 0, 3) FOR EACH Users.email", "Users.email", ["users.user_id"]),
        ("PREDICT COUNT(o.*, 0, 3, fortnights) FOR EACH u.id", "fortnights", ["days"]),
        (
            "PREDICT COUNT(o.*, 0, 3) FOR EACH u.id ASSUMING u.plan = 'premium'",
            "u.plan",
            ["window"],
        ),
        (
            "PREDICT COUNT(o.*, 0, 3) FOR EACH u.id WHERE a = 1 OR COUNT(o.*, -3, 0) > 3",
            "a = 1",
            ["OR"],
        ),
    ],
)
def test_parts_without_a_counterpart_are_marked(pql: str, place: str, values: list[str]) -> None:
    with raises("labels-question", *values) as raised:
        translate(pql, {"users": "user_id"})
    *_, line, caret = str(raised.value).removesuffix(" [labels-question]").splitlines()
    assert line.strip() == pql
    assert caret.index("^") - 4 == pql.index(place)
