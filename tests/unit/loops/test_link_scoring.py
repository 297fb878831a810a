"""What competes with a link is found on its device, and how often it is drawn is counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raygnn.data.links.supervision import KnownLinks, KnownPositives, SupervisionEdges
from raygnn.loops.tasks.link_prediction.scoring import LinkScoring
from raygnn.losses import Candidates
from raygnn.models.decoders import DistMult, InnerProduct
from raygnn.sampling import LocalFeatureStore, LocalGraphStore, NeighborSampler
from raygnn.sampling.link_loader import LinkLoader, LinkPlan
from tests.small_graph import NODE, random_graph

NUM_NODES = 40


def _part(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = [np.unique(rng.integers(0, NUM_NODES, rng.integers(1, 9))) for _ in range(NUM_NODES)]
    return np.append(0, np.cumsum([len(row) for row in rows])), np.concatenate(rows)


def _links(num_relations: int) -> tuple[SupervisionEdges, KnownLinks]:
    """All links of 40 nodes, with hard negatives, and that they are known."""
    parts = [_part(relation) for relation in range(num_relations)]
    indptr = np.append(0, np.cumsum(np.concatenate([np.diff(part[0]) for part in parts])))
    anchors = np.tile(np.arange(NUM_NODES), num_relations)
    relations = np.repeat(np.arange(num_relations), NUM_NODES) if num_relations > 1 else None
    bounds = np.arange(len(anchors) + 1)
    hard = SupervisionEdges(NODE, NODE, None, anchors, bounds, anchors[::-1].copy())
    links = SupervisionEdges(
        NODE,
        NODE,
        None,
        anchors,
        indptr,
        np.concatenate([part[1] for part in parts]),
        hard_negatives=hard,
        relations=relations,
        edge_types=(None,) * num_relations if num_relations > 1 else (),
    )
    return links, KnownLinks(tuple(KnownPositives(*part) for part in parts), is_one_type=True)


def _loader(
    links: SupervisionEdges,
    known: KnownLinks,
    plan: LinkPlan | None = None,
    *,
    is_joint: bool = False,
) -> LinkLoader:
    small = random_graph(num_nodes=NUM_NODES, num_edges=100)
    graph = LocalGraphStore(small.bundle)
    plan = plan or LinkPlan(num_negatives=20, in_batch=True, known=known, is_joint=is_joint)
    return LinkLoader(
        graph,
        LocalFeatureStore(small.bundle),
        links,
        sampler=NeighborSampler(graph, [1]),
        columns={},
        plan=plan,
        batch_size=16,
        split="train",
        seed=0,
        shuffle=True,
        num_threads=0,
    )


@pytest.mark.parametrize("num_relations", [1, 2])
def test_known_links_among_the_candidates_of_a_step(num_relations):
    links, known = _links(num_relations)
    scoring, rows = LinkScoring((NODE, NODE)), {NODE: torch.zeros(NUM_NODES, 2)}
    loader = _loader(links, known, is_joint=True)
    batches = [loader.with_dense_ids(index) for index in range(4)]
    offered = Candidates.joined([scoring.offered(batch, rows, in_batch=True) for batch in batches])
    for batch in batches:
        assert batch.links.known is None
        mask = scoring.scores(InnerProduct(2), batch, rows, offered).mask.numpy()
        relations = batch.links.relation.numpy() if num_relations > 1 else None
        expected = known.mask(batch.links.id[0].numpy(), offered.ids.numpy(), relations)
        expected |= batch.links.id[1].numpy()[:, None] == offered.ids.numpy()
        assert 0 < expected.mean() < 0.5
        assert np.array_equal(mask[:, : len(offered.ids)], expected)


def test_a_batch_alone_has_the_same_mask_either_way():
    links, known = _links(1)
    scoring, rows = LinkScoring((NODE, NODE)), {NODE: torch.zeros(NUM_NODES, 2)}
    masks = []
    for is_joint in (False, True):
        batch = _loader(links, known, is_joint=is_joint).with_dense_ids(1)
        offered = scoring.offered(batch, rows, in_batch=True)
        masks.append(scoring.scores(InnerProduct(2), batch, rows, offered).mask)
    assert torch.equal(*masks)


@pytest.mark.parametrize("is_joint", [False, True])
def test_nothing_is_read_on_the_host(is_joint):
    """Tensors of the meta device have no values to be read."""
    links, known = _links(2)
    batch = _loader(links, known, is_joint=is_joint).with_dense_ids(0).to("meta")
    scoring, rows = LinkScoring((NODE, NODE)), {NODE: torch.zeros(NUM_NODES, 2, device="meta")}
    offered = scoring.offered(batch, rows, in_batch=True)
    scores = scoring.scores(InnerProduct(2), batch, rows, offered)
    assert scores.mask.is_meta
    assert scores.mask.shape == scores.candidate.shape


@pytest.mark.parametrize("decoder", [InnerProduct(32), DistMult(32)])
def test_nodes_with_equal_rows_tie_in_evaluation(decoder):
    """Scores that differ in the last bit would rank all links first, or all last."""
    links, known = _links(1)
    plan = LinkPlan(num_negatives=15, is_evaluation=True, known=known)
    loader = _loader(links, known, plan)
    torch.manual_seed(0)
    kinds = torch.arange(NUM_NODES) % 2
    rows = torch.randn(2, 32)[kinds]
    for index in range(4):
        batch = loader.with_dense_ids(index)
        scores = LinkScoring((NODE, NODE)).evaluation_scores(decoder, batch.links, {NODE: rows})
        candidate_kinds = kinds[batch.links.random.id[batch.links.candidate]]
        is_equal = candidate_kinds == kinds[batch.links.id[1]].unsqueeze(1)
        assert 0.2 < is_equal.float().mean() < 0.8
        is_tie = scores.candidate == scores.positive.unsqueeze(1)
        assert torch.equal(is_tie, is_equal)


NUM_TARGETS, NUM_ANCHORS, BATCH, NUM_RANDOM, EPOCHS = 12, 40, 8, 5, 200


def _supervision() -> SupervisionEdges:
    """Anchors with 1 to 4 links, most of them to few targets."""
    rng = np.random.default_rng(0)
    targets = [
        np.unique(rng.geometric(0.3, n) % NUM_TARGETS) for n in rng.integers(1, 5, NUM_ANCHORS)
    ]
    indptr = np.concatenate([[0], np.cumsum([len(t) for t in targets])])
    anchors = np.arange(NUM_ANCHORS)
    return SupervisionEdges(NODE, NODE, None, anchors, indptr, np.concatenate(targets))


@pytest.mark.parametrize("negatives", ["uniform", "degree"])
@pytest.mark.parametrize("limit", [None, 1])
@pytest.mark.parametrize("seeds", ["links", "anchors"])
def test_counts(negatives, limit, seeds):
    small = random_graph(num_nodes=NUM_ANCHORS, num_edges=200)
    graph = LocalGraphStore(small.bundle)
    loader = LinkLoader(
        graph,
        LocalFeatureStore(small.bundle),
        _supervision(),
        sampler=NeighborSampler(graph, [1]),
        columns={},
        plan=LinkPlan(
            seeds=seeds,
            num_negatives=NUM_RANDOM,
            negatives=negatives,
            max_labels_per_anchor=limit,
            in_batch=True,
            log_q=True,
        ),
        batch_size=BATCH,
        split="train",
        seed=0,
        shuffle=True,
        num_threads=0,
    )
    counts, expected = np.zeros(NUM_ANCHORS), np.zeros(NUM_ANCHORS)
    scoring, rows = LinkScoring((NODE, NODE)), {NODE: torch.zeros(NUM_ANCHORS, 1)}
    probability = loader.negatives.probability(np.arange(NUM_ANCHORS))
    for epoch in range(EPOCHS):
        for index in range(loader.num_batches):
            batch = loader.with_dense_ids(index, epoch)
            candidates = scoring.offered(batch, rows, in_batch=True)
            counts += np.bincount(candidates.ids, minlength=NUM_ANCHORS)
            num_links = batch.links.id.shape[1]
            expected += NUM_RANDOM * probability + num_links * loader.link_share
            ids = candidates.ids.numpy()
            of_candidates = NUM_RANDOM * probability[ids] + num_links * loader.link_share[ids]
            found = candidates.log_q().double().exp().numpy()
            np.testing.assert_allclose(found, of_candidates, rtol=1e-5)
    often = expected > 200
    assert often.sum() > 5
    np.testing.assert_allclose(counts[often], expected[often], rtol=0.15)
    assert counts.sum() == pytest.approx(expected.sum(), rel=1e-6)
