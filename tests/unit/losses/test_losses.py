"""Losses: torch's means, as sums that add over any cut of the seeds."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from raygnn.config import Component, build
from raygnn.losses import (
    BinaryCrossEntropy,
    CrossEntropy,
    Huber,
    Loss,
    MeanAbsoluteError,
    MeanSquaredError,
)
from tests.errors import raises

NUM_SEEDS, NUM_OUTPUTS = 12, 4


def logits() -> Tensor:
    return torch.randn(NUM_SEEDS, NUM_OUTPUTS, generator=torch.Generator().manual_seed(0))


def classes() -> Tensor:
    return torch.randint(NUM_OUTPUTS, (NUM_SEEDS,), generator=torch.Generator().manual_seed(1))


def labels() -> Tensor:
    return (logits().roll(1, 0) > 0).long()


def mean_of(loss: Loss, prediction: Tensor, target: Tensor) -> Tensor:
    loss_sum, weight = loss(prediction, target)
    return loss_sum / weight


WEIGHTS = [0.5, 1.0, 2.0, 0.0]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_cross_entropy_is_torchs(smoothing: float, weights: list[float] | None) -> None:
    ours = mean_of(CrossEntropy(smoothing, weights), logits(), classes())
    weight = None if weights is None else torch.tensor(weights)
    theirs = functional.cross_entropy(logits(), classes(), weight=weight, label_smoothing=smoothing)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("weights", [None, 3.0, [1.0, 2.0, 3.0, 4.0]])
def test_binary_cross_entropy_is_torchs(weights: float | list[float] | None) -> None:
    ours = mean_of(BinaryCrossEntropy(weights), logits(), labels())
    pos_weight = None if weights is None else torch.tensor(weights)
    theirs = functional.binary_cross_entropy_with_logits(
        logits(), labels().float(), pos_weight=pos_weight
    )
    torch.testing.assert_close(ours, theirs)


DISTANCES = [
    (MeanSquaredError(), functional.mse_loss),
    (MeanAbsoluteError(), functional.l1_loss),
    (Huber(), functional.huber_loss),
    (Huber(0.3), partial(functional.huber_loss, delta=0.3)),
]


@pytest.mark.parametrize(("loss", "of_torch"), DISTANCES)
def test_distances_are_torchs(loss: Loss, of_torch: Any) -> None:
    target = logits().roll(1, 0)
    expected = of_torch(logits(), target)
    torch.testing.assert_close(mean_of(loss, logits(), target), expected)


@pytest.mark.parametrize("loss", [BinaryCrossEntropy(), *(loss for loss, _ in DISTANCES)])
def test_one_output_takes_targets_without_second_dimension(loss: Loss) -> None:
    prediction, target = logits()[:, :1], labels()[:, 0]
    assert loss(prediction, target) == loss(prediction, target.unsqueeze(1))


def test_cross_entropy_takes_a_column_of_classes() -> None:
    loss = CrossEntropy()
    assert loss(logits(), classes()) == loss(logits(), classes().unsqueeze(1))


@given(cuts=st.lists(st.integers(0, NUM_SEEDS), max_size=4))
@pytest.mark.parametrize(
    ("loss", "target"),
    [
        (CrossEntropy(0.1, WEIGHTS), classes()),
        (BinaryCrossEntropy(), labels()),
        *((loss, logits().roll(1, 0)) for loss, _ in DISTANCES),
    ],
)
def test_sums_and_weights_add_over_any_cut(loss: Loss, target: Tensor, cuts: list[int]) -> None:
    whole_sum, whole_weight = loss(logits(), target)
    bounds = [0, *sorted(cuts), NUM_SEEDS]
    parts = [loss(logits()[a:b], target[a:b]) for a, b in pairwise(bounds)]
    assert float(sum(part[0] for part in parts)) == pytest.approx(float(whole_sum), rel=1e-5)
    assert float(sum(part[1] for part in parts)) == pytest.approx(float(whole_weight))


def test_a_sum_over_many_seeds_does_not_overflow_in_half_precision() -> None:
    prediction = torch.zeros(40_000, 8, dtype=torch.float16)
    loss_sum, weight = CrossEntropy()(prediction, torch.zeros(40_000, dtype=torch.long))
    assert float(loss_sum / weight) == pytest.approx(math.log(8), rel=1e-4)


def test_the_gradient_reaches_the_prediction() -> None:
    prediction = logits().requires_grad_()
    CrossEntropy()(prediction, classes())[0].backward()
    assert prediction.grad is not None
    expected = prediction.detach().softmax(1) - functional.one_hot(classes(), NUM_OUTPUTS)
    torch.testing.assert_close(prediction.grad, expected)


def test_wrong_arguments_are_named() -> None:
    for name, argument, value in (
        ("cross_entropy", "label_smoothing", 1.5),
        *(("huber", "delta", delta) for delta in (0, math.inf, "1")),
        *(("retrieval", "temperature", value) for value in (0.0, -1.0, math.inf, "a")),
        ("retrieval", "candidates", "all"),
        ("margin", "margin", -1),
        ("direct_au", "uniformity", -1),
        *(
            (focal, argument, value)
            for focal in ("focal", "binary_focal")
            for argument, values in {"gamma": (-1.0, math.inf, "2"), "alpha": (-0.1, 1.5)}.items()
            for value in values
        ),
        ("focal", "alpha", True),
        ("binary_focal", "alpha", [0.5, 0.5]),
    ):
        with raises("loss-argument", argument):
            build(Component(type=name, args={argument: value}), "loss")
    for weights in ([1.0, -1.0], [math.nan], [0.0, 0.0]):
        with raises("loss-class-weights", "class_weights"):
            CrossEntropy(class_weights=weights)
    with raises("loss-class-weights", "pos_weight"):
        BinaryCrossEntropy(pos_weight=math.inf)
    with raises("loss-class-weights-count", 4):
        CrossEntropy(class_weights=[1.0, 2.0])(logits(), classes())
    with raises("loss-class-weights-count", 4):
        BinaryCrossEntropy(pos_weight=[1.0, 2.0])(logits(), labels())


def test_wrong_targets_are_named() -> None:
    with raises("loss-label-type", 12):
        CrossEntropy()(logits(), labels())
    with raises("loss-label-type", "torch.float32"):
        CrossEntropy()(logits(), classes().float())
    for loss in (BinaryCrossEntropy(), *(loss for loss, _ in DISTANCES)):
        with raises("loss-label-shape", 12):
            loss(logits(), classes())
