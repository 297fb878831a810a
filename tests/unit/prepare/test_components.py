"""The largest connected component, against a search from every node."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from raygnn.data.tables.clean_up import largest_component

SIZE = 9
EDGES = st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(0, SIZE - 1)), max_size=12)


@settings(max_examples=80)
@given(EDGES)
def test_component_is_the_largest_reachable_set(edges: list[tuple[int, int]]) -> None:
    reach = np.eye(SIZE, dtype=bool)
    for a, b in edges:
        reach[a, b] = reach[b, a] = True
    for _ in range(SIZE):
        reach = (reach.astype(int) @ reach.astype(int)) > 0
    largest = max(range(SIZE), key=lambda node: (reach[node].sum(), -node))
    source, target = np.array(edges, np.int64).reshape(-1, 2).T
    found = largest_component(source, target, SIZE)
    assert found.tolist() == np.flatnonzero(reach[largest]).tolist()
