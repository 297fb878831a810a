"""Links known as of a time, from edges and from rows that refer to both ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import EdgeType
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.tables.graph_tables import (
    EdgeRows,
    GraphTables,
    edge_rows,
    node_rows,
    write_tables,
)
from raygnn.recommender.known_links import LinkHistory, count_later

NUM_USERS, NUM_ITEMS, NUM_ROWS = 7, 5, 60
ENDS = ("user", "item")
RNG = np.random.default_rng(0)
USER, ITEM = RNG.integers(0, NUM_USERS, NUM_ROWS), RNG.integers(0, NUM_ITEMS, NUM_ROWS)
TIME = RNG.permutation(NUM_ROWS)
RELEASED = np.array([0, 10, 20, 30, 40])  # of items
ROWS = np.arange(NUM_ROWS)
KNOWN = np.maximum(TIME, RELEASED[ITEM])


def _bundle(folder: Path, edges: dict[EdgeType, EdgeRows], released: np.ndarray | None) -> Bundle:
    nodes = {
        "user": node_rows(np.arange(NUM_USERS)),
        "item": node_rows(np.arange(NUM_ITEMS), time=released),
        "purchase": node_rows(ROWS, time=TIME),
    }
    uri = write_tables(GraphTables(nodes, edges), str(folder / "tables"))
    return ingest(uri, IngestOptions(reverse_edges=True), str(folder / "cache"))


EDGES = {
    "edges": {("user", "buys", "item"): edge_rows(USER, ITEM, time=TIME)},
    "reverse edges": {("item", "sold", "user"): edge_rows(ITEM, USER, time=TIME)},
    "rows": {
        ("purchase", "by", "user"): edge_rows(ROWS, USER),
        ("purchase", "of", "item"): edge_rows(ROWS, ITEM),
    },
}


@pytest.mark.parametrize("form", EDGES)
def test_links_are_those_that_are_known_at_a_time(tmp_path: Path, form: str) -> None:
    links = LinkHistory.of_bundle(_bundle(tmp_path, EDGES[form], RELEASED), ENDS, "time", window=25)
    assert links is not None
    for time in (0, 17, 59):
        counted = KNOWN[(time - 25 <= KNOWN) & (time >= KNOWN)]
        assert links.as_of(time).span == time - counted.min(initial=time)
        for half_life in (0.0, 8.0):
            expected = np.zeros((NUM_USERS, NUM_ITEMS))
            for user, item, known in zip(USER, ITEM, KNOWN, strict=True):
                if time - 25 <= known <= time:
                    expected[user, item] += 0.5 ** ((time - known) / half_life) if half_life else 1
            found = links.as_of(time).matrix(half_life).toarray()
            np.testing.assert_allclose(found, expected, rtol=1e-12)
            popularity = links.as_of(time).popularity(half_life) * max(expected.sum(0).max(), 1e-12)
            np.testing.assert_allclose(popularity, expected.sum(0), rtol=1e-12)


@pytest.mark.parametrize("window", [None, 25])
def test_rows_know_the_links_of_their_anchor_until_their_time(window: int | None) -> None:
    links = LinkHistory((NUM_USERS, NUM_ITEMS), USER, ITEM, KNOWN, window)
    anchors = np.append(RNG.integers(0, NUM_USERS, 30), 0)
    times = np.append(RNG.integers(-5, NUM_ROWS + 40, 30).astype(float), 20.5)
    found, fading = (links.known_to(anchors, times, half_life) for half_life in (0.0, 8.0))
    assert found.has_canonical_format
    for row, (anchor, time) in enumerate(zip(anchors, times, strict=True)):
        expected = links.as_of(time).matrix()[anchor].toarray()
        np.testing.assert_array_equal(found[row].toarray(), expected)
        assert links.num_known_to(anchors, times)[row] == expected.sum()
        expected = links.as_of(time).matrix(8.0)[anchor].toarray()
        np.testing.assert_allclose(fading[row].toarray(), expected, rtol=1e-5)
    moments = np.unique(times)
    for half_life in (0.0, 8.0):
        of_moments = links.popularity_at(moments, half_life)
        expected = np.stack([links.as_of(time).popularity(half_life) for time in moments])
        np.testing.assert_allclose(of_moments, expected, rtol=1e-9, atol=1e-15)


def test_links_without_times_and_nodes_with_several_anchors_are_left_out(tmp_path: Path) -> None:
    edges = {
        ("user", "likes", "item"): edge_rows(USER, ITEM),
        ("purchase", "by", "user"): edge_rows(ROWS // 2, USER),  # shared by two users
        ("purchase", "of", "item"): edge_rows(ROWS, ITEM),
    }
    assert LinkHistory.of_bundle(_bundle(tmp_path, edges, None), ENDS, "time") is None


def test_later_links_are_those_of_the_same_anchor_after_the_moment_of_a_link() -> None:
    moments = TIME // 7
    expected = [
        sum(USER[other] == USER[row] and moments[other] > moments[row] for other in ROWS)
        for row in ROWS
    ]
    np.testing.assert_array_equal(count_later(USER, moments), expected)
