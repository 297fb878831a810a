"""Batches of links; x names the nodes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import BaseSampler

from raygnn.data.links.supervision import SupervisionEdges
from raygnn.errors import ConfigError, DataError
from raygnn.sampling import (
    LinkLoader,
    LocalFeatureStore,
    LocalGraphStore,
    NeighborLoader,
    NeighborSampler,
    blocks_of,
)
from raygnn.sampling.negatives import RandomNegatives
from raygnn.sampling.rng import batch_key
from tests.unit.sampling.memory_bundle import EDGE, NODE, MemoryBundle, random_bundle

BUYS, BOUGHT_BY = ("user", "buys", "item"), ("item", "rev_buys", "user")
KNOWS = ("user", "knows", "user")


def _supervision(edge_type: tuple[str, str, str], pairs: np.ndarray, **more: Any) -> Any:
    """Distinct (source, target) pairs as links of their sources."""
    source, target = np.unique(pairs, axis=1)
    anchors, first = np.unique(source, return_index=True)
    indptr = np.append(first, len(source)).astype(np.int64)
    return SupervisionEdges(
        edge_type[0], edge_type[2], more.pop("mirrors", edge_type), anchors, indptr, target, **more
    )


def _homogeneous() -> tuple[MemoryBundle, SupervisionEdges]:
    bundle = random_bundle(num_edges=600)
    pairs = np.stack(bundle.edges[EDGE])[:, :150]
    links = _supervision(EDGE, pairs)
    rng = np.random.default_rng(5)
    counts = rng.integers(0, 4, links.num_anchors)
    hard = SupervisionEdges(
        NODE,
        NODE,
        None,
        links.anchors,
        np.append(0, np.cumsum(counts)),
        rng.integers(0, 200, counts.sum()),
    )
    return bundle, _supervision(EDGE, pairs, hard_negatives=hard)


def _two_types(seed: int = 0, num_users: int = 40, num_items: int = 15) -> MemoryBundle:
    rng = np.random.default_rng(seed)
    buys = (rng.integers(0, num_users, 160), rng.integers(0, num_items, 160))
    knows = (rng.integers(0, num_users, 100), rng.integers(0, num_users, 100))
    x = np.arange(num_users, dtype=np.float32)[:, None]
    return MemoryBundle(
        {"user": num_users, "item": num_items},
        {BUYS: buys, BOUGHT_BY: buys[::-1], KNOWS: knows},
        stored={"user": {"x": x}},
    )


def _loader(bundle: MemoryBundle, links: SupervisionEdges, **changes: Any) -> LinkLoader:
    graph = LocalGraphStore(bundle, changes.pop("direction", "in"))
    options: dict[str, Any] = {
        "sampler": NeighborSampler(graph, [4, 3]),
        "columns": {"x": "x"},
        "num_negatives": 9,
        "batch_size": 16,
        "split": "train",
        "seed": 1,
        "shuffle": True,
    }
    return LinkLoader(graph, LocalFeatureStore(bundle), links, **{**options, **changes})


def _same(one: Data, other: Data) -> bool:
    first, second = one.to_dict(), other.to_dict()
    return first.keys() == second.keys() and all(
        torch.equal(value, second[name])
        if isinstance(value, torch.Tensor)
        else value == second[name]
        for name, value in first.items()
    )


def test_a_batch_names_its_links():
    bundle, links = _homogeneous()
    batches = list(_loader(bundle, links).iterate(0))
    anchors = torch.cat([batch.input_id for batch in batches])
    assert torch.equal(anchors.sort().values, torch.from_numpy(links.anchors))
    targets = dict(zip(links.anchors, np.split(links.targets, links.indptr[1:-1]), strict=True))
    hard = links.hard_negatives
    others = dict(zip(links.anchors, np.split(hard.targets, hard.indptr[1:-1]), strict=True))
    for index, batch in enumerate(batches):
        assert type(batch) is Data
        batch.validate()
        assert batch.index == index
        assert len(batch.n_id.unique()) == len(batch.n_id)
        assert torch.equal(batch.x[:, 0], batch.n_id.float())
        assert torch.equal(batch.n_id[batch.anchor_index], batch.input_id)
        for where, ids, expected in (
            (batch.label_index, batch.label_id, targets),
            (batch.negative_index, batch.negative_id, others),
        ):
            assert torch.equal(batch.n_id[where], ids)
            assert ids.T.tolist() == [
                [anchor, target]
                for anchor in batch.input_id.tolist()
                for target in expected[anchor].tolist()
            ]
        assert torch.equal(batch.n_id[batch.random_negatives], batch.random_negative_id)
        drawn = RandomNegatives(200).draw(9, batch_key(1, "train", 0, index))
        assert batch.random_negative_id.tolist() == drawn.tolist()
        seeds = torch.cat([batch.input_id, batch.label_id[1], batch.negative_id[1]])
        seeds = torch.cat([seeds, batch.random_negative_id])
        assert batch.batch_size == len(seeds.unique())
        assert blocks_of(batch)[-1].num_dst == batch.batch_size


def test_anchors_are_cut_as_seeds_are():
    bundle, links = _homogeneous()
    graph = LocalGraphStore(bundle)
    nodes = NeighborLoader(
        graph,
        LocalFeatureStore(bundle),
        links.anchors,
        NODE,
        sampler=NeighborSampler(graph, [2]),
        columns={},
        batch_size=16,
        split="train",
        seed=1,
        shuffle=True,
    )
    loader = _loader(bundle, links)
    for epoch in range(2):
        for one, other in zip(loader.iterate(epoch), nodes.iterate(epoch), strict=True):
            assert torch.equal(one.input_id, other.input_id)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_batches_are_the_same_for_any_ranks_and_threads(world_size):
    bundle, links = _homogeneous()
    options = {"max_labels_per_anchor": 1, "negatives": "degree"}
    whole = list(_loader(bundle, links, num_threads=0, **options).iterate(3))
    found = {}
    for rank in range(world_size):
        loader = _loader(bundle, links, rank=rank, world_size=world_size, num_threads=2, **options)
        found.update({batch.index: batch for batch in loader.iterate(3)})
    assert sorted(found) == list(range(len(whole)))
    assert all(_same(batch, whole[index]) for index, batch in found.items())


def test_several_types():
    bundle = _two_types()
    links = _supervision(BUYS, np.stack(bundle.edges[BUYS])[:, :60])
    loader = _loader(bundle, links, reverse_types={BUYS: BOUGHT_BY}, batch_size=8)
    for batch in loader.iterate(0):
        assert type(batch) is HeteroData
        batch.validate()
        users, items = batch["user"].n_id, batch["item"].n_id
        assert torch.equal(users[: batch["user"].batch_size], batch.input_id)
        assert torch.equal(users[batch.label_index[0]], batch.label_id[0])
        assert torch.equal(items[batch.label_index[1]], batch.label_id[1])
        assert torch.equal(items[batch.random_negatives], batch.random_negative_id)
        assert batch.negative_index.shape == (2, 0)
        assert "x" not in batch["item"]
        last = blocks_of(batch)[-1]
        assert last.num_dst == {t: batch[t].batch_size for t in ("user", "item")}
        moved = batch.to("meta")
        assert moved.label_index.is_meta


def test_labels_are_drawn_anew_in_each_epoch():
    bundle, links = _homogeneous()
    loader = _loader(bundle, links, max_labels_per_anchor=2, batch_size=500, shuffle=False)
    seen, counts = set(), np.diff(links.indptr)
    first = loader.make(0, 0)
    for epoch in range(30):
        batch = loader.make(epoch, 0)
        pairs = list(map(tuple, batch.label_id.T.tolist()))
        assert len(set(pairs)) == len(pairs) == np.minimum(counts, 2).sum()
        taken = torch.bincount(batch.negative_index[0]).max()
        assert taken == 2
        seen.update(pairs)
    assert len(seen) == links.num_links
    assert not torch.equal(batch.label_id, first.label_id)
    # whatever else is in the batch
    small = _loader(bundle, links, max_labels_per_anchor=2, batch_size=3, shuffle=False)
    parts = [part.label_id for part in small.iterate(0)]
    assert torch.equal(torch.cat(parts, dim=1), first.label_id)


def test_negatives_may_be_fixed():
    bundle, links = _homogeneous()
    loader = _loader(bundle, links, fixed_negatives=True, negatives="degree")
    drawn = [batch.random_negative_id for epoch in (0, 1) for batch in loader.iterate(epoch)]
    assert len({tuple(ids.tolist()) for ids in drawn}) == 1
    assert loader.negatives.log_probability(drawn[0].numpy()).min() > -np.inf
    none = _loader(bundle, links, num_negatives=0)
    assert none.negatives is None
    assert none.make(0, 0).random_negatives.shape == (0,)


@st.composite
def _linked_graphs(draw: st.DrawFn) -> tuple[MemoryBundle, SupervisionEdges, dict]:
    """Few nodes, so that many edges are parallel; reverse edges there or not."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    users, items = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    num_edges = draw(st.integers(1, 60))
    source, target = rng.integers(0, users, num_edges), rng.integers(0, items, num_edges)
    if draw(st.booleans()):
        target %= users
        if draw(st.booleans()):
            source, target = np.append(source, target), np.append(target, source)
        bundle = MemoryBundle({"user": users}, {KNOWS: (source, target)})
        edge_type, reverses = KNOWS, {}
        if draw(st.booleans()):
            reverse = ("user", "rev_knows", "user")
            bundle.edges[reverse] = (target, source)
            reverses = {reverse: KNOWS}
    else:
        bundle = MemoryBundle({"user": users, "item": items}, {BUYS: (source, target)})
        edge_type = draw(st.sampled_from([BUYS, BOUGHT_BY]))
        bundle.edges[BOUGHT_BY] = (target, source)
        reverses = {BUYS: BOUGHT_BY} if draw(st.booleans()) else {BOUGHT_BY: BUYS}
    if draw(st.booleans()):
        bundle.times = {et: rng.integers(0, 3, len(e[0])) for et, e in bundle.edges.items()}
    pairs = np.stack(bundle.edges[edge_type])
    links = _supervision(edge_type, pairs[:, rng.random(pairs.shape[1]) < 0.5])
    return bundle, links, reverses


