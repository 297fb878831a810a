"""Inputs of a model, declared by its class and checked against the bundle.

`BlockEncoder` declares these class attributes and subclasses set them:

    reads_edge_features: edge features, as `edge_attr`.
    reads_edge_weight: a factor on each message, as `edge_weight`.
    reads_src_degree: `src_degree` of blocks, each source's out-degree in the whole graph.
    learns_node_rows: a learned row per node replaces features that a node type lacks.
    reads_node_features: False if learned rows replace the features of all node types.
    reads_messages: False if learned rows are the output.
    keeps_links: links of a training batch stay among its messages, unless sampling is temporal.
    takes_sparse_input: sparse features come as `SparseFeatures`, for a first linear map by
        `raygnn.models.sparse_input.linear`; otherwise as dense rows. An encoder that overrides
        how a layer is built or applied does not inherit it.

A module without these attributes reads the edge columns that its `forward` has parameters for.
With `takes_sparse_input = True` it gets sparse features as a sparse torch tensor.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, TypeGuard

from torch import nn

from raygnn.config import Component, Config, resolve
from raygnn.config.registry import SLOTS
from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.errors import ConfigError, DataError
from raygnn.models.encoder import BlockEncoder
from raygnn.models.hetero import CONVS
from raygnn.models.hetero_encoder import HeteroEncoder
from raygnn.models.subgraph_module import (
    EDGE_ATTR,
    EDGE_WEIGHT,
    needed_edge_inputs,
    takes_dictionaries,
)

_ROLES = ("feature", "weight")
#: By the key of `task.args`, the attribute of the class and the parameter of `forward`.
_SAID_BY = {
    "edge_feature": ("reads_edge_features", EDGE_ATTR),
    "edge_weight": ("reads_edge_weight", EDGE_WEIGHT),
}


def find_edge_columns(
    bundle: Bundle,
    model: Component,
    edge_feature: str | None,
    edge_weight: str | None,
    allow_modules: Sequence[str] = (),
) -> dict[str, str]:
    """Edge columns that a batch needs, mapped to `edge_attr` or `edge_weight`.

    Args:
        edge_feature: feature column of edges. Default: `edge_attr` if the model requires features
            (GINE, or edge_dim or edge_dims is set).
        edge_weight: column of a factor on each message. Default: `weight` if a module's `forward`
            requires weights.
        allow_modules: user modules that `model.type` may name.
    Raises:
        ConfigError: the model does not read such a column, or has another width.
        DataError: no edge type has the column.
    """
    if edge_weight is not None and edge_weight == edge_feature:
        raise ConfigError(
            f"task.args.edge_weight={edge_weight!r} is invalid: it is task.args.edge_feature "
            "already. Set one of the two. [task-edge-columns-same]"
        )
    model_class = resolve(model, "model", allow_modules)
    assert isinstance(model_class, type)
    if edge_feature is None and is_encoder(model_class):
        edge_feature = EDGE_ATTR if model_class.needs_edge_features(model.args) else None
    columns: dict[str, str] = {}
    for key, column in (("edge_feature", edge_feature), ("edge_weight", edge_weight)):
        if column is None:
            continue
        _check_model(model, model_class, key, column)
        widths = bundle.edge_widths(column)
        _check_column(bundle, key, column, widths)
        if key == "edge_feature":
            _check_dims(model.args, column, widths)
        else:
            _check_single(bundle, column, widths)
        columns[column] = _SAID_BY[key][1]
    if not is_encoder(model_class):
        for name in needed_edge_inputs(model_class):
            column = "weight" if name == EDGE_WEIGHT else name
            if name not in columns.values() and bundle.edge_widths(column):
                columns[column] = name
    return columns


def check_node_features(
    bundle: Bundle, node_type: str, feature: str, model_class: type[BlockEncoder]
) -> None:
    """Raises a DataError unless a node type has features or the encoder learns rows instead."""
    if any(column.role == "feature" for column in bundle.columns(node_type).values()):
        return
    if model_class.learns_node_rows:
        return
    raise DataError(
        f"task.args.feature={feature!r} is invalid: node type {node_type!r} has no features. Name "
        f"a column under node_types.{node_type}.features in graph.yaml, or set model.type to one "
        f"that needs none: {', '.join(_models_with('learns_node_rows'))}. [task-no-features]"
    )


def check_types(name: str, model_class: type, num_node_types: int, num_edge_types: int) -> None:
    """Raises a ConfigError if a model for one type of nodes and edges gets several."""
    is_one_type = num_node_types <= 1 and num_edge_types <= 1
    if is_one_type or issubclass(model_class, HeteroEncoder) or takes_dictionaries(model_class):
        return
    conv = f"{{type: Hetero, args: {{conv: {name if name in CONVS else CONVS[0]}}}}}"
    raise ConfigError(
        f"model.type={name!r} is invalid: it takes one node type and one edge type, and the graph "
        f"has {num_node_types} and {num_edge_types}. Set model: {conv}, or HGT, RGCN, SimpleHGN or "
        "LightGCN, or a module of yours with forward(x_dict, edge_index_dict). [model-one-type]"
    )


def keeps_links(config: Config, allow_modules: Sequence[str] = ()) -> bool:
    """Whether the links of a training batch stay among its messages.

    Never with temporal sampling: the encoding as of the earliest links would include them.
    """
    if config.sampling.temporal is not None:
        return False
    return bool(getattr(resolve(config.model, "model", allow_modules), "keeps_links", False))


def reads_src_degree(config: Config, allow_modules: Sequence[str] = ()) -> bool:
    return bool(getattr(resolve(config.model, "model", allow_modules), "reads_src_degree", False))


def reads_messages(config: Config) -> bool:
    """False for raygnn's models that read no messages, otherwise True."""
    if config.model.type not in SLOTS["model"].names:
        return True
    return bool(getattr(resolve(config.model, "model"), "reads_messages", True))


