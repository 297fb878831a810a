"""PQL as questions."""

from __future__ import annotations

import pytest

from raygnn.prepare.label_query import parse_question
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
            "PREDICT LIST_DISTINCT(orders.product, 0, 30, days) RANK TOP 10 FOR EACH users.user_id",
            ("list(orders.product) over 30d", "users", None),
        ),
        (
            "PREDICT LAST(orders.amount, 0, 30, days) FOR users.user_id IN (1, 2)",
            ("last(orders.amount) over 30d", "users", None),
        ),
    ],
)
def test_queries_become_questions_of_the_graph(
    pql: str, expected: tuple[str, str, str | None]
) -> None:
    found = translate(pql)
    assert (found.predict, found.entities, found.active) == expected
    assert bool(found.notes) == ("RANK" in pql or " IN " in pql)
    parse_question(found.predict, found.entities, query_tables(make_tables(0)), found.active)


@pytest.mark.parametrize(
    ("pql", "place", "values"),
    [
        ("PREDICT users.age FOR EACH users.user_id", "users.age", ["node_classification"]),
        ("COUNT(orders.*, 0, 30)", "COUNT", ["PREDICT"]),
        ("PREDICT COUNT(orders.*, 0, 30)", "PREDICT", ["FOR"]),
        ("PREDICT COUNT(orders.*, -INF, 0) FOR EACH u.id", "-INF", ["window"]),
        ("PREDICT COUNT(orders.*, -30, 0) FOR EACH u.id", "-30", ["begins"]),
        ("PREDICT COUNT(orders.*) FOR EACH u.id", "orders.*", ["window"]),
        ("PREDICT COUNT(o.*, 0, 3, fortnights) FOR EACH u.id", "fortnights", ["days"]),
        (
            "PREDICT COUNT(o.*, 0, 3) FOR EACH u.id ASSUMING COUNT(n.*, 0, 1) > 3",
            "COUNT(n",
            ["assumption"],
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
        translate(pql)
    *_, line, caret = str(raised.value).removesuffix(" [labels-question]").splitlines()
    assert line.strip() == pql
    assert caret.index("^") - 4 == pql.index(place)
