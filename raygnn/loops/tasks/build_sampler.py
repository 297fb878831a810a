"""The sampler that the config asks for."""

from __future__ import annotations

from typing import Any

from raygnn.config import LoadedConfig, build
from raygnn.sampling.neighbor_sampler import NeighborSampler
from raygnn.sampling.protocols import GraphStore
from raygnn.sampling.temporal import Temporal


def build_sampler(loaded: LoadedConfig, graph: GraphStore) -> Any:
    """raygnn's sampler, or the one of `sampling.type`.

    Raises:
        ConfigError: the settings do not fit the graph.
        DataError: the graph has no edges, or not the columns that are asked for.
    """
    sampling = loaded.config.sampling
    if sampling.component is not None:
        settings: dict[str, Any] = {"fanouts": sampling.fanouts, "replace": sampling.replace}
        return build(sampling.component, "sampler", loaded.allow_modules, graph=graph, **settings)
    temporal = sampling.temporal
    return NeighborSampler(
        graph,
        sampling.fanouts,
        replace=sampling.replace,
        weight=sampling.weight,
        temporal=None if temporal is None else Temporal(temporal.column, temporal.strategy),
        disjoint=sampling.disjoint,
    )
