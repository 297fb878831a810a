"""Edge types as (source type, relation, destination type), and their written form."""

from __future__ import annotations

from raygnn.errors import DataError

EdgeType = tuple[str, str, str]

# Two underscores, as in PyG's HeteroConv: type names may hold single ones and still read back.
SEPARATOR = "__"
# PyG's word for the reverse of a relation.
REVERSE_PREFIX = "rev_"


def edge_type_name(edge_type: EdgeType) -> str:
    """Writes an edge type as `src__rel__dst`, the form of config keys and file names."""
    return SEPARATOR.join(edge_type)


def type_name(type_: str | EdgeType) -> str:
    """The written form of a node type or an edge type."""
    return type_ if isinstance(type_, str) else edge_type_name(type_)


def reversed_edge_type(edge_type: EdgeType) -> EdgeType:
    """The edge type that is added as the reverse of one: (d, rev_r, s) of (s, r, d)."""
    source, relation, target = edge_type
    return target, f"{REVERSE_PREFIX}{relation}", source


def parse_edge_type(name: str) -> EdgeType:
    """Reads `src__rel__dst` back into a triple.

    Raises:
        DataError: the name has not exactly three non-empty parts.
    """
    parts = name.split(SEPARATOR)
    if len(parts) != 3 or not all(parts):
        raise DataError(
            f"edge type {name!r} is invalid: it needs three names joined by two underscores. "
            "Write source type, relation and destination type, as in 'user__buys__item'."
        )
    source, relation, target = parts
    return source, relation, target
