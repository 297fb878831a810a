"""Losses: torch's means and the formulas, as sums that add over any cut of the seeds."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor
from torch.nn import functional

from raygnn.config import Component, build
from raygnn.data.standardization import LabelCounts
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
COUNTS = LabelCounts(100, (90, 7, 2, 1))


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
        (CrossEntropy(class_weights="balanced", label_counts=COUNTS), classes()),
        (BinaryCrossEntropy("balanced", COUNTS), labels()),
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
    ):
        with raises("loss-argument", argument):
            build(Component(type=name, args={argument: value}), "loss")
    with raises("loss-class-weights", "pos_weight"):
        BinaryCrossEntropy(pos_weight=math.inf)
    for loss in (CrossEntropy(class_weights=[1.0, 2.0]), BinaryCrossEntropy([1.0, 2.0])):
        with raises("loss-class-weights-count", 4):
            loss(logits(), classes() if isinstance(loss, CrossEntropy) else labels())


def test_wrong_targets_are_named() -> None:
    with raises("loss-label-type", 12, "binary_cross_entropy"):
        CrossEntropy()(logits(), labels())
    with raises("loss-label-type", "torch.float32"):
        CrossEntropy()(logits(), classes().float())
    for loss in (BinaryCrossEntropy(), *(loss for loss, _ in DISTANCES)):
        with raises("loss-label-shape", 12):
            loss(logits(), classes())


LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=40).map(np.array)


def rows(num_seeds: int = 30, num_classes: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(num_seeds)
    logits = 3 * torch.randn(num_seeds, num_classes, generator=generator)
    return logits, torch.randint(num_classes, (num_seeds,), generator=generator)


@settings(max_examples=60)
@given(LABELS)
def test_balanced_classes_are_scikit_learns(labels: np.ndarray) -> None:
    present = np.unique(labels)
    weights = LabelCounts.of_classes(labels, 6).class_weights()
    expected = np.ones(6)
    expected[present] = compute_class_weight("balanced", classes=present, y=labels)
    np.testing.assert_allclose(weights, expected)
    assert weights[labels].mean() == pytest.approx(1.0)


@settings(max_examples=60)
@given(st.integers(1, 30), st.integers(0, 2**16))
def test_balanced_labels_are_those_of_two_classes_each(num_nodes: int, seed: int) -> None:
    labels = np.random.default_rng(seed).random((num_nodes, 4)) < [0.0, 0.2, 0.5, 1.0]
    weights = LabelCounts.of_labels(labels, 4).binary_weights()
    for column, pair in zip(labels.T, weights, strict=True):
        expected = np.ones(2)
        present = np.unique(column)
        expected[present.astype(int)] = compute_class_weight("balanced", classes=present, y=column)
        np.testing.assert_allclose(pair, expected)


def test_weights_are_given_as_balanced_or_by_class() -> None:
    logits, target = rows()
    counts, names = LabelCounts(10, (6, 0, 4)), ("a", "b", "c")

    def value(weights: object, class_names: object = None) -> float:
        built = CrossEntropy(class_weights=weights, label_counts=counts, class_names=class_names)
        return float(mean_of(built, logits, target))

    assert value("balanced") == pytest.approx(value([10 / 12, 1.0, 10 / 8]))
    assert value({"c": 3, "a": 0.5}, names) == pytest.approx(value([0.5, 1.0, 3.0]))
    assert value({2: 3}) == pytest.approx(value([1.0, 1.0, 3.0]))
    assert value({"1": 0}) == pytest.approx(value([1.0, 0.0, 1.0]))


def test_balanced_cross_entropy_is_torchs_weighted_mean() -> None:
    logits, target = rows()
    counts = LabelCounts.of_classes(target.numpy(), 3)
    weight = compute_class_weight("balanced", classes=np.arange(3), y=target.numpy())
    expected = functional.cross_entropy(logits, target, weight=torch.tensor(weight).float())
    ours = mean_of(CrossEntropy(class_weights="balanced", label_counts=counts), logits, target)
    torch.testing.assert_close(ours, expected)


def test_balanced_positives_are_weighed_by_the_ratio() -> None:
    logits, _ = rows()
    labels = (logits.roll(1, 0) > 1).long()
    counts = LabelCounts.of_labels(labels.numpy(), 3)
    positives = labels.sum(dim=0)
    expected = functional.binary_cross_entropy_with_logits(
        logits, labels.float(), pos_weight=(len(labels) - positives) / positives
    )
    loss = BinaryCrossEntropy("balanced", counts)
    torch.testing.assert_close(mean_of(loss, logits, labels), expected)
    unknown = BinaryCrossEntropy("balanced", LabelCounts(5, (0, 5, 1)))
    assert unknown.weights is not None
    assert unknown.weights.tolist() == [1.0, 1.0, 4.0]


def test_wrong_weights_are_named() -> None:
    argument, counts = "class_weights", LabelCounts(10, (6, 4))

    def build(weights: object, **known: object) -> Loss:
        return CrossEntropy(class_weights=weights, **known)

    for wrong in ("balance", [1.0, "x"], [1.0, -1.0], [True, 2.0], [math.nan, 1.0], [0.0, 0.0]):
        with raises("loss-class-weights", argument):
            build(wrong)
    with raises("loss-class-weights-class", argument, "ok", "fraud"):
        build({"frauds": 2}, label_counts=counts, class_names=("ok", "fraud"))
    with raises("loss-class-weights-class", 2):
        build({2: 2}, label_counts=counts)
    with raises("loss-class-weights", argument):
        build({0: 0, 1: 0}, label_counts=counts)
    with raises("loss-class-weights-count", argument, 2):
        build([1.0, 2.0, 3.0], label_counts=counts)
    for unknown in ("balanced", {"fraud": 2}):
        with raises("loss-class-weights-unknown", argument):
            build(unknown)(*rows(num_classes=2))


def test_unknown_weights_of_labels_are_named() -> None:
    with raises("loss-class-weights", "pos_weight"):
        BinaryCrossEntropy("most")
    with raises("loss-class-weights-unknown"):
        BinaryCrossEntropy("balanced")(torch.zeros(2, 1), torch.zeros(2))
