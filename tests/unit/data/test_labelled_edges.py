"""Splits of labelled edges: each edge is an example of its own, and none leaks through its pair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raygnn.config.data_section import HashSplit, TemporalSplit
from raygnn.data.bundle import Bundle
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.links.labelled_edges import SeedEdges, split_labelled_edges
from raygnn.data.links.message_graph import message_graph
from raygnn.data.links.split import LinkSplit
from raygnn.data.tables.columns import split_column
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from tests.errors import raises

NUM_NODES, NUM_EDGES = 12, 80
RULES: dict[str, Any] = {
    "column": None,
    "hash": HashSplit(type="hash"),
    "temporal": TemporalSplit(type="temporal", quantiles=[0.6, 0.8]),
}


def _bundle(folder: Path, form: str) -> tuple[Bundle, tuple[str, str, str]]:
    """Parallel edges, edges both ways, and edges without a label; ids are shuffled."""
    rng = np.random.default_rng(3)
    target = "film" if form == "two types" else "user"
    ends = rng.integers(0, NUM_NODES, (2, NUM_EDGES))
    rows = edge_rows(
        *ends,
        {"number": np.arange(NUM_EDGES, dtype=np.float32)},
        time=rng.integers(0, 40, NUM_EDGES),
        labels={"stars": np.where(rng.random(NUM_EDGES) < 0.2, np.nan, 1).astype(np.float32)},
    )
    table = rows.table.append_column("split", split_column(rng.integers(0, 4, NUM_EDGES)))
    fields = {"table": table, "split": "split", "directed": form != "undirected"}
    rows = type(rows)(**{**rows.__dict__, **fields})
    nodes = {name: node_rows(np.arange(NUM_NODES)) for name in dict.fromkeys(("user", target))}
    edge_type = ("user", "rates", target)
    tables = GraphTables(nodes, {edge_type: rows})
    uri = write_tables(tables, str(folder / "tables"))
    options = IngestOptions(reverse_edges=form == "two types")
    return ingest(uri, options, str(folder / "cache")), edge_type


@pytest.mark.parametrize("form", ["two types", "directed", "undirected"])
@pytest.mark.parametrize("rule", list(RULES))
def test_splits_and_messages_are_those_of_a_plain_search(tmp_path, form, rule):
    bundle, edge_type = _bundle(tmp_path, form)
    link = LinkSplit(edge_type, rule=RULES[rule], seed=1, label="stars")
    splits = split_labelled_edges(bundle, link)
    edges = SeedEdges.of_bundle(bundle, edge_type, label_edges=False)
    number, stars, time, column = (
        np.asarray(bundle.column(edge_type, name)).reshape(-1)
        for name in ("number", "stars", "time", "split")
    )
    sources, targets = edges.ends(np.arange(edges.num_edges))
    own = np.zeros(edges.num_edges, int)
    for code, positions in enumerate((splits.train, splits.val, splits.test), start=1):
        assert not own[positions].any()
        own[positions] = code

    labelled = ~np.isnan(stars)
    assert not own[~labelled].any()
    if rule == "column":
        np.testing.assert_array_equal(own, np.where(labelled, column, 0))
    if rule == "temporal":
        ordered = np.sort(time[labelled])
        bounds = [ordered[int(np.ceil(q * len(ordered)))] for q in (0.6, 0.8)]
        late = 1 + (time >= bounds[0]) + (time >= bounds[1])
        np.testing.assert_array_equal(own, np.where(labelled, late, 0))

    def pair(i: int) -> tuple:
        ends = (sources[i], targets[i])
        return ends if form == "two types" else tuple(sorted(ends))

    latest: dict[tuple, int] = {}
    for i in range(edges.num_edges):
        latest[pair(i)] = max(latest.get(pair(i), 0), own[i])
    if rule == "hash":
        assert all(own[i] == latest[pair(i)] for i in np.flatnonzero(labelled))
    for split, last in (("train", 1), ("val", 1), ("test", 2)):
        graph = message_graph(bundle, [link], split)
        kept = [i for i in range(edges.num_edges) if latest[pair(i)] <= last]
        found = graph.csc(edge_type).e_id
        np.testing.assert_array_equal(found, kept)
        if form == "two types":
            reverse = ("film", "rev_rates", "user")
            e_id = graph.csc(reverse).e_id
            numbers = np.asarray(bundle.column(reverse, "number")).reshape(-1)[e_id]
            assert sorted(numbers) == sorted(number[kept])


def test_ends_of_label_edges_and_pairs(tmp_path):
    users, films = np.array([4, 0, 4, 2]), np.array([1, 3, 0, 3])
    nodes = {name: node_rows(np.arange(5)) for name in ("user", "film")}
    edge_type = ("user", "rates", "film")
    labels = edge_rows(users, films, labels={"y": np.array([0, 1, 2, 1])}, time=np.arange(4))
    tables = GraphTables(nodes, {}, label_edges={(edge_type, "positive"): labels})
    bundle = ingest(write_tables(tables, str(tmp_path / "t")), None, str(tmp_path / "cache"))
    edges = SeedEdges.of_bundle(bundle, edge_type, label_edges=True)
    sources, targets = edges.ends(np.arange(4))
    assert list(zip(sources, targets, strict=True)) == [(0, 3), (2, 3), (4, 0), (4, 1)]
    assert edges.times is not None
    assert edges.times.tolist() == [1, 3, 2, 0]
    pairs = SeedEdges.of_pairs(edge_type, users, films)
    sources, targets = pairs.ends(np.array([2, 0]))
    assert (sources.tolist(), targets.tolist()) == ([4, 4], [0, 1])
    link = LinkSplit(edge_type, labels=True, rule=HashSplit(type="hash"), label="y")
    every = split_labelled_edges(
        bundle, LinkSplit(**{**link.__dict__, "rule": HashSplit(type="hash", fractions=[1, 0, 0])})
    )
    assert every.train.tolist() == [0, 1, 2, 3]
    with raises("edges-split-empty", "val"):
        rule = HashSplit(type="hash", fractions=[0.999, 0.0005, 0.0005])
        split_labelled_edges(bundle, LinkSplit(**{**link.__dict__, "rule": rule}))
