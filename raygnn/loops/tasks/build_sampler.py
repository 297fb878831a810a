"""The sampler that the config asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from raygnn.config import Config, LoadedConfig, build
from raygnn.config.loader_section import with_fanouts
from raygnn.data.edge_types import EdgeType, resolve_fanouts
from raygnn.data.time_units import time_unit, window_as_time
from raygnn.errors import ConfigError
from raygnn.models.graph_inputs import reads_messages
from raygnn.sampling.neighbor_sampler import NeighborSampler
from raygnn.sampling.protocols import GraphStore
from raygnn.sampling.temporal import Temporal


def build_sampler(loaded: LoadedConfig, graph: GraphStore) -> Any:
    """raygnn's sampler, or the user's own of `sampling.type`.

    With `full` it samples all edges, to compute rows of the whole graph batch by batch.
    """
    sampling = loaded.config.sampling
    if sampling.component is not None:
        settings: dict[str, Any] = {"fanouts": sampling.fanouts, "replace": sampling.replace}
        return build(sampling.component, "sampler", loaded.allow_modules, graph=graph, **settings)
    configured, temporal = sampling.temporal, None
    if configured is not None:
        window = None
        if configured.window is not None:
            window = window_as_time(configured.window, time_unit(graph, configured.column))
        temporal = Temporal(configured.column, configured.strategy, window)
    return NeighborSampler(
        graph,
        find_fanouts(loaded.config, graph.edge_types),
        replace=sampling.replace,
        weight=sampling.weight,
        temporal=temporal,
        disjoint=sampling.disjoint,
        labor=sampling.is_labor,
    )


def find_fanouts(config: Config, edge_types: Sequence[EdgeType]) -> dict[EdgeType, list[int]]:
    """Fanouts by edge type, for raygnn's own sampling.

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


def with_all_neighbors(loaded: LoadedConfig) -> LoadedConfig:
    """The config with fanouts of -1. Raises a ConfigError for a user's own sampler."""
    sampling = loaded.config.sampling
    if sampling.component is not None:
        raise ConfigError(
            f"exact=True is invalid: sampling.type={sampling.type!r} draws the neighborhoods, and "
            "the model does not work layer by layer. Set exact to False.",
            id="model-exact-sampler",
        )

    def whole(hops: Sequence[int]) -> list[int]:
        return [-1] * len(hops) if any(hops) else list(hops)

    config = with_fanouts(loaded.config, whole)
    sampling = config.sampling.model_copy(update={"replace": False, "weight": None})
    return replace(loaded, config=config.model_copy(update={"sampling": sampling}))
