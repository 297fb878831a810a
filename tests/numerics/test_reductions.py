"""`loss_reduction` and `grad_reduction` give the gradients that their formulas say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from raygnn.config import load_config
from raygnn.loops.gradients import GradReduction
from raygnn.loops.task import StepOutput
from tests.errors import raises
from tests.small_runs import check_workers_agree, small_config
from tests.tiers import slow

SUMS, WEIGHTS = (6.0, 8.0, 1.0), (3.0, 2.0, 1.0)


def double_weight(output: StepOutput) -> float:
    """A user's weight of a micro-batch."""
    return 2.0 * output.weight + 1.0


@pytest.mark.parametrize(
    ("loss", "grad", "expected"),
    [
        ("mean", "sample_mean", 15 / 6),
        ("mean", "batch_mean", (2 + 4 + 1) / 3),
        ("mean", "sum", 2 + 4 + 1),
        ("sum", "sum", 15),
        ("sum", "batch_mean", 15 / 3),
        ("mean", "tests.numerics.test_reductions.double_weight", (7 * 2 + 5 * 4 + 3 * 1) / 15),
    ],
)
def test_formulas(loss, grad, expected):
    settings = {"loss_reduction": loss, "grad_reduction": grad}
    reduction = GradReduction(load_config({"training": settings}, allow_modules=["tests"]))
    total = divisor = 0.0
    for loss_sum, weight in zip(SUMS, WEIGHTS, strict=True):
        factor, share = reduction.factor_and_divisor(StepOutput(torch.tensor(loss_sum), weight))
        total += factor * loss_sum
        divisor += share
    assert (total / divisor if reduction.divides else total) == pytest.approx(expected)


def negative_weight(output: StepOutput) -> float:
    """A mistake."""
    return -1.0


def test_a_weight_must_be_one():
    settings = {"grad_reduction": f"{__name__}.negative_weight"}
    reduction = GradReduction(load_config({"training": settings}, allow_modules=["tests"]))
    with raises("training-reduction-weight", -1):
        reduction.factor_and_divisor(StepOutput(torch.tensor(1.0), 1.0))


@pytest.mark.parametrize("grad", ["sum", *slow("batch_mean", f"{__name__}.double_weight")])
def test_workers_agree_on_each(ranks, small_bundle_path, tmp_path, grad):
    def config(folder: Path, size: int) -> dict:
        changes = {"training__grad_reduction": grad, "training__ema_decay": 0.9}
        changes |= {"training__global_batch_size": 48, "scaling__num_workers": size}
        return small_config(folder, optimizer={"type": "SGD", "args": {"lr": 0.05}}, **changes)

    check_workers_agree(ranks, config, tmp_path, small_bundle_path, sizes=(1, 3))
