"""The expected number of times that a node is a candidate is what is counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raygnn.data.links.supervision import SupervisionEdges
from raygnn.loops.tasks.link_prediction.scoring import LinkScoring
from raygnn.sampling import LocalFeatureStore, LocalGraphStore, NeighborSampler
from raygnn.sampling.link_loader import LinkLoader, LinkPlan
from tests.small_graph import NODE, random_graph

NUM_NODES, NUM_ANCHORS, BATCH, NUM_RANDOM, EPOCHS = 12, 40, 8, 5, 200


def _supervision() -> SupervisionEdges:
    """Anchors with 1 to 4 links, most of them to few targets."""
    rng = np.random.default_rng(0)
    targets = [
        np.unique(rng.geometric(0.3, n) % NUM_NODES) for n in rng.integers(1, 5, NUM_ANCHORS)
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
