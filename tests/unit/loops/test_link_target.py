"""Which links are learned where the config names none, and the share of cold nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raygnn.config import load_config
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows
from raygnn.loops.tasks.link_prediction.target import LinkTarget, LinkTargetArguments
from raygnn.loops.tasks.link_prediction.task import _cold_share
from tests.errors import raises
from tests.graph_writer import ingest_tables

_BUYS, _SOLD = ("user", "buys", "item"), ("item", "rev_buys", "user")
_FOLLOWS = ("user", "follows", "user")


def _find(folder: Path, *edge_types: EdgeType, reverse_edges: bool = False) -> list[str]:
    rng = np.random.default_rng(0)
    nodes = {name: node_rows(np.arange(30)) for name in ("user", "item")}
    edges = {edge_type: edge_rows(*rng.integers(0, 30, (2, 200))) for edge_type in edge_types}
    bundle = ingest_tables(folder, GraphTables(nodes, edges), reverse_edges=reverse_edges)
    splits = {"type": "hash", "fractions": [0.6, 0.2, 0.2]}
    task = {"type": "link_prediction"}
    config = load_config({"data": {"uri": "unread", "splits": splits}, "task": task}).config
    found = LinkTarget.find(bundle, config, LinkTargetArguments())
    return [edge_type_name(edge_type) for edge_type in found.edge_types]


@pytest.mark.parametrize("order", [(_BUYS, _SOLD), (_SOLD, _BUYS)])
def test_a_type_is_chosen_over_its_reverse(tmp_path: Path, order: tuple[EdgeType, ...]) -> None:
    assert _find(tmp_path, *order) == ["user__buys__item"]


@pytest.mark.parametrize("edge_type", [_BUYS, _FOLLOWS])
def test_reverses_that_the_config_adds_are_not_chosen(tmp_path: Path, edge_type: EdgeType) -> None:
    assert _find(tmp_path, edge_type, reverse_edges=True) == [edge_type_name(edge_type)]


def test_of_two_types_one_has_to_be_named(tmp_path: Path) -> None:
    with raises("task-edge-type-missing", "user__buys__item", "user__follows__user"):
        _find(tmp_path, _BUYS, _FOLLOWS, reverse_edges=True)


HASH = {"type": "hash", "fractions": [0.8, 0.1, 0.1]}
TEMPORAL = {"type": "temporal", "quantiles": [0.8, 0.9]}


@pytest.mark.parametrize(
    ("splits", "given", "share"),
    [
        (None, None, 0.0),
        (HASH, None, 0.0),
        (TEMPORAL, None, 0.1),
        (TEMPORAL, 0, 0),
        (HASH, 0.3, 0.3),
    ],
)
def test_new_nodes_are_expected_of_temporal_splits(splits, given, share):
    loaded = load_config({"data": {"uri": "x", "splits": splits}}, [])
    arguments = LinkTargetArguments.of({} if given is None else {"cold_share": given})
    assert _cold_share(arguments, loaded) == share
