"""Guesses from what was known of an entity before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raygnn.data.bundle import SeedRows
from raygnn.data.links.supervision import SeedEdges
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows
from raygnn.loops.row_guesses import (
    BoostedTrees,
    columns_of_edges,
    history_columns,
    past_label_guesses,
)
from tests.graph_writer import ingest_tables


@pytest.mark.parametrize(("end", "window"), [(None, None), (12, None), (None, 3), (12, 3)])
def test_guesses_are_of_earlier_labels_of_the_entity(end: int | None, window: int | None) -> None:
    rng = np.random.default_rng(0)
    nodes, times = rng.integers(0, 9, 300), rng.integers(0, 20, 300)
    scores = rng.normal(size=(300, 2))
    known = np.flatnonzero(rng.random(300) < 0.7)
    asked = rng.permutation(300)[:100]
    rows = SeedRows("visits", "user", 300, nodes, times, None, None, {}, window)
    default = np.array([5.0, -5.0])
    found = past_label_guesses(rows, scores, known, asked, default, end)
    for row, mean, last in zip(asked, found["entity_mean"], found["last_label"], strict=True):
        until = times[row] if end is None else min(times[row], end)
        latest = until - (window or 1)  # its window is over, or its row is an earlier one
        past = [r for r in known if nodes[r] == nodes[row] and times[r] <= latest]
        if not past:
            assert np.array_equal(mean, default)
            assert np.array_equal(last, default)
            continue
        assert np.allclose(mean, scores[past].mean(axis=0))
        assert np.array_equal(last, scores[max(past, key=lambda r: (times[r], r))])


def test_no_labels_are_known() -> None:
    rows = SeedRows("visits", "user", 2, np.zeros(2, int), np.arange(2), None, None, {})
    none = np.empty(0, np.int64)
    found = past_label_guesses(rows, np.ones((2, 1)), none, np.arange(2), np.array([0.5]))
    assert all(np.array_equal(guess, [[0.5], [0.5]]) for guess in found.values())


@pytest.mark.parametrize("times", ["edges", "sources", None])
@pytest.mark.parametrize("end", [None, 6])
def test_history_is_of_the_edges_up_to_each_row(
    tmp_path: Path, times: str | None, end: int | None
) -> None:
    rng = np.random.default_rng(0)
    num_users, num_buys, num_rows = 5, 60, 40
    own, x = rng.random((num_users, 2), np.float32), rng.random((num_buys, 3), np.float32)
    user, day = rng.integers(0, num_users - 1, num_buys), rng.integers(0, 10, num_buys)
    of_nodes = {"time": day} if times == "sources" else {}
    of_edges = {"time": day} if times == "edges" else {}
    nodes = {
        "user": node_rows(np.arange(num_users), {"x": own}),
        "buy": node_rows(np.arange(num_buys), {"x": x}, **of_nodes),
    }
    edges = {("buy", "by", "user"): edge_rows(np.arange(num_buys), user, **of_edges)}
    bundle = ingest_tables(tmp_path, GraphTables(nodes, edges))
    entity, asked = rng.integers(0, num_users, num_rows), rng.integers(0, 10, num_rows)
    rows = SeedRows("active", "user", num_rows, entity, asked, None, None, {})
    found = history_columns(bundle, rows, np.arange(num_rows), "x", end)
    for row, (node, until) in enumerate(zip(entity, asked, strict=True)):
        until = until if end is None else min(until, end)
        known = np.flatnonzero((user == node) & ((day <= until) | (times is None)))
        expected = [*own[node], len(known)]
        if times is not None:
            expected.append(until - day[known].max() if len(known) else np.nan)
        expected += list(x[known].mean(axis=0)) if len(known) else [np.nan] * 3
        assert found[row] == pytest.approx(np.array(expected), nan_ok=True)


def test_columns_of_an_edge_are_of_earlier_edges_of_both_ends(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    num_edges = 120
    payer, payee = rng.integers(0, 6, (2, num_edges))
    day, amount = rng.integers(0, 20, num_edges), rng.random((num_edges, 1), np.float32)
    own = rng.random((6, 2), np.float32)
    edges = edge_rows(payer, payee, {"amount": amount}, time=day)
    tables = GraphTables({"n": node_rows(np.arange(6), {"x": own})}, {("n", "to", "n"): edges})
    bundle = ingest_tables(tmp_path, tables, reverse_edges=True)
    every = SeedEdges.of_bundle(bundle, ("n", "to", "n"), label_edges=False)
    some = rng.permutation(num_edges)[:40]
    found = columns_of_edges(bundle, every, some, "x", ["amount"])
    amounts = bundle.values(("n", "to", "n"), "amount")
    for columns, position, *ends in zip(found, some, *every.ends(some), strict=True):
        until, expected = every.times[position], []
        for node in ends:
            expected += [*own[node]]
            for side, other in ((payee, payer), (payer, payee)):
                known = np.flatnonzero((side == node) & (day < until))
                expected += [len(known), until - 1 - day[known].max() if len(known) else np.nan]
                rows = np.concatenate([own[other[known]], amount[known]], axis=1)
                expected += [*rows.mean(axis=0)] if len(known) else [np.nan] * 3
        assert columns == pytest.approx(np.array([*expected, *amounts[position]]), nan_ok=True)


def test_boosted_trees_learn_classes_and_numbers() -> None:
    pytest.importorskip("lightgbm", reason="needs the extra boosting")
    x = np.random.default_rng(0).random((500, 2))
    numbers = BoostedTrees(x, x[:, 0], None).guess(x)
    assert np.abs(numbers[:, 0] - x[:, 0]).mean() < 0.05
    classes = BoostedTrees(x, (3 * x[:, 1]).astype(int), 3).guess(x)
    assert classes.shape == (500, 3)
    assert np.mean(classes.argmax(axis=1) == (3 * x[:, 1]).astype(int)) > 0.9
