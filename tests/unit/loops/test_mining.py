"""Mined negatives are, exactly, the non-links of highest score."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raygnn.data.links.supervision import KnownLinks, KnownPositives, SupervisionEdges
from raygnn.loops.tasks.link_prediction import scoring
from raygnn.models.decoders import DistMult, InnerProduct
from raygnn.models.exact import compute_here
from raygnn.sampling.negatives import NONE

NUM_ANCHORS, NUM_TARGETS = 30, 25


def _known(generator: np.random.Generator, num_links: int) -> KnownPositives:
    linked = np.zeros((NUM_ANCHORS, NUM_TARGETS), bool)
    linked.ravel()[generator.permutation(linked.size)[:num_links]] = True
    linked[0] = True  # one that is linked to all
    linked[1, 2:] = True  # and one to all but two
    indptr = np.concatenate([[0], np.cumsum(linked.sum(axis=1))])
    return KnownPositives(indptr, np.nonzero(linked)[1].astype(np.int64))


def _links(anchors: np.ndarray, relations: np.ndarray | None = None) -> SupervisionEdges:
    indptr = np.arange(len(anchors) + 1)
    targets = np.zeros(len(anchors), np.int64)
    return SupervisionEdges("a", "t", None, anchors, indptr, targets, relations=relations)


@pytest.mark.parametrize("num_relations", [1, 2])
@pytest.mark.parametrize("k", [1, 4, NUM_TARGETS])
@pytest.mark.parametrize("is_one_type", [False, True])
def test_mined_are_the_best_that_are_not_known(monkeypatch, num_relations, k, is_one_type):
    monkeypatch.setattr(scoring, "_ANCHORS_AT_A_TIME", 7)
    generator = np.random.default_rng(3)
    torch.manual_seed(3)
    known = KnownLinks(tuple(_known(generator, 200) for _ in range(num_relations)), is_one_type)
    anchors, relations, decoder = np.arange(NUM_ANCHORS), None, InnerProduct(6)
    if num_relations == 2:
        anchors, relations = np.tile(anchors, 2), np.repeat([0, 1], NUM_ANCHORS)
        decoder = DistMult(6, num_relations=2)
        torch.nn.init.normal_(next(decoder.parameters()))
    rows = (torch.randn(NUM_ANCHORS, 6), torch.randn(NUM_TARGETS, 6))
    links = _links(anchors, relations)
    with torch.no_grad():
        mined = scoring.mine(links, known, decoder, rows, k, compute_here)
    assert mined.shape == (len(anchors), k)
    for row, anchor in enumerate(anchors):
        relation = 0 if relations is None else int(relations[row])
        part = known.parts[relation]
        out = set(part.targets[part.indptr[anchor] : part.indptr[anchor + 1]].tolist())
        out |= {anchor} if is_one_type else set()
        scores = decoder.score_all(rows[0][anchor : anchor + 1], rows[1], relation)[0]
        left = [t for t in scores.argsort(descending=True).tolist() if t not in out][:k]
        assert mined[row].tolist() == left + [NONE] * (k - len(left))
