"""Sampled neighborhoods as rows of an Arrow table, a row for each micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from raygnn.data.edge_types import parse_edge_type, type_name
from raygnn.sampling.subgraph import SampledSubgraph
from raygnn.sampling.temporal import Temporal

_BY_NODE_TYPE = ("node", "num_sampled_nodes", "seed_index", "seed", "seed_time")
_BY_EDGE_TYPE = ("row", "col", "edge", "dst_ptr", "num_sampled_edges")
_COUNTS = ("num_sampled_nodes", "num_sampled_edges")


def subgraph_table(subgraphs: Sequence[SampledSubgraph]) -> pa.Table:
    """A row for each neighborhood, in order; all are of one sampler and of seeds of the same types.

    Columns are lists of numbers, named by attribute and type, as `node/paper` or
    `edge/author__writes__paper`. What the neighborhoods lack, as times, has no column.
    """
    rows = [_arrays(subgraph) for subgraph in subgraphs]
    return pa.table({name: _lists([row[name] for row in rows]) for name in rows[0]})


def subgraph_at(table: pa.Table, place: int, temporal: Temporal | None = None) -> SampledSubgraph:
    """The neighborhood in a row of such a table, number for number as it was sampled.

    Args:
        temporal: the settings of the sampler, which a table does not hold.
    """
    found: dict[str, dict[Any, Any]] = {name: {} for name in (*_BY_NODE_TYPE, *_BY_EDGE_TYPE)}
    for column in table.column_names:
        name, of = column.split("/", 1)
        values = table[column][place].values.to_numpy(zero_copy_only=False)
        key = parse_edge_type(of) if name in _BY_EDGE_TYPE else of
        found[name][key] = values.tolist() if name in _COUNTS else values.copy()
    rows, cols = found.pop("row"), found.pop("col")
    edge_index = {key: np.stack([rows[key], cols[key]]) for key in rows}
    seed, seed_time = found.pop("seed") or None, found.pop("seed_time") or None
    return SampledSubgraph(
        edge_index=edge_index, seed=seed, seed_time=seed_time, temporal=temporal, **found
    )


def _arrays(subgraph: SampledSubgraph) -> dict[str, np.ndarray]:
    return {
        f"{name}/{type_name(key)}": np.asarray(values)
        for name in (*_BY_NODE_TYPE, *_BY_EDGE_TYPE)
        for key, values in (getattr(subgraph, name) or {}).items()
    }


def _lists(arrays: list[np.ndarray]) -> pa.Array:
    offsets = np.cumsum([0, *map(len, arrays)])
    return pa.LargeListArray.from_arrays(offsets, np.concatenate(arrays))
