"""The inputs of the configured model: what it reads of a graph."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np

from raygnn.config import Config, LoadedConfig, resolve
from raygnn.config.registry import SLOTS
from raygnn.data.arrays import thinned
from raygnn.data.bundle import Bundle
from raygnn.data.bundle_record import ColumnInfo
from raygnn.data.edge_types import EdgeType, edge_type_name, type_name
from raygnn.data.fit_rows import FitRows, statistics
from raygnn.data.standardization import ColumnScale, Standardization
from raygnn.data.time_units import time_unit
from raygnn.data.transforms.fitted import FittedFeature, Transforms
from raygnn.data.transforms.state import YEAR_US
from raygnn.errors import ConfigError, DataError
from raygnn.loops.model_spec import ModelSpec, NodeInput, TimeInput, edge_widths
from raygnn.loops.tasks.build_sampler import find_fanouts
from raygnn.loops.tasks.target import TaskArguments, TaskTarget
from raygnn.models import graph_inputs
from raygnn.models.encoder import Encoder
from raygnn.models.hetero_encoder import HeteroEncoder
from raygnn.models.subgraph_module import EDGE_ATTR, EDGE_WEIGHT, takes_dictionaries

#: Columns of a type of events or edges that are averaged; a node reads four means of each.
MOST_EVENT_COLUMNS = 128
_SEASONS = 2 * YEAR_US  # training must see a season twice
_MAX_TIMES = 100_000  # read per type to find the first ones
_FIRST_ROWS = 0.01  # share of rows that may be earlier than the first time that counts


def check_inputs(loaded: LoadedConfig, bundle: Bundle, target: TaskTarget) -> dict[str, str]:
    """Checks that a graph has the inputs of the configured model. Returns its edge columns.

    Raises:
        ConfigError: the model does not read an input of `task.args`, or supports one type of nodes
            and edges while the graph has several.
        DataError: the graph lacks an input.
    """
    config, arguments = loaded.config, target.arguments
    model_class = model_class_of(loaded)
    edge_inputs = _edge_inputs(loaded, bundle, arguments)
    if graph_inputs.is_encoder(model_class):
        for node_type in dict.fromkeys(target.output.ends):
            graph_inputs.check_node_features(bundle, node_type, arguments.feature, model_class)
    if not issubclass(model_class, HeteroEncoder):
        _check_only_type(config, bundle, arguments.feature, model_class)
    return edge_inputs


def model_class_of(loaded: LoadedConfig) -> type:
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
    unseen = set() if times is None else _unseen_edges(config, bundle, target)
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
        fanouts={
            edge_type_name(edge_type): (0,) * len(hops) if edge_type in unseen else tuple(hops)
            for edge_type, hops in find_fanouts(config, bundle.edge_types).items()
        },
        relative_time=times,
    )


def _unseen_edges(config: Config, bundle: Bundle, target: TaskTarget) -> set[EdgeType]:
    """Edge types that begin after the last training row, unless all do. Their weights would remain
    as drawn, and add noise to later predictions.
    """
    seed_times = target.training_times(bundle, config)
    assert seed_times is not None
    assert config.sampling.temporal is not None
    column, last = config.sampling.temporal.column, seed_times.max()
    unseen = {
        t
        for t in bundle.edge_types
        if bundle.num_edges(t)
        and (column in bundle.columns(t) or column in bundle.columns(t[0]))
        and not _num_edges_until(bundle, t, column, last)
    }
    return unseen if len(unseen) < len(bundle.edge_types) else set()


def _check_dictionaries(
    loaded: LoadedConfig, bundle: Bundle, feature: str, with_inputs: Collection[str]
) -> None:
    model_class = model_class_of(loaded)
    bare = [name for name in bundle.node_types if name not in with_inputs]
    if bare and takes_dictionaries(model_class):
        rule = f"node type {bare[0]!r} has no such feature, and {model_class.__name__} takes x_dict"
        remedy = f"Name a column under node_types.{bare[0]}.features in graph.yaml"
        raise DataError.invalid("task.args.feature", feature, rule, remedy, id="task-no-features")


def _find_times(config: Config, bundle: Bundle, target: TaskTarget) -> TimeInput | None:
    """Times that a model reads, if any. Raises a ConfigError without temporal sampling."""
    wanted, temporal = config.model.relative_time, config.sampling.temporal
    if wanted == "auto":
        wanted = temporal is not None and target.reads_times()
    if not wanted:
        return None
    seed_times = target.training_times(bundle, config)
    if temporal is None or seed_times is None:
        rule = "sampling is not temporal" if seed_times is not None else "the seeds have no times"
        key, remedy = "model.relative_time", "Set sampling.temporal: {} and times, or remove it"
        raise ConfigError.invalid(key, True, rule, remedy, id="model-relative-time")
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
    times = bundle.dense(type_, column)
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
    times = bundle.dense(edge_type[0], column)
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
    return (name,) if widths and max(widths.values()) <= MOST_EVENT_COLUMNS else ()


def _timed_types(times: TimeInput, target: TaskTarget) -> Collection[str]:
    """Node types that read times: those with times, and both ends of edges that are predicted."""
    is_of_edges = target.output.predicted_edges is not None
    reads_rows = is_of_edges or times.past_labels
    return {*times.node_types, *(target.output.ends if reads_rows else ())}


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
    return graph_inputs.find_edge_columns(bundle, loaded.config.model, *names, loaded.allow_modules)


def _embedded_types(
    loaded: LoadedConfig, bundle: Bundle, with_inputs: Collection[str]
) -> Collection[str]:
    model_class = model_class_of(loaded)
    if not issubclass(model_class, HeteroEncoder):
        return ()
    if not model_class.reads_node_features:
        return bundle.node_types
    return [name for name in bundle.node_types if name not in with_inputs]


def _check_only_type(config: Config, bundle: Bundle, feature: str, model_class: type) -> None:
    name, num_edge_types = config.model.type, len(bundle.edge_types)
    graph_inputs.check_types(name, model_class, len(bundle.node_types), num_edge_types)
    if not bundle.feature_widths(feature):
        raise DataError(
            f"task.args.feature={feature!r} is invalid: unknown feature of "
            f"{bundle.node_types[0]!r}. Add it in graph.yaml, or set model.type: LightGCN, which "
            "needs none. [task-feature-unknown]"
        )
    shape = bundle.columns(bundle.node_types[0])[feature].shape
    if len(shape) > 1 and issubclass(model_class, Encoder):
        raise DataError(
            f"task.args.feature={feature!r} is invalid: {model_class.__name__} reads no rows of "
            f"shape {list(shape)}. Write lists, or set your own model.type. [task-feature-shape]"
        )
