"""The whole ingest against a reference made of dicts and sorted lists; its stable sort."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raygnn.data import arrays
from raygnn.data.bundle import Bundle
from raygnn.data.edge_kernels import sort_stably
from raygnn.data.ingest import pieces, sort_edges
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from tests.graph_writer import cut, write_graph

_TYPE = ("n", "to", "n")


@dataclass(frozen=True)
class _Graph:
    ids: list
    id_type: pa.DataType
    edges: list[tuple[int, int]]
    times: list | None
    num_shards: int
    suffix: str


_INT_IDS = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=12, unique=True),
    st.permutations(list(range(-3, 6))),
    st.integers(-(2**63), 2**63 - 10).map(lambda low: list(range(low, low + 7))),
)
_STRING_IDS = st.lists(
    # Letters that CSV and numbers do not fight over; the first keeps the column from being numbers.
    st.text("abcxyzäß", min_size=1, max_size=8),
    min_size=1,
    max_size=12,
    unique=True,
)


@st.composite
def _graphs(draw: st.DrawFn) -> _Graph:
    id_type = draw(st.sampled_from([pa.int64(), pa.string(), pa.large_string()]))
    ids = list(draw(_INT_IDS if id_type == pa.int64() else _STRING_IDS))
    node = st.integers(0, len(ids) - 1)
    edges = draw(st.lists(st.tuples(node, node), min_size=1, max_size=40))
    times = None
    if draw(st.booleans()):
        value = draw(
            st.sampled_from([st.integers(-3, 3), st.floats(-2, 2, width=16, allow_subnormal=False)])
        )
        times = draw(st.lists(value, min_size=len(edges), max_size=len(edges)))
    suffix = draw(st.sampled_from([".parquet", ".parquet", ".csv", ".tsv"]))
    return _Graph(ids, id_type, edges, times, draw(st.integers(1, 3)), suffix)


def _write(graph: _Graph, folder: Path, directed: bool) -> Path:
    nodes = pa.table(
        {"id": pa.array(graph.ids, graph.id_type), "x": np.arange(len(graph.ids), dtype="f4")}
    )
    columns = {
        "s": pa.array([graph.ids[s] for s, _ in graph.edges], graph.id_type),
        "t": pa.array([graph.ids[t] for _, t in graph.edges], graph.id_type),
        "row": np.arange(len(graph.edges)),
        "w": np.arange(len(graph.edges), dtype="f4"),
    }
    spec = {"features": {"row": "row"}, "weight": "w", "directed": directed}
    if graph.times is not None:
        columns["time"] = pa.array(graph.times)
        spec["time"] = "time"
    return write_graph(
        folder,
        cut(nodes, graph.num_shards),
        cut(pa.table(columns), graph.num_shards),
        {"features": {"x": "x"}},
        spec,
        graph.suffix,
    )


def _reference(graph: _Graph, directed: bool) -> list[tuple]:
    """(destination, time, source, row) of each edge, in the order of the bundle."""
    given_pairs = set(graph.edges)
    rows = []
    for row, (source, target) in enumerate(graph.edges):
        time = 0 if graph.times is None else graph.times[row]
        rows.append((target, time, source, row))
        if not directed and (target, source) not in given_pairs:
            rows.append((source, time, target, row))
    return sorted(rows)


def _check(bundle: Bundle, graph: _Graph, directed: bool) -> None:
    expected = _reference(graph, directed)
    assert bundle.ids("n").to_pylist() == graph.ids
    assert np.array_equal(bundle.column("n", "x"), np.arange(len(graph.ids)))
    csc = bundle.csc(_TYPE)
    targets = np.repeat(np.arange(len(graph.ids)), np.diff(csc.indptr))
    assert targets.tolist() == [edge[0] for edge in expected]
    assert csc.indices.tolist() == [edge[2] for edge in expected]
    assert np.asarray(bundle.column(_TYPE, "row")).tolist() == [edge[3] for edge in expected]
    assert np.asarray(bundle.column(_TYPE, "weight")).tolist() == [edge[3] for edge in expected]
    if graph.times is not None:
        assert np.asarray(bundle.column(_TYPE, "time")).tolist() == [e[1] for e in expected]
    csr = bundle.csr(_TYPE)
    by_source = sorted((e[2], e[1], e[0], e[3], i) for i, e in enumerate(expected))
    sources = np.repeat(np.arange(len(graph.ids)), np.diff(csr.indptr))
    assert sources.tolist() == [edge[0] for edge in by_source]
    assert csr.indices.tolist() == [edge[2] for edge in by_source]
    assert csr.e_id.tolist() == [edge[4] for edge in by_source]


@settings(max_examples=50)
@given(
    _graphs(),
    st.booleans(),
    st.sampled_from([1, 5, 1 << 20]),
    st.sampled_from([1, 700, pieces.PIECE_BYTES]),
)
def test_ingest_equals_the_reference(
    graph: _Graph, directed: bool, bucket_edges: int, piece_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        # Small limits, so that these graphs take several pieces, ranges and buckets.
        patch.setattr(sort_edges, "BUCKET_EDGES", bucket_edges)
        patch.setattr(sort_edges, "_RANGE_BITS", 2 if bucket_edges == 5 else 12)
        patch.setattr(pieces, "PIECE_BYTES", piece_bytes)
        path = _write(graph, Path(folder) / "graph", directed)
        _check(ingest(path, cache_dir=Path(folder) / "cache"), graph, directed)


def test_high_degrees_and_int64_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Rows of hundreds of edges leave the insertion sort; a low limit takes the int64 path.
    monkeypatch.setattr(arrays, "MAX_INT32", 2)
    rng = np.random.default_rng(0)
    edges = list(zip(rng.integers(0, 5, 2000), rng.integers(0, 3, 2000), strict=True))
    pairs = [(int(s), int(t)) for s, t in edges]
    times = rng.integers(0, 7, 2000).tolist()
    graph = _Graph([10, 3, 5, 77, -1], pa.int64(), pairs, times, 2, ".parquet")
    for directed in (True, False):
        path = _write(graph, tmp_path / str(directed), directed)
        bundle = ingest(path, cache_dir=tmp_path / "cache")
        assert bundle.csc(_TYPE).indices.dtype == np.int64
        _check(bundle, graph, directed)


def test_undirected_option_is_directed_false(tmp_path: Path) -> None:
    graph = _Graph([0, 1, 2], pa.int64(), [(0, 1), (1, 0), (1, 2), (2, 2)], None, 1, ".parquet")
    path = _write(graph, tmp_path / "graph", directed=True)
    bundle = ingest(path, IngestOptions(undirected=True), cache_dir=tmp_path / "cache")
    _check(bundle, graph, directed=False)
    assert bundle.reverse_of(_TYPE) == _TYPE
    # 0-1 is given both ways, 1-2 gains its reverse, the self-loop stays one edge.
    assert bundle.num_edges(_TYPE) == 5


@pytest.mark.parametrize("num_items", [0, 1, 31, 32, 33, 64, 65, 100, 1000])
@pytest.mark.parametrize("num_keys", [1, 7, 10_000])
def test_it_is_numpys_stable_sort_of_a_part(num_items, num_keys):
    rng = np.random.default_rng(num_items)
    keys = rng.integers(0, num_keys, num_items + 10)
    order = rng.permutation(num_items + 10)
    expected = order.copy()
    part = expected[5 : 5 + num_items]
    part[:] = part[np.argsort(keys[part], kind="stable")]
    sort_stably(order, 5, 5 + num_items, keys)
    np.testing.assert_array_equal(order, expected)


def test_a_sorted_part_stays():
    order = np.arange(500)
    sort_stably(order, 0, 500, np.arange(500) // 3)
    np.testing.assert_array_equal(order, np.arange(500))
