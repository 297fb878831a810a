"""Which candidates a positive competes with."""

from __future__ import annotations

import torch

from raygnn.losses import Candidates, score_links


def candidates_of(ids: list[int], owner: list[int] | None = None) -> Candidates:
    return Candidates(
        rows=torch.tensor(ids).float().unsqueeze(1),
        ids=torch.tensor(ids),
        owner=None if owner is None else torch.tensor(owner),
        log_q=torch.arange(len(ids)).float(),
    )


def test_a_positive_does_not_compete_with_itself_nor_with_known_links() -> None:
    # Anchors 7 and 8; 7 links to 1 and 2, 8 to 2. Candidates: the positives, a random node twice,
    # and 1 once more by chance.
    candidates = candidates_of([1, 2, 2, 5, 5, 1])
    every = torch.arange(12.0).view(2, 6)
    known = torch.zeros(2, 6, dtype=torch.bool)
    known[0, [0, 1, 2, 5]] = True
    known[1, [1, 2, 3, 4]] = True
    batch = {
        "positive": torch.tensor([0.1, 0.2, 0.3]),
        "every": every,
        "anchor_index": torch.tensor([0, 0, 1]),
        "anchor_ids": torch.tensor([7, 8]),
        "target_ids": torch.tensor([1, 2, 2]),
        "candidates": candidates,
    }
    scores = score_links(**batch, known=known)
    assert scores.mask.int().tolist() == [
        [1, 1, 1, 0, 0, 1],
        [1, 1, 1, 0, 0, 1],
        [0, 1, 1, 1, 1, 0],
    ]
    assert torch.equal(scores.candidate, every[[0, 0, 1]])
    assert scores.log_q is not None
    assert torch.equal(scores.log_q, torch.arange(6.0))
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
        torch.zeros(2, 3),
        torch.tensor([1, 0, 1]),
        torch.tensor([7, 8]),
        torch.tensor([0, 1, 5]),
        candidates,
    )
    assert scores.mask.int().tolist() == [[0, 1, 0], [0, 0, 1], [0, 1, 1]]


def test_joined_candidates_keep_the_fields_that_there_are() -> None:
    joined = Candidates.joined([candidates_of([3, 4], [-1, 7]), candidates_of([5], [8])])
    assert joined.ids.tolist() == [3, 4, 5]
    assert joined.rows.shape == (3, 1)
    assert joined.columns.keys() == {"rows", "ids", "owner", "log_q"}
    assert joined.columns["owner"].tolist() == [-1, 7, 8]
    assert joined.time is None
