"""Bundles that do not fit into memory: how their files are read, and that nothing else changes."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

import numpy as np
import pytest

from raygnn.data import arrays
from raygnn.data.arrays import open_array
from raygnn.data.bundle import Bundle
from raygnn.outputs.report_advice import too_large
from raygnn.sampling import LocalFeatureStore, LocalGraphStore, NeighborSampler
from tests.small_runs import small_bundle


def mapping_flags(array: np.ndarray) -> set[str]:
    """The kernel's flags of the mapping that an array lies in."""
    flags: set[str] = set()
    is_it = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        bounds = line.split(" ", 1)[0].split("-")
        if len(bounds) == 2:
            is_it = int(bounds[0], 16) <= array.ctypes.data < int(bounds[1], 16)
        elif is_it and line.startswith("VmFlags:"):
            flags = set(line.split()[1:])
    return flags


def is_in_memory(rows: np.ndarray, row: int) -> bool:
    """Whether the page of a mapped row is; to read it, even without waiting, would bring it."""
    page, found = (rows[row:].ctypes.data) & ~4095, ctypes.create_string_buffer(1)
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    assert mincore(ctypes.c_void_p(page), ctypes.c_size_t(4096), found) == 0
    return bool(found.raw[0] & 1)


def test_only_files_larger_than_memory_are_mapped_for_random_reads(tmp_path, monkeypatch):
    bundle = small_bundle(tmp_path)
    assert not bundle.is_larger_than_memory
    (edge_type,) = bundle.edge_types
    assert "rr" not in mapping_flags(bundle.csc(edge_type).indices)
    monkeypatch.setattr(arrays, "memory_bytes", lambda: bundle.num_bytes)
    large = Bundle.open(bundle.path)
    assert large.is_larger_than_memory
    assert "data.feature_dtype: float16" in too_large(large)[0]
    assert not too_large(bundle)
    assert "rr" in mapping_flags(large.csc(edge_type).indices)


def test_samples_and_rows_are_those_of_a_graph_in_memory(tmp_path, monkeypatch):
    bundle = small_bundle(tmp_path)
    (node_type,) = bundle.node_types
    monkeypatch.setattr(arrays, "memory_bytes", lambda: 1)
    large = Bundle.open(bundle.path)
    ids = np.random.default_rng(0).integers(0, bundle.num_nodes(node_type), 200)
    seeds = {node_type: np.unique(ids)[:5]}
    found = [
        (
            LocalFeatureStore(each).gather(node_type, "x", ids),
            NeighborSampler(LocalGraphStore(each), [3, 2]).sample(seeds, 7).node[node_type],
        )
        for each in (bundle, large)
    ]
    for ours, theirs in zip(*found, strict=True):
        assert np.array_equal(ours, theirs)


def test_rows_are_read_before_they_are_needed(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, np.zeros((1000, 4096), np.uint8))
    rows = open_array(path)
    file = os.open(path, os.O_RDONLY)
    os.fdatasync(file)  # tests replace `os.fsync`
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)
    wanted, other = 400, 800
    if is_in_memory(rows, wanted) or is_in_memory(rows, other):
        pytest.skip("this file system keeps its files in memory")
    arrays.expect_random_reads(rows)
    arrays.ask_for_rows(rows, np.array([3, wanted, wanted + 1, 7]))
    until = time.monotonic() + 10
    while not is_in_memory(rows, wanted) and time.monotonic() < until:
        time.sleep(0.01)
    assert is_in_memory(rows, wanted)
    assert not is_in_memory(rows, other)


def test_the_limit_of_a_control_group_counts(tmp_path, monkeypatch):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(arrays, "_limit_files", lambda: [tmp_path / "none", limit])
    for text, is_limit in (("max\n", False), ("1000000\n", True)):
        limit.write_text(text)
        arrays.memory_bytes.cache_clear()
        assert (arrays.memory_bytes() == 10**6) == is_limit
    assert arrays.outgrows_memory(10**15)
    arrays.memory_bytes.cache_clear()  # later tests ask for this machine's
