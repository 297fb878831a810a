"""Labels of edges: ingested, split, and told apart by the rows of the files that have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raygnn.config.data_section import HashSplit, TemporalSplit
from raygnn.data.bundle import Bundle
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.links.message_graph import message_graph
from raygnn.data.links.split import LinkSplit, label_values
from raygnn.data.links.supervision import SeedEdges, split_labelled_edges
from raygnn.data.partition.build import Partitioning, partition
from raygnn.data.partition.part import open_partitioned
from raygnn.data.tables.columns import split_column
from raygnn.data.tables.graph_tables import (
    EdgeRows,
    GraphTables,
    edge_rows,
    node_rows,
    write_tables,
)
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


@pytest.mark.parametrize("form", ["two types", "directed", "undirected"])
def test_edges_name_their_rows_in_the_files_and_copies_of_them_none(tmp_path, form):
    bundle, edge_type = _bundle(tmp_path, form)
    table = pq.read_table(tmp_path / "tables" / "edges" / "rates")
    ids = [np.asarray(bundle.ids(name)) for name in edge_type[::2]]
    edges = SeedEdges.of_bundle(bundle, edge_type, label_edges=False)
    positions = edges.positions_of_rows()
    rows = edges.table_rows[positions]
    assert sorted(rows) == list(range(NUM_EDGES))
    for of_edge, dense, name in zip(ids, edges.ends(positions), ("source", "target"), strict=True):
        np.testing.assert_array_equal(of_edge[dense], np.asarray(table[name])[rows])
    number = np.asarray(bundle.column(edge_type, "number")).reshape(-1)
    np.testing.assert_array_equal(np.asarray(table["number"])[rows], number[positions])
    copies = np.flatnonzero(edges.table_rows < 0)
    assert (len(copies) > 0) == (form == "undirected")
    np.testing.assert_array_equal(number[copies], -1 - edges.table_rows[copies])


def test_row_numbers_count_all_files_and_dropped_rows(tmp_path):
    """Parts joined again have the row numbers too."""
    folder = tmp_path / "graph"
    folder.mkdir()
    (folder / "n.csv").write_text("id\n" + "".join(f"{i}\n" for i in range(6)))
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 7, (40, 2))  # node 6 is unknown
    for file, part in enumerate(np.split(ends, [11, 12, 30])):
        lines = "".join(f"{s},{t},{s + t}\n" for s, t in part)
        (folder / f"e{file}.csv").write_text("source,target,y\n" + lines)
    (folder / "graph.yaml").write_text(
        "format: raygnn/graph-v1\n"
        "node_types: {n: {files: n.csv, id: id}}\n"
        "edge_types: [{type: [n, to, n], files: 'e*.csv', source: source, target: target, "
        "labels: {y: y}, directed: false}]\n"
    )
    options = IngestOptions(on_error="drop")
    partition(str(folder), tmp_path / "parts", Partitioning(3, "hash"), options)
    bundles = [
        ingest(str(folder), options, str(tmp_path / "cache")),
        open_partitioned(tmp_path / "parts", tmp_path / "joined"),
    ]
    for bundle in bundles:
        edges = SeedEdges.of_bundle(bundle, ("n", "to", "n"), label_edges=False)
        positions = edges.positions_of_rows()
        rows = edges.table_rows[positions]
        assert sorted(rows) == np.flatnonzero((ends < 6).all(axis=1)).tolist()
        ids = np.asarray(bundle.ids("n"))
        np.testing.assert_array_equal(ids[np.stack(edges.ends(positions), 1)], ends[rows])


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
    assert edges.times.tolist() == edges.table_rows.tolist() == [1, 3, 2, 0]
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


RATES = ("user", "rates", "film")
PAIRS = [("u1", 7), ("u0", 5), ("u1", 5), ("u0", 6), ("u1", 5)]


def _rated_bundle(
    folder: Path, edges: EdgeRows, options: IngestOptions | None = None, *, as_labels: bool = False
) -> Bundle:
    nodes = {"user": node_rows(np.array(["u0", "u1"])), "film": node_rows(np.array([5, 6, 7]))}
    message = edge_rows(np.array(["u0"]), np.array([5]))
    tables = GraphTables(nodes, {RATES: message if as_labels else edges})
    if as_labels:
        tables = GraphTables(nodes, {RATES: message}, label_edges={(RATES, "positive"): edges})
    uri = write_tables(tables, str(folder / "tables"), num_shards=2)
    return ingest(uri, options or IngestOptions(), str(folder / "cache"))


def _edges(**labels: pa.Array | np.ndarray) -> EdgeRows:
    users, films = zip(*PAIRS, strict=True)
    return edge_rows(np.array(users), np.array(films), labels=labels)


def test_labels_follow_their_edges_into_both_directions(tmp_path):
    stars = np.array([1.0, 2.0, 3.0, np.nan, 5.0], np.float32)
    names = pa.array(["good", "bad", None, "good", "awful"])
    bundle = _rated_bundle(
        tmp_path, _edges(stars=stars, word=names), IngestOptions(reverse_edges=True)
    )
    # In-edges of film 5: u0 (2), u1 (3), u1 (5); of film 6: u0 (nan); of film 7: u1 (1).
    np.testing.assert_array_equal(bundle.column(RATES, "stars"), [2, 3, 5, np.nan, 1])
    info = bundle.columns(RATES)["word"]
    assert (info.role, info.class_names, info.num_classes) == ("label", ("awful", "bad", "good"), 3)
    np.testing.assert_array_equal(bundle.column(RATES, "word"), [1, -1, 0, 2, 2])
    reverse = ("film", "rev_rates", "user")
    np.testing.assert_array_equal(bundle.column(reverse, "stars"), [2, np.nan, 3, 5, 1])
    np.testing.assert_array_equal(bundle.column(reverse, "word"), [1, 2, -1, 0, 2])
    assert bundle.columns(reverse)["word"] == info


def test_a_label_is_not_an_input(tmp_path):
    bundle = _rated_bundle(tmp_path, _edges(edge_attr=np.ones(5, np.float32)))
    assert bundle.edge_widths("edge_attr") == {}


def test_label_edges_have_labels(tmp_path):
    bundle = _rated_bundle(tmp_path, _edges(kind=np.array([0, 1, 2, -1, 3])), as_labels=True)
    (edges,) = bundle.label_edges
    assert edges.columns["kind"].num_classes == 4
    # By anchor: u0 with 5 and 6, u1 with 5, 5 and 7.
    np.testing.assert_array_equal(edges.targets, [0, 1, 0, 0, 2])
    np.testing.assert_array_equal(bundle.label_column(edges, "kind"), [1, -1, 2, 3, 0])


def test_dropped_edges_leave_the_classes_of_others(tmp_path):
    edges = edge_rows(
        np.array(["u0", "nobody", "u1"]),
        np.array([5, 6, 7]),
        labels={"word": pa.array(["b", "a", "c"])},
    )
    bundle = _rated_bundle(tmp_path, edges, IngestOptions(on_error="drop"))
    names = bundle.columns(RATES)["word"].class_names
    assert names is not None
    assert [names[c] for c in bundle.column(RATES, "word")] == ["b", "c"]


@pytest.mark.parametrize("as_labels", [False, True])
def test_parts_have_the_labels_of_the_whole_graph(tmp_path, as_labels):
    labels = {
        "stars": np.array([1.0, 2.0, 3.0, np.nan, 5.0], np.float32),
        "word": pa.array(["good", "bad", None, "good", "awful"]),
        "kind": np.array([0, 3, 1, 1, 0]),
    }
    options = IngestOptions(reverse_edges=True)
    bundle = _rated_bundle(tmp_path, _edges(**labels), options, as_labels=as_labels)
    tables, parts = str(tmp_path / "tables"), tmp_path / "parts"
    partition(tables, str(parts), Partitioning(2, "range"), options)
    whole = open_partitioned(parts, tmp_path / "whole")
    if as_labels:
        (found,), (expected,) = whole.label_edges, bundle.label_edges
        assert found.columns == expected.columns
        assert found.columns["kind"].num_classes == 4
    for edge_type in bundle.edge_types:
        assert whole.columns(edge_type) == bundle.columns(edge_type)
        for name in bundle.columns(edge_type):
            both = (each.column(edge_type, name) for each in (whole, bundle))
            np.testing.assert_array_equal(*both)
    for name in labels:
        link = LinkSplit(RATES, labels=as_labels, label=name)
        np.testing.assert_array_equal(label_values(whole, link), label_values(bundle, link))
