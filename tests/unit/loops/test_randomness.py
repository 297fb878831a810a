from __future__ import annotations

import io
import random

import numpy as np
import torch

from raygnn.loops.process import (
    random_state,
    restore_random_state,
    seed_micro_batch,
    seed_process,
)


def test_a_micro_batch_seeds_by_what_it_is():
    draws = {}
    for epoch in range(2):
        for index in range(3):
            seed_micro_batch(7, epoch, index)
            draws[epoch, index] = torch.rand(4)
    seed_micro_batch(7, 1, 2)
    assert torch.equal(torch.rand(4), draws[1, 2])
    assert len({tuple(d.tolist()) for d in draws.values()}) == 6


def test_states_survive_a_safe_round_trip():
    seed_process(3)
    buffer = io.BytesIO()
    torch.save(random_state(), buffer)
    expected = (random.random(), np.random.rand(), torch.rand(2))
    seed_process(4)
    restore_random_state(torch.load(io.BytesIO(buffer.getvalue()), weights_only=True))
    found = (random.random(), np.random.rand(), torch.rand(2))
    assert found[:2] == expected[:2]
    assert torch.equal(found[2], expected[2])
