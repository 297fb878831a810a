"""Mean and spread of dense features: exact, and the same bits however the tables are cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from raygnn.data import moments
from raygnn.data.arrays import create_array, open_array
from raygnn.data.bundle import Bundle
from raygnn.data.bundle_record import ColumnInfo, ColumnStatistics, column_path
from raygnn.data.ingest import describe
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.ingest.describe import measure_chosen_rows, measure_features
from raygnn.data.ingest.schedule import in_process
from raygnn.data.standardization import ColumnScale
from tests.graph_writer import cut, write_graph


def measured(rows: np.ndarray, folder: Path) -> ColumnStatistics:
    path = column_path(folder, "x")
    create_array(path, rows.shape, rows.dtype)
    open_array(path, "r+")[...] = rows
    info = ColumnInfo("x", "feature", str(rows.dtype), rows.shape[1:])
    (with_statistics,) = measure_features({"x": ([info], [folder])}, in_process)["x"]
    assert with_statistics.statistics is not None
    return with_statistics.statistics


@settings(max_examples=50)
@given(
    rows=hnp.arrays(
        st.sampled_from([np.float32, np.float16, np.int64, np.int8, np.bool_]),
        hnp.array_shapes(min_dims=1, max_dims=3, max_side=9),
    ).filter(lambda rows: np.isfinite(rows).all()),
    block=st.sampled_from([1, 4, 1 << 17]),
    blocks_of_task=st.sampled_from([1, 3]),
)
def test_any_rows_in_any_blocks(
    tmp_path_factory: pytest.TempPathFactory, rows: np.ndarray, block: int, blocks_of_task: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moments, "_BLOCK_ELEMENTS", block)
        patch.setattr(describe, "_TASK_ELEMENTS", block * blocks_of_task)
        found = measured(rows, tmp_path_factory.mktemp("rows"))
    exact = rows.reshape(len(rows), -1).astype(np.longdouble)
    largest = np.abs(exact).max(initial=1)
    assert np.allclose(found.mean, exact.mean(axis=0).astype(float), rtol=1e-12, atol=0) or (
        np.abs(found.mean - exact.mean(axis=0)).max() <= 1e-14 * largest
    )
    spread = exact.std(axis=0).astype(float)
    assert np.abs(np.array(found.std) - spread).max() <= 1e-12 * np.float64(largest)
    assert [std == 0 for std in found.std] == (exact == exact[0]).all(axis=0).tolist()
    assert found.count == len(rows)
    assert list(found.low) == exact.min(axis=0).astype(float).tolist()
    assert list(found.high) == exact.max(axis=0).astype(float).tolist()
    assert list(found.num_zeros) == (exact == 0).sum(axis=0).tolist()
    assert list(found.num_ones) == (exact == 1).sum(axis=0).tolist()


@pytest.mark.parametrize(
    ("dtype", "mean", "std", "tolerance"),
    [
        ("float64", 1e9, 1e-3, 1e-4),  # naive sums of squares would lose all of it
        ("float32", 60_000.0, 0.5, 1e-9),
        ("float16", 60_000.0, 100.0, 1e-9),  # sums would be infinite, squares too
        (ml_dtypes.bfloat16, 60_000.0, 1_000.0, 1e-9),
        ("int64", 1 << 40, 3.0, 1e-9),
        ("int32", 1960, 30.0, 1e-9),
    ],
)
def test_nothing_cancels_far_from_zero(
    tmp_path: Path, dtype: Any, mean: float, std: float, tolerance: float
) -> None:
    drawn = np.random.default_rng(0).normal(mean, std, (300_001, 1)).astype(dtype)
    found = measured(drawn, tmp_path)
    exact = drawn.astype(np.longdouble)
    assert found.mean[0] == pytest.approx(float(exact.mean()), rel=1e-14)
    assert found.std[0] == pytest.approx(float(exact.std()), rel=tolerance)


def test_the_order_of_rows_changes_no_bit(tmp_path: Path) -> None:
    rows = np.random.default_rng(2).normal(1e3, 1, (5000, 3)).astype(np.float32)
    found = measured(rows, tmp_path / "rows")
    assert measured(rows[::-1], tmp_path / "reversed") == found
    assert measure_chosen_rows(np.repeat(rows, 2, 0), np.arange(10_000) % 2 == 0) == found


@pytest.mark.parametrize("value", [0.1, 1e30, -7.3e-20, 60_000, 1 / 3])
def test_one_value_has_a_spread_of_exactly_zero(tmp_path: Path, value: float) -> None:
    found = measured(np.full((150_000, 2), value, np.float32), tmp_path)
    assert found.std == (0.0, 0.0)
    assert found.mean == (float(np.float32(value)),) * 2


def graph(folder: Path, num_shards: int, **options: Any) -> Bundle:
    rng = np.random.default_rng(1)
    values = pa.array(rng.normal(5, 1000, 4000))
    flags = pa.array(rng.integers(0, 2, 4000))
    table = pa.table({"id": np.arange(4000), "a": values, "b": flags})
    source, target = rng.integers(0, 4000, (2, 9000))
    edges = pa.table({"s": source, "t": target, "w": rng.normal(-3, 2, 9000)})
    path = write_graph(
        folder / f"graph-{num_shards}",
        cut(table, num_shards),
        cut(edges, num_shards),
        node_spec={"features": {"x": ["a", "b"]}},
        edge_spec={"features": {"edge_attr": "w"}},
    )
    return ingest(path, IngestOptions(**options), cache_dir=folder / "cache")


def test_the_same_bits_for_any_number_of_shards(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moments, "_BLOCK_ELEMENTS", 1000)
        patch.setattr(describe, "_TASK_ELEMENTS", 2000)
        bundles = [graph(tmp_path, num_shards) for num_shards in (1, 2, 7)]
    nodes = [bundle.columns("n")["x"].statistics for bundle in bundles]
    edges = [bundle.columns(bundle.edge_types[0])["edge_attr"].statistics for bundle in bundles]
    assert nodes[0] is not None
    assert nodes[0] == nodes[1] == nodes[2]
    assert nodes[0].num_zeros[1] + nodes[0].num_ones[1] == nodes[0].count == 4000
    assert edges[0] is not None
    assert edges[0] == edges[1] == edges[2]
    stored = np.asarray(bundles[0].column(bundles[0].edge_types[0], "edge_attr"), np.float64)
    assert edges[0].mean[0] == pytest.approx(stored.mean(), rel=1e-13)
    assert Bundle.open(bundles[0].path).columns("n")["x"].statistics == nodes[0]


def test_rows_that_are_left_out_do_not_count(tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2, None, 3, 2, 4], "a": [1.0, 2.0, 500.0, 6.0, 900.0, np.inf]})
    path = write_graph(tmp_path / "graph", [table], node_spec={"features": {"x": "a"}})
    bundle = ingest(path, IngestOptions(on_error="drop"), cache_dir=tmp_path / "cache")
    found = bundle.columns("n")["x"].statistics
    assert found is not None
    assert (found.mean, found.std) == ((3.0,), (pytest.approx(np.std([1, 2, 6])),))


def test_only_dense_features_are_measured(tmp_path: Path) -> None:
    table = pa.table(
        {"id": [1, 2], "i": [[0], [1]], "v": [[2.0], [3.0]], "y": [0.5, 7.5], "t": [1, 2]}
    )
    spec = {
        "features": {"s": {"indices": "i", "values": "v", "dim": 3}},
        "labels": {"y": "y"},
        "time": "t",
    }
    path = write_graph(tmp_path / "graph", [table], node_spec=spec)
    columns = ingest(path, cache_dir=tmp_path / "cache").columns("n")
    assert {name: info.statistics for name, info in columns.items()} == {
        "s": None,
        "y": None,
        "time": None,
    }


def scale_of(*elements: list[float]) -> ColumnScale | None:
    """How a column with these elements is standardised."""
    rows = np.array(elements, np.float64).T
    found = measure_chosen_rows(rows, np.ones(len(rows), bool))
    return ColumnScale.of(ColumnInfo("x", "feature", "float32", rows.shape[1:], statistics=found))


def test_only_what_is_not_on_one_scale_already_is_standardised() -> None:
    assert ColumnScale.of(ColumnInfo("x", "feature", "float32", (4,))) is None
    flag, ones, word = [0, 1] * 10, [1] * 20, [0.0] * 19 + [0.002]
    assert scale_of(flag, ones, word) is None
    share, year, seven = [0.3, 0.5] * 10, [1960, 1980] * 10, [7] * 20
    often, counts = [0.0, *[0.5] * 19], [0] * 10 + [2] * 10
    scale = scale_of(flag, share, year, seven, often, counts, word)
    assert scale is not None
    assert scale.mean == pytest.approx((0, 0.4, 1970, 7, 0.475, 1, 0))
    assert scale.std == pytest.approx((1, 0.1, 10, 0, np.std(often), 1, 1))


def test_an_element_of_one_value_becomes_zero() -> None:
    scale = scale_of([7.0, 7.0], [2.0, 6.0], [0.0, 1.0])
    assert scale is not None
    shift, factor, offset = scale.affine()
    rows = np.array([[7, 2, 0], [9, 6, 1]], np.float32)
    assert ((rows - shift) * factor + offset).tolist() == [[0, -1, 0], [0, 1, 1]]
