"""No batch of a link task passes messages along what it has to tell: whole tasks, random graphs."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raygnn.data.edge_types import EdgeType
from raygnn.data.ingest.plan_bundle import IngestOptions
from raygnn.data.partition.build import Partitioning, partition
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from raygnn.errors import DataError
from raygnn.loops.tasks.link_prediction.task import LinkPrediction
from tests.partitioned_graphs import task_on_parts
from tests.small_runs import link_task, small_config

NUM_NODES = 7
Pairs = set[tuple[int, int]]


@st.composite
def _graphs(draw: st.DrawFn) -> tuple[GraphTables, EdgeType, dict[str, Any]]:
    """Few nodes, so that many edges are parallel, reverse or loops."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    target_type = draw(st.sampled_from(["a", "b"]))
    source, target = rng.integers(0, NUM_NODES, (2, draw(st.integers(25, 60))))
    if draw(st.booleans()):
        source, target = np.tile(source, 2), np.tile(target, 2)
    nodes = {name: node_rows(np.arange(NUM_NODES)) for name in sorted({"a", target_type})}
    linked: EdgeType = ("a", "to", target_type)
    is_directed = target_type == "b" or draw(st.booleans())
    edges = {linked: replace(edge_rows(source, target), directed=is_directed)}
    if draw(st.booleans()):
        edges["a", "beside", "a"] = edge_rows(*rng.integers(0, NUM_NODES, (2, 20)))
    labels = {}
    task = {"edge_type": "__".join(linked), "num_random_negatives": 3}
    if draw(st.booleans()):
        task["labels"] = True
        pairs = rng.integers(0, NUM_NODES, (2, 20))
        both = [np.concatenate([source[:15], pairs[0]]), np.concatenate([target[:15], pairs[1]])]
        labels[linked, "positive"] = edge_rows(*both)
    task["disjoint_train_ratio"] = draw(st.sampled_from([0.0, 0.4]))
    task["test_messages"] = draw(st.sampled_from(["transductive", "inductive"]))
    task["max_labels_per_anchor"] = draw(st.sampled_from([None, 1]))
    return GraphTables(nodes, edges, label_edges=labels), linked, task


def _task(folder: str, tables: GraphTables, args: dict[str, Any]) -> LinkPrediction:
    config = small_config(
        folder,
        data={
            "uri": write_tables(tables, str(Path(folder) / "tables")),
            "cache_dir": str(Path(folder) / "cache"),
            "reverse_edges": True,
            "splits": {"type": "hash", "fractions": [0.5, 0.25, 0.25]},
        },
        task={"type": "link_prediction", "args": args},
        metrics=[],
        sampling={"fanouts": [-1, 4]},
        model={"type": "RGCN", "args": {"hidden_channels": 2}},
        loader={"batch_size": 3, "eval_batch_size": 3},
    )
    return link_task(config)


def _links(task: LinkPrediction, split: str) -> Pairs:
    edges = task.target.splits[split]
    anchors = np.repeat(edges.anchors, np.diff(edges.indptr))
    return set(zip(anchors.tolist(), edges.targets.tolist(), strict=True))


def _carried(task: LinkPrediction, batch: Any, linked: EdgeType, split: str) -> Pairs:
    """(anchor, target) of all sampled edges of the type and of its reverse, both ways if alike."""
    bundle, found = task.env.bundle, set()
    for edge_type in (linked, bundle.reverse_of(linked)):
        if edge_type not in bundle.edge_types:
            continue
        csc = bundle.csc(edge_type)
        target = np.repeat(np.arange(len(csc.indptr) - 1), np.diff(csc.indptr))
        taken = batch.edges[edge_type].e_id.numpy()
        pairs = set(zip(csc.indices[taken].tolist(), target[taken].tolist(), strict=True))
        found |= pairs if edge_type == linked else {pair[::-1] for pair in pairs}
    if linked[0] == linked[2]:
        found |= {pair[::-1] for pair in found}
    return found


