"""Metrics are the same bits for 1, 2 and 3 ranks, and those of scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from raygnn.errors import DataError, RaygnnError, TrainingError
from raygnn.loops.evaluation import evaluate
from raygnn.loops.task import EvalOutput
from raygnn.metrics import AUROC, Accuracy, AveragePrecision, F1Macro, F1Micro
from raygnn.parallel import collectives
from tests.errors import raises

NUM_CLASSES, NUM_ROWS, BATCH = 4, 107, 10


class _Loader:
    num_batches = -(-NUM_ROWS // BATCH)


class _TableTask:
    """Gives rows of a fixed table as evaluation batches."""

    def __init__(self, failing_rank: int | None = None, has_weight: bool = True) -> None:
        self.model = torch.nn.Linear(1, 1)
        self._failing_rank = failing_rank
        self._has_weight = has_weight

    def loader(self, split: str) -> _Loader:
        if split == "missing" and collectives.rank() == self._failing_rank:
            raise DataError("no such split")
        return _Loader()

    def prepare_evaluation(self, split: str) -> None:
        pass

    def evaluate(self, split: str, num_batches: int) -> Iterator[EvalOutput]:
        logits, labels = _table()
        for index in range(collectives.rank(), num_batches, collectives.world_size()):
            if collectives.rank() == self._failing_rank:
                raise ValueError("broken batch")
            ids = torch.arange(index * BATCH, min((index + 1) * BATCH, NUM_ROWS))
            loss = torch.nn.functional.cross_entropy(logits[ids], labels[ids], reduction="sum")
            weight = len(ids) * self._has_weight
            yield EvalOutput(index, ids, float(loss), weight, logits[ids], labels[ids])


def _table() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(NUM_CLASSES, (NUM_ROWS,), generator=generator)
    logits = torch.randn(NUM_ROWS, NUM_CLASSES, generator=generator)
    logits[torch.arange(NUM_ROWS), labels] += 0.7
    return logits, labels


def _evaluate(limit: int | None = None) -> dict[str, float]:
    chosen = [
        kind(NUM_CLASSES, "multi_class")
        for kind in (Accuracy, F1Macro, F1Micro, AUROC, AveragePrecision)
    ]
    return evaluate(_TableTask(), "val", limit, chosen)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_all_ranks_get_the_bits_of_one_process(ranks, world_size):
    expected = _evaluate()
    assert ranks.run(_evaluate, world_size) == [expected] * world_size


def test_fewer_batches_than_ranks_are_no_hang(ranks):
    expected = _evaluate(2)
    assert ranks.run(_evaluate, 3, 2) == [expected] * 3


def _evaluate_with_failure() -> str:
    with pytest.raises(TrainingError) as caught:
        evaluate(_TableTask(failing_rank=1), "val", None, [])
    return str(caught.value)


def test_a_failing_rank_is_named_on_all(ranks):
    expected = "Rank 1 failed in evaluation of the val split: ValueError: broken batch"
    expected += " [run-rank-failed]"
    assert ranks.run(_evaluate_with_failure, 2) == [expected] * 2


def test_seeds_without_weight_are_told():
    with raises("metric-no-weight", "evaluation of the val split"):
        evaluate(_TableTask(has_weight=False), "val", None, [])


def _evaluate_missing() -> str:
    with pytest.raises(RaygnnError) as caught:
        evaluate(_TableTask(failing_rank=1), "missing", None, [])
    return str(caught.value)


def test_a_split_that_one_rank_cannot_load_fails_on_all(ranks):
    assert ranks.run(_evaluate_missing, 2) == ["no such split"] * 2
