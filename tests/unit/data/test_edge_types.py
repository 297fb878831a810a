"""Names of edge types, and settings by edge type."""

from __future__ import annotations

import pytest

from raygnn.data.edge_types import edge_type_name, parse_edge_type, resolve_fanouts
from tests.errors import raises


def test_name_reads_back() -> None:
    edge_type = ("user_x", "buys", "item")
    assert edge_type_name(edge_type) == "user_x__buys__item"
    assert parse_edge_type("user_x__buys__item") == edge_type


@pytest.mark.parametrize("name", ["", "a__b", "a__b__c__d", "a____c", "a_b_c"])
def test_other_names_are_refused(name: str) -> None:
    with raises("graph-edge-type-name"):
        parse_edge_type(name)


FOLLOWS, BUYS = ("user", "follows", "user"), ("user", "buys", "item")


def test_one_list_is_for_all_edge_types():
    assert resolve_fanouts([5, -1], [FOLLOWS, BUYS]) == {BUYS: [5, -1], FOLLOWS: [5, -1]}


def test_names_and_triples_are_sorted():
    given = {"user__follows__user": [1, 0], BUYS: [2, 3]}
    assert list(resolve_fanouts(given, [FOLLOWS, BUYS]).items()) == [
        (BUYS, [2, 3]),
        (FOLLOWS, [1, 0]),
    ]


def test_unknown_edge_type():
    with raises("sampling-fanouts-unknown", "user__likes__item", "user__buys__item"):
        resolve_fanouts({"user__likes__item": [1], BUYS: [1]}, [BUYS])


def test_a_map_overrides_single_edge_types():
    edge_types = [FOLLOWS, BUYS]
    assert resolve_fanouts({BUYS: [1, 1]}, edge_types) == {BUYS: [1, 1], FOLLOWS: [15, 10]}
    given = {"default": [7], "user__buys__item": [0]}
    assert resolve_fanouts(given, edge_types) == {BUYS: [0], FOLLOWS: [7]}
    with raises("sampling-fanouts-missing", "user__follows__user", "default"):
        resolve_fanouts({BUYS: [1]}, edge_types)


def test_no_edge_types():
    with raises("graph-no-edge-types"):
        resolve_fanouts([1], [])
