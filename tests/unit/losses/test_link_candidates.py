"""Which candidates a positive competes with."""

from __future__ import annotations

import pytest
import torch

from raygnn.losses import Candidates, score_links


def candidates_of(ids: list[int], owner: list[int] | None = None) -> Candidates:
    return Candidates(
        rows=torch.tensor(ids).float().unsqueeze(1),
        ids=torch.tensor(ids),
        owner=None if owner is None else torch.tensor(owner),
    )


def test_a_positive_does_not_compete_with_itself_nor_with_known_links() -> None:
    # Anchors 7 and 8; 7 links to 1 and 2, 8 to 2. Candidates: the positives, a random node twice,
    # and 1 once more by chance.
    known = torch.zeros(3, 6, dtype=torch.bool)
    known[:2, [0, 1, 2, 5]] = True
    known[2, [1, 2, 3, 4]] = True
    every = torch.arange(18.0).view(3, 6)
    batch = {
        "positive": torch.tensor([0.1, 0.2, 0.3]),
        "every": every,
        "query": torch.tensor([0, 0, 1]),
        "target_ids": torch.tensor([1, 2, 2]),
        "candidates": candidates_of([1, 2, 2, 5, 5, 1]),
    }
    scores = score_links(**batch, known=known)
    assert scores.mask.int().tolist() == [
        [1, 1, 1, 0, 0, 1],
        [1, 1, 1, 0, 0, 1],
        [0, 1, 1, 1, 1, 0],
    ]
    assert torch.equal(scores.candidate, every)
    assert scores.log_q is None
    # Accidental hits left in: only the target itself is out.
    scores = score_links(**batch)
    assert scores.mask.int().tolist() == [
        [1, 0, 0, 0, 0, 1],
        [0, 1, 1, 0, 0, 0],
        [0, 1, 1, 0, 0, 0],
    ]


def test_hard_negatives_are_for_their_own_anchor() -> None:
    candidates = candidates_of([3, 4, 5], owner=[-1, 7, 8])
    scores = score_links(
        torch.zeros(3),
        torch.zeros(3, 3),
        torch.tensor([8, 7, 8]),
        torch.tensor([0, 1, 5]),
        candidates,
    )
    assert scores.mask.int().tolist() == [[0, 1, 0], [0, 0, 1], [0, 1, 1]]


def test_links_compete_within_their_group() -> None:
    candidates = Candidates(
        rows=torch.zeros(4, 1), ids=torch.tensor([3, 4, 5, 6]), group=torch.tensor([0, 0, 1, 1])
    )
    given = (torch.zeros(2), torch.zeros(2, 4), torch.tensor([0, 1]), torch.tensor([3, 9]))
    scores = score_links(*given, candidates, group=torch.tensor([0, 1]))
    assert scores.mask.int().tolist() == [[1, 0, 1, 1], [1, 1, 0, 0]]


def test_log_q_is_the_logarithm_of_the_expected_count() -> None:
    # two random draws, three targets, and a hard negative
    candidates = Candidates(
        rows=torch.zeros(6, 1),
        ids=torch.tensor([1, 2, 1, 3, 3, 9]),
        owner=torch.tensor([-1, -1, -1, -1, -1, 0]),
        in_batch=torch.tensor([False, False, True, True, True, False]),
        draw_probability=torch.tensor([0.5, 0.1, 0.5, 0.0, 0.0, 0.0]),
        link_share=torch.tensor([0.2, 0.0, 0.2, 0.4, 0.4, 0.0]),
    )
    found = candidates.log_q()
    assert found is not None
    assert found.exp().tolist() == pytest.approx([1.6, 0.2, 1.6, 1.2, 1.2, 1.0])


def test_joined_candidates_keep_the_fields_that_there_are() -> None:
    joined = Candidates.joined([candidates_of([3, 4], [-1, 7]), candidates_of([5], [8])])
    assert joined.ids.tolist() == [3, 4, 5]
    assert joined.rows.shape == (3, 1)
    assert joined.columns.keys() == {"rows", "ids", "owner"}
    assert joined.columns["owner"].tolist() == [-1, 7, 8]
    assert joined.group is None
