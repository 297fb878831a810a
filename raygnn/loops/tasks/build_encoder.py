"""The configured encoder, built for the types and features of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

from raygnn.config import Config, LoadedConfig, build, resolve
from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import EdgeType, edge_type_name, type_name
from raygnn.data.standardization import ColumnScale, Standardization
from raygnn.errors import DataError
from raygnn.loops.signature import LinkOutput, ModelSignature, NodeOutput
from raygnn.loops.task import TaskEnvironment
from raygnn.models.category_inputs import category_inputs
from raygnn.models.encoder import Encoder
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.models.graph_inputs import check_types, edge_widths, find_edge_columns, is_encoder
from raygnn.models.hetero_encoder import HeteroEncoder
from raygnn.models.wrap import EDGE_ATTR, EDGE_WEIGHT
from raygnn.sampling.protocols import message_type


def build_encoder(
    loaded: LoadedConfig,
    bundle: Bundle,
    feature: str,
    out_channels: int | None,
    edge_columns: Mapping[str, str] = MappingProxyType({}),
) -> GraphEncoder:
    """Builds `model`.

    Args:
        feature: column of the input features; node types without it get learned embeddings in the
            encoders for several types.
        edge_columns: of `find_edge_columns`.
        out_channels: width of the output; None where the config sets it.
    Raises:
        ConfigError: the model is for one node type and the graph has several.
        DataError: the model needs features and the graph has none.
    """
    config = loaded.config
    categories = category_inputs(bundle, feature)
    widths = feature_widths(bundle, feature)
    widths |= {name: inputs.out_channels for name, inputs in categories.items()}
    injected: dict[str, Any] = {}
    if out_channels is not None:
        injected["out_channels"] = out_channels
    if "num_layers" not in config.model.args:
        injected["num_layers"] = config.sampling.num_hops
    model_class = resolve(config.model, "model", loaded.allow_modules)
    assert isinstance(model_class, type)
    if is_encoder(model_class) and model_class.reads_edge_features:
        injected.update(_edge_dims(config, bundle, edge_columns, model_class))
    if issubclass(model_class, HeteroEncoder):
        injected["in_channels"] = widths
        injected["edge_types"] = _message_types(config, bundle)
        injected["num_nodes"] = {name: bundle.num_nodes(name) for name in bundle.node_types}
    else:
        injected["in_channels"] = _only_width(loaded, bundle, widths, feature, model_class)
    encoder = build(config.model, "model", loaded.allow_modules, **injected)
    if isinstance(encoder, HeteroEncoder):
        for name in encoder.embedded_types:
            categories.pop(name, None)
    return GraphEncoder(encoder, categories)


class EdgeArguments(Protocol):
    """The part of `task.args` that names edge columns."""

    @property
    def edge_feature(self) -> str | None: ...
    @property
    def edge_weight(self) -> str | None: ...


def edge_columns_of(env: TaskEnvironment, arguments: EdgeArguments) -> dict[str, str]:
    """The edge columns that the configured model reads; see `find_edge_columns`."""
    loaded = env.loaded
    names = (arguments.edge_feature, arguments.edge_weight)
    return find_edge_columns(env.bundle, loaded.config.model, *names, loaded.allow_modules)


def encoder_signature(
    encoder: GraphEncoder,
    bundle: Bundle,
    feature: str,
    edge_columns: Mapping[str, str],
    output: NodeOutput | LinkOutput,
    standardization: Standardization,
) -> ModelSignature:
    """What an encoder that `build_encoder` built needs of a graph."""
    module = encoder.module
    embedded = module.embedded_types if isinstance(module, HeteroEncoder) else frozenset()
    widths = feature_widths(bundle, feature)
    columns = list(edge_columns)
    return ModelSignature.of(bundle, feature, widths, embedded, columns, output, standardization)


def find_standardization(
    config: Config, bundle: Bundle, feature: str, edge_columns: Mapping[str, str]
) -> Standardization:
    """How the features that a model reads are standardised, as ingest has measured them.

    Factors on messages (`edge_weight`) stay as they are.
    """
    if not config.data.standardize:
        return {}
    read: list[tuple[str | EdgeType, str]] = [(name, feature) for name in bundle.node_types]
    attributes = [column for column, name in edge_columns.items() if name != EDGE_WEIGHT]
    read += [(edge_type, column) for edge_type in bundle.edge_types for column in attributes]
    found: dict[str, dict[str, ColumnScale]] = {}
    for type_, column in read:
        info = bundle.columns(type_).get(column)
        scale = None if info is None else ColumnScale.of(info)
        if scale is not None:
            found.setdefault(type_name(type_), {})[column] = scale
    return found


def feature_widths(bundle: Bundle, feature: str) -> dict[str, int]:
    """The width of a feature column, by node type that has it."""
    found = {}
    for node_type in bundle.node_types:
        info = bundle.columns(node_type).get(feature)
        if info is not None and info.role == "feature":
            found[node_type] = int(info.shape[-1]) if info.shape else 1
    return found


def _message_types(config: Config, bundle: Bundle) -> list[EdgeType]:
    """The edge types that a model passes messages along: those of which any are sampled."""
    fanouts = config.sampling.fanouts
    used = bundle.edge_types
    if isinstance(fanouts, Mapping):
        used = [t for t in used if any(fanouts.get(edge_type_name(t), [1]))]
    return [message_type(t, config.sampling.direction) for t in used]


def _edge_dims(
    config: Config, bundle: Bundle, edge_columns: Mapping[str, str], model_class: type
) -> dict[str, Any]:
    """`edge_dim` or `edge_dims`, where the config leaves them to the graph."""
    args, direction = config.model.args, config.sampling.direction
    feature = next((column for column, name in edge_columns.items() if name == EDGE_ATTR), None)
    if feature is None or args.keys() & {"edge_dim", "edge_dims"}:
        return {}
    widths = {message_type(t, direction): n for t, n in edge_widths(bundle, feature).items()}
    if issubclass(model_class, HeteroEncoder):
        return {"edge_dims": widths}
    return {"edge_dim": next(iter(widths.values()))}


def _only_width(
    loaded: LoadedConfig, bundle: Bundle, widths: dict[str, int], feature: str, model_class: type
) -> int:
    name, num_edge_types = loaded.config.model.type, len(bundle.edge_types)
    check_types(name, model_class, len(bundle.node_types), num_edge_types)
    if not widths:
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
    return next(iter(widths.values()))
