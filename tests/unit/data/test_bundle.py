from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raygnn.data.bundle import Bundle
from raygnn.data.bundle_record import FORMAT_VERSION
from raygnn.data.checksums import dump_record, parse_record
from raygnn.data.edge_types import EdgeType, edge_type_name, reversed_edge_type
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.manifest import EdgeTable
from tests.errors import raises
from tests.graph_writer import write_graph

_TYPE = ("n", "to", "n")


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    nodes = pa.table({"id": [5, 3, 9], "x": [1.0, 2.0, 3.0]})
    edges = pa.table({"s": [5, 3, 9], "t": [3, 9, 3]})
    path = write_graph(tmp_path / "graph", nodes, edges, {"features": {"x": "x"}})
    return ingest(path, cache_dir=tmp_path / "cache")


def test_pickles_as_its_path(bundle: Bundle) -> None:
    data = pickle.dumps(bundle)
    assert len(data) < 500
    assert np.array_equal(pickle.loads(data).column("n", "x"), [1, 2, 3])


def test_writes_stay_in_the_process(bundle: Bundle) -> None:
    x = bundle.column("n", "x")
    assert type(x) is np.ndarray
    x[0] = 99
    assert np.array_equal(Bundle.open(bundle.path).column("n", "x"), [1, 2, 3])


def test_arrays_are_mapped_once(bundle: Bundle) -> None:
    assert bundle.csc(_TYPE).indices is bundle.csc(_TYPE).indices
    assert bundle.id_map("n") is bundle.id_map("n")


def test_unknown_names(bundle: Bundle) -> None:
    with raises("graph-node-type-unknown", "m", "n"):
        bundle.num_nodes("m")
    with raises("graph-edge-type-unknown", "a__b__c", "n__to__n"):
        bundle.csc(("a", "b", "c"))
    with raises("graph-column-unknown", "z", "n", "x"):
        bundle.column("n", "z")
    with raises("nodes-id-kind", "string", "integers"):
        bundle.id_map("n").lookup(pa.array(["5"]))


def test_no_split_declared(bundle: Bundle) -> None:
    assert bundle.declared_split("n") is None


def test_unknown_version_is_refused(bundle: Bundle) -> None:
    record = bundle.path / "bundle.json"
    content = parse_record(record.read_bytes())
    record.write_text(dump_record({**content, "version": 99}))
    with raises("bundle-format", 99, "raygnn/bundle", FORMAT_VERSION):
        Bundle.open(bundle.path)


def test_damage_is_named(bundle: Bundle) -> None:
    indices = bundle.path / "edges" / "n__to__n" / "indices.npy"
    indices.unlink()
    with raises("bundle-damaged", "edges/n__to__n/indices.npy", "is missing"):
        Bundle.open(bundle.path)
    (bundle.path / "bundle.json").write_text("{")
    with raises("bundle-damaged", "bundle.json"):
        Bundle.open(bundle.path)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("[1]", "bundle.json"),
        (dump_record({"format": "raygnn/bundle", "version": FORMAT_VERSION}), "fingerprint"),
    ],
)
def test_a_record_of_something_else(bundle: Bundle, content: str, named: str) -> None:
    (bundle.path / "bundle.json").write_text(content)
    with raises("bundle-damaged", named):
        Bundle.open(bundle.path)


def test_csr_is_kept_and_stale_builds_go(bundle: Bundle) -> None:
    stale = bundle.path / "csr" / ".building-n__to__n-1"
    stale.mkdir(parents=True)
    csr = bundle.csr(_TYPE)
    assert csr.indptr.tolist() == [0, 1, 2, 3]
    assert csr.indices.tolist() == [1, 2, 1]
    assert not stale.exists()
    again = Bundle.open(bundle.path).csr(_TYPE)
    assert np.array_equal(again.e_id, csr.e_id)


def test_csr_that_cannot_be_kept(bundle: Bundle) -> None:
    (bundle.path / "csr").write_text("in the way")
    with raises("data-cache-unusable", "the out-neighbors of n__to__n"):
        bundle.csr(_TYPE)


def _edge_table(*edge_type: str, **keys: Any) -> EdgeTable:
    source, _, target = edge_type
    table = {"type": edge_type, "files": "e.csv", "source": source, "target": target, **keys}
    return EdgeTable.model_validate(table)


_BUYS, _REV_BUYS = ("user", "buys", "item"), ("item", "rev_buys", "user")
_VIEWS, _REV_VIEWS = ("user", "views", "item"), ("item", "rev_views", "user")
_LIKES, _REV_LIKES = ("user", "likes", "user"), ("user", "rev_likes", "user")
_SOLD = ("item", "sold_to", "user")


@pytest.mark.parametrize(
    ("edge_types", "by_default", "all_"),
    [
        ([_BUYS, _VIEWS], [_REV_BUYS, _REV_VIEWS], [_REV_BUYS, _REV_VIEWS]),
        ([_BUYS, _LIKES], [_REV_BUYS], [_REV_BUYS, _REV_LIKES]),
        ([_BUYS, _REV_BUYS, _VIEWS], [], [_REV_VIEWS]),
        ([_BUYS, _SOLD], [], [_REV_BUYS, ("user", "rev_sold_to", "item")]),
    ],
)
def test_reverses_are_added_where_no_message_would_come_back(
    edge_types: list[EdgeType], by_default: list[EdgeType], all_: list[EdgeType]
) -> None:
    tables = [_edge_table(*edge_type) for edge_type in edge_types]
    assert list(IngestOptions().added_reverses(tables).values()) == by_default
    assert list(IngestOptions(reverse_edges=True).added_reverses(tables).values()) == all_
    assert IngestOptions(reverse_edges=False).added_reverses(tables) == {}
    left_out = IngestOptions(reverse_edges=(edge_type_name(edge_types[0]),))
    wanted = [t for t in by_default if t != reversed_edge_type(edge_types[0])]
    assert list(left_out.added_reverses(tables).values()) == wanted
    with raises("graph-edge-type-unknown", "user__bys__item"):
        IngestOptions(reverse_edges=("user__bys__item",)).added_reverses(tables)
    undirected = IngestOptions(undirected=True, reverse_edges=True)
    assert _REV_LIKES not in undirected.added_reverses(tables).values()


def test_undirected_without_effect_is_said(tmp_path: Path) -> None:
    path = write_graph(tmp_path / "graph", pa.table({"id": [1, 2]}))
    said: list[str] = []
    options = IngestOptions(undirected=True)
    bundle = ingest(path, options, cache_dir=tmp_path / "cache", progress=said.append)
    assert bundle.edge_types == []
    assert "data.undirected changes nothing" in said[0]
