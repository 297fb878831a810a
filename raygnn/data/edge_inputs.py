"""Which columns of the edges a model reads, found and checked in the bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.errors import ConfigError, DataError

if TYPE_CHECKING:
    from raygnn.config import Component

#: What blocks and PyG's modules call them.
EDGE_ATTR, EDGE_WEIGHT = "edge_attr", "edge_weight"

# By the short name of the model: those that read features, and those that read a weight.
_WITH_FEATURES = ("GAT", "GATv2", "GINE", "Transformer", "Hetero")
_WITH_WEIGHTS = ("GCN", "LightGCN")
_BUILT_IN = "raygnn.models."


def find_edge_columns(
    bundle: Bundle, model: Component, edge_feature: str | None, edge_weight: str | None
) -> dict[str, str]:
    """The edge columns that a batch needs, by column: `edge_attr` or `edge_weight`.

    Args:
        edge_feature: column of the edges' features; null takes `edge_attr` where a model of raygnn
            reads features (GINE, or one with edge_dim or edge_dims), and none elsewhere.
        edge_weight: column of a factor on each edge's message; null takes none.
    Raises:
        ConfigError: the model reads no such column, or has another width.
        DataError: no edge type has the column.
    """
    name = built_in_name(model)
    if edge_feature is None and name is not None and _reads_features(name, model.args):
        edge_feature = EDGE_ATTR
    found: dict[str, str] = {}
    if edge_feature is not None:
        _check_model(model, name, "edge_feature", edge_feature, _WITH_FEATURES)
        widths = edge_widths(bundle, edge_feature)
        _check_column(bundle, "edge_feature", edge_feature, widths)
        _check_dims(model.args, edge_feature, widths)
        found[edge_feature] = EDGE_ATTR
    if edge_weight is not None:
        _check_model(model, name, "edge_weight", edge_weight, _WITH_WEIGHTS)
        widths = edge_widths(bundle, edge_weight)
        _check_column(bundle, "edge_weight", edge_weight, widths)
        _check_single(bundle, edge_weight, widths)
        if edge_weight in found:
            raise ConfigError(
                f"task.args.edge_weight={edge_weight!r} is invalid: it is task.args.edge_feature "
                "already. Set one of the two."
            )
        found[edge_weight] = EDGE_WEIGHT
    return found


def edge_widths(bundle: Bundle, column: str) -> dict[EdgeType, int]:
    """The width of a column of features or weights, by edge type that has it."""
    found = {}
    for edge_type in bundle.edge_types:
        info = bundle.columns(edge_type).get(column)
        if info is not None and info.role in _ROLES:
            found[edge_type] = int(info.shape[-1]) if info.shape else 1
    return found


def takes_edge_dims(model: Component) -> bool:
    """Whether it is a model of raygnn that is built for the width of edge features."""
    return built_in_name(model) in _WITH_FEATURES


def built_in_name(model: Component) -> str | None:
    """The short name of a model of raygnn; null for others."""
    name = model.type.removeprefix(_BUILT_IN)
    return None if "." in name else name


def _reads_features(name: str, args: dict[str, Any]) -> bool:
    if name not in _WITH_FEATURES:
        return False
    return "GINE" in (name, args.get("conv")) or bool(args.get("edge_dim") or args.get("edge_dims"))


def _check_model(
    model: Component, name: str | None, key: str, column: str, fitting: tuple[str, ...]
) -> None:
    if name is not None and name not in fitting:
        raise ConfigError(
            f"task.args.{key}={column!r} is invalid: model.type={model.type!r} does not read it. "
            f"Set model.type to one of {', '.join(fitting)}, or leave it out."
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
        "Name one under features of an edge type in graph.yaml, or choose a model that needs none."
    )


def _check_dims(args: dict[str, Any], column: str, widths: dict[EdgeType, int]) -> None:
    if "edge_dim" in args and args["edge_dim"] not in widths.values():
        raise ConfigError(
            f"model.args.edge_dim={args['edge_dim']!r} is invalid: edges have "
            f"{next(iter(widths.values()))} features in column {column!r}. Leave it out."
        )
    by_name = {edge_type_name(edge_type): width for edge_type, width in widths.items()}
    for name, edge_dim in (args.get("edge_dims") or {}).items():
        if by_name.get(name, edge_dim) != edge_dim:
            raise ConfigError(
                f"model.args.edge_dims.{name}={edge_dim!r} is invalid: its edges have "
                f"{by_name[name]} features in column {column!r}. Leave edge_dims out."
            )


def _check_single(bundle: Bundle, column: str, widths: dict[EdgeType, int]) -> None:
    for edge_type in widths:
        info = bundle.columns(edge_type)[column]
        if info.shape or info.sparse:
            raise DataError(
                f"task.args.edge_weight={column!r} is invalid: {edge_type_name(edge_type)} has "
                f"rows of {widths[edge_type]} there. Name a column of one number per edge, or "
                "declare it as weight in graph.yaml."
            )


_ROLES = ("feature", "weight")
