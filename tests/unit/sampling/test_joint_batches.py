"""Joint batches: each sequence goes on by itself, whatever the others and the ranks are."""

from __future__ import annotations

import pytest
import torch

from raygnn.sampling.batch import Batch
from raygnn.sampling.batch_sequence import BatchSequence, JointBatches


class _Places(BatchSequence[Batch]):
    """Batches that hold the places of their examples."""

    def build(self, epoch: int, index: int) -> Batch:
        places = torch.from_numpy(self.places(epoch, index))
        return Batch(index=index, input_id=places, nodes={}, edges={})


def _sequences(rank: int = 0, world_size: int = 1) -> dict[str, _Places]:
    shared = {"split": "train", "seed": 3, "shuffle": True, "rank": rank, "world_size": world_size}
    return {
        "many": _Places(70, batch_size=10, **shared),
        "few": _Places(25, batch_size=10, **shared),
    }


def _drawn(batch: object, name: str) -> tuple[int, int, list[int]]:
    own = batch.batches[name]  # type: ignore[attr-defined]
    return batch.epochs[name], own.index, own.input_id.tolist()  # type: ignore[attr-defined]


@pytest.mark.parametrize("num_threads", [0, 2])
def test_each_sequence_is_drawn_as_alone(num_threads):
    joint = JointBatches(_sequences(), num_threads=num_threads)
    assert (joint.num_batches, joint.batch_size) == (7, 20)
    drawn = [batch for epoch in range(3) for batch in joint.iterate(epoch)]
    assert [batch.index for batch in drawn] == [*range(7)] * 3
    for name, alone in _sequences().items():
        expected = [
            (epoch, batch.index, batch.input_id.tolist())
            for epoch in range(8)
            for batch in alone.iterate(epoch)
        ]
        assert [_drawn(batch, name) for batch in drawn] == expected[:21]


def test_ranks_share_what_one_draws():
    whole = list(JointBatches(_sequences()).iterate(1, start=2))
    parts = [list(JointBatches(_sequences(rank, 3)).iterate(1, start=2)) for rank in range(3)]
    together = sorted((batch for part in parts for batch in part), key=lambda batch: batch.index)
    for name in ("many", "few"):
        assert [_drawn(b, name) for b in together] == [_drawn(b, name) for b in whole]
    assert [[batch.index for batch in part] for part in parts] == [[3, 6], [4], [2, 5]]


def test_a_sequence_cut_into_as_many_batches_is_seen_once_an_epoch():
    sequences = _sequences()
    sequences["few"].cut_into(7, least=1)
    assert sequences["few"].batch_size == 4
    joint = JointBatches(sequences)
    seen = [place for batch in joint.iterate(0) for place in _drawn(batch, "few")[2]]
    assert sorted(seen) == list(range(25))
    sequences["few"].cut_into(25, least=3)
    assert sequences["few"].batch_size == 3
    sequences["few"].cut_into(1, least=30)
    assert sequences["few"].batch_size == 3


def test_a_joint_batch_moves_as_a_whole():
    batch = JointBatches(_sequences()).make(0, 0)
    moved = batch.to("meta")
    assert all(own.input_id.device.type == "meta" for own in moved.batches.values())
    assert (moved.index, moved.num_edges) == (0, 0)