@settings(max_examples=150, deadline=None)
@given(
    graph=_linked_graphs(),
    direction=st.sampled_from(["in", "out"]),
    fanouts=st.sampled_from([[-1, -1], [2, 3]]),
    limit=st.sampled_from([None, 1]),
)
def test_no_link_of_a_batch_or_its_reverse_carries_messages(graph, direction, fanouts, limit):
    bundle, links, reverses = graph
    store = LocalGraphStore(bundle, direction)
    loader = _loader(
        bundle,
        links,
        direction=direction,
        columns={},
        sampler=NeighborSampler(store, fanouts),
        reverse_types=reverses,
        batch_size=3,
        max_labels_per_anchor=limit,
    )
    for batch in loader.iterate(0):
        linked = {frozenset(pair) for pair in batch.label_id.T.tolist()}
        if links.anchor_type != links.target_type:
            linked = set(map(tuple, batch.label_id.T.tolist()))
        stores = [batch] if isinstance(batch, Data) else [batch[t] for t in batch.edge_types]
        assert len(stores) == len(bundle.edge_types)
        for edge_type, edges in zip(sorted(bundle.edge_types), stores, strict=True):
            csc = bundle.csc(edge_type)
            target = np.repeat(np.arange(len(csc.indptr) - 1), np.diff(csc.indptr))
            taken = edges.e_id.numpy()
            pairs = zip(csc.indices[taken].tolist(), target[taken].tolist(), strict=True)
            if links.anchor_type == links.target_type:
                assert not linked & set(map(frozenset, pairs))
            else:
                is_same = edge_type[0] == links.anchor_type
                assert not linked & {pair if is_same else pair[::-1] for pair in pairs}


