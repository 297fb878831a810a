"""Batches of links over the parts of a graph against those of the same graph opened whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from raygnn.config.data_section import HashSplit
from raygnn.data.ingest.build_bundle import IngestOptions
from raygnn.data.links.message_graph import Messages, message_graph
from raygnn.data.links.split import LinkSplit
from raygnn.data.partition.part import Outline
from raygnn.loops.tasks.link_rules import with_reverses
from raygnn.sampling import LocalGraphStore
from raygnn.sampling.partitioned_stores import PartitionedGraphStore
from raygnn.sampling.parts import map_parts
from tests.partitioned_graphs import Parted, asked_shop, friends, ratings, shop

HASH = {"type": "hash", "fractions": [0.6, 0.2, 0.2]}
TEMPORAL = {"type": "temporal", "quantiles": [0.6, 0.8]}


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Parted]:
    @cache
    def make(name: str) -> Parted:
        tables, options = {
            "friends": (friends, IngestOptions()),
            "undirected": (friends, IngestOptions(undirected=True)),
            "shop": (shop, IngestOptions(reverse_edges=True)),
            "ratings": (ratings, IngestOptions(reverse_edges=True)),
            "asked shop": (asked_shop, IngestOptions(reverse_edges=True)),
        }[name]
        return Parted.make(tmp_path_factory.mktemp("graph"), tables(), 3, options)

    return make


def _links(splits: dict[str, Any], **changes: Any) -> dict[str, Any]:
    args = changes.pop("args", {})
    counts = {"num_random_negatives": 9, "num_random_negatives_eval": 9}
    return {
        "task": {"type": "link_prediction", "args": {**counts, **args}},
        "data__splits": splits,
        "metrics": [{"type": "mrr"}],
        **changes,
    }


def _edges(**changes: Any) -> dict[str, Any]:
    args = changes.pop("args", {})
    return {
        "task": {"type": "edge_prediction", "args": args},
        "data__splits": HASH,
        "metrics": [],
        "model__type": "RGCN",
        **changes,
    }


def _rows(**sampling: Any) -> dict[str, Any]:
    return {
        "task": {"type": "node_classification", "args": {"blend": False, "label": "y"}},
        "model": {"type": "Hetero", "args": {"hidden_channels": 8}},
        "sampling": {"fanouts": [4, 3], "disjoint": True, **sampling},
        "metrics": [],
    }


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "hash": ("friends", _links(HASH)),
    "undirected": ("undirected", _links(HASH, args={"negatives": "degree"})),
    "share of its own for the loss": ("friends", _links(HASH, args={"disjoint_train_ratio": 0.3})),
    "split by time": ("friends", _links(TEMPORAL, args={"test_messages": "inductive"})),
    "weighted": (
        "friends",
        _links(HASH, sampling={"fanouts": [4, 3], "weight": "weight"}, args={"cold_share": 0.2}),
    ),
    "temporal": ("friends", _links(TEMPORAL, sampling={"fanouts": [4, 3], "temporal": {}})),
    "several relations": (
        "shop",
        _links(
            HASH,
            args={
                "edge_type": "user__*__item",
                "decoder": {"type": "distmult"},
                "logq_correction": True,
            },
            model__type="RGCN",
        ),
    ),
    "label edges, hard negatives": (
        "shop",
        _links(
            HASH,
            args={
                "edge_type": "user__likes__item",
                "labels": True,
                "seeds": "anchors",
                "max_labels_per_anchor": 2,
            },
            model__type="RGCN",
        ),
    ),
    "labels of edges": ("ratings", _edges(args={"edge_type": "user__rates__film"})),
    "labels of edges, temporal": (
        "ratings",
        _edges(
            args={"edge_type": "user__rates__film", "inputs": []},
            sampling={"fanouts": [4, 3], "temporal": {}},
        ),
    ),
    "labels of label edges": ("ratings", _edges(args={"edge_type": "user__likes__film"})),
    "several types with times": (
        "shop",
        _links(
            TEMPORAL,
            args={"edge_type": "user__likes__item", "labels": True},
            sampling={"fanouts": [4, 3], "temporal": {"strategy": "last"}},
            model__type="RGCN",
        ),
    ),
    "relations in time, weighted": (
        "shop",
        _links(
            TEMPORAL,
            args={"edge_type": "user__*__item"},
            sampling={"fanouts": [4, 3], "temporal": {}, "weight": "weight"},
            model__type="RGCN",
        ),
    ),
    "rows, last neighbors": ("asked shop", _rows(temporal={"strategy": "last"})),
    "rows, LABOR": ("asked shop", _rows(temporal={}, type="labor")),
    "rows, a window": ("asked shop", _rows(temporal={"strategy": "last", "window": 12})),
    "rows until a time": ("asked shop", _rows(temporal={"until": {"test": 40}})),
}


@pytest.mark.parametrize("case", CASES)
def test_batches_are_those_of_the_graph_opened_whole(
    graphs: Callable[[str], Parted], case: str
) -> None:
    """Of 3 parts; other numbers: see test_partitioned_stores.py."""
    name, settings = CASES[case]
    graphs(name).assert_same_batches(settings)


@pytest.mark.parametrize("split", ["train", "val", "test"])
@pytest.mark.parametrize("name", ["friends", "shop", "undirected"])
def test_message_edges_are_those_of_the_graph_opened_whole(
    graphs: Callable[[str], Parted], name: str, split: Any
) -> None:
    graph = graphs(name)
    edge_type = graph.whole.edge_types[0]
    links = (LinkSplit(edge_type, rule=HashSplit(**HASH), disjoint_train_ratio=0.3),)
    pairs = dict.fromkeys(with_reverses(graph.whole, [edge_type]), ())
    outline = Outline.build(graph.parts, graph.parts.parent / "cache", pairs)
    parts = map_parts(graph.parts, outline)
    found = PartitionedGraphStore(outline, parts, Messages(links, split))
    expected = LocalGraphStore(message_graph(graph.whole, links, split))
    assert expected.num_edges(edge_type) < graph.whole.num_edges(edge_type)
    for each in graph.whole.edge_types:
        assert found.num_edges(each) == expected.num_edges(each)
        for end, count in ((0, "neighbor_degrees"), (2, "degrees")):
            nodes = np.arange(graph.whole.num_nodes(each[end]))
            one, other = (getattr(store, count)(each, nodes) for store in (found, expected))
            assert np.array_equal(one, other)
        edges, wanted = found.adjacency(each), expected.adjacency(each)
        span = slice(0, int(wanted.indptr[-1]))
        assert np.array_equal(edges.indices[span], wanted.indices)
