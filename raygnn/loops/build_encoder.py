"""The configured encoder, built for the types and features of the graph."""

from __future__ import annotations

from typing import Any

from raygnn.config import LoadedConfig, build, resolve
from raygnn.data.bundle import Bundle
from raygnn.errors import ConfigError, DataError
from raygnn.loops.model_signature import LinkOutput, ModelSignature, NodeOutput
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.models.hetero_encoder import HeteroEncoder


def build_encoder(
    loaded: LoadedConfig, bundle: Bundle, feature: str, out_channels: int | None
) -> GraphEncoder:
    """Builds `model`.

    Args:
        feature: column of the input features; node types without it get learned embeddings in the
            encoders for several types.
        out_channels: width of the output; None where the config sets it.
    Raises:
        ConfigError: the model is for one node type and the graph has several.
        DataError: the model needs features and the graph has none.
    """
    config = loaded.config
    widths = feature_widths(bundle, feature)
    injected: dict[str, Any] = {}
    if out_channels is not None:
        injected["out_channels"] = out_channels
    if "num_layers" not in config.model.args:
        injected["num_layers"] = config.sampling.num_hops
    target = resolve(config.model, "model", loaded.allow_modules)
    if isinstance(target, type) and issubclass(target, HeteroEncoder):
        injected["in_channels"] = widths
        injected["edge_types"] = _message_types(bundle, config.sampling.direction)
        injected["num_nodes"] = {name: bundle.num_nodes(name) for name in bundle.node_types}
    else:
        injected["in_channels"] = _only_width(loaded, bundle, widths, feature)
    encoder = build(config.model, "model", loaded.allow_modules, **injected)
    return GraphEncoder(encoder, bundle.node_types)


def encoder_signature(
    encoder: GraphEncoder, bundle: Bundle, feature: str, output: NodeOutput | LinkOutput
) -> ModelSignature:
    """What an encoder that `build_encoder` built needs of a graph."""
    module = encoder.module
    embedded = module.embedded_types if isinstance(module, HeteroEncoder) else frozenset()
    return ModelSignature.of(bundle, feature, feature_widths(bundle, feature), embedded, output)


def feature_widths(bundle: Bundle, feature: str) -> dict[str, int]:
    """The width of a feature column, by node type that has it."""
    found = {}
    for node_type in bundle.node_types:
        info = bundle.columns(node_type).get(feature)
        if info is not None and info.role == "feature":
            found[node_type] = int(info.shape[-1]) if info.shape else 1
    return found


def _message_types(bundle: Bundle, direction: str) -> list[tuple[str, str, str]]:
    if direction == "in":
        return list(bundle.edge_types)
    return [(d, f"rev_{relation}", s) for s, relation, d in bundle.edge_types]


def _only_width(loaded: LoadedConfig, bundle: Bundle, widths: dict[str, int], feature: str) -> int:
    if len(bundle.node_types) > 1 or len(bundle.edge_types) > 1:
        name = loaded.config.model.type
        raise ConfigError(
            f"model.type={name!r} is invalid: it is for graphs of one node type and one edge type, "
            f"and this one has {len(bundle.node_types)} and {len(bundle.edge_types)}. Set Hetero "
            f"(with args.conv), HGT, RGCN, SimpleHGN or LightGCN."
        )
    if not widths:
        raise DataError(
            f"task.args.feature={feature!r} is invalid: node type {bundle.node_types[0]!r} has no "
            "such feature. Name a column under its features in graph.yaml, or set model.type to "
            "LightGCN, which needs none."
        )
    return next(iter(widths.values()))
