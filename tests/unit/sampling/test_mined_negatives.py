"""Draws of mined negatives follow from the batch's key and the anchor alone."""

from __future__ import annotations

import numpy as np

from raygnn.sampling.negatives import NONE, MinedNegatives

NUM_ANCHORS, K = 40, 12


def _mined(num_drawn: int) -> MinedNegatives:
    targets = np.arange(NUM_ANCHORS * K, dtype=np.int32).reshape(NUM_ANCHORS, K)
    targets[3, 2:] = NONE
    targets[4] = NONE
    return MinedNegatives(targets, num_drawn)


def test_an_anchor_draws_distinct_targets_of_its_own():
    rows = np.array([7, 3, 4, 20])
    targets, which = _mined(5).draw(rows, key=11)
    assert np.bincount(which, minlength=4).tolist() == [5, 2, 0, 5]
    assert len(np.unique(targets)) == len(targets)
    assert (targets // K == rows[which]).all()
    assert (np.diff(which) >= 0).all()


def test_draws_do_not_depend_on_the_other_anchors_of_a_batch():
    mined = _mined(4)
    targets, which = mined.draw(np.arange(NUM_ANCHORS), key=5)
    alone, _ = mined.draw(np.array([9]), key=5)
    assert alone.tolist() == targets[which == 9].tolist()


def test_batches_draw_others_and_all_targets_are_drawn():
    mined = _mined(3)
    drawn = [mined.draw(np.array([8]), key)[0] for key in range(300)]
    counts = np.bincount(np.concatenate(drawn) - 8 * K, minlength=K)
    expected = 300 * 3 / K
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()
