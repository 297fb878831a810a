"""Labels of edges and of label edges, from tables to the bundle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from raygnn.data.bundle import Bundle
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.links.split import LinkSplit, label_values
from raygnn.data.partition.build import Partitioning, partition
from raygnn.data.partition.part import open_partitioned
from raygnn.data.tables.graph_tables import (
    EdgeRows,
    GraphTables,
    edge_rows,
    node_rows,
    write_tables,
)

RATES = ("user", "rates", "film")
PAIRS = [("u1", 7), ("u0", 5), ("u1", 5), ("u0", 6), ("u1", 5)]


def _bundle(
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
    bundle = _bundle(tmp_path, _edges(stars=stars, word=names), IngestOptions(reverse_edges=True))
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
    bundle = _bundle(tmp_path, _edges(edge_attr=np.ones(5, np.float32)))
    assert bundle.edge_widths("edge_attr") == {}


def test_label_edges_have_labels(tmp_path):
    bundle = _bundle(tmp_path, _edges(kind=np.array([0, 1, 2, -1, 3])), as_labels=True)
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
    bundle = _bundle(tmp_path, edges, IngestOptions(on_error="drop"))
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
    bundle = _bundle(tmp_path, _edges(**labels), options, as_labels=as_labels)
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
