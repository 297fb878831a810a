from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raygnn.data.bundle import SparseColumn
from raygnn.data.standardization import ColumnScale
from raygnn.sampling import LocalFeatureStore
from raygnn.sampling.batch_assembler import gather_rows_for_device
from raygnn.sampling.sparse_features import group_by_key
from raygnn.sampling.stores import as_tensor, find_device_columns
from raygnn.sampling.tensor_record import StoredRows
from tests.errors import raises
from tests.small_graph import NODE, SmallGraph

HALVES = ("float16", "bfloat16")


def _store(
    column: np.ndarray | SparseColumn, num_nodes: int, scale: ColumnScale | None = None
) -> LocalFeatureStore:
    small = SmallGraph({NODE: num_nodes}, {}, stored={NODE: {"x": column}})
    return LocalFeatureStore(small.bundle, {} if scale is None else {NODE: {"x": scale}})


@given(
    dtype=st.sampled_from(["float32", "float64", "int64", "int8", "uint8", "bool", *HALVES]),
    shape=st.sampled_from([(), (1,), (3,), (8,), (17,), (64,), (2, 3), (0,)]),
    ids=st.lists(st.integers(0, 29), max_size=50),
    given_out=st.booleans(),
)
def test_dense_rows(dtype, shape, ids, given_out):
    column = np.random.default_rng(0).normal(size=(30, *shape)).astype(dtype)
    ids = np.array(ids, np.int64)
    expected = column[ids].astype("float32" if dtype in HALVES else dtype)
    expected = expected.reshape(len(ids), *(shape or (1,)))  # x is [num_nodes, width]
    out = np.empty_like(expected) if given_out else None
    found = _store(column, 30).gather(NODE, "x", ids, out)
    assert out is None or found is out
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)


@settings(max_examples=60)
@given(
    dtype=st.sampled_from(["float32", "int64", "int32", "int8", "uint8", *HALVES]),
    shape=st.sampled_from([(), (1,), (3,), (17,), (2, 3)]),
    ids=st.lists(st.integers(0, 29), max_size=50),
    mean=st.sampled_from([0.0, 60.0, -100.3]),
)
def test_standardised_rows(dtype, shape, ids, mean):
    column = np.random.default_rng(0).normal(mean, 10, size=(30, *shape)).clip(-120, 120)
    column = np.abs(column).astype(dtype) if dtype == "uint8" else column.astype(dtype)
    rows = column.reshape(30, -1).astype(np.float64)
    scale = ColumnScale(tuple(rows.mean(axis=0)), tuple(rows.std(axis=0)))
    ids = np.array(ids, np.int64)
    found = _store(column, 30, scale).gather(NODE, "x", ids)
    assert found.dtype == np.float32
    assert found.shape == (len(ids), *(shape or (1,)))
    expected = ((rows - rows.mean(axis=0)) / rows.std(axis=0))[ids]
    assert np.allclose(found.reshape(expected.shape), expected, rtol=1e-6, atol=1e-6)


@settings(max_examples=60)
@given(
    dtype=st.sampled_from(["float32", "int8", *HALVES]),
    shape=st.sampled_from([(), (3,), (17,), (2, 3), (0,)]),
    ids=st.lists(st.integers(0, 29), max_size=50),
    mean=st.sampled_from([None, 0.0, -100.3]),
    holds=st.booleans(),
)
def test_rows_that_a_device_computes_have_the_bits_of_the_host(dtype, shape, ids, mean, holds):
    column = np.random.default_rng(0).normal(mean or 0, 10, size=(30, *shape)).clip(-120, 120)
    column = column.astype(dtype)
    rows = column.reshape(30, -1).astype(np.float64)
    scale = mean is not None and ColumnScale(tuple(rows.mean(axis=0)), tuple(rows.std(axis=0)))
    ids, host = np.array(ids, np.int64), _store(column, 30, scale or None)
    scales = {NODE: {"x": scale}} if scale else {}
    device = torch.device("cpu")
    columns = find_device_columns(host._bundle, scales, ["x", "y"], device, holds=holds)
    store = LocalFeatureStore(host._bundle, scales, device_columns=columns)
    found = gather_rows_for_device(store, NODE, "x", ids)
    if isinstance(found, StoredRows):
        assert found.data.dtype == (torch.int64 if holds else as_tensor(column).dtype)
        found = found.to(device)
    else:
        assert not holds
        assert dtype == "float32"
    expected = torch.from_numpy(host.gather(NODE, "x", ids))
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("free", "is_held"), [(1200, True), (1199, False)])
def test_a_device_holds_columns_of_a_third_of_its_free_memory(free, is_held, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, free))
    bundle = _store(np.zeros((50, 4), np.float16), 50)._bundle
    found = find_device_columns(bundle, {}, ["x"], torch.device("cpu"), holds="auto")
    assert (found[NODE, "x"].rows is not None) == is_held


