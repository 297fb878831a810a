"""Features as int8: how far values are off, and what ingest writes of nodes and of edges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from raygnn.data.bundle import Bundle, SparseColumn
from raygnn.data.bundle_record import Quantization
from raygnn.data.ingest import pieces
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.ingest.fit_features import quantization_of
from raygnn.data.moments import measure
from raygnn.data.partition.build import Partitioning, partition
from raygnn.data.partition.part import open_partitioned
from raygnn.data.standardization import ColumnScale
from raygnn.outputs.report_advice import coarse_steps
from raygnn.sampling import LocalFeatureStore, LocalGraphStore, NeighborSampler
from tests.errors import raises
from tests.graph_writer import cut, write_graph

_EDGE = ("n", "to", "n")


def _quantized(rows: np.ndarray) -> tuple[Quantization, np.ndarray]:
    """How rows are stored, and what is read of them: float32, as models do."""
    found = quantization_of(measure(rows))
    affine = ColumnScale((0.0,), (1.0,)).affine_of_codes(found)
    codes = found.codes(rows)
    assert codes.dtype == np.int8
    return found, (codes - affine.shift) * affine.factor + affine.offset


def _columns(elements: st.SearchStrategy[float]) -> st.SearchStrategy[np.ndarray]:
    return hnp.arrays(np.float32, st.tuples(st.integers(1, 40), st.just(1)), elements=elements)


@settings(max_examples=300)
@given(
    rows=_columns(st.floats(-1, 1, width=32)),
    scale=st.sampled_from([1e-44, 1e-37, 1e-20, 1e-3, 1.0, 7.3, 1e9, 1e37]),
    origin=st.sampled_from([0.0, 0.3, -1.0, 1.0, 60.0, -3e6]),
    outlier=st.sampled_from([None, 1e3, -1e6]),
)
def test_no_value_is_off_by_more_than_half_a_step(
    rows: np.ndarray, scale: float, origin: float, outlier: float | None
) -> None:
    wide = rows.astype(np.float64) + origin
    if outlier is not None:
        wide[0] = outlier
    rows = (wide * min(scale, 1e38 / np.abs(wide).max(initial=1))).astype(np.float32)
    found, read = _quantized(rows)
    low, high = float(rows.min()), float(rows.max())
    (step,) = found.step
    assert step <= max((high - low) / 254, 1.2e-38) or (step == 1 and high - low <= 255)
    # Floats far from zero are as far apart as that.
    rounding = 2 * np.spacing(np.float32(max(abs(low), abs(high))))
    assert np.abs(read.astype(np.float64) - rows).max() <= step / 2 * (1 + 1e-6) + rounding
    assert (read[rows == 0] == 0).all()


@settings(max_examples=100)
@given(
    rows=_columns(st.integers(0, 255).map(float)),
    origin=st.sampled_from([0, -255, -100, 1990, -(2**20)]),
)
def test_whole_numbers_in_a_narrow_range_are_exact(rows: np.ndarray, origin: int) -> None:
    rows = rows + np.float32(origin)
    _, read = _quantized(rows)
    assert np.array_equal(read, rows)


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, 3e38, 1e-44, 2.0**24 + 2])
def test_constants_are_exact(value: float) -> None:
    rows = np.full((3, 1), value, np.float32)
    found, read = _quantized(rows)
    assert found.step == (0.0,)
    assert np.array_equal(read, rows)


def test_shares_do_not_leave_their_range() -> None:
    """Standardisation leaves elements between 0 and 1 that are often 0 as they are."""
    for high in np.random.default_rng(0).random(1000).astype(np.float32):
        values = Quantization.of_range(np.zeros(1), np.array([high]), np.zeros(1, bool)).values(
            np.array([[-128], [126]], np.int8)
        )
        assert values[0] == 0
        assert values[1] <= high


def test_what_lies_outside_of_the_range_gets_its_end() -> None:
    codes = Quantization((1.0,), (0.0,)).codes(np.array([[-1e30], [-128.4], [127.4], [1e30]]))
    assert codes[:, 0].tolist() == [-128, -128, 127, 127]


def _tables(num_rows: int = 40) -> tuple[pa.Table, pa.Table]:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(num_rows, 3)) * [1, 1e5, 1e-6] + [0, 3e5, 0]
    nodes = {
        "id": np.arange(num_rows),
        "x": pa.array(list(x.astype("f4"))),
        "half": rng.normal(size=num_rows).astype("f2"),
        "flag": rng.integers(0, 2, num_rows).astype("f8"),
        "count": rng.integers(0, 1000, num_rows),
        "word": pa.array([[i % 5] for i in range(num_rows)]),
        "weight": pa.array([[i / 3] for i in range(num_rows)]),
        "kind": pa.array([f"k{i % 3}" for i in range(num_rows)]),
    }
    edges = {
        "s": rng.integers(0, num_rows, 100),
        "t": rng.integers(0, num_rows, 100),
        "amount": rng.exponential(size=100),
        "w": rng.random(100),
    }
    return pa.table(nodes), pa.table(edges)


_NODE_SPEC: dict[str, Any] = {
    "features": {
        "x": {"columns": ["x", "half", "flag"]},
        "count": "count",
        "words": {"indices": "word", "values": "weight", "dim": 5},
        "kind": {"columns": [{"column": "kind", "transform": "category"}, "half"]},
        "z": {"columns": [{"column": "kind", "transform": "one_hot"}, "half"]},
    }
}
_EDGE_SPEC = {"features": {"amount": "amount"}, "weight": "w"}


def _write(folder: Path, num_shards: int = 1) -> Path:
    nodes, edges = (cut(table, num_shards) for table in _tables())
    return write_graph(folder, nodes, edges, _NODE_SPEC, _EDGE_SPEC)


def _ingest(graph: Path, cache: Path, dtype: str | None = "int8", **options: Any) -> Bundle:
    return ingest(graph, IngestOptions(feature_dtype=dtype, **options), cache_dir=cache)


def test_dense_floats_become_int8_and_all_else_stays(tmp_path: Path) -> None:
    graph = _write(tmp_path / "graph")
    narrow, wide = (_ingest(graph, tmp_path, dtype) for dtype in ("int8", None))
    for name in ("x", "z"):
        codes, rows = narrow.column("n", name), wide.column("n", name)
        info = narrow.columns("n")[name]
        assert isinstance(codes, np.ndarray)
        assert codes.dtype == np.int8 == np.dtype(info.dtype)
        assert codes.nbytes * 4 == rows.nbytes
        assert info.quantization is not None
        error = np.abs(narrow.values("n", name).astype("f8") - rows)
        assert (error <= 0.5001 * np.array(info.quantization.step)).all()
        flags = np.array(info.quantization.step) == 1
        assert flags.sum() == {"x": 1, "z": 3}[name]
        assert np.array_equal(narrow.values("n", name)[:, flags], rows[:, flags])
    for name in ("count", "kind"):
        assert np.array_equal(narrow.column("n", name), wide.column("n", name))
        assert narrow.columns("n")[name] == wide.columns("n")[name]
    words, expected = narrow.column("n", "words"), wide.column("n", "words")
    assert isinstance(words, SparseColumn)
    assert isinstance(expected, SparseColumn)
    assert np.array_equal(words.values, expected.values)
    assert narrow.column(_EDGE, "weight").dtype == np.float32
    amounts = narrow.values(_EDGE, "amount"), wide.column(_EDGE, "amount")
    assert narrow.column(_EDGE, "amount").dtype == np.int8
    assert np.abs(amounts[0] - amounts[1]).max() <= 0.51 * amounts[1].max() / 254


def test_statistics_are_of_what_is_read(tmp_path: Path) -> None:
    bundle = _ingest(_write(tmp_path / "graph"), tmp_path)
    for type_, name in (("n", "x"), (_EDGE, "amount")):
        measured = bundle.columns(type_)[name].statistics
        values = bundle.values(type_, name)
        values = values.reshape(len(values), -1).astype(np.float64)
        assert measured is not None
        assert np.allclose(measured.mean, values.mean(axis=0), rtol=1e-6)
        assert np.allclose(measured.std, values.std(axis=0), rtol=1e-6)
        assert np.allclose(measured.low, values.min(axis=0), rtol=1e-6)
        assert measured.num_zeros == tuple((values == 0).sum(axis=0).tolist())
        assert measured.num_ones == tuple((values == 1).sum(axis=0).tolist())


@pytest.mark.parametrize("num_shards", [1, 7])
def test_the_bytes_do_not_depend_on_how_tables_are_cut(
    num_shards: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _ingest(_write(tmp_path / "whole"), tmp_path / "a")
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1)
    again = _ingest(_write(tmp_path / "cut", num_shards), tmp_path / "b")
    for path in whole.path.rglob("*.npy"):
        assert path.read_bytes() == (again.path / path.relative_to(whole.path)).read_bytes(), path
    for type_ in ("n", _EDGE):
        assert whole.columns(type_) == again.columns(type_)


def test_parts_have_the_steps_of_the_whole(tmp_path: Path) -> None:
    graph, options = _write(tmp_path / "graph"), IngestOptions(feature_dtype="int8")
    partition(graph, tmp_path / "parts", Partitioning(3, "range"), options)
    joined = open_partitioned(tmp_path / "parts", tmp_path / "cache")
    whole = _ingest(graph, tmp_path)
    for type_, name in (("n", "x"), (_EDGE, "amount")):
        assert np.array_equal(joined.column(type_, name), whole.column(type_, name))
        found, expected = (bundle.columns(type_)[name] for bundle in (joined, whole))
        assert found.quantization == expected.quantization
        assert found.statistics is not None
        assert expected.statistics is not None
        assert np.allclose(found.statistics.std, expected.statistics.std, rtol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e39])
def test_what_is_not_finite_is_refused_or_dropped(bad: float, tmp_path: Path) -> None:
    nodes = pa.table({"id": np.arange(4), "x": [1.5, bad, 3.0, 2.0]})
    graph = write_graph(tmp_path / "graph", nodes, node_spec={"features": {"x": "x"}})
    with raises("table-not-finite", "float32"):
        _ingest(graph, tmp_path)
    bundle = _ingest(graph, tmp_path, on_error="drop")
    assert np.allclose(bundle.values("n", "x"), [1.5, 3, 2], atol=1.5 / 508)
    assert bundle.values("n", "x")[0] == 1.5


def test_tables_without_edges_have_no_range(tmp_path: Path) -> None:
    edges = pa.table({"s": pa.array([], pa.int64()), "t": pa.array([], pa.int64())})
    edges = edges.append_column("a", pa.array([], pa.float32()))
    spec = {"features": {"a": "a"}}
    graph = write_graph(tmp_path / "graph", pa.table({"id": [1, 2]}), edges, None, spec)
    bundle = _ingest(graph, tmp_path)
    assert bundle.column(_EDGE, "a").shape == (0,)
    assert bundle.values(_EDGE, "a").dtype == np.float32


@pytest.mark.parametrize("shape", [(), (1,), (17,), (2, 3)])
def test_rows_are_gathered_as_what_their_codes_stand_for(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    rows = np.random.default_rng(0).normal(5, 3, (30, *shape)).astype(np.float32)
    rows[3] = 0
    column = pa.array(rows) if not shape else pa.array(list(rows.reshape(30, -1)))
    if len(shape) > 1:
        column = pa.FixedShapeTensorArray.from_numpy_ndarray(rows)
    nodes = pa.table({"id": np.arange(30), "x": column})
    graph = write_graph(tmp_path / "graph", nodes, node_spec={"features": {"x": "x"}})
    bundle, ids = _ingest(graph, tmp_path), np.array([3, 29, 0, 3])
    store = LocalFeatureStore(bundle)
    assert store.row_layout("n", "x") == (shape or (1,), np.dtype(np.float32))
    found = store.gather("n", "x", ids)
    codes, quantization = bundle.column("n", "x"), bundle.columns("n")["x"].quantization
    assert isinstance(codes, np.ndarray)
    assert quantization is not None
    step, offset = (np.reshape(x, shape) for x in (quantization.step, quantization.offset))
    expected = (codes[ids] * step + offset).reshape(found.shape)
    assert np.allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert (found[[0, 3]] == 0).all()


def test_edges_are_drawn_by_values_not_codes(tmp_path: Path) -> None:
    edges = pa.table({"s": [1, 2], "t": [0, 0], "a": [0.0, 2.5]})
    nodes = pa.table({"id": [0, 1, 2]})
    graph = write_graph(
        tmp_path / "graph", nodes, edges, edge_spec={"features": {"a": "a"}, "directed": True}
    )
    store = LocalGraphStore(_ingest(graph, tmp_path))
    for key in range(20):
        sample = NeighborSampler(store, [1], weight="a").sample({"n": np.array([0])}, key)
        assert sample.node["n"].tolist() == [0, 2]  # the other edge has a weight of 0


@pytest.mark.parametrize(("outlier", "warns"), [(0.0, False), (10.0, False), (1e4, True)])
def test_outliers_that_make_steps_coarse_are_reported(
    outlier: float, warns: bool, tmp_path: Path
) -> None:
    x = np.random.default_rng(0).normal(size=(10_000, 2))
    x[7, 1] = outlier
    nodes = pa.table({"id": np.arange(10_000), "x": list(x)})
    nodes = nodes.append_column("flag", pa.array(np.arange(10_000) == 3, pa.float64()))
    spec = {"features": {"x": "x", "flag": "flag"}}
    bundle = _ingest(write_graph(tmp_path / "graph", nodes, node_spec=spec), tmp_path)
    texts = coarse_steps(bundle)
    assert len(texts) == warns
    assert all("1 element of feature 'x' of 'n' (the first is number 1)" in t for t in texts)


def test_a_model_reads_a_graph_of_either_storage_alike(tmp_path: Path) -> None:
    """Means and spreads of training are of values, whatever the graph is stored as."""
    graph = _write(tmp_path / "graph")
    narrow, wide = (_ingest(graph, tmp_path, dtype) for dtype in ("int8", None))
    for trained in (narrow, wide):
        scale = ColumnScale.of(trained.columns("n")["x"])
        assert scale is not None
        stores = [LocalFeatureStore(bundle, {"n": {"x": scale}}) for bundle in (narrow, wide)]
        found, expected = (store.gather("n", "x", np.arange(40)) for store in stores)
        steps = np.array(narrow.columns("n")["x"].quantization.step)
        assert (np.abs(found - expected) <= 0.51 * steps / scale.std + 1e-6).all()
