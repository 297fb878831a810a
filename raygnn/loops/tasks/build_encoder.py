"""The encoder of the configured model, and the stores that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from raygnn.config import Component, Config, LoadedConfig, build, resolve
from raygnn.config.registry import SLOTS
from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import EdgeType, edge_type_name, parse_edge_type
from raygnn.data.links.message_graph import Messages, message_graph
from raygnn.data.partition.part import Outline
from raygnn.data.transforms.fitted import FittedColumn, FittedFeature
from raygnn.data.transforms.state import YEAR_US, Time
from raygnn.errors import ConfigError
from raygnn.loops.model_spec import ModelSpec
from raygnn.loops.tasks.find_inputs import MOST_EVENT_COLUMNS, model_class_of
from raygnn.models.encoder import MLP
from raygnn.models.feature_layers import CrossNetwork, category_inputs
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.models.graph_inputs import is_encoder
from raygnn.models.hetero_encoder import HeteroEncoder
from raygnn.models.relative_time import DateColumn, RelativeTime
from raygnn.models.subgraph_module import EDGE_ATTR, TypedSubgraphModule, takes_dictionaries
from raygnn.sampling.partitioned_stores import PartitionedFeatureStore, PartitionedGraphStore
from raygnn.sampling.parts import PartitionedGraph
from raygnn.sampling.protocols import FeatureStore, GraphStore
from raygnn.sampling.stores import LocalFeatureStore, LocalGraphStore, find_device_columns


def graph_store(
    bundle: Bundle, parts: PartitionedGraph | None = None, messages: Messages | None = None
) -> GraphStore:
    """The edges of a graph that carry messages; all if `messages` is null.

    `parts`: of a partitioned graph, whose outline is the bundle.
    """
    if parts is not None:
        assert isinstance(bundle, Outline)
        return PartitionedGraphStore(bundle, parts, messages)
    if messages is not None:
        bundle = message_graph(bundle, messages.links, messages.split, messages.inductive)
    return LocalGraphStore(bundle)


def feature_store(
    loaded: LoadedConfig,
    bundle: Bundle,
    spec: ModelSpec,
    parts: PartitionedGraph | None = None,
    device: torch.device | None = None,
) -> FeatureStore:
    """The features of a graph as the model reads them: standardized, sparse or dense. `parts`: see
    `graph_store`. `device`: of the batches; a CUDA device widens and standardizes rows itself.
    """
    config = loaded.config
    keeps_sparse = bool(getattr(model_class_of(loaded), "takes_sparse_input", False))
    options: dict[str, Any] = {"keeps_sparse": keeps_sparse}
    if device is not None and device.type == "cuda":
        # A batch of the whole graph is there already.
        may_hold = parts is None and config.sampling.type != "full"
        options["device_columns"] = find_device_columns(
            bundle,
            spec.standardization,
            {*spec.node_columns, *spec.batch_edge_columns},
            device,
            holds=may_hold and config.data.device_features,
        )
    if parts is not None:
        assert isinstance(bundle, Outline)
        return PartitionedFeatureStore(bundle, parts, spec.standardization, **options)
    return LocalFeatureStore(bundle, spec.standardization, **options)


def build_encoder(
    loaded: LoadedConfig, bundle: Bundle, spec: ModelSpec, out_channels: int | None
) -> GraphEncoder:
    """Builds `model`.

    Args:
        bundle: a graph that fits the spec.
        out_channels: width of the output; None if the config sets it.
    Raises:
        ConfigError: the model learns rows of other node types than its class declares.
    """
    config = loaded.config
    model: Component = config.model
    categories = category_inputs(bundle, spec.feature)
    widths = spec.widths | {name: inputs.out_channels for name, inputs in categories.items()}
    interactions = _interactions(config, spec, widths)
    times = _relative_time(spec, widths)
    if times is not None:
        widths |= {t: widths.get(t, 0) + times.channels(t) for t in times.node_types}
    injected: dict[str, Any] = {}
    if out_channels is not None:
        injected["out_channels"] = out_channels
    if "num_layers" not in config.model.args:
        injected["num_layers"] = max(len(hops) for hops in spec.fanouts.values())
    model_class = model_class_of(loaded)
    if is_encoder(model_class) and model_class.reads_edge_features:
        injected.update(_edge_dims(config, spec, model_class))
    edge_types = _message_types(spec)
    takes_types = takes_dictionaries(model_class)
    if issubclass(model_class, HeteroEncoder) or takes_types:
        injected["in_channels"] = widths
        injected["edge_types"] = edge_types
        injected["num_nodes"] = {
            name: spec.node_types[name].num_nodes or bundle.num_nodes(name)
            for name in bundle.node_types
        }
        if takes_types:
            injected["metadata"] = (list(widths), edge_types)
    else:
        injected["in_channels"] = next(iter(widths.values()))
    encoder = build(model, "model", loaded.allow_modules, **injected)
    if isinstance(encoder, HeteroEncoder):
        if encoder.embedded_types != spec.embedded_types:
            raise ConfigError(
                f"model.type={config.model.type!r} is invalid: it learns rows of "
                f"{sorted(encoder.embedded_types)}, not {sorted(spec.embedded_types)}. Set "
                "reads_node_features = False in its class. [model-rows-unsaid]"
            )
        for name in spec.embedded_types:
            categories.pop(name, None)
    built = GraphEncoder(
        encoder, categories, interactions, times, widths=widths, edge_types=edge_types
    )
    if isinstance(built.module, TypedSubgraphModule):
        built.module.initialize(
            {
                name: {
                    parse_edge_type(edge_type): width
                    for edge_type, width in spec.edge_columns[column].items()
                }
                for column, name in spec.edge_inputs.items()
            }
        )
    return built


def _relative_time(
    spec: ModelSpec, widths: Mapping[str, int] = MappingProxyType({})
) -> RelativeTime | None:
    times = spec.relative_time
    if times is None:
        return None
    layer = RelativeTime(
        span=times.span,
        node_types=tuple(name for name in spec.node_types if name not in spec.embedded_types),
        timed_nodes=frozenset(times.node_types),
        edge_types=tuple(_message_types(spec)),
        timed_edges=frozenset(map(parse_edge_type, times.edge_types)),
        edge_features={
            parse_edge_type(name): {
                spec.batch_edge_columns[column]: spec.edge_columns[column][name]
                for column in times.edge_features
                if name in spec.edge_columns[column]
            }
            for name in times.edge_types
        },
        averages=spec.output.predicted_edges is None,
        event_widths={
            t: width if (width := widths.get(t[0], 0)) <= MOST_EVENT_COLUMNS else 0
            for t in map(parse_edge_type, times.event_types)
        },
        dates={name: _find_dates(spec, name) for name in spec.node_types} if times.dates else {},
        past=(spec.output.ends[0], times.past_labels) if times.past_labels else None,
        season=spec.output.ends[0] if times.season else None,
    )
    read = tuple(name for name in layer.node_types if layer.channels(name))
    return replace(layer, node_types=read)


def find_shared_leaves(config: Config, spec: ModelSpec) -> frozenset[str]:
    """Node types whose nodes of the last hop have the same input rows for all seeds."""
    if config.model.type not in SLOTS["model"].names:
        return frozenset()
    model_class = resolve(config.model, "model")
    assert isinstance(model_class, type)
    if not issubclass(model_class, HeteroEncoder) or model_class.reads_src_degree:
        return frozenset()
    times = _relative_time(spec)
    if times is None:
        return frozenset(spec.node_types)
    past = () if times.past is None else times.past[:1]
    dated = [name for name, dates in times.dates.items() if dates]
    return frozenset(spec.node_types) - {*times.timed_nodes, *dated, *past}


def _find_dates(spec: ModelSpec, node_type: str) -> list[DateColumn]:
    """The dates among the elements of a type's rows; category codes move behind the others."""
    fitted = spec.transforms.get(node_type, {}).get(spec.feature, FittedFeature(()))
    scale = spec.standardization.get(node_type, {}).get(spec.feature)
    found, position = [], 0
    for part in fitted.parts:
        if isinstance(part, FittedColumn) and isinstance(part.state, Time):
            mean, std = (0.0, 1.0) if scale is None else (scale.mean[position], scale.std[position])
            num_codes = sum(code < position for code in fitted.num_codes)
            origin = part.state.latest * 1e6 - mean * YEAR_US
            found.append(DateColumn(position - num_codes, std * YEAR_US, origin))
        position += part.width
    return found