def test_elements_close_together_far_from_zero_are_told_apart():
    """A float32 of the mean alone would be off by half of their spread."""
    column = np.float32(2**24) + 2 * np.arange(4, dtype=np.float32).reshape(4, 1)
    rows = column.astype(np.float64)
    scale = ColumnScale(tuple(rows.mean(axis=0)), tuple(rows.std(axis=0)))
    found = _store(column, 4, scale).gather(NODE, "x", np.arange(4))
    assert np.allclose(found[:, 0], [-1.3416408, -0.4472136, 0.4472136, 1.3416408], rtol=1e-6)


def test_an_element_of_one_value_becomes_zero_whatever_it_is():
    scale = ColumnScale((5.0, 1e-40), (0.0, 1e-42))
    found = _store(np.array([[5, 3], [8, 1]], np.float32), 2, scale).gather(NODE, "x", np.arange(2))
    assert found.tolist() == [[0, 0], [0, 0]]


def test_a_model_of_dense_rows_reads_sparse_ones():
    column = SparseColumn(np.array([0, 1, 2]), np.array([1, 0]), np.array([4.0, 6.0]), 2)
    store = _store(column, 2, ColumnScale((3.0, 2.0), (3.0, 2.0)))
    assert store.gather(NODE, "x", np.arange(2)).tolist() == [[-1, 1], [1, -1]]


def test_rows_of_another_width_than_in_training_are_refused():
    with raises("model-feature-width", 2):
        _store(np.zeros((3, 2), np.float32), 3, ColumnScale((0.0,), (2.0,)))


@pytest.mark.parametrize("dtype", [None, "float32", "float64", *HALVES, "int8"])
@pytest.mark.parametrize("given_out", [False, True])
def test_sparse_rows(dtype, given_out):
    indptr = np.array([0, 2, 2, 5])
    indices = np.array([1, 3, 0, 3, 3], np.int32)
    values = None if dtype is None else np.array([1, 2, 3, 4, 5], dtype)
    store = _store(SparseColumn(indptr, indices, values, 4), 3)
    out = np.full((4, 4), 9, np.float32) if given_out else None
    found = store.gather(NODE, "x", np.array([2, 0, 1, 2]), out)
    last, first = ([1, 0, 0, 2], [0, 1, 0, 1]) if dtype is None else ([3, 0, 0, 9], [0, 1, 0, 2])
    assert found.dtype == np.float32
    assert found.tolist() == [last, first, [0, 0, 0, 0], last]
    assert out is None or found is out


