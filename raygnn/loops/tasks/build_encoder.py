"""The inputs of the configured model, and its encoder."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import nn

from raygnn.config import Component, Config, LoadedConfig, build, resolve
from raygnn.config.registry import SLOTS
from raygnn.data.arrays import thinned
from raygnn.data.bundle import Bundle
from raygnn.data.bundle_record import ColumnInfo
from raygnn.data.edge_types import EdgeType, edge_type_name, parse_edge_type, type_name
from raygnn.data.fit_rows import FitRows, statistics
from raygnn.data.links.message_graph import Messages, message_graph
from raygnn.data.partition.part import Outline
from raygnn.data.standardization import ColumnScale, Standardization
from raygnn.data.time_units import time_unit
from raygnn.data.transforms.state import YEAR_S, FittedColumn, FittedFeature, Time, Transforms
from raygnn.errors import ConfigError, DataError
from raygnn.loops.model_spec import ModelSpec, NodeInput, TimeInput, edge_widths
from raygnn.loops.tasks.build_sampler import find_fanouts
from raygnn.loops.tasks.target import TaskArguments, TaskTarget
from raygnn.models.encoder import MLP, Encoder
from raygnn.models.feature_layers import FeatureInteraction, category_inputs
from raygnn.models.graph_encoder import (
    EDGE_ATTR,
    EDGE_WEIGHT,
    GraphEncoder,
    TypedSubgraphModule,
    takes_dictionaries,
)
from raygnn.models.graph_inputs import (
    check_node_features,
    check_types,
    find_edge_columns,
    is_encoder,
)
from raygnn.models.hetero_encoder import HeteroEncoder
from raygnn.models.relative_time import DateColumn, RelativeTime
from raygnn.sampling.partitioned_stores import PartitionedFeatureStore, PartitionedGraphStore
from raygnn.sampling.parts import PartitionedGraph
from raygnn.sampling.protocols import FeatureStore, GraphStore
from raygnn.sampling.stores import LocalFeatureStore, LocalGraphStore, find_device_columns


def check_inputs(loaded: LoadedConfig, bundle: Bundle, target: TaskTarget) -> dict[str, str]:
    """Checks that a graph has the inputs of the configured model. Returns its edge columns.

    Raises:
        ConfigError: the model does not read an input of `task.args`, or supports one type of nodes
            and edges while the graph has several.
        DataError: the graph lacks an input.
    """
    config, arguments = loaded.config, target.arguments
    model_class = _model_class(loaded)
    edge_inputs = _edge_inputs(loaded, bundle, arguments)
    if is_encoder(model_class):
        for node_type in dict.fromkeys(target.output.ends):
            check_node_features(bundle, node_type, arguments.feature, model_class)
    if not issubclass(model_class, HeteroEncoder):
        _check_only_type(config, bundle, arguments.feature, model_class)
    return edge_inputs


def _model_class(loaded: LoadedConfig) -> type:
    model_class = resolve(loaded.config.model, "model", loaded.allow_modules)
    assert isinstance(model_class, type)
    return model_class


def make_spec(loaded: LoadedConfig, bundle: Bundle, target: TaskTarget) -> ModelSpec:
    """Determines the model's inputs from a graph, and its output from a target.

    Raises:
        ConfigError, DataError: as `check_inputs`.
    """
    config, feature = loaded.config, target.arguments.feature
    edge_inputs = check_inputs(loaded, bundle, target)
    widths = bundle.feature_widths(feature)
    times = _find_times(config, bundle, target)
    with_ages = target.output.own_columns if times is None else times.edge_features
    edge_columns = {**dict.fromkeys(with_ages, EDGE_ATTR), **edge_inputs}
    with_inputs = {*widths, *(_timed_types(times, target) if times else ())}
    embedded = _embedded_types(loaded, bundle, with_inputs)
    _check_dictionaries(loaded, bundle, feature, with_inputs)
    with_rows = [name for name in bundle.node_types if name not in embedded]
    return ModelSpec(
        feature=feature,
        node_types={
            name: NodeInput.of(bundle, name, widths.get(name), embedded=name in embedded)
            for name in bundle.node_types
        },
        edge_types=tuple(bundle.edge_types),
        edge_columns={name: edge_widths(bundle, name, bundle.edge_types) for name in edge_columns},
        output=target.trained_output(loaded),
        standardization=find_standardization(
            config, bundle, feature, edge_columns, with_rows, target.fit_rows(bundle, config)
        ),
        transforms=_find_transforms(bundle, feature, edge_columns, with_rows),
        edge_inputs=edge_inputs,
        fanouts=_find_fanouts(config, bundle),
        relative_time=times,
    )


def _check_dictionaries(
    loaded: LoadedConfig, bundle: Bundle, feature: str, with_inputs: Collection[str]
) -> None:
    model_class = _model_class(loaded)
    bare = [name for name in bundle.node_types if name not in with_inputs]
    if bare and takes_dictionaries(model_class):
        raise DataError.invalid(
            "task.args.feature",
            feature,
            f"node type {bare[0]!r} has no such feature, and {model_class.__name__} takes x_dict",
            f"Name a column under node_types.{bare[0]}.features in graph.yaml",
            id="task-no-features",
        )


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
    keeps_sparse = bool(getattr(_model_class(loaded), "takes_sparse_input", False))
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
    widths |= {name: inputs.out_channels for name, inputs in interactions.items()}
    times = _relative_time(spec, widths)
    if times is not None:
        widths |= {t: widths.get(t, 0) + times.channels(t) for t in times.node_types}
    injected: dict[str, Any] = {}
    if out_channels is not None:
        injected["out_channels"] = out_channels
    if "num_layers" not in config.model.args:
        injected["num_layers"] = max(len(hops) for hops in spec.fanouts.values())
    model_class = _model_class(loaded)
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
                f"model.type={config.model.type!r} is invalid: it learns rows of the node types "
                f"{sorted(encoder.embedded_types)}, and features say "
                f"{sorted(spec.embedded_types)}. Set reads_node_features = False in its class if "
                "it reads none.",
                id="model-rows-unsaid",
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


def _find_times(config: Config, bundle: Bundle, target: TaskTarget) -> TimeInput | None:
    """Times that a model reads, if any. Raises a ConfigError without temporal sampling."""
    wanted, temporal = config.model.relative_time, config.sampling.temporal
    if wanted == "auto":
        wanted = temporal is not None and target.reads_times()
    if not wanted:
        return None
    seed_times = target.training_times(bundle, config)
    if temporal is None or seed_times is None:
        raise ConfigError.invalid(
            "model.relative_time",
            True,
            "sampling is not temporal" if seed_times is not None else "the seeds have no times",
            "Set sampling.temporal: {}, and a time of the rows or edges, or remove it",
            id="model-relative-time",
        )
    column = temporal.column
    timed = [t for t in bundle.node_types if column in bundle.columns(t)]
    timed_edges = [edge_type_name(t) for t in bundle.edge_types if column in bundle.columns(t)]
    last = seed_times.max()
    times = [_times_until(bundle, node_type, column, last) for node_type in timed]
    lows = [
        np.quantile(thinned(t, _MAX_TIMES), _FIRST_ROWS) for t in [*times, seed_times] if len(t)
    ]
    span = float(last - min(lows))
    num_until = dict(zip(timed, map(len, times), strict=True))
    is_of_nodes, is_dated = target.output.predicted_edges is None, time_unit(bundle, column) == "us"
    inner = {target.output.ends[0]}  # types of nodes before the last hop, which sample edges
    for _ in range(config.sampling.num_hops - 1):
        inner |= {source for source, _, into in bundle.edge_types if into in inner}
    # A row has one edge to each of its references, and what it refers to has many rows.
    event_types = [
        name
        for t in bundle.edge_types
        if t[0] in timed
        and t[2] in inner
        and num_until.get(t[2], bundle.num_nodes(t[2]))
        < (num_edges := _num_edges_until(bundle, t, column, last))
        and ((name := edge_type_name(t)) not in timed_edges or num_edges <= num_until[t[0]])
    ]
    return TimeInput(
        column,
        span if span > 0 else 1.0,
        tuple(timed),
        tuple(timed_edges),
        target.output.own_columns or _edge_features(config, bundle, target),
        dates=config.model.interaction is None and is_dated,
        past_labels=target.num_past_columns,
        event_types=tuple(event_types) if is_of_nodes else (),
        season=is_of_nodes and is_dated and float(np.ptp(seed_times)) > _SEASONS,
    )


def _times_until(
    bundle: Bundle, type_: str | EdgeType, column: str, last: np.generic
) -> np.ndarray:
    """Times of nodes or edges up to that of the last training row: later ones change no weight."""
    times = bundle.column(type_, column)
    assert isinstance(times, np.ndarray)
    return times[times <= last]


def _num_edges_until(bundle: Bundle, edge_type: EdgeType, column: str, last: np.generic) -> int:
    """Edges up to a time, their own or that of their source.

    All edges of a graph in parts that was fitted on other rows.
    """
    if bundle.is_of_parts:
        fit = bundle.parts_fit
        is_counted = fit is not None and fit.until == last
        counts = fit.num_edges if fit is not None and is_counted else {}
        return counts.get(edge_type_name(edge_type), bundle.num_edges(edge_type))
    if column in bundle.columns(edge_type):
        return len(_times_until(bundle, edge_type, column, last))
    times = bundle.column(edge_type[0], column)
    assert isinstance(times, np.ndarray)
    return int((times <= last)[bundle.csc(edge_type).indices].sum())


def _edge_features(config: Config, bundle: Bundle, target: TaskTarget) -> tuple[str, ...]:
    """Feature columns of edges with times that are read with the ages, for rows of tables.

    Modules of the user get the edge features that they ask for.
    """
    is_builtin = config.model.type in SLOTS["model"].names
    if target.output.predicted_edges is not None or not target.reads_times() or not is_builtin:
        return ()
    assert config.sampling.temporal is not None
    column, name = config.sampling.temporal.column, target.arguments.edge_feature or EDGE_ATTR
    timed = [t for t in bundle.edge_types if column in bundle.columns(t)]
    widths = edge_widths(bundle, name, timed)
    return (name,) if widths and max(widths.values()) <= _MOST_EVENT_COLUMNS else ()


def _timed_types(times: TimeInput, target: TaskTarget) -> Collection[str]:
    """Node types that read times: those with times, and both ends of edges that are predicted."""
    is_of_edges = target.output.predicted_edges is not None
    reads_rows = is_of_edges or times.past_labels
    return {*times.node_types, *(target.output.ends if reads_rows else ())}


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
            t: width if (width := widths.get(t[0], 0)) <= _MOST_EVENT_COLUMNS else 0
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
            origin = part.state.latest * _SECOND - mean * _YEAR
            found.append(DateColumn(position - num_codes, std * _YEAR, origin))
        position += part.width
    return found


def _interactions(
    config: Config, spec: ModelSpec, widths: Mapping[str, int]
) -> dict[str, FeatureInteraction]:
    """Cross layers by node type with features. Raises a ConfigError without any."""
    pairs = config.model.interaction
    if pairs is None:
        return {}
    read = [name for name in widths if name not in spec.embedded_types]
    if not read:
        raise ConfigError(
            f"model.interaction is invalid: it crosses features, and model.type="
            f"{config.model.type!r} reads none of this graph. Remove it, or name features in "
            "graph.yaml and choose a model that reads them.",
            id="model-interaction-features",
        )
    is_parallel = pairs.structure == "parallel"
    return {
        name: FeatureInteraction(
            widths[name], pairs.num_layers, pairs.rank, pairs.deep, is_parallel=is_parallel
        )
        for name in read
    }


_SECOND = 1e6  # in microseconds, the unit of dates
_YEAR = YEAR_S * _SECOND
_SEASONS = 2 * _YEAR  # training must see a season twice
_MOST_EVENT_COLUMNS = 128  # per type of events or edges; a node reads four means of each
_MAX_TIMES = 100_000  # read per type to find the first ones
_FIRST_ROWS = 0.01  # share of rows that may be earlier than the first time that counts

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
    config, model_class = loaded.config, _model_class(loaded)
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


def find_standardization(
    config: Config,
    bundle: Bundle,
    feature: str,
    edge_columns: Mapping[str, str],
    node_types: Collection[str],
    rows: FitRows,
) -> Standardization:
    """Standardization of the features that a model reads, without factors on messages
    (`edge_weight`).

    Args:
        node_types: types whose feature the model reads.
        rows: rows for means and standard deviations.
    """
    if not config.data.standardize:
        return {}
    attributes = [column for column, name in edge_columns.items() if name != EDGE_WEIGHT]
    scales: dict[str, dict[str, ColumnScale]] = {}
    for type_, column, info in _read_columns(bundle, feature, attributes, node_types):
        scale = ColumnScale.of(info, statistics(bundle, type_, column, rows))
        if scale is not None:
            scales.setdefault(type_name(type_), {})[column] = scale
    return scales


def _find_transforms(
    bundle: Bundle, feature: str, edge_columns: Collection[str], node_types: Collection[str]
) -> Transforms:
    features: dict[str, dict[str, FittedFeature]] = {}
    for type_, column, info in _read_columns(bundle, feature, edge_columns, node_types):
        if info.transforms is not None:
            features.setdefault(type_name(type_), {})[column] = info.transforms
    return features


def _read_columns(
    bundle: Bundle, feature: str, edge_columns: Collection[str], node_types: Collection[str]
) -> Iterator[tuple[str | EdgeType, str, ColumnInfo]]:
    read: list[tuple[str | EdgeType, str]] = [(name, feature) for name in node_types]
    read += [(edge_type, column) for edge_type in bundle.edge_types for column in edge_columns]
    for type_, column in read:
        info = bundle.columns(type_).get(column)
        if info is not None:
            yield type_, column, info


def _edge_inputs(loaded: LoadedConfig, bundle: Bundle, arguments: TaskArguments) -> dict[str, str]:
    names = (arguments.edge_feature, arguments.edge_weight)
    return find_edge_columns(bundle, loaded.config.model, *names, loaded.allow_modules)


def _embedded_types(
    loaded: LoadedConfig, bundle: Bundle, with_inputs: Collection[str]
) -> Collection[str]:
    model_class = _model_class(loaded)
    if not issubclass(model_class, HeteroEncoder):
        return ()
    if not model_class.reads_node_features:
        return bundle.node_types
    return [name for name in bundle.node_types if name not in with_inputs]


def _find_fanouts(config: Config, bundle: Bundle) -> dict[str, tuple[int, ...]]:
    """Fanouts by name of edge type. Custom samplers receive them unchanged."""
    fanouts = config.sampling.fanouts
    if config.sampling.component is None:
        resolved = find_fanouts(config, bundle.edge_types)
        return {edge_type_name(edge_type): tuple(hops) for edge_type, hops in resolved.items()}
    if isinstance(fanouts, Mapping):
        return {name: tuple(hops) for name, hops in fanouts.items()}
    return {edge_type_name(edge_type): tuple(fanouts) for edge_type in bundle.edge_types}


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


def _check_only_type(config: Config, bundle: Bundle, feature: str, model_class: type) -> None:
    name, num_edge_types = config.model.type, len(bundle.edge_types)
    check_types(name, model_class, len(bundle.node_types), num_edge_types)
    if not bundle.feature_widths(feature):
        raise DataError(
            f"task.args.feature={feature!r} is invalid: node type {bundle.node_types[0]!r} has no "
            "such feature. Name a column under its features in graph.yaml, or set model.type to "
            "LightGCN, which needs none.",
            id="task-feature-unknown",
        )
    shape = bundle.columns(bundle.node_types[0])[feature].shape
    if len(shape) > 1 and issubclass(model_class, Encoder):
        raise DataError(
            f"task.args.feature={feature!r} is invalid: its rows are tensors of shape "
            f"{list(shape)}, and {model_class.__name__} reads flat ones. Write them as lists, or "
            "set model.type to a module of your own that reads tensors.",
            id="task-feature-shape",
        )