def _check_known(task: LinkPrediction, split: str, links: dict[str, Pairs]) -> None:
    """Links of later splits compete; those of the split and of earlier ones do not."""
    nodes = np.arange(NUM_NODES)
    known = task.loader(split).plan.known
    grid = known.mask(nodes, nodes)
    found = {(int(anchor), int(node)) for anchor, node in np.argwhere(grid)}
    if known.is_one_type:
        assert np.array_equal(grid, grid.T)
        found -= {(node, node) for node in range(NUM_NODES)}
        links = {name: {pair for pair in of if pair[0] != pair[1]} for name, of in links.items()}
    last = list(links).index(split) + 1
    assert found >= set().union(*list(links.values())[:last])
    assert not found & set().union(*list(links.values())[last:])


@settings(max_examples=50)
@given(drawn=_graphs())
def test_no_batch_sees_what_it_has_to_tell(drawn):
    tables, linked, args = drawn
    with tempfile.TemporaryDirectory() as folder:
        try:
            task = _task(folder, tables, args)
        except DataError as error:
            assert "would be empty" in str(error)  # noqa: PT017
            return
        links = {name: _links(task, name) for name in ("train", "val", "test")}
        later = {"train": links["val"] | links["test"], "val": links["val"] | links["test"]}
        is_inductive = args["test_messages"] == "inductive"
        later["test"] = later["val"] if is_inductive else links["test"]
        if args["disjoint_train_ratio"]:
            later["train"] |= links["train"]
        seen: Pairs = set()
        for split in links:
            _check_known(task, split, links)
            for epoch in range(2):
                for batch in task.loader(split).iterate(epoch):
                    own = set(map(tuple, batch.links.id.T.tolist()))
                    assert own <= links[split]
                    carried = _carried(task, batch, linked, split)
                    assert not carried & own
                    assert not carried & later[split]
                    seen |= carried
        task.close()
    assert seen  # the rest is sampled


_USER, _ITEM = np.random.default_rng(0).integers(0, 40, (2, 200)).tolist()
_ROW = list(range(200))


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ({("b", "views", "a"): (_ITEM, _USER)}, ["b__views__a"]),
        ({("a", "views", "b"): (_USER + _ITEM, _ITEM + _USER)}, ["a__views__b"]),
        ({("row", "by", "a"): (_ROW, _USER), ("row", "of", "b"): (_ROW, _ITEM)}, ["row"]),
        ({("b", "in", "row"): (_ITEM, _ROW), ("row", "by", "a"): (_ROW, _USER)}, ["row"]),
        ({("b", "views", "a"): (_USER, _ITEM)}, []),  # other pairs
        ({("row", "by", "a"): (_ITEM, _USER), ("row", "of", "b"): (_ITEM, _ITEM)}, []),  # a group
    ],
)
def test_paths_that_reveal_the_links_to_predict_are_named(
    others: dict[EdgeType, Any], expected: list[str], tmp_path: Path
) -> None:
    nodes = {name: node_rows(np.arange(200)) for name in ("a", "b", "row")}
    edges = {("a", "buys", "b"): (_USER, _ITEM), **others}
    tables = GraphTables(nodes, {t: edge_rows(*map(np.array, e)) for t, e in edges.items()})
    task = _task(str(tmp_path), tables, {"edge_type": "a__buys__b"})
    partition(
        tmp_path / "tables", tmp_path / "parts", Partitioning(3), IngestOptions(reverse_edges=True)
    )
    for each in (task, task_on_parts(task.env.loaded, tmp_path / "parts", tmp_path / "cache")):
        found = [text for text in each.warnings() if "the links to predict" in text]
        assert len(found) == len(expected)
        assert all(name in text for name, text in zip(expected, found, strict=True))


def test_reverse_edges_under_another_name_are_warned_of(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, 40, (2, 200))
    nodes = {name: node_rows(np.arange(40)) for name in "ab"}
    edges = {
        ("a", "buys", "b"): edge_rows(*pairs),
        ("b", "bought_by", "a"): edge_rows(*pairs[::-1, ::-1]),
        ("b", "seen_by", "a"): edge_rows(*rng.integers(0, 40, (2, 200))),
    }
    task = _task(str(tmp_path), GraphTables(nodes, edges), {"edge_type": "a__buys__b"})
    found = [text for text in task.warnings() if "opposite direction" in text]
    assert [text.split()[0] for text in found] == ["b__bought_by__a"]
