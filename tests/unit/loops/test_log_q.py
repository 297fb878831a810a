"""The expected number of times that a node is a candidate is what is counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raygnn.data.links.supervision import SupervisionEdges
from raygnn.loops.tasks.log_q import LogQ
from raygnn.losses import Candidates
from raygnn.sampling import LocalFeatureStore, LocalGraphStore, NeighborSampler
from raygnn.sampling.link_loader import LinkLoader
from tests.unit.sampling.memory_bundle import NODE, random_bundle

NUM_NODES, NUM_ANCHORS, BATCH, NUM_RANDOM, EPOCHS = 12, 40, 8, 5, 300


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
def test_counts(negatives, limit):
    bundle = random_bundle(num_nodes=NUM_ANCHORS, num_edges=200)
    graph = LocalGraphStore(bundle)
    loader = LinkLoader(
        graph,
        LocalFeatureStore(bundle),
        _supervision(),
        sampler=NeighborSampler(graph, [1]),
        columns={},
        num_negatives=NUM_RANDOM,
        negatives=negatives,
        max_labels_per_anchor=limit,
        batch_size=BATCH,
        split="train",
        seed=0,
        shuffle=True,
        num_threads=0,
    )
    log_q = LogQ(loader.negatives, loader.supervision, NUM_ANCHORS, limit)
    counts, expected = np.zeros(NUM_ANCHORS), np.zeros(NUM_ANCHORS)
    everyone = torch.arange(NUM_ANCHORS)
    for epoch in range(EPOCHS):
        for index in range(loader.num_batches):
            batch = loader.without_neighborhood(index, epoch)
            drawn, targets = batch.random_negative_id, batch.label_id[1]
            counts += np.bincount(torch.cat([drawn, targets]), minlength=NUM_ANCHORS)
            # as many of each kind as the batch has, then what is asked about
            is_target = torch.tensor([False] * len(drawn) + [True] * len(targets))
            ids = torch.cat([drawn, targets])
            owner = torch.full_like(ids, -1)
            given = Candidates(rows=ids, ids=ids, owner=owner, in_batch=is_target)
            found = log_q.expected(given, everyone)
            expected += found.numpy()
            torch.testing.assert_close(log_q(given), found[ids].log().float())
    often = expected > 200
    assert often.sum() > 5
    np.testing.assert_allclose(counts[often], expected[often], rtol=0.15)
    assert counts.sum() == pytest.approx(expected.sum(), rel=1e-6)


def test_a_hard_negative_is_expected_once():
    ids = torch.tensor([3, 3])
    given = Candidates(
        rows=ids, ids=ids, owner=torch.tensor([-1, 0]), in_batch=torch.tensor([True, False])
    )
    share = np.mean(_supervision().targets == 3)
    found = LogQ(None, _supervision(), NUM_NODES, None)(given)
    assert found.exp().tolist() == pytest.approx([share, 1.0], rel=1e-5)
