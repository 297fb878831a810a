from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from raygnn.sampling import LocalGraphStore, NeighborSampler
from raygnn.sampling.rng import batch_key
from raygnn.sampling.subgraph import SampledSubgraph
from raygnn.sampling.subgraph_rows import subgraph_at, subgraph_table
from tests.small_graph import NODE, random_graph


def _assert_same(one: SampledSubgraph, other: SampledSubgraph) -> None:
    for name, parts in vars(one).items():
        others = getattr(other, name)
        if parts is None:
            assert others is None, name
            continue
        assert parts.keys() == others.keys(), name
        for key, values in parts.items():
            np.testing.assert_array_equal(values, others[key], err_msg=name, strict=True)


@pytest.mark.parametrize("disjoint", [False, True])
def test_rows_of_parquet_are_the_neighborhoods_that_were_sampled(tmp_path: Path, disjoint: bool):
    sampler = NeighborSampler(LocalGraphStore(random_graph().bundle), [4, 3], disjoint=disjoint)
    seeds = [np.arange(3, 40, 4), np.array([7]), np.array([5, 9, 5])]
    keys = [batch_key(1, "train", 0, index) for index in range(3)]
    sampled = [sampler.sample({NODE: s}, key) for s, key in zip(seeds, keys, strict=True)]
    pq.write_table(subgraph_table(sampled), tmp_path / "rows.parquet", compression="zstd")
    table = pq.read_table(tmp_path / "rows.parquet")
    assert table.num_rows == 3
    for place in (2, 0, 1):
        _assert_same(sampled[place], subgraph_at(table, place))
