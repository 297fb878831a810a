"""Alias tables of a bundle: made once, kept in its folder, of the edges that are there."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from raygnn.config.data_section import HashSplit
from raygnn.data import bundle as module
from raygnn.data.bundle import Bundle
from raygnn.data.edge_kernels import fill_alias
from raygnn.data.ingest.build_bundle import ingest
from raygnn.data.links.message_graph import message_graph
from raygnn.data.links.split import LinkSplit
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from tests.errors import raises

EDGE = ("node", "to", "node")


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    rng = np.random.default_rng(0)
    source, target = rng.integers(0, 20, (2, 150))
    columns = {"w": rng.random(150, np.float32), "bad": np.full(150, -1, np.float32)}
    tables = GraphTables(
        {"node": node_rows(np.arange(20))}, {EDGE: edge_rows(source, target, columns)}
    )
    return ingest(write_tables(tables, str(tmp_path / "tables")), cache_dir=tmp_path / "cache")


def _expected(bundle: Bundle) -> np.ndarray:
    edges = bundle.csc(EDGE)
    table = np.empty(len(edges.indices), np.int64)
    fill_alias(edges.indptr, edges.e_id, bundle.column(EDGE, "w"), table)
    return table


def test_they_are_those_of_the_edges_of_a_graph_or_of_its_messages(bundle):
    link = LinkSplit(EDGE, rule=HashSplit(type="hash", fractions=[0.6, 0.2, 0.2]))
    graphs = [bundle, *(message_graph(bundle, [link], split) for split in ("train", "test"))]
    sizes = set()
    for graph in graphs:
        found = pickle.loads(pickle.dumps(graph)).alias(EDGE, "w")
        assert np.array_equal(found, _expected(graph))
        sizes.add(len(found))
    assert len(sizes) == 3


def test_another_process_maps_what_is_there(bundle, monkeypatch):
    first = bundle.alias(EDGE, "w")

    def fail(*args: object) -> None:
        raise AssertionError("made twice")

    monkeypatch.setattr(module, "fill_alias", fail)
    assert np.array_equal(Bundle.open(bundle.path).alias(EDGE, "w"), first)
    shutil.rmtree(bundle.path / "alias")
    with pytest.raises(AssertionError, match="made twice"):
        bundle.alias(EDGE, "w")


def test_bad_weights_are_told_and_leave_nothing(bundle):
    with raises("sampling-weight-values", "bad", "node__to__node"):
        bundle.alias(EDGE, "bad")
    assert not [path for path in (bundle.path / "alias").iterdir() if path.is_dir()]
