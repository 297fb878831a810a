"""Splits of links over random graphs, against their definition in plain Python."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from raygnn.config.data_section import HashSplit, TemporalSplit
from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import EdgeType
from raygnn.data.ingest import build_bundle
from raygnn.data.ingest.build_bundle import IngestOptions
from raygnn.data.links.message_graph import message_graph
from raygnn.data.links.split import LinkSplit
from raygnn.data.links.supervision import (
    KnownPositives,
    SupervisionEdges,
    known_positives,
    make_supervision,
)
from raygnn.errors import DataError
from tests.errors import raises
from tests.graph_writer import write_shards

_HASH = HashSplit(type="hash", fractions=[0.5, 0.25, 0.25])
_TEMPORAL = TemporalSplit(type="temporal", timestamps=[2, 4])
_NAMES = ("train", "val", "test")

_PINNED_VAL = [(1, 0), (1, 3), (1, 4), (2, 0), (2, 2), (3, 2), (5, 2), (5, 3), (5, 5)]

Row = tuple[int, int, int, int]  # source, target, split, time


@dataclass
class _Graph:
    """Nodes `a`, and `b` where the graph is bipartite; `own` and maybe its reverse, by hand."""

    rows: list[Row]
    bipartite: bool = False
    directed: bool = True
    timed: bool = True
    labels: list[Row] = field(default_factory=list)
    negatives: list[Row] = field(default_factory=list)
    own_reverse: list[Row] = field(default_factory=list)
    ids: dict[str, list] = field(default_factory=dict)

    @property
    def link_type(self) -> EdgeType:
        return ("a", "own", "b" if self.bipartite else "a")


def _table(graph: _Graph, rows: list[Row], source: str, target: str, timed: bool) -> pa.Table:
    ids = {"a": list(range(6)), "b": [f"b{i}" for i in range(6)], **graph.ids}
    columns: dict[str, Any] = {
        "s": [ids[source][row[0]] for row in rows],
        "t": [ids[target][row[1]] for row in rows],
        "split": [row[2] for row in rows],
    }
    return pa.table(columns | ({"time": [row[3] for row in rows]} if timed else {}))


def _ingest(folder: Path, graph: _Graph, reverse_edges: bool = False) -> Bundle:
    source, relation, target = graph.link_type
    ids = {"a": list(range(6)), "b": [f"b{i}" for i in range(6)], **graph.ids}
    manifest: dict[str, Any] = {"format": "raygnn/graph-v1", "node_types": {}}
    for node_type in sorted({source, target}):
        write_shards(folder / node_type, [pa.table({"id": ids[node_type]})])
        manifest["node_types"][node_type] = {"files": f"{node_type}/*", "id": "id"}

    def entry(name: str, edge_type: EdgeType, rows: list[Row], **spec: Any) -> dict[str, Any]:
        table = _table(graph, rows, edge_type[0], edge_type[2], graph.timed)
        write_shards(folder / name, [table])
        time = {"time": "time"} if graph.timed else {}
        return {
            "type": list(edge_type), "files": f"{name}/*", "source": "s", "target": "t",
            "split": "split", **time, **spec,
        }  # fmt: skip

    edges, labels = [], []
    if graph.rows:
        edges.append(entry("own", graph.link_type, graph.rows, directed=graph.directed))
    if graph.own_reverse:
        reverse = (target, "back", source)
        spec = {"reverse_of": [source, relation, target]}
        edges.append(entry("back", reverse, graph.own_reverse, **spec))
    for sign, rows in (("positive", graph.labels), ("negative", graph.negatives)):
        if rows:
            labels.append(entry(sign, graph.link_type, rows, sign=sign))
    manifest |= {"edge_types": edges, "label_edges": labels}
    (folder / "graph.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))
    options = IngestOptions(reverse_edges=reverse_edges)
    return build_bundle.ingest(folder, options, folder / "cache", _in_line)


def _in_line(fn: Callable[[Any], Any], items: Sequence[Any], label: str) -> list[Any]:
    """A schedule without the cost of starting threads for a few rows."""
    return [fn(item) for item in items]


def _pairs(edges: SupervisionEdges) -> list[tuple[int, int]]:
    anchors = np.repeat(edges.anchors, np.diff(edges.indptr))
    return list(zip(anchors.tolist(), edges.targets.tolist(), strict=True))


def _edges_of(bundle: Bundle, edge_type: EdgeType) -> list[tuple[int, int, int]]:
    """(source, target, e_id) of the edges in a message graph, from its CSC."""
    csc = bundle.csc(edge_type)
    targets = np.repeat(np.arange(len(csc.indptr) - 1), np.diff(csc.indptr))
    e_id = np.arange(len(csc.indices)) if csc.e_id is None else csc.e_id
    assert bundle.num_edges(edge_type) == len(csc.indices)
    return list(zip(csc.indices.tolist(), targets.tolist(), e_id.tolist(), strict=True))


def _as_links(bundle: Bundle, graph: _Graph, split: str, link: LinkSplit, **spec: Any) -> set:
    """Pairs (source, target), or of reverses turned back, that carry messages in a split."""
    messages = message_graph(bundle, [link], split, **spec)  # type: ignore[arg-type]
    found = set()
    for edge_type in bundle.edge_types:
        is_reverse = edge_type != graph.link_type
        for source, target, _ in _edges_of(messages, edge_type):
            found.add((target, source) if is_reverse else (source, target))
            if not graph.bipartite:
                found |= {(source, target), (target, source)}
    return found


def _messages_along(messages: Bundle, link: LinkSplit) -> set[tuple[int, int]]:
    return {(source, target) for source, target, _ in _edges_of(messages, link.edge_type)}


def _with_reverses(pairs: set[tuple[int, int]], both_ways: bool) -> set[tuple[int, int]]:
    return pairs | {(t, s) for s, t in pairs} if both_ways else pairs


def _known(known: KnownPositives) -> set[tuple[int, int]]:
    nodes = np.arange(6)
    return {(int(s), int(t)) for s, t in np.argwhere(known.mask(nodes, nodes))}


_node = st.integers(0, 5)
_ROWS = st.lists(st.tuples(_node, _node, st.integers(0, 3), st.integers(0, 5)), max_size=24)
# Something falls into each split, whichever the rule; node pairs chosen by their hashes.
_SURE: list[Row] = [(0, 1, 1, 0), (2, 3, 2, 2), (4, 5, 3, 4)]


@st.composite
def _graphs(draw: st.DrawFn) -> tuple[_Graph, bool]:
    bipartite = draw(st.booleans())
    graph = _Graph(_SURE + draw(_ROWS), bipartite, timed=draw(st.booleans()))
    graph.directed = bipartite or draw(st.booleans())
    reverse = draw(st.sampled_from(["none", "added", "by hand", "by hand, equal"]))
    if graph.directed and reverse == "by hand, equal":
        graph.own_reverse = [(t, s, split, time) for s, t, split, time in graph.rows]
    if graph.directed and reverse == "by hand":
        graph.own_reverse = [(t, s, 0, time) for s, t, _, time in graph.rows] + draw(_ROWS)
    return graph, reverse == "added"


def _bundle_and_link(
    folder: str, graph: _Graph, added: bool, rule: Any, ratio: float
) -> tuple[Bundle, LinkSplit]:
    if rule == "temporal":
        graph.timed = True
    rules = {"hash": _HASH, "temporal": _TEMPORAL, "column": None}
    bundle = _ingest(Path(folder), graph, added)
    labels = bool(graph.labels)
    link = LinkSplit(graph.link_type, labels, rules[rule], 3, ratio)
    return bundle, link


def _supervision(bundle: Bundle, link: LinkSplit) -> dict[str, SupervisionEdges] | None:
    try:
        return make_supervision(bundle, link)
    except DataError as error:
        # Small graphs leave splits empty, as the message says; their messages are as exact.
        assert "would be empty" in str(error)  # noqa: PT017
        return None


@settings(max_examples=25)
@given(
    _graphs(),
    st.sampled_from(["hash", "temporal", "column"]),
    st.sampled_from([0.0, 0.4]),
    st.booleans(),
    _ROWS,
)
@example(
    (_Graph([*_SURE, (3, 2, 3, 0)], directed=False, timed=False), False), "column", 0.0, False, []
)
def test_no_held_out_pair_carries_messages(
    drawn: tuple[_Graph, bool], rule: str, ratio: float, labels: bool, label_rows: list[Row]
) -> None:
    graph, added = drawn
    if labels:
        graph.labels = _SURE + label_rows
    with tempfile.TemporaryDirectory() as folder:
        bundle, link = _bundle_and_link(folder, graph, added, rule, ratio)
        supervision = _supervision(bundle, link)
        if supervision is None:
            return
        carried = {name: _as_links(bundle, graph, name, link) for name in _NAMES}
        inductive = _as_links(bundle, graph, "test", link, inductive=True)
        pairs = {name: _pairs(supervision[name]) for name in _NAMES}
        for found in pairs.values():
            assert found == sorted(set(found))
        one_way = _messages_along(message_graph(bundle, [link], "val"), link) | set(pairs["train"])
        for both_ways in (False,) if graph.bipartite else (False, True):
            seen = known_positives(bundle, link, "train", both_ways=both_ways)
            assert _known(seen) == _with_reverses(one_way, both_ways)
            assert not _known(seen) & {*pairs["val"], *pairs["test"]}
            until_val = known_positives(bundle, link, "val", both_ways=both_ways)
            # A column may put rows of one pair, or of its two directions, into val and test.
            held_out = _with_reverses({*pairs["test"]}, not graph.directed)
            twice = _with_reverses({*pairs["val"]} & held_out, both_ways)
            assert {*_known(seen), *pairs["val"]} - twice <= _known(until_val)
            shown = _with_reverses({*pairs["val"]}, both_ways)
            assert not _known(until_val) & {*pairs["test"]} - shown
            every = known_positives(bundle, link, both_ways=both_ways)
            drawn_pairs = {(s, t) for s, t, *_ in _both_ways(graph) + graph.labels}
            assert _known(every) == _with_reverses(drawn_pairs, both_ways)
        assert carried["train"] <= carried["val"] <= carried["test"]
        assert inductive == carried["val"]
        for name in ("val", "test"):
            assert not carried["train"] & set(pairs[name])
            assert not carried["val"] & set(pairs[name])
        assert not carried["test"] & set(pairs["test"])
        assert not set(pairs["train"]) & set(pairs["val"] + pairs["test"])
        if rule != "column":
            assert not set(pairs["val"]) & set(pairs["test"])
        if ratio:
            assert not carried["train"] & set(pairs["train"])
        elif not labels:
            assert set(pairs["train"]) <= carried["train"]
            assert rule == "column" or set(pairs["val"]) <= carried["test"]


def _both_ways(graph: _Graph) -> list[Row]:
    """The rows of the link type as edges, with the copies of undirected ones."""
    rows = list(graph.rows)
    if not graph.directed:
        given_pairs = {(s, t) for s, t, _, _ in rows}
        rows += [(t, s, k, z) for s, t, k, z in graph.rows if (t, s) not in given_pairs]
    return rows


@settings(max_examples=12)
@given(_graphs(), st.sampled_from(["temporal", "column"]))
def test_splits_equal_their_definition(drawn: tuple[_Graph, bool], rule: str) -> None:
    graph, added = drawn
    with tempfile.TemporaryDirectory() as folder:
        bundle, link = _bundle_and_link(folder, graph, added, rule, 0.0)
        found = _supervision(bundle, link)
        if found is None:
            return
        rows = _both_ways(graph)
        splits: dict[tuple[int, int], list[int]] = {}
        for source, target, split, time in rows:
            code = 1 + (time >= 2) + (time >= 4) if rule == "temporal" else split
            splits.setdefault((source, target), []).append(code)
            if not graph.bipartite:
                splits.setdefault((target, source), []).append(code)
        pick = min if rule == "temporal" else max
        for code, name in enumerate(_NAMES, start=1):
            expected: dict[tuple[int, int], int] = {}
            for source, target, split, time in rows:
                own = 1 + (time >= 2) + (time >= 4) if rule == "temporal" else split
                found_split = pick(splits[source, target])
                yields = own != found_split if rule == "temporal" else own == 1 != found_split
                if own == code and not yields:
                    earlier = expected.get((source, target), time)
                    expected[source, target] = min(time, earlier)
            assert _pairs(found[name]) == sorted(expected)
            times = found[name].times
            if graph.timed:
                assert times is not None
                assert times.tolist() == [expected[pair] for pair in sorted(expected)]
            else:
                assert times is None
        known = known_positives(bundle, link)
        nodes = np.arange(6)
        grid = known.mask(nodes, nodes)
        linked = {(s, t) for s, t, _, _ in rows}
        assert {(int(s), int(t)) for s, t in np.argwhere(grid)} == linked
        repeated = np.array([5, 0, 3, 3, 1])
        assert np.array_equal(known.mask(nodes, repeated), grid[:, repeated])
        assert np.array_equal(known.mask(nodes, repeated[:1]), grid[:, repeated[:1]])


@settings(max_examples=6)
@given(_ROWS, _ROWS, st.booleans(), st.integers(0, 100))
def test_hash_splits_do_not_move(
    rows: list[Row], more: list[Row], bipartite: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    small = _Graph(_SURE + rows, bipartite)
    shuffled = [(_SURE + rows + more)[i] for i in rng.permutation(len(_SURE + rows + more))]
    order = rng.permutation(8).tolist()
    # The same ids in another order among new ones, and links both ways.
    ids = {"a": order, "b": [f"b{i}" for i in order]}
    place = {original: dense for dense, original in enumerate(order)}
    moved = [(place[s], place[t], k, z) for s, t, k, z in shuffled]
    grown = _Graph(moved, bipartite, ids=ids)
    with tempfile.TemporaryDirectory() as folder:
        before = _by_original_id(_ingest(Path(folder) / "1", small), small.link_type)
        after = _by_original_id(_ingest(Path(folder) / "2", grown), small.link_type)
    assert {pair: after[pair] for pair in before} == before


def _by_original_id(bundle: Bundle, edge_type: EdgeType) -> dict[tuple[object, object], str]:
    link = LinkSplit(edge_type, rule=HashSplit(type="hash", fractions=[1.0, 0.0, 0.0]), seed=1)
    sources, targets = (bundle.ids(edge_type[i]).to_pylist() for i in (0, 2))
    assert make_supervision(bundle, link)["train"].num_links
    halves = LinkSplit(edge_type, rule=HashSplit(type="hash", fractions=[0.4, 0.3, 0.3]), seed=1)
    found = {}
    graphs = (message_graph(bundle, [halves], "train"), message_graph(bundle, [halves], "test"))
    for name, graph in zip(_NAMES, (*graphs, bundle), strict=True):
        for source, target, _ in _edges_of(graph, edge_type):
            found.setdefault((sources[source], targets[target]), name)
    return found


def _small(folder: Path, **spec: Any) -> tuple[Bundle, _Graph]:
    graph = _Graph([(0, 1, 1, 0), (0, 1, 1, 5), (2, 3, 2, 2), (4, 5, 3, 4)], True, **spec)
    return _ingest(folder, graph, reverse_edges=True), graph


def test_disjoint_share_divides_training(tmp_path: Path) -> None:
    rows = [(s, t, 1, 0) for s in range(6) for t in range(6)]
    bundle = _ingest(tmp_path, _Graph(rows, bipartite=True), reverse_edges=True)
    link = LinkSplit(bundle.edge_types[0], disjoint_train_ratio=0.5, seed=4)
    supervision = make_supervision(bundle, link)["train"]
    reverse = message_graph(bundle, [link], "train").csc(bundle.edge_types[1])
    assert supervision.num_links + len(reverse.indices) == len(rows)
    assert 9 <= supervision.num_links <= 27
    assert supervision.edge_type == bundle.edge_types[0]
    assert supervision.num_anchors == len(supervision.anchors)


def test_message_graph_in_both_directions(tmp_path: Path) -> None:
    bundle, graph = _small(tmp_path)
    link = LinkSplit(graph.link_type)
    messages = message_graph(bundle, [link], "val")
    assert _edges_of(messages, graph.link_type) == [(0, 1, 0), (0, 1, 1)]
    csr = messages.csr(graph.link_type)
    assert csr.indptr.tolist() == [0, 2, 2, 2, 2, 2, 2]
    assert (csr.indices.tolist(), csr.e_id.tolist()) == ([1, 1], [0, 1])
    test = pickle.loads(pickle.dumps(message_graph(bundle, [link], "test")))
    assert test.num_edges(graph.link_type) == 3
    csr = test.csr(bundle.edge_types[1])
    assert sorted(csr.e_id.tolist()) == [0, 1, 2]
    columns = np.asarray(test.column(bundle.edge_types[1], "time"))[csr.e_id]
    assert sorted(columns.tolist()) == [0, 2, 5]
    unsplit = message_graph(bundle, [], "train")
    assert np.array_equal(unsplit.csr(graph.link_type).e_id, bundle.csr(graph.link_type).e_id)
    assert unsplit.csc(graph.link_type).e_id is None


def test_label_edges_without_message_edges(tmp_path: Path) -> None:
    labels = [(0, 1, 1, 0), (0, 1, 1, 0), (0, 2, 1, 0), (1, 2, 3, 0)]
    negatives = [(0, 5, 1, 0), (0, 4, 3, 0), (1, 4, 3, 0), (3, 3, 3, 0)]
    graph = _Graph([], True, timed=False, labels=labels, negatives=negatives)
    bundle = _ingest(tmp_path, graph)
    link = LinkSplit(graph.link_type, labels=True)
    found = make_supervision(bundle, link)
    assert _pairs(found["train"]) == [(0, 1), (0, 2)]
    assert _pairs(found["test"]) == [(1, 2)]
    assert found["val"].num_links == 0
    assert found["train"].edge_type is None
    negative = {name: edges.hard_negatives for name, edges in found.items()}
    assert negative["train"] is not None
    assert negative["test"] is not None
    assert _pairs(negative["train"]) == [(0, 5)]
    assert _pairs(negative["test"]) == [(1, 4)]
    assert np.array_equal(negative["train"].anchors, found["train"].anchors)
    known = known_positives(bundle, link)
    assert known.mask(np.array([0, 1]), np.array([2, 1])).tolist() == [[True, True], [True, False]]
    assert message_graph(bundle, [link], "train").edge_types == []


def test_known_links_are_those_of_labels_and_messages(tmp_path: Path) -> None:
    rows = [(0, 3, 1, 0), (0, 3, 1, 1), (0, 1, 1, 2), (4, 0, 1, 0)]
    graph = _Graph(rows, True, labels=[(0, 3, 3, 0), (0, 2, 3, 0), (5, 5, 0, 0)])
    bundle = _ingest(tmp_path, graph)
    known = known_positives(bundle, LinkSplit(graph.link_type, labels=True))
    assert known.indptr.tolist() == [0, 3, 3, 3, 3, 4, 5]
    assert known.targets.tolist() == [1, 2, 3, 0, 5]
    # The pair (0, 3) is a test link, so its edges carry no messages; the others are no links.
    link = LinkSplit(graph.link_type, labels=True)
    messages = message_graph(bundle, [link], "train")
    assert [edge[:2] for edge in _edges_of(messages, graph.link_type)] == [(4, 0), (0, 1)]


def test_negatives_that_nothing_splits_are_of_every_split(tmp_path: Path) -> None:
    graph = _Graph(_SURE, True, negatives=[(0, 5, 0, 0), (2, 5, 0, 0)])
    bundle = _ingest(tmp_path, graph)
    manifest = yaml.safe_load((tmp_path / "graph.yaml").read_text())
    del manifest["label_edges"][0]["split"]
    (tmp_path / "graph.yaml").write_text(yaml.safe_dump(manifest))
    bundle = build_bundle.ingest(tmp_path, cache_dir=tmp_path / "cache")
    found = make_supervision(bundle, LinkSplit(graph.link_type))
    negatives = [found[name].hard_negatives for name in _NAMES]
    assert [_pairs(edges) for edges in negatives if edges] == [[(0, 5)], [(2, 5)], []]
    hashed = HashSplit(type="hash", fractions=[1.0, 0.0, 0.0])
    found = make_supervision(bundle, LinkSplit(graph.link_type, rule=hashed))
    assert found["train"].hard_negatives is not None
    assert _pairs(found["train"].hard_negatives) == [(0, 5), (2, 5)]


def test_what_cannot_be_split(tmp_path: Path) -> None:
    bundle, graph = _small(tmp_path)
    with raises("links-label-edges-missing", "a__own__b"):
        make_supervision(bundle, LinkSplit(graph.link_type, labels=True))
    with raises("graph-edge-type-unknown", "a__x__b"):
        make_supervision(bundle, LinkSplit(("a", "x", "b")))
    late = TemporalSplit(type="temporal", timestamps=[100, 200])
    with raises("links-split-empty", 3, 0):
        make_supervision(bundle, LinkSplit(graph.link_type, rule=late))
    whole = TemporalSplit(type="temporal", quantiles=[0.5, 1.0])
    assert make_supervision(bundle, LinkSplit(graph.link_type, rule=whole))["test"].num_links == 0


@pytest.mark.parametrize("labels", [False, True])
def test_the_last_links_of_each_anchor_are_held_out(tmp_path: Path, labels: bool) -> None:
    counts, rng = (1, 4, 10, 10), np.random.default_rng(0)
    histories = [rng.permutation(n).tolist() for n in counts]
    rows = [(a, b, 1, t) for a, times in enumerate(histories) for b, t in enumerate(times)]
    ids = {"b": [f"b{i}" for i in range(10)]}
    graph = _Graph(rows, bipartite=True, labels=rows if labels else [], ids=ids)
    bundle = _ingest(tmp_path, graph)
    rule = TemporalSplit(type="temporal", quantiles=[0.6, 0.8], per="anchor")
    found = make_supervision(bundle, LinkSplit(graph.link_type, labels=labels, rule=rule))
    time = {(a, b): t for a, b, _, t in rows}
    for name, first, last in (("train", 0, 0.6), ("val", 0.6, 0.8), ("test", 0.8, 1)):
        expected = [
            (a, b)
            for (a, b), t in time.items()
            if np.ceil(first * counts[a]) <= t < np.ceil(last * counts[a])
        ]
        assert sorted(_pairs(found[name])) == sorted(expected)


def test_links_of_one_time_are_held_out_whatever_their_ids(tmp_path: Path) -> None:
    rows = [(a, b, 1, 0) for a in range(20) for b in range(10)]
    ids = {"a": list(range(20)), "b": [f"b{i}" for i in range(10)]}
    bundle = _ingest(tmp_path, graph := _Graph(rows, bipartite=True, ids=ids))
    rule = TemporalSplit(type="temporal", quantiles=[0.8, 0.9], per="anchor")
    found = make_supervision(bundle, LinkSplit(graph.link_type, rule=rule))
    assert [found[name].num_links for name in _NAMES] == [160, 20, 20]
    assert len({b for _, b in _pairs(found["test"])}) > 5


def test_an_edge_of_two_splits_carries_messages_where_it_does_by_both(tmp_path: Path) -> None:
    bundle, graph = _small(tmp_path)
    first = LinkSplit(graph.link_type, rule=_HASH)
    other = LinkSplit(graph.link_type, rule=_HASH, seed=7, disjoint_train_ratio=0.4)
    for split in ("train", "val", "test"):
        for edge_type in bundle.edge_types:
            together, *alone = (
                message_graph(bundle, links, split).csc(edge_type)  # type: ignore[arg-type]
                for links in ([first, other], [first], [other])
            )
            carried = set.intersection(*({*csc.e_id.tolist()} for csc in alone))
            assert {*together.e_id.tolist()} == carried
            again = message_graph(bundle, [other, first, first], split).csc(edge_type)  # type: ignore[arg-type]
            assert np.array_equal(again.e_id, together.e_id)


def test_columns_that_a_rule_needs(tmp_path: Path) -> None:
    graph = _Graph(_SURE, True, timed=False)
    bundle = _ingest(tmp_path, graph)
    with raises("links-no-times"):
        make_supervision(bundle, LinkSplit(graph.link_type, rule=_TEMPORAL))
    manifest = yaml.safe_load((tmp_path / "graph.yaml").read_text())
    del manifest["edge_types"][0]["split"]
    (tmp_path / "graph.yaml").write_text(yaml.safe_dump(manifest))
    bundle = build_bundle.ingest(tmp_path, cache_dir=tmp_path / "cache")
    with raises("links-no-split", "a__own__b"):
        make_supervision(bundle, LinkSplit(graph.link_type))


def test_hash_splits_are_pinned(tmp_path: Path) -> None:
    # A value that moves would move the splits of every user.
    rows = [(s, t, 1, 0) for s in range(6) for t in range(6)]
    bundle = _ingest(tmp_path, _Graph(rows, bipartite=True))
    found = make_supervision(bundle, LinkSplit(("a", "own", "b"), rule=_HASH))
    assert _pairs(found["val"]) == _PINNED_VAL
