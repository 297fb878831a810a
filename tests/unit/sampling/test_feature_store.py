from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raygnn.data.bundle import SparseColumn
from raygnn.sampling import LocalFeatureStore
from tests.unit.sampling.memory_bundle import NODE, MemoryBundle

HALVES = ("float16", "bfloat16")


def _store(column: np.ndarray | SparseColumn, num_nodes: int) -> LocalFeatureStore:
    return LocalFeatureStore(MemoryBundle({NODE: num_nodes}, {}, stored={NODE: {"x": column}}))


@settings(max_examples=40, deadline=None)
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


def test_columns_are_those_of_the_bundle():
    assert _store(np.zeros((3, 2), np.float32), 3).columns(NODE)["x"].shape == (2,)


@pytest.mark.parametrize("dtype", HALVES)
def test_every_half_comes_out_as_the_float_of_its_value(dtype):
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype).reshape(-1, 64)
    found = _store(every, len(every)).gather(NODE, "x", np.arange(len(every)))
    assert np.array_equal(found, every.astype(np.float32), equal_nan=True)
    assert np.array_equal(np.signbit(found), np.signbit(every))
