"""The sampler that the config asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from raygnn.config import Config, LoadedConfig
from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import EdgeType, edge_type_name, resolve_fanouts
from raygnn.data.time_units import time_unit, window_as_time
from raygnn.models.graph_inputs import reads_messages
from raygnn.sampling.neighbor_sampler import NeighborSampler
from raygnn.sampling.protocols import GraphStore
from raygnn.sampling.temporal import LAST, Temporal


def build_sampler(loaded: LoadedConfig, graph: GraphStore) -> NeighborSampler:
    """With `sampling.type: full` it samples all edges, to compute rows of the whole graph batch by
    batch.
    """
    sampling = loaded.config.sampling
    configured, temporal = sampling.temporal, None
    if configured is not None:
        window = None
        if configured.window is not None:
            window = window_as_time(configured.window, time_unit(graph, configured.column))
        temporal = Temporal(configured.column, configured.strategy, window)
    return NeighborSampler(
        graph,
        find_fanouts(loaded.config, graph.edge_types),
        weight=sampling.weight,
        temporal=temporal,
        disjoint=sampling.disjoint,
        labor=sampling.is_labor,
    )


def find_fanouts(config: Config, edge_types: Sequence[EdgeType]) -> dict[EdgeType, list[int]]:
    """Fanouts by edge type.

    On the whole graph, all edges of types with fanouts other than 0, for `model.args.num_layers`
    layers or as many as there are fanouts. No edges for a model that reads no messages.
    """
    sampling = config.sampling
    resolved = resolve_fanouts(sampling.fanouts, edge_types)
    if not reads_messages(config):
        return {edge_type: [0] for edge_type in edge_types}
    if not sampling.is_full:
        return resolved
    num_layers = config.model.args.get("num_layers", sampling.num_hops)
    return {
        edge_type: [-1 if any(hops) else 0] * num_layers for edge_type, hops in resolved.items()
    }


def with_all_neighbors(loaded: LoadedConfig, graph: Bundle | GraphStore) -> LoadedConfig:
    """The config with fanouts of -1 instead of numbers other than 0, except where `strategy: last`
    takes the latest edges: with more, it would be another model than the one trained.
    """
    sampling = loaded.config.sampling
    latest = sampling.temporal if takes_latest(loaded.config) else None
    fanouts: dict[str, list[int]] = {}
    for edge_type, hops in resolve_fanouts(sampling.fanouts, graph.edge_types).items():
        is_limited = latest is not None and latest.column in graph.columns(edge_type)
        every = hops if is_limited else [-1 if fanout else 0 for fanout in hops]
        fanouts[edge_type_name(edge_type)] = list(every)
    changes = {"fanouts": fanouts, "weight": None}
    sampling = sampling.model_copy(update=changes)
    return replace(loaded, config=loaded.config.model_copy(update={"sampling": sampling}))


def with_own_neighborhoods(loaded: LoadedConfig, *, is_disjoint: bool = True) -> LoadedConfig:
    """The config with a separate neighborhood for each seed, or a shared one."""
    sampling = loaded.config.sampling.model_copy(update={"disjoint": is_disjoint})
    return replace(loaded, config=loaded.config.model_copy(update={"sampling": sampling}))


def takes_latest(config: Config) -> bool:
    """Whether nodes read their latest edges, up to the fanout."""
    temporal = config.sampling.temporal
    return temporal is not None and temporal.strategy == LAST
