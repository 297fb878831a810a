"""Sentences about columns of a row."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from raygnn.data.history_spec import HistoryColumn
from raygnn.inference.explain.inputs import Words, short_name

DAY = 86_400_000_000
LOGINS = HistoryColumn("logins", "logins")


def _column(what: str, span: str = "", *, is_age: bool = False) -> HistoryColumn:
    return replace(LOGINS, what=what, span=span, is_age=is_age)


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        (
            _column("since last", is_age=True),
            {"logins since last": 41 * DAY, "logins gap mean": 6 * DAY},
            "no logins for 41 days (usually every 6 days)",
        ),
        (
            _column("since last", is_age=True),
            {"logins since last": 3.2 * 365.25 * DAY},
            "no logins for 3.2 years",
        ),
        (_column("since last", is_age=True), {"logins since last": math.nan}, "no logins so far"),
        (
            _column("count", "30d"),
            {"logins count 30d": 2, "logins count all": 50, "logins since first": 300 * DAY},
            "2 logins in the last 30 days (usually 5)",
        ),
        (
            _column("count", "30d"),  # a first login within the window says nothing of others
            {"logins count 30d": 1, "logins count all": 1, "logins since first": 3 * DAY},
            "1 login in the last 30 days",
        ),
        (_column("count", "all"), {"logins count all": 0}, "no logins so far"),
        (
            HistoryColumn("logins.seconds", "logins", "sum", "7d"),
            {"logins.seconds sum 7d": 1234.5},
            "logins.seconds sums to 1.23e+03 in the last 7 days",
        ),
        (
            HistoryColumn("accounts.plan", "accounts", names=("other values", "pro")),
            {"accounts.plan": 1},
            "accounts.plan is pro",
        ),
        (
            HistoryColumn("accounts.joined", "accounts", is_age=True),
            {"accounts.joined": 5 / 24 * DAY},
            "accounts.joined 5 hours ago",
        ),
        (
            HistoryColumn("shops.size", "shops", of="latest orders"),
            {"latest orders: shops.size": 4},
            "shops.size is 4 (latest orders)",
        ),
    ],
)
def test_phrases(column: HistoryColumn, values: dict[str, float], expected: str) -> None:
    assert Words(values, is_date=True).phrase(column) == expected


def test_plain_numbers_are_no_dates() -> None:
    words = Words({"logins since last": 41.5, "logins count 30": 3}, is_date=False)
    assert words.phrase(_column("since last", is_age=True)) == "no logins for 41.5"
    assert words.phrase(_column("count", "30")) == "3 logins in the last 30"


def test_names_without_the_table() -> None:
    assert short_name(_column("count", "30d")) == "count 30d"
    of_shop = HistoryColumn("shops.size", "shops", "mean", "all", of="latest orders")
    assert short_name(of_shop) == "size mean all (latest orders)"
