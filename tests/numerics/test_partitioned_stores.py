"""Batches of a partitioned graph against those of the same graph opened whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raygnn.data.bundle import Bundle
from raygnn.data.ingest.build_bundle import IngestOptions
from raygnn.data.partition.build import Partitioning, partition
from raygnn.data.partition.part import Outline, open_partitioned
from raygnn.data.standardization import ColumnScale
from raygnn.sampling import LocalFeatureStore, LocalGraphStore, NeighborLoader, NeighborSampler
from raygnn.sampling.partitioned_stores import PartitionedFeatureStore, PartitionedGraphStore
from raygnn.sampling.parts import MappedPart, PartitionedGraph
from raygnn.sampling.temporal import Horizon, Temporal
from tests.errors import raises
from tests.partitioned_graphs import assert_same
from tests.social_tables import social_tables, write_social

KNOWS = ("user", "knows", "user")
NUM_USERS, NUM_ITEMS = 40, 15


@dataclass(frozen=True)
class Both:
    """A graph opened whole, and its parts."""

    folder: Path
    whole: Bundle
    outline: Outline
    parts: PartitionedGraph


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Both]:
    @cache
    def make(
        seed: int, num_parts: int, reverse_edges: bool = False, feature_dtype: Any = None
    ) -> Both:
        folder = tmp_path_factory.mktemp("graph")
        tables = write_social(folder / "tables", social_tables(NUM_USERS, NUM_ITEMS, seed))
        options = IngestOptions(reverse_edges=reverse_edges, feature_dtype=feature_dtype)
        record = partition(tables, folder / "parts", Partitioning(num_parts), options)
        outline = Outline.build(folder / "parts", folder / "cache")
        whole = open_partitioned(folder / "parts", folder / "cache")
        services = tuple(
            MappedPart(folder / "parts", number, outline.path) for number in range(num_parts)
        )
        return Both(folder, whole, outline, PartitionedGraph(record, services))

    return make


@settings(max_examples=60)
@given(
    graph=st.tuples(st.integers(0, 1), st.sampled_from([1, 2, 4]), st.booleans()),
    fanouts=st.lists(st.sampled_from([-1, 1, 3, 6]), min_size=1, max_size=3),
    draws=st.sampled_from(["uniform", "weighted", "uniform in time", "last in time", "labor"]),
    disjoint=st.booleans(),
    excluded=st.floats(0, 0.5),
    seed=st.integers(0, 99),
)
def test_samples_are_those_of_the_graph_opened_whole(
    graphs: Callable[..., Both],
    graph: tuple[int, int, bool],
    fanouts: list[int],
    draws: str,
    disjoint: bool,
    excluded: float,
    seed: int,
) -> None:
    both, rng = graphs(*graph), np.random.default_rng(seed)
    settings_: dict[str, Any] = {
        "weight": "weight" if draws == "weighted" else None,
        "disjoint": disjoint,
        "labor": draws == "labor",
    }
    seeds = {"user": rng.integers(0, NUM_USERS, 5), "item": rng.integers(0, NUM_ITEMS, 3)}
    given_: dict[str, Any] = {}
    if draws.endswith("in time"):
        strategy = draws.split()[0]
        settings_["temporal"] = Temporal(strategy=strategy)
        given_["times"] = {t: rng.integers(0, 9, len(ids)) for t, ids in seeds.items()}
    csc = both.whole.csc(KNOWS)
    targets = np.repeat(np.arange(NUM_USERS), np.diff(csc.indptr))
    out = rng.random(len(targets)) < excluded
    pairs = np.stack([csc.indices[out], targets[out]]).astype(np.int64)
    given_["exclude"] = {KNOWS: pairs}
    if disjoint:
        given_["exclude_for"] = {KNOWS: rng.integers(0, 8, pairs.shape[1])}
    found, expected = (
        NeighborSampler(store, fanouts, **settings_).sample(seeds, seed, **given_)
        for store in (PartitionedGraphStore(both.outline, both.parts), LocalGraphStore(both.whole))
    )
    assert sum(len(edges) for edges in expected.edge.values()) > 0
    assert_same(found, expected)


class Elsewhere:
    """A part that this process does not map, as far as stores know."""

    def __init__(self, part: MappedPart) -> None:
        self._part = part
        self.row_ids: list[np.ndarray] = []

    def ask(self, question: Any, *given_: Any) -> Any:
        if question == "rows" and given_[:2] == ("user", "x"):
            self.row_ids.append(given_[2])
        return self._part.ask(question, *given_)


@pytest.mark.parametrize("cache_bytes", [0, 200, 1 << 20])
@pytest.mark.parametrize("reverse_edges", [False, True])
@pytest.mark.parametrize("feature_dtype", [None, "float16", "bfloat16"])
def test_rows_of_the_most_wanted_nodes_are_asked_for_once(
    graphs: Callable[..., Both], feature_dtype: str | None, reverse_edges: bool, cache_bytes: int
) -> None:
    both = graphs(0, 4, reverse_edges, feature_dtype)
    here, *others = both.parts.services
    away = [Elsewhere(part) for part in others if isinstance(part, MappedPart)]
    graph = PartitionedGraph(both.parts.record, (here, *away), cache_bytes)
    scales = {"user": {"x": ColumnScale.of(both.whole.columns("user")["x"])}}
    store = PartitionedFeatureStore(both.outline, graph, scales)
    expected = LocalFeatureStore(both.whole, scales)
    ids = np.random.default_rng(0).permutation(np.repeat(np.arange(NUM_USERS), 2))
    for column in ("x", "words", "group"):
        for _ in range(2):
            found = store.gather("user", column, ids)
            assert np.array_equal(found, expected.gather("user", column, ids))
    asked = np.concatenate([ids for service in away for ids in service.row_ids])
    once = np.flatnonzero(np.bincount(asked, minlength=NUM_USERS) == 1)
    first = both.parts.record.first_ids("user")[1]
    degrees = sum(
        LocalGraphStore(both.whole).neighbor_degrees(edge_type, np.arange(NUM_USERS))
        for edge_type in both.whole.edge_types
        if edge_type[0] == "user"
    )
    rest = np.setdiff1d(np.arange(first, NUM_USERS), once)
    assert graph.traffic.num_cached_rows == 4 * len(once)
    assert (len(once) > 0) == (cache_bytes > 0)
    if cache_bytes:
        assert degrees[once].min() >= degrees[rest].max(initial=0)
    if cache_bytes == 1 << 20:
        assert not degrees[rest].any()
    stored = both.whole.column("user", "x")
    assert isinstance(stored, np.ndarray)
    as_stored = store.gather(
        "user", "x", ids, np.empty((len(ids), *stored.shape[1:]), stored.dtype)
    )
    if feature_dtype is not None:
        assert np.array_equal(as_stored, stored[ids])
    assert graph.traffic.num_requests > 0


@pytest.mark.parametrize("keeps_sparse", [False, True])
@pytest.mark.parametrize("reverse_edges", [False, True])
@pytest.mark.parametrize(
    ("num_parts", "feature_dtype"), [(1, None), (2, "float16"), (2, "bfloat16"), (4, None)]
)
def test_batches_have_the_same_columns_and_degrees(
    graphs: Callable[..., Both],
    num_parts: int,
    feature_dtype: str | None,
    reverse_edges: bool,
    keeps_sparse: bool,
) -> None:
    both = graphs(0, num_parts, reverse_edges, feature_dtype)
    scales = {"user": {"x": ColumnScale.of(both.whole.columns("user")["x"])}}
    options: Any = {"standardization": scales, "keeps_sparse": keeps_sparse}

    def batches(graph: Any, features: Any) -> list[Any]:
        loader = NeighborLoader(
            graph,
            features,
            np.arange(NUM_ITEMS),
            "item",
            sampler=NeighborSampler(graph, [3, 2]),
            columns={"x": "x", "z": "z", "words": "words", "group": "group"},
            edge_columns={"row": "row", "weight": "weight"},
            batch_size=4,
            split="train",
            seed=0,
            shuffle=True,
            num_threads=1,
        )
        return list(loader.iterate(0))

    here, *others = both.parts.services
    away = [Elsewhere(part) for part in others if isinstance(part, MappedPart)]
    cached = PartitionedGraph(both.parts.record, (here, *away), 300)
    found = batches(
        PartitionedGraphStore(both.outline, cached),
        PartitionedFeatureStore(both.outline, cached, **options),
    )
    expected = batches(LocalGraphStore(both.whole), LocalFeatureStore(both.whole, **options))
    assert len(found) == len(expected) == 4
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("reverse_edges", [False, True])
def test_degrees_are_those_of_the_whole_graph(
    graphs: Callable[..., Both], reverse_edges: bool
) -> None:
    both = graphs(0, 4, reverse_edges)
    parted, whole = PartitionedGraphStore(both.outline, both.parts), LocalGraphStore(both.whole)
    rng = np.random.default_rng(0)
    for edge_type in whole.edge_types:
        sources = rng.integers(0, whole.num_nodes(edge_type[0]), 30)
        targets = rng.integers(0, whole.num_nodes(edge_type[2]), 30)
        horizon = Horizon(Temporal(), rng.integers(-1, 9, 30))
        for when in (None, horizon):
            found = parted.degrees(edge_type, targets, when)
            assert np.array_equal(found, whole.degrees(edge_type, targets, when))
            if when is None or both.whole.reverse_of(edge_type) not in (None, edge_type):
                found = parted.neighbor_degrees(edge_type, sources, when)
                assert np.array_equal(found, whole.neighbor_degrees(edge_type, sources, when))


def test_all_edges_are_read_range_by_range(graphs: Callable[..., Both]) -> None:
    both = graphs(0, 4)
    for edge_type in both.whole.edge_types:
        found = PartitionedGraphStore(both.outline, both.parts).adjacency(edge_type)
        csc = both.whole.csc(edge_type)
        assert np.array_equal(found.indptr, csc.indptr)
        for first, last in ((0, 7), (3, 3), (5, len(csc.indptr) - 1)):
            edges = slice(int(csc.indptr[first]), int(csc.indptr[last]))
            assert np.array_equal(found.indices[edges], csc.indices[edges])
            assert found.e_id is not None
            assert np.array_equal(found.e_id[edges], np.arange(edges.start, edges.stop))


def test_rows_keep_their_order_and_may_repeat(graphs: Callable[..., Both]) -> None:
    both = graphs(1, 4)
    store = PartitionedFeatureStore(both.outline, both.parts)
    ids = np.array([39, 0, 17, 17, 3, 39])
    for column in ("x", "words", "group", "time"):
        expected = LocalFeatureStore(both.whole).gather("user", column, ids)
        assert np.array_equal(store.gather("user", column, ids), expected)
        assert store.gather("user", column, ids[:0]).shape == expected[:0].shape
    with raises("graph-column-unknown", "height"):
        store.gather("user", "height", ids)


def test_what_no_part_has_is_refused(graphs: Callable[..., Both]) -> None:
    both = graphs(0, 2)
    store = PartitionedGraphStore(both.outline, both.parts)
    with raises("partition-not-whole", "edges/user__knows__user/indptr.npy"):
        both.outline.csc(KNOWS)
    with raises("partition-not-whole", "nodes/user/columns/x.npy"):
        both.outline.column("user", "x")
    horizon = Horizon(Temporal(), np.zeros(1, np.int64))
    with raises("partition-temporal-types", "time"):
        store.neighbor_degrees(KNOWS, np.zeros(1, np.int64), horizon)


def test_outline_has_neither_edges_nor_features(graphs: Callable[..., Both]) -> None:
    both = graphs(0, 2)
    files = {
        path.relative_to(both.outline.path).as_posix() for path in both.outline.path.rglob("*.npy")
    }
    assert files
    assert not [name for name in files if name.startswith(("edges/", "label_edges/"))]
    held = {name.split("/")[-1].split(".")[0] for name in files if "/columns/" in name}
    assert held == {"group", "kind", "time"}
    for name in ("user", "item"):
        assert both.outline.ids(name).equals(both.whole.ids(name))
    assert np.array_equal(both.outline.declared_split("user"), both.whole.declared_split("user"))


@pytest.mark.parametrize("damage", ["cut", "index"])
def test_bad_parts_are_refused(graphs: Callable[..., Both], tmp_path: Path, damage: str) -> None:
    """By each reader of a part; other damages: see tests/numerics/test_partition.py."""
    both, folder = graphs(0, 2), tmp_path / "parts"
    shutil.copytree(both.folder / "parts", folder)
    indices = folder / "part-00001/edges/user__knows__user/indices.npy"
    end = b"\xff\xff\xff\x7f" if damage == "index" else b""
    indices.write_bytes(indices.read_bytes()[:-4] + end)
    with raises("partition-damaged", "part-00001"):
        MappedPart(folder, 1, both.outline.path)
    if damage == "cut":
        with raises("partition-damaged", "part-00001"):
            Outline.build(folder, tmp_path / "cache")
