"""Batches of links; x names the nodes."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raygnn.data.links.supervision import KnownLinks, KnownPositives, SupervisionEdges
from raygnn.sampling import (
    LinkLoader,
    LinkPlan,
    LocalGraphStore,
    NeighborSampler,
    blocks_of,
    hetero_blocks_of,
)
from raygnn.sampling.negatives import RandomNegatives
from raygnn.sampling.rng import batch_key, seed_order
from raygnn.sampling.seeds import edges_of_links
from tests.batches import check_ids, is_same, link_loader
from tests.errors import raises
from tests.small_graph import EDGE, NODE, SmallGraph, random_graph

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


def _homogeneous() -> tuple[SmallGraph, SupervisionEdges]:
    small = random_graph(num_edges=600)
    pairs = np.stack(small.edges[EDGE])[:, :150]
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
    return small, _supervision(EDGE, pairs, hard_negatives=hard)


def _two_types(seed: int = 0, num_users: int = 40, num_items: int = 15) -> SmallGraph:
    rng = np.random.default_rng(seed)
    buys = (rng.integers(0, num_users, 160), rng.integers(0, num_items, 160))
    knows = (rng.integers(0, num_users, 100), rng.integers(0, num_users, 100))
    x = np.arange(num_users, dtype=np.float32)[:, None]
    return SmallGraph(
        {"user": num_users, "item": num_items},
        {BUYS: buys, BOUGHT_BY: buys[::-1], KNOWS: knows},
        stored={"user": {"x": x}},
    )


def _loader(small: SmallGraph, links: SupervisionEdges, **changes: Any) -> LinkLoader:
    plan = {
        field.name: changes.pop(field.name) for field in fields(LinkPlan) if field.name in changes
    }
    changes = {"columns": {"x": "x"}, "seed": 1, **changes}
    plan = LinkPlan(**{"num_negatives": 9, "in_batch": True, **plan})
    return link_loader(small, links, plan=plan, **changes)


def _pairs_of(links: SupervisionEdges) -> np.ndarray:
    return np.stack([np.repeat(links.anchors, np.diff(links.indptr)), links.targets])


@pytest.mark.parametrize("seeds", ["links", "anchors"])
def test_a_batch_names_its_links(seeds):
    small, links = _homogeneous()
    pairs, hard = _pairs_of(links), links.hard_negatives
    others = dict(zip(links.anchors, np.split(hard.targets, hard.indptr[1:-1]), strict=True))
    loader = _loader(small, links, seeds=seeds, known=_known(small))
    batches = list(loader.iterate(0))
    every = torch.cat([batch.links.position for batch in batches])
    assert torch.equal(every.sort().values, torch.arange(links.num_links))
    assert len(batches) == -(-(links.num_links if seeds == "links" else links.num_anchors) // 16)
    for index, batch in enumerate(batches):
        nodes = batch.nodes[NODE]
        check_ids(batch)
        assert batch.index == index
        assert len(nodes.n_id.unique()) == len(nodes.n_id)
        assert torch.equal(nodes.columns["x"][:, 0], nodes.n_id.float())
        assert batch.links.id.tolist() == pairs[:, batch.links.position].tolist()
        assert torch.equal(nodes.n_id[batch.links.index], batch.links.id)
        assert torch.equal(nodes.n_id[batch.links.hard.index], batch.links.hard.id)
        assert torch.equal(nodes.n_id[batch.links.random.index], batch.links.random.id)
        if seeds == "links":
            assert torch.equal(batch.input_id, batch.links.position)
        else:
            anchors = torch.from_numpy(links.anchors)[batch.input_id]
            counts = torch.from_numpy(np.diff(links.indptr))[batch.input_id]
            assert torch.equal(batch.links.id[0], anchors.repeat_interleave(counts))
        assert len(batch.links.query.unique()) == len(batch.links.id[0].unique())
        for query in batch.links.query.unique():
            (anchor,) = batch.links.id[0, batch.links.query == query].unique().tolist()
            own = batch.links.hard.id[batch.links.hard.query == query]
            assert own.tolist() == others[anchor].tolist()
        drawn = RandomNegatives(200).draw(9, batch_key(1, "train", 0, index))
        assert batch.links.random.id.tolist() == drawn.tolist()
        candidates = [batch.links.random.id, batch.links.id[1], batch.links.hard.id]
        candidates = torch.cat(candidates).tolist()
        edges = set(zip(*small.edges[EDGE], strict=True))
        assert batch.links.known.tolist() == [
            [(anchor, node) in edges or anchor == node for node in candidates]
            for anchor in batch.links.id[0].tolist()
        ]
        seeds_of = torch.cat([batch.links.id[0], torch.tensor(candidates)])
        assert nodes.num_seeds == len(seeds_of.unique())
        assert blocks_of(batch)[-1].num_dst == nodes.num_seeds


def _known(small: SmallGraph) -> KnownLinks:
    csr = small.bundle.csr(EDGE)
    order = np.concatenate(
        [
            start + np.argsort(csr.indices[start:stop], kind="stable")
            for start, stop in pairwise(csr.indptr)
        ]
    )
    return KnownLinks((KnownPositives(csr.indptr, csr.indices[order]),), is_one_type=True)


def test_an_epoch_is_a_permutation_of_the_links():
    small, links = _homogeneous()
    loader = _loader(small, links)
    orders = [
        torch.cat([batch.links.position for batch in loader.iterate(epoch)]) for epoch in range(2)
    ]
    assert not torch.equal(*orders)
    for order in orders:
        assert torch.equal(order.sort().values, torch.arange(links.num_links))
    # neighbors in the list of links, of one anchor, are not neighbors in the epoch
    assert (orders[0].diff() == 1).sum() < 10


def test_an_evaluation_is_fixed_and_fair():
    """Each link once, in order, among as many candidates as the others, none a known link."""
    small, links = _homogeneous()
    known = _known(small)
    changes = {"is_evaluation": True, "shuffle": False, "known": known, "num_negatives": 30}
    loader = _loader(small, links, **changes)
    batches = list(loader.iterate(0))
    assert torch.cat([b.links.position for b in batches]).tolist() == list(range(links.num_links))
    order = seed_order(200, batch_key(1, "train", 0, 0), 0, 0, 60)
    for batch in batches:
        assert batch.links.known is None
        assert batch.links.candidate is not None
        assert batch.links.candidate.shape == (len(batch.links.position), 30)
        assert torch.equal(batch.nodes[NODE].n_id[batch.links.random.index], batch.links.random.id)
        for (anchor, target), columns in zip(
            batch.links.id.T.numpy(), batch.links.candidate, strict=True
        ):
            is_out = known.mask(np.array([anchor]), order)[0] | (order == target)
            expected = order[~is_out][:30]
            assert batch.links.random.id[columns].tolist() == expected.tolist()
    assert is_same(loader.make(0, 1), batches[1])


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_batches_are_the_same_for_any_ranks_and_threads(world_size):
    small, links = _homogeneous()
    options = {"max_labels_per_anchor": 1, "negatives": "degree"}
    whole = list(_loader(small, links, num_threads=0, **options).iterate(3))
    found = {}
    for rank in range(world_size):
        loader = _loader(small, links, rank=rank, world_size=world_size, num_threads=2, **options)
        found.update({batch.index: batch for batch in loader.iterate(3)})
    assert sorted(found) == list(range(len(whole)))
    assert all(is_same(batch, whole[index]) for index, batch in found.items())


def test_several_types():
    small = _two_types()
    links = _supervision(BUYS, np.stack(small.edges[BUYS])[:, :60])
    loader = _loader(small, links, reverse_types={BUYS: BOUGHT_BY}, batch_size=8)
    for batch in loader.iterate(0):
        check_ids(batch)
        users, items = batch.nodes["user"].n_id, batch.nodes["item"].n_id
        assert batch.nodes["user"].num_seeds == len(batch.links.id[0].unique())
        assert torch.equal(users[batch.links.index[0]], batch.links.id[0])
        assert torch.equal(items[batch.links.index[1]], batch.links.id[1])
        assert torch.equal(items[batch.links.random.index], batch.links.random.id)
        assert batch.links.hard.index.shape == (0,)
        assert "x" not in batch.nodes["item"].columns
        last = hetero_blocks_of(batch)[-1]
        assert last.num_dst == {t: batch.nodes[t].num_seeds for t in ("user", "item")}
        moved = batch.to("meta")
        assert moved.links.index.is_meta


@pytest.mark.parametrize("seeds", ["links", "anchors"])
def test_labels_are_drawn_anew_in_each_epoch(seeds):
    small, links = _homogeneous()
    options = {"max_labels_per_anchor": 2, "shuffle": False, "seeds": seeds}
    loader = _loader(small, links, batch_size=500, **options)
    seen, counts = set(), np.diff(links.indptr)
    first = loader.make(0, 0)
    for epoch in range(30):
        batch = loader.make(epoch, 0)
        pairs = list(map(tuple, batch.links.id.T.tolist()))
        assert len(set(pairs)) == len(pairs) == np.minimum(counts, 2).sum()
        assert torch.bincount(torch.tensor([anchor for anchor, _ in pairs])).max() == 2
        assert torch.bincount(batch.links.hard.query).max() == 2
        seen.update(pairs)
    assert len(seen) == links.num_links
    assert not torch.equal(batch.links.id, first.links.id)
    # whatever else is in the batch
    small = _loader(small, links, batch_size=3, **options)
    parts = [part.links.id for part in small.iterate(0)]
    assert torch.equal(torch.cat(parts, dim=1), first.links.id)


def test_links_and_anchors_of_one_label_are_the_same_epoch():
    small, links = _homogeneous()
    both = [_loader(small, links, max_labels_per_anchor=1, seeds=s) for s in ("links", "anchors")]
    for one, other in zip(*(loader.iterate(2) for loader in both), strict=True):
        assert torch.equal(one.links.id, other.links.id)
        assert torch.equal(one.edges[EDGE].edge_index, other.edges[EDGE].edge_index)


def test_there_may_be_no_random_negatives():
    small, links = _homogeneous()
    none = _loader(small, links, num_negatives=0)
    assert none.negatives is None
    assert none.make(0, 0).links.random.id.shape == (0,)


@st.composite
def _linked_graphs(draw: st.DrawFn) -> tuple[SmallGraph, SupervisionEdges, dict]:
    """Few nodes, so that many edges are parallel; reverse edges there or not."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    users, items = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    num_edges = draw(st.integers(1, 60))
    source, target = rng.integers(0, users, num_edges), rng.integers(0, items, num_edges)
    if draw(st.booleans()):
        target %= users
        if draw(st.booleans()):
            source, target = np.append(source, target), np.append(target, source)
        small = SmallGraph({"user": users}, {KNOWS: (source, target)})
        edge_type, reverses = KNOWS, {}
        if draw(st.booleans()):
            reverse = ("user", "rev_knows", "user")
            small.edges[reverse] = (target, source)
            reverses = {reverse: KNOWS}
    else:
        small = SmallGraph({"user": users, "item": items}, {BUYS: (source, target)})
        edge_type = draw(st.sampled_from([BUYS, BOUGHT_BY]))
        small.edges[BOUGHT_BY] = (target, source)
        reverses = {BUYS: BOUGHT_BY} if draw(st.booleans()) else {BOUGHT_BY: BUYS}
    if draw(st.booleans()):
        small.times = {et: rng.integers(0, 3, len(e[0])) for et, e in small.edges.items()}
    pairs = np.stack(small.edges[edge_type])
    links = _supervision(edge_type, pairs[:, rng.random(pairs.shape[1]) < 0.5])
    return small, links, reverses