def test_links_carry_messages_where_that_is_wanted():
    bundle, links = _homogeneous()
    for changes in ({"exclude": False}, {"mirrors": None}):
        given_links = links
        if "mirrors" in changes:
            pairs = np.stack([np.repeat(links.anchors, np.diff(links.indptr)), links.targets])
            given_links = _supervision(EDGE, pairs, mirrors=None)
            changes = {}
        store = LocalGraphStore(bundle)
        sampler = NeighborSampler(store, [-1])
        batch = _loader(bundle, given_links, sampler=sampler, batch_size=999, **changes).make(0, 0)
        taken = set(map(tuple, batch.n_id[batch.edge_index].T.tolist()))
        assert set(map(tuple, batch.label_id.T.tolist())) <= taken


def test_the_rest_of_the_neighborhood_stays_full():
    """A seed takes its fanout from its other edges."""
    bundle, links = _homogeneous()
    sampler = NeighborSampler(LocalGraphStore(bundle), [2])
    csc = bundle.csc(EDGE)
    for batch in _loader(bundle, links, sampler=sampler).iterate(0):
        linked = batch.label_id.T.tolist()
        linked = set(map(tuple, linked)) | {(b, a) for a, b in linked}
        taken = torch.diff(batch.dst_ptr).tolist()
        for node, count in zip(batch.n_id.tolist(), taken, strict=False):
            own = csc.indices[csc.indptr[node] : csc.indptr[node + 1]].tolist()
            assert count == min(2, sum((other, node) not in linked for other in own))


def test_orders_of_anchors_do_not_matter_to_links():
    bundle, links = _homogeneous()
    assert all(start < stop for start, stop in pairwise(links.indptr))
    loader = _loader(bundle, links, shuffle=False, batch_size=5)
    assert loader.num_batches == -(-links.num_anchors // 5)
    ids = torch.cat([batch.input_id for batch in loader.iterate(7)])
    assert ids.tolist() == links.anchors.tolist()


def test_what_is_refused():
    bundle, links = _homogeneous()
    for changes, message in [
        ({"num_negatives": -1}, r"num_negatives=-1 is invalid: it is a number of nodes"),
        ({"max_labels_per_anchor": 0}, r"max_labels_per_anchor=0 is invalid"),
        ({"negatives": "all"}, r"negatives='all' is invalid"),
        ({"batch_size": 0}, r"loader.batch_size=0 is invalid"),
    ]:
        with pytest.raises(ConfigError, match=message):
            _loader(bundle, links, **changes)
    with pytest.raises(ConfigError, match=r"sampling.type='_Foreign' is invalid: links are kept"):
        _loader(bundle, links, sampler=_Foreign())
    with pytest.raises(DataError, match=r"edge type 'user__buys__item' of the links is invalid"):
        _loader(bundle, links, reverse_types={EDGE: BUYS})
    outside = _supervision(EDGE, np.array([[0], [200]]))
    with pytest.raises(DataError, match=r"1 of 1 are outside of \[0, 200\)"):
        _loader(bundle, outside)


class _Foreign(BaseSampler):
    def sample_from_nodes(self, index: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def sample_from_edges(self, index: Any, neg_sampling: Any = None) -> Any:
        raise NotImplementedError