def is_encoder(model_class: type[nn.Module]) -> TypeGuard[type[BlockEncoder]]:
    return issubclass(model_class, BlockEncoder)


def _models_with(attribute: str) -> list[str]:
    from raygnn import models

    return [name for name in SLOTS["model"].names if getattr(getattr(models, name), attribute)]


def _check_model(model: Component, model_class: type[nn.Module], key: str, column: str) -> None:
    attribute, name = _SAID_BY[key]
    said: bool | None = getattr(model_class, attribute, None)
    reads = name in inspect.signature(model_class.forward).parameters if said is None else said
    if not reads:
        tip = "" if model.type in SLOTS["model"].names else f", set {attribute} = True in its class"
        raise ConfigError(
            f"task.args.{key}={column!r} is invalid: model.type={model.type!r} does not read it. "
            f"Set one of {', '.join(_models_with(attribute))}{tip}. [task-edge-column-unread]"
        )


def _check_column(bundle: Bundle, key: str, column: str, widths: dict[EdgeType, int]) -> None:
    if widths:
        return
    have = {
        edge_type_name(t): [n for n, c in bundle.columns(t).items() if c.role in _ROLES]
        for t in bundle.edge_types
    }
    raise DataError(
        f"task.args.{key}={column!r} is invalid: no edge type has such a column; there are {have}. "
        "Name one, or leave it out. [task-edge-column-unknown]"
    )


def _check_dims(args: dict[str, Any], column: str, widths: dict[EdgeType, int]) -> None:
    if "edge_dim" in args and args["edge_dim"] not in widths.values():
        raise ConfigError(
            f"model.args.edge_dim={args['edge_dim']!r} is invalid: edges have "
            f"{next(iter(widths.values()))} features in {column!r}. Leave it out. [model-edge-dim]"
        )
    by_name = {edge_type_name(edge_type): width for edge_type, width in widths.items()}
    for name, edge_dim in (args.get("edge_dims") or {}).items():
        if by_name.get(name, edge_dim) != edge_dim:
            raise ConfigError(
                f"model.args.edge_dims.{name}={edge_dim!r} is invalid: its edges have "
                f"{by_name[name]} features in {column!r}. Leave it out. [model-edge-dim]"
            )


def _check_single(bundle: Bundle, column: str, widths: dict[EdgeType, int]) -> None:
    for edge_type in widths:
        info = bundle.columns(edge_type)[column]
        if info.shape or info.sparse:
            raise DataError(
                f"task.args.edge_weight={column!r} is invalid: {edge_type_name(edge_type)} has "
                f"rows of {widths[edge_type]} there. Name a column of one number per edge, or "
                "declare it as weight in graph.yaml. [task-edge-weight-width]"
            )