@settings(max_examples=150)
@given(
    graph=_linked_graphs(),
    fanouts=st.sampled_from([[-1, -1], [2, 3]]),
    limit=st.sampled_from([None, 1]),
    seeds=st.sampled_from(["links", "anchors"]),
)
def test_no_link_of_a_batch_or_its_reverse_carries_messages(graph, fanouts, limit, seeds):
    small, links, reverses = graph
    store = LocalGraphStore(small.bundle)
    loader = _loader(
        small,
        links,
        columns={},
        sampler=NeighborSampler(store, fanouts),
        reverse_types=reverses,
        batch_size=3,
        max_labels_per_anchor=limit,
        seeds=seeds,
    )
    for batch in loader.iterate(0):
        linked = {frozenset(pair) for pair in batch.links.id.T.tolist()}
        if links.anchor_type != links.target_type:
            linked = set(map(tuple, batch.links.id.T.tolist()))
        assert len(batch.edges) == len(small.edges)
        for edge_type, edges in zip(sorted(small.edges), batch.edges.values(), strict=True):
            csc = small.bundle.csc(edge_type)
            target = np.repeat(np.arange(len(csc.indptr) - 1), np.diff(csc.indptr))
            taken = edges.e_id.numpy()
            pairs = zip(csc.indices[taken].tolist(), target[taken].tolist(), strict=True)
            if links.anchor_type == links.target_type:
                assert not linked & set(map(frozenset, pairs))
            else:
                is_same = edge_type[0] == links.anchor_type
                assert not linked & {pair if is_same else pair[::-1] for pair in pairs}


