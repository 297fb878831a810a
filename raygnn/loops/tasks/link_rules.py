"""Shared rules of tasks whose seeds are links or edges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from scipy import sparse

from raygnn.config import Config
from raygnn.config.data_section import HashSplit, TemporalSplit
from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import REVERSE_PREFIX, EdgeType
from raygnn.errors import ConfigError, Problem


def sampler_rules(config: Config) -> Iterator[Problem]:
    """Sampling settings with which edges cannot be excluded from their own messages."""
    if not config.sampling.draws_neighbors:
        yield Problem(
            ("sampling", "type"),
            "links are kept out of their own messages by raygnn's sampler only",
            "Remove it",
            id="sampling-links-sampler",
        )
    if config.sampling.ppr is not None:
        yield Problem(
            ("sampling", "ppr"),
            "walks go along the edges that are to be predicted",
            "Remove it",
            id="sampling-ppr-links",
        )


def split_rule(config: Config) -> HashSplit | TemporalSplit | None:
    """`data.splits` for links and edges. Raises a ConfigError for a rule of nodes."""
    rule = config.data.splits
    if rule is not None and rule.type == "per_class":
        raise ConfigError(
            "data.splits.type='per_class' is invalid: links have no classes. Set hash or "
            "temporal, or declare a split column of the edges.",
            id="split-links-per-class",
        )
    return rule


def forward_types(bundle: Bundle, available: Sequence[EdgeType]) -> list[EdgeType]:
    """The edge types without reverses of others."""
    forward: list[EdgeType] = []
    for edge_type in available:
        reverse = bundle.reverse_of(edge_type) if edge_type in bundle.edge_types else None
        is_named_so = reverse != edge_type and edge_type[1].startswith(REVERSE_PREFIX)
        is_reverse = reverse in available and is_named_so
        if reverse == edge_type or (reverse not in forward and not is_reverse):
            forward.append(edge_type)
    return forward


def with_reverses(bundle: Bundle, edge_types: Sequence[EdgeType]) -> list[EdgeType]:
    types: dict[EdgeType, None] = {}
    for edge_type in edge_types:
        if edge_type in bundle.edge_types:
            types |= dict.fromkeys([edge_type, bundle.reverse_of(edge_type) or edge_type])
    return list(types)


def reverse_types(bundle: Bundle) -> dict[EdgeType, EdgeType]:
    reverses = {edge_type: bundle.reverse_of(edge_type) for edge_type in bundle.edge_types}
    return {edge_type: other for edge_type, other in reverses.items() if other is not None}


def undeclared_reverses(
    bundle: Bundle, edge_types: Sequence[EdgeType], anchors: np.ndarray, targets: np.ndarray
) -> list[EdgeType]:
    """Edge types of as many edges that have nine tenths of some links in the opposite direction.

    They would reveal the links, because no `reverse_of` says that both are the same edges.
    """
    anchor_type, _, target_type = edge_types[0]
    linked = [edge_type for edge_type in edge_types if edge_type in bundle.edge_types]
    numbers = {bundle.num_edges(edge_type) for edge_type in linked}
    known = {*linked, *map(bundle.reverse_of, linked)}
    found = []
    for other in bundle.edge_types:
        is_opposite = (other[0], other[2]) == (target_type, anchor_type)
        if other in known or not is_opposite or bundle.num_edges(other) not in numbers:
            continue
        csc = bundle.csc(other)
        edges = np.ones(len(csc.indices), np.float32), csc.indices, csc.indptr
        shape = bundle.num_nodes(anchor_type), bundle.num_nodes(target_type)
        if np.mean(sparse.csr_matrix(edges, shape)[anchors, targets] > 0) >= 0.9:
            found.append(other)
    return found
