from __future__ import annotations

import pytest

from raygnn.data.edge_types import edge_type_name, parse_edge_type
from tests.errors import raises


def test_name_reads_back() -> None:
    edge_type = ("user_x", "buys", "item")
    assert edge_type_name(edge_type) == "user_x__buys__item"
    assert parse_edge_type("user_x__buys__item") == edge_type


@pytest.mark.parametrize("name", ["", "a__b", "a__b__c__d", "a____c", "a_b_c"])
def test_other_names_are_refused(name: str) -> None:
    with raises("graph-edge-type-name"):
        parse_edge_type(name)