@pytest.mark.parametrize("dtype", HALVES)
def test_sparse_halves_are_read_where_they_are_asked_for(dtype):
    """Not all of the column for each batch."""
    values = (np.arange(1 << 20, dtype=np.float32) % 256).astype(dtype)
    column = SparseColumn(np.arange(0, 1 + len(values), 4), np.arange(len(values)) % 8, values, 8)
    store = _store(column, len(values) // 4)
    store.gather(NODE, "x", np.array([0]))
    tracemalloc.start()
    found = store.gather(NODE, "x", np.array([1, 0]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.tolist() == [[0, 0, 0, 0, 4, 5, 6, 7], [0, 1, 2, 3, 0, 0, 0, 0]]
    assert peak < values.nbytes


SPARSE_DTYPES = [None, "float32", "float64", "float16", "bfloat16", "int8"]


@given(
    dtype=st.sampled_from(SPARSE_DTYPES),
    counts=st.lists(st.integers(0, 4), min_size=1, max_size=12),
    ids=st.lists(st.integers(0, 11), max_size=20),
)
def test_sparse_rows_stay_sparse_for_a_model_that_takes_them(dtype, counts, ids):
    rng = np.random.default_rng(0)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    indices = rng.integers(0, 40, indptr[-1]).astype(np.int32)
    values = None if dtype is None else rng.integers(-9, 9, len(indices)).astype(dtype)
    store = _sparse_store(SparseColumn(indptr, indices, values, 40))
    chosen = np.array([i for i in ids if i < len(counts)], np.int64)
    found = store.gather_sparse(NODE, "x", chosen)
    assert (found.values is None) == (values is None)
    assert found.dtype == torch.float32
    assert found.shape == (len(chosen), 40)
    assert np.array_equal(found.to_dense(), store.gather(NODE, "x", chosen))


def test_rows_are_dense_where_that_is_less_work_or_a_model_wants_them():
    few = SparseColumn(np.array([0, 1, 2]), np.array([1, 0]), None, 8)
    many = SparseColumn(np.array([0, 1, 2]), np.array([1, 0]), None, 7)
    ids = np.arange(2)
    assert _sparse_store(few).gather_sparse(NODE, "x", ids) is not None
    assert _sparse_store(many).gather_sparse(NODE, "x", ids) is None
    assert _store(few, 2).gather_sparse(NODE, "x", ids) is None
    assert _sparse_store(np.zeros((2, 8))).gather_sparse(NODE, "x", ids) is None
    scale = ColumnScale((0.0,) * 8, (1.0,) * 8)
    assert _sparse_store(few, scale).gather_sparse(NODE, "x", ids) is None


def test_a_pickled_store_keeps_rows_sparse():
    store = _sparse_store(SparseColumn(np.array([0, 0]), np.zeros(0, np.int32), None, 8))
    copied = pickle.loads(pickle.dumps(store))
    assert copied.gather_sparse(NODE, "x", np.array([0, 0])).to_dense().tolist() == [[0.0] * 8] * 2


def _sparse_store(
    column: np.ndarray | SparseColumn, scale: ColumnScale | None = None
) -> LocalFeatureStore:
    num_nodes = len(column) if isinstance(column, np.ndarray) else len(column.indptr) - 1
    small = SmallGraph({NODE: num_nodes}, {}, stored={NODE: {"x": column}})
    scales = {} if scale is None else {NODE: {"x": scale}}
    return LocalFeatureStore(small.bundle, scales, keeps_sparse=True)


def test_columns_are_those_of_the_bundle():
    assert _store(np.zeros((3, 2), np.float32), 3).columns(NODE)["x"].shape == (2,)


@pytest.mark.parametrize("dtype", HALVES)
def test_every_half_comes_out_as_the_float_of_its_value(dtype):
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype).reshape(-1, 64)
    found = _store(every, len(every)).gather(NODE, "x", np.arange(len(every)))
    assert np.array_equal(found, every.astype(np.float32), equal_nan=True)
    assert np.array_equal(np.signbit(found), np.signbit(every))


@given(st.integers(1, 9), st.lists(st.integers(0, 8), max_size=60), st.integers(0, 3))
def test_groups_are_those_of_a_stable_sort(num_keys: int, given_: list[int], skip: int) -> None:
    keys = torch.tensor([key % num_keys for key in given_], dtype=torch.int64)
    pair = torch.stack([keys, torch.arange(len(keys)) * 7 + 1])[:, skip:]  # rows of a longer one
    keys, values = pair[0], pair[1]
    order, grouped, ptr = group_by_key(keys, values, num_keys)
    assert torch.equal(order, keys.sort(stable=True).indices)
    assert torch.equal(grouped, values[order])
    assert ptr.tolist() == [int((keys < key).sum()) for key in range(num_keys + 1)]


def test_every_other_entry_of_a_tensor() -> None:
    keys = torch.tensor([2, 0, 1, 0, 2, 0])[::2]
    assert group_by_key(keys, keys + 10, 3).values.tolist() == [11, 12, 12]