def test_links_carry_messages_where_that_is_wanted():
    small, links = _homogeneous()
    for changes in ({"exclude": False}, {"mirrors": None}):
        given_links = links
        if "mirrors" in changes:
            pairs = np.stack([np.repeat(links.anchors, np.diff(links.indptr)), links.targets])
            given_links = _supervision(EDGE, pairs, mirrors=None)
            changes = {}
        store = LocalGraphStore(small.bundle)
        sampler = NeighborSampler(store, [-1])
        batch = _loader(small, given_links, sampler=sampler, batch_size=999, **changes).make(0, 0)
        taken = set(map(tuple, batch.nodes[NODE].n_id[batch.edges[EDGE].edge_index].T.tolist()))
        assert set(map(tuple, batch.links.id.T.tolist())) <= taken


def test_the_rest_of_the_neighborhood_stays_full():
    """A seed takes its fanout from its other edges."""
    small, links = _homogeneous()
    sampler = NeighborSampler(LocalGraphStore(small.bundle), [2])
    csc = small.bundle.csc(EDGE)
    for batch in _loader(small, links, sampler=sampler).iterate(0):
        linked = batch.links.id.T.tolist()
        linked = set(map(tuple, linked)) | {(b, a) for a, b in linked}
        taken = torch.diff(batch.edges[EDGE].dst_ptr).tolist()
        for node, count in zip(batch.nodes[NODE].n_id.tolist(), taken, strict=False):
            own = csc.indices[csc.indptr[node] : csc.indptr[node + 1]].tolist()
            assert count == min(2, sum((other, node) not in linked for other in own))


