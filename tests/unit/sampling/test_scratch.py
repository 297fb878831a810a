from __future__ import annotations

import pickle

import numpy as np
import torch

from raygnn.sampling.scratch import BufferPool


def test_memory_comes_back_with_the_last_tensor():
    pool = BufferPool()
    tensor = torch.from_numpy(pool.array((100, 4), np.float32))
    address = tensor.data_ptr()
    part = tensor[3:5]
    del tensor
    other = pool.array((100, 4), np.float32)
    assert other.ctypes.data != address
    del part
    again = pool.array((50, 8), np.int32)
    assert again.ctypes.data == address
    assert again.shape == (50, 8)
    assert again.dtype == np.int32


def test_larger_arrays_get_new_memory():
    pool = BufferPool()
    array = pool.array((10,), np.int64)
    array[:] = 1
    del array
    assert pool.array((1000,), np.int64).shape == (1000,)
    assert pool.array((0, 3), np.int64).shape == (0, 3)


def test_a_pickled_pool_starts_empty():
    pool = pickle.loads(pickle.dumps(BufferPool()))
    assert pool.array((2,), np.int8).shape == (2,)