def _interactions(
    config: Config, spec: ModelSpec, widths: Mapping[str, int]
) -> dict[str, CrossNetwork]:
    """Cross layers by node type with features. Raises a ConfigError without any."""
    pairs = config.model.interaction
    if pairs is None:
        return {}
    read = [name for name in widths if name not in spec.embedded_types]
    if not read:
        raise ConfigError(
            f"model.interaction is invalid: model.type={config.model.type!r} reads no features "
            "here to cross. Remove it. [model-interaction-features]"
        )
    return {name: CrossNetwork(widths[name], pairs.num_layers, pairs.rank) for name in read}


#: Arguments of an encoder that say nothing of a single layer.
_OF_A_STACK = frozenset(
    {
        *("out_channels", "num_layers", "dropout", "input_dropout", "norm"),
        *("jump", "input_projection", "normalize_output", "sparse_embeddings", "residual"),
        "node_embeddings",
    }
)


def build_layer(
    loaded: LoadedConfig, bundle: Bundle, spec: ModelSpec, in_channels: int, out_channels: int
) -> nn.Module:
    """One message passing layer of `model`, as an encoder of embeddings.

    A linear layer if the model is not one of raygnn's encoders. `in_channels`: width of the
    embeddings of all node types.
    """
    config, model_class = loaded.config, model_class_of(loaded)
    if not is_encoder(model_class):
        return MLP(in_channels, out_channels, num_layers=1)
    args = {name: value for name, value in config.model.args.items() if name not in _OF_A_STACK}
    injected: dict[str, Any] = {"out_channels": out_channels, "num_layers": 1}
    if model_class.reads_edge_features:
        injected.update(_edge_dims(config, spec, model_class))
    if issubclass(model_class, HeteroEncoder):
        injected["in_channels"] = dict.fromkeys(bundle.node_types, in_channels)
        injected["edge_types"] = _message_types(spec)
    else:
        injected["in_channels"] = in_channels
    layer: nn.Module = build(
        config.model.model_copy(update={"args": args}), "model", loaded.allow_modules, **injected
    )
    return layer


def _message_types(spec: ModelSpec) -> list[EdgeType]:
    return [t for t in spec.edge_types if any(spec.fanouts.get(edge_type_name(t), (1,)))]


def _edge_dims(config: Config, spec: ModelSpec, model_class: type) -> dict[str, Any]:
    """`edge_dim` or `edge_dims`, if the config leaves them to the graph."""
    args = config.model.args
    feature = next((name for name, x in spec.edge_inputs.items() if x == EDGE_ATTR), None)
    if feature is None or args.keys() & {"edge_dim", "edge_dims"}:
        return {}
    widths = spec.edge_columns[feature]
    if issubclass(model_class, HeteroEncoder):
        return {"edge_dims": {parse_edge_type(name): width for name, width in widths.items()}}
    return {"edge_dim": next(iter(widths.values()))}