@pytest.mark.parametrize("epoch", [0, 1])
def test_cold_nodes_take_no_messages_and_others_keep_theirs(epoch):
    """Some anchors of a batch, which have features; no items, which have none."""
    small = _two_types(num_users=400)
    links = _supervision(BUYS, np.stack(small.edges[BUYS]))
    full = {"batch_size": 999, "exclude": False}
    warm = _loader(small, links, **full).make(epoch, 0)
    cold = _loader(small, links, cold_share=0.3, **full).make(epoch, 0)
    num_seeds, num_items = cold.nodes["user"].num_seeds, cold.nodes["item"].num_seeds
    assert torch.equal(warm.nodes["user"].n_id[:num_seeds], cold.nodes["user"].n_id[:num_seeds])
    for edge_type in (BOUGHT_BY, KNOWS):
        before, after = (torch.diff(b.edges[edge_type].dst_ptr)[:num_seeds] for b in (warm, cold))
        is_cold = (after == 0) & (before > 0)
        assert 0.15 < is_cold.sum() / (before > 0).sum() < 0.45
        assert torch.equal(after[~is_cold], before[~is_cold])
    of_items = [torch.diff(batch.edges[BUYS].dst_ptr)[:num_items] for batch in (warm, cold)]
    assert torch.equal(*of_items)


def test_what_is_refused():
    small, _ = _homogeneous()
    outside = _supervision(EDGE, np.array([[0], [200]]))
    with raises("sampling-seeds-range", 1, 200):
        _loader(small, outside)


def test_edges_left_out_are_in_the_order_of_their_types():
    """A set's order differs from process to process, and stored samples are known by a hash."""
    backs = [("item", f"rev_{i}", "user") for i in range(8)]
    pairs = np.zeros((2, 1), np.int64)
    assert [*edges_of_links(BUYS, dict.fromkeys(backs, BUYS), "user", "item", pairs)] == [
        *(BUYS, *backs)
    ]
