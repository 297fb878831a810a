"""Edge types as (source type, relation, destination type), and settings by edge type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raygnn.config.loader_section import DEFAULT_FANOUTS, REST, fanouts_of, num_hops
from raygnn.errors import ConfigError, DataError

EdgeType = tuple[str, str, str]

# Two underscores, as in PyG's HeteroConv: type names may hold single ones and still read back.
SEPARATOR = "__"
# PyG's word for the reverse of a relation.
REVERSE_PREFIX = "rev_"


def edge_type_name(edge_type: EdgeType) -> str:
    """Writes an edge type as `src__rel__dst`, as in config keys and file names."""
    return SEPARATOR.join(edge_type)


def type_name(type_: str | EdgeType) -> str:
    return type_ if isinstance(type_, str) else edge_type_name(type_)


def reversed_edge_type(edge_type: EdgeType) -> EdgeType:
    """The edge type of an added reverse: (d, rev_r, s) of (s, r, d)."""
    source, relation, target = edge_type
    return target, f"{REVERSE_PREFIX}{relation}", source


def parse_edge_type(name: str) -> EdgeType:
    """Reads `src__rel__dst`. Raises a DataError unless the name has three non-empty parts."""
    parts = name.split(SEPARATOR)
    if len(parts) != 3 or not all(parts):
        raise DataError(
            f"edge type {name!r} is not of the form user__buys__item. [graph-edge-type-name]"
        )
    source, relation, target = parts
    return source, relation, target


#: One list for all edge types, or lists for some, by triple or by `src__rel__dst`, where `default`
#: is for the others.
Fanouts = Sequence[int] | Mapping[str, Sequence[int]] | Mapping[EdgeType, Sequence[int]]


def resolve_fanouts(fanouts: Fanouts, edge_types: Sequence[EdgeType]) -> dict[EdgeType, list[int]]:
    """Fanouts of each edge type, in the sorted order in which a hop visits them.

    Raises:
        ConfigError: an edge type is unknown, or has no fanouts of the others' number of hops.
        DataError: the graph has no edges.
    """
    if not edge_types:
        raise DataError(
            "the graph has no edge type, so nothing is sampled. Declare some. [graph-no-edge-types]"
        )
    named: Any = fanouts
    if isinstance(fanouts, Mapping):
        named = {type_name(key): list(hops) for key, hops in fanouts.items()}
        _check_named(named, list(map(edge_type_name, edge_types)))
    per_type = {t: fanouts_of(named, edge_type_name(t)) for t in edge_types}
    assert len({len(hops) for hops in per_type.values()}) == 1
    return dict(sorted(per_type.items()))


def _check_named(fanouts: Mapping[str, list[int]], edge_types: Sequence[str]) -> None:
    if unknown := [name for name in fanouts if name not in (REST, *edge_types)]:
        raise ConfigError(
            f"sampling.fanouts.{unknown[0]} is invalid: no such edge type. Set it for "
            f"{', '.join(edge_types)}. [sampling-fanouts-unknown]"
        )
    missing = [name for name in edge_types if name not in fanouts]
    if missing and REST not in fanouts and num_hops(fanouts) != len(DEFAULT_FANOUTS):
        rule = f"{', '.join(missing)} has no fanouts, and {DEFAULT_FANOUTS} have other hops"
        key, remedy = "sampling.fanouts", f"Set {REST} in the map"
        raise ConfigError.invalid(key, fanouts, rule, remedy, id="sampling-fanouts-missing")
