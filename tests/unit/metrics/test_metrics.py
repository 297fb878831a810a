"""Metrics equal scikit-learn's, whatever the cut into batches."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
import torchmetrics
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn import metrics as sk
from torch import Tensor
from torch.nn import functional

from raygnn.metrics import (
    AUROC,
    R2,
    Accuracy,
    AveragePrecision,
    BalancedAccuracy,
    Calibration,
    ClassFigures,
    ComparedMetric,
    Confusion,
    ErrorsByValue,
    F1Macro,
    F1Micro,
    MeanAbsoluteError,
    MetricsOverTime,
    RootMeanSquaredError,
    SumMetric,
    TopRows,
    TorchMetric,
    as_metric,
)
from tests.errors import raises
from tests.unit.metrics.ranks import of_ranks_together

MAX_CLASSES = 4
# Few distinct values, so that there are ties.
SCORES = st.integers(-3, 3).map(lambda value: value / 2)


@st.composite
def multi_class(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    rows = draw(st.integers(1, 12))
    classes = draw(st.integers(2, MAX_CLASSES))
    scores = draw(arrays(np.float32, (rows, classes), elements=SCORES))
    target = draw(arrays(np.int64, rows, elements=st.integers(0, classes - 1)))
    return torch.from_numpy(scores), torch.from_numpy(target)


@st.composite
def multi_label(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    rows, labels = draw(st.integers(1, 12)), draw(st.integers(1, MAX_CLASSES))
    scores = draw(arrays(np.float32, (rows, labels), elements=SCORES))
    target = draw(arrays(np.int64, (rows, labels), elements=st.integers(0, 1)))
    return torch.from_numpy(scores), torch.from_numpy(target)


def value_of(metric: SumMetric | ComparedMetric, prediction: Tensor, target: Tensor) -> float:
    if isinstance(metric, SumMetric):
        result = metric.compute(metric.update(prediction, target))
    else:
        result = of_ranks_together(metric, [(prediction, target)])
    assert list(result) == [metric.name]
    return result[metric.name]


@settings(max_examples=200)
@given(st.one_of(multi_class(), multi_label()))
def test_counts_are_scikit_learns(rows: tuple[Tensor, Tensor]) -> None:
    prediction, target = rows
    width, is_classes = prediction.shape[1], target.dim() == 1
    predicted = prediction.argmax(1) if is_classes else (prediction > 0).long()
    problem = "multi_class" if is_classes else "multi_label"
    close = pytest.approx(sk.accuracy_score(target, predicted))
    assert value_of(Accuracy(width, problem), prediction, target) == close
    if not is_classes and width == 1:
        return  # scikit-learn takes one column for a binary problem, not for one label
    for metric, average in ((F1Macro, "macro"), (F1Micro, "micro")):
        theirs = sk.f1_score(target, predicted, average=average, zero_division=0)
        assert value_of(metric(width, problem), prediction, target) == pytest.approx(theirs)


@given(multi_class())
def test_balanced_accuracy_is_scikit_learns(rows: tuple[Tensor, Tensor]) -> None:
    prediction, target = rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that are predicted and do not occur
        theirs = sk.balanced_accuracy_score(target, prediction.argmax(1))
    ours = value_of(BalancedAccuracy(prediction.shape[1], "multi_class"), prediction, target)
    assert ours == pytest.approx(theirs)


@settings(max_examples=60)
@given(st.one_of(multi_class(), multi_label()))
def test_figures_of_classes_are_scikit_learns(rows: tuple[Tensor, Tensor]) -> None:
    prediction, target = rows
    width, is_classes = prediction.shape[1], target.dim() == 1
    predicted = prediction.argmax(1) if is_classes else (prediction > 0).long()
    if not is_classes and width == 1:
        return  # scikit-learn takes one column for a binary problem, not for one label
    names = [f"a/{i}" for i in range(width)]
    figures = ClassFigures(width, "multi_class" if is_classes else "multi_label", names)
    assert figures.describe() is None
    assert figures.compute(figures.update(prediction, target)) == {}
    found = figures.describe()
    theirs = sk.precision_recall_fscore_support(
        target, predicted, labels=range(width), zero_division=np.nan
    )
    assert list(found) == names
    for name, *expected in zip(names, *theirs, strict=True):
        assert list(found[name]) == ["precision", "recall", "f1", "support"]
        ours = [math.nan if v is None else v for v in found[name].values()]
        assert ours == pytest.approx(expected, nan_ok=True)
        assert isinstance(found[name]["support"], int)


@given(multi_class())
def test_confusion_is_scikit_learns(rows: tuple[Tensor, Tensor]) -> None:
    prediction, target = rows
    names = [f"class {i}" for i in range(prediction.shape[1])]
    confusion = Confusion(len(names), "multi_class", names)
    confusion.compute(confusion.update(prediction, target))
    theirs = sk.confusion_matrix(target, prediction.argmax(1), labels=range(len(names)))
    assert confusion.describe() == {"classes": names, "counts": theirs.tolist()}


@given(multi_class())
def test_calibration_is_that_of_each_bin(rows: tuple[Tensor, Tensor]) -> None:
    prediction, target = rows
    calibration = Calibration(prediction.shape[1], "multi_class")
    calibration.compute(calibration.update(prediction, target))
    found = calibration.describe()
    probability, predicted = prediction.double().softmax(1).max(1)
    bins: dict[int, list[tuple[float, bool]]] = {}
    for p, right in zip(probability.tolist(), (predicted == target).tolist(), strict=True):
        bins.setdefault(min(int(p * 10), 9), []).append((p, right))
    ordered = [bins[number] for number in sorted(bins)]
    assert found["rows"] == [len(pairs) for pairs in ordered]
    assert found["confidence"] == pytest.approx([np.mean([p for p, _ in b]) for b in ordered])
    assert found["accuracy"] == pytest.approx([np.mean([r for _, r in b]) for b in ordered])
    gaps = [abs(sum(p - r for p, r in pairs)) for pairs in ordered]
    assert found["error"] == pytest.approx(sum(gaps) / len(target), abs=1e-12)


def test_probabilities_drawn_as_they_say_are_calibrated() -> None:
    draw = torch.Generator().manual_seed(0)
    probability = 0.5 + torch.rand(20_000, generator=draw) / 2
    target = (torch.rand(20_000, generator=draw) < probability).long()
    calibration = Calibration(2, "multi_class")
    for factor, low, high in ((1, 0.0, 0.02), (3, 0.1, 0.5)):  # three times the logit: too sure
        logit = factor * probability.logit()
        state = calibration.update(torch.stack([torch.zeros_like(logit), logit], 1), target)
        calibration.compute(state)
        assert low <= calibration.describe()["error"] <= high


def test_few_rows_have_an_error_by_chance() -> None:
    """On average over draws of labels from the probabilities themselves."""
    draw = torch.Generator().manual_seed(0)
    probability = 0.5 + torch.rand(300, generator=draw) / 2
    scores = torch.stack([torch.zeros(300), probability.logit()], 1)
    calibration, errors = Calibration(2, "multi_class"), []
    for _ in range(300):
        target = (torch.rand(300, generator=draw) < probability).long()
        calibration.compute(calibration.update(scores, target))
        errors.append(calibration.describe()["error"])
    assert calibration.describe()["by_chance"] == pytest.approx(np.mean(errors), rel=0.05)


def test_errors_by_value_are_means_of_bins() -> None:
    errors = ErrorsByValue(1, "regression", torch.tensor([1.0, 2.0]).double())
    actual = torch.tensor([0.5, 1.0, 1.5, 9.0])
    errors.compute(errors.update(torch.tensor([[0.0], [2.0], [1.5], [6.0]]), actual))
    assert errors.describe() == {
        "rows": [1, 2, 1], "actual": [0.5, 1.25, 9.0],
        "predicted": [0.0, 1.75, 6.0], "mae": [0.5, 0.5, 3.0],
    }  # fmt: skip
    errors.compute(errors.update(torch.tensor([[3.0]]), torch.tensor([4.0])))
    assert errors.describe()["rows"] == [1]  # bins without rows are left out


@pytest.mark.parametrize(
    ("step", "name", "first"),
    [(15, "month", "2020-01"), (60, "quarter", "2020 Q1"), (400, "year", "2020")],
)
def test_metrics_over_time_are_those_of_each_period(step: int, name: str, first: str) -> None:
    """In the order of ids, whatever their times."""
    rng = np.random.default_rng(0)
    dates = np.datetime64("2020-01-05", "us") + rng.permutation(60) * np.timedelta64(step, "D")
    prediction, actual = torch.rand(60, 1), torch.rand(60)
    mae = MeanAbsoluteError(1, "regression")
    over_time = MetricsOverTime(1, "regression", [mae], dates.astype(np.int64))
    assert over_time.compute_rows(torch.arange(60), prediction, actual) == {}
    found = over_time.describe()
    assert found[name][0] == first
    assert sum(found["rows"]) == 60
    months = pd.Series(dates).dt.to_period({"month": "M", "quarter": "Q", "year": "Y"}[name])
    error = pd.Series((prediction[:, 0] - actual).abs().numpy())
    assert found["mae"] == pytest.approx(list(error.groupby(months).mean()))


@given(multi_class(), st.randoms(use_true_random=False), st.lists(st.integers(0, 12), max_size=3))
@pytest.mark.parametrize("metric", [Accuracy, F1Macro, F1Micro])
def test_counts_are_the_same_for_any_order_and_cut(
    metric: type[SumMetric], rows: tuple[Tensor, Tensor], random: object, cuts: list[int]
) -> None:
    prediction, target = rows
    counted = metric(prediction.shape[1], "multi_class")
    whole = counted.update(prediction, target)
    order = list(range(len(target)))
    random.shuffle(order)  # type: ignore[attr-defined]
    parts = torch.tensor_split(torch.tensor(order), sorted(cuts))
    states = [counted.update(prediction[part], target[part]) for part in parts]
    assert torch.equal(torch.stack(states).sum(0), whole)
    assert whole.dtype == torch.float64


@given(
    arrays(np.float32, st.tuples(st.integers(2, 9), st.integers(1, 3)), elements=SCORES),
    st.integers(0, 2**31),
)
def test_regression_is_scikit_learns(actual: np.ndarray, seed: int) -> None:
    predicted = actual + np.random.default_rng(seed).integers(-2, 3, actual.shape) / 4
    rows = torch.from_numpy(predicted.astype(np.float32)), torch.from_numpy(actual)
    width = actual.shape[1]
    error = value_of(MeanAbsoluteError(width, "regression"), *rows)
    assert error == pytest.approx(sk.mean_absolute_error(actual, predicted))
    error = value_of(RootMeanSquaredError(width, "regression"), *rows)
    assert error == pytest.approx(sk.mean_squared_error(actual, predicted) ** 0.5)
    assert value_of(R2(width, "regression"), *rows) == pytest.approx(sk.r2_score(actual, predicted))


def test_r2_keeps_digits_when_the_mean_is_far_from_zero() -> None:
    generator = np.random.default_rng(0)
    actual = np.array([6e6, -1e9]) + generator.normal(size=(1000, 2))
    predicted = actual + generator.normal(size=(1000, 2)) / 2
    metric = R2(2, "regression")
    metric.center = (6e6 + 0.1, -1e9)
    expected = sk.r2_score(actual, predicted)
    found = value_of(metric, torch.from_numpy(predicted), torch.from_numpy(actual))
    assert found == pytest.approx(expected, abs=1e-9)


def test_regression_targets_may_lack_the_second_dimension() -> None:
    prediction, target = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 3.0, 4.0])
    assert value_of(MeanAbsoluteError(1, "regression"), prediction, target) == pytest.approx(1 / 3)
    assert value_of(R2(1, "regression"), prediction, target) == pytest.approx(1 - 1 / (14 / 3))


def test_classes_may_be_a_column() -> None:
    prediction, target = torch.eye(3), torch.tensor([[0], [1], [1]])
    for metric in (Accuracy, F1Micro):
        counted = metric(3, "multi_class")
        assert value_of(counted, prediction, target) == pytest.approx(2 / 3)


def test_no_rows_give_nan() -> None:
    none = torch.empty(0, 3)
    classes = torch.empty(0, dtype=torch.long)
    for metric in (Accuracy, F1Macro, AUROC):
        assert math.isnan(value_of(metric(3, "multi_class"), none, classes))
    for metric in (MeanAbsoluteError, RootMeanSquaredError, R2):
        assert math.isnan(value_of(metric(3, "regression"), none, none))


@settings(max_examples=200)
@given(st.one_of(multi_class(), multi_label()))
def test_scores_are_ranked_as_scikit_learn_does(rows: tuple[Tensor, Tensor]) -> None:
    prediction, target = rows
    width, is_classes = prediction.shape[1], target.dim() == 1
    labels, scores = target, prediction.double()
    if is_classes and width == 2:
        labels, scores = target.unsqueeze(1), scores[:, 1:] - scores[:, :1]
    elif is_classes:
        labels, scores = functional.one_hot(target, width), scores.log_softmax(1)
    columns = [(y, x) for y, x in zip(labels.T, scores.T, strict=True) if 0 < y.sum() < len(y)]
    for metric, theirs in (
        (AUROC, sk.roc_auc_score),
        (AveragePrecision, sk.average_precision_score),
    ):
        ours = value_of(metric(width, "multi_class" if is_classes else "multi_label"), *rows)
        expected = np.mean([theirs(*column) for column in columns]) if columns else math.nan
        assert ours == pytest.approx(expected, nan_ok=True)


def test_confident_logits_are_still_told_apart() -> None:
    # As float32 probabilities all of these are 1.
    logits = torch.tensor([[0.0, 50.0], [0.0, 60.0], [0.0, 70.0], [0.0, 80.0]])
    assert value_of(AUROC(2, "multi_class"), logits, torch.tensor([0, 0, 1, 1])) == 1.0


@pytest.mark.parametrize("num_held", [1 << 23, 50])
@pytest.mark.parametrize("kind", [AUROC, AveragePrecision])
@pytest.mark.parametrize(
    ("problem", "width"), [("multi_class", 2), ("multi_class", 4), ("multi_label", 3)]
)
def test_any_cut_into_ranks_and_blocks_gives_the_same_bits(kind, problem, width, num_held):
    """With 50 scores held, negatives go to a file block by block."""
    generator = torch.Generator().manual_seed(0)
    prediction = torch.randint(9, (200, width), generator=generator) / 3
    shape = (200,) if problem == "multi_class" else (200, width)
    target = torch.randint(width if problem == "multi_class" else 2, shape, generator=generator)
    metric = kind(width, problem)
    whole = of_ranks_together(metric, [(prediction, target)])
    rows = [slice(150, 200), slice(0, 0), slice(0, 150)]
    ranks = [(prediction[each], target[each]) for each in rows]
    assert of_ranks_together(metric, ranks, num_held) == whole


def test_nan_scores_give_nan() -> None:
    scores = torch.tensor([[0.0, 1.0], [math.nan, 1.0]])
    assert math.isnan(value_of(AUROC(2, "multi_class"), scores, torch.tensor([0, 1])))


def test_torchmetrics_are_computed_over_all_rows_from_anew() -> None:
    logits = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    target = torch.arange(30) % 3
    theirs = torchmetrics.classification.MulticlassCohenKappa(num_classes=3)
    adapted = as_metric(theirs, 3, "multi_class")
    assert isinstance(adapted, TorchMetric)
    first = adapted.compute(logits, target)
    kappa = sk.cohen_kappa_score(target, logits.argmax(1))
    assert first == {"multiclass_cohen_kappa": pytest.approx(kappa)}
    assert adapted.compute(logits, target) == first
    assert theirs.update_count == 0


def test_torchmetrics_are_named_by_class_or_by_the_user() -> None:
    metric = torchmetrics.classification.MulticlassF1Score(num_classes=3)
    assert TorchMetric(metric, 3, "multi_class").name == "multiclass_f1_score"
    assert TorchMetric(metric, 3, "multi_class", name="mine").name == "mine"
    auroc = torchmetrics.classification.BinaryAUROC()
    assert TorchMetric(auroc, 1, "multi_label").name == "binary_auroc"


def test_torchmetrics_of_several_values_are_logged_by_key() -> None:
    logits, target = torch.eye(3), torch.tensor([0, 1, 1])
    recall = torchmetrics.classification.MulticlassRecall(num_classes=3, average=None)
    values = TorchMetric(recall, 3, "multi_class", name="recall").compute(logits, target)
    assert values == {"recall/0": 1.0, "recall/1": 0.5, "recall/2": 0.0}
    several = _TwoNumbers()
    values = TorchMetric(several, 1, "regression", name="two").compute(logits[:, :1], target)
    assert values == {"two/rows": 3.0, "two/total": 2.0}


def test_torchmetrics_regression_takes_a_single_column() -> None:
    prediction, target = torch.tensor([[1.0], [3.0]]), torch.tensor([1.0, 2.0])
    metric = TorchMetric(torchmetrics.MeanSquaredError(), 1, "regression")
    assert metric.compute(prediction, target) == {"mean_squared_error": 0.5}


def test_torchmetrics_that_give_no_number_are_refused() -> None:
    matrix = torchmetrics.classification.MulticlassConfusionMatrix(num_classes=3)
    with raises("metric-not-number", "shape [3, 3"):
        TorchMetric(matrix, 3, "multi_class").compute(torch.eye(3), torch.arange(3))


def test_our_metrics_are_not_wrapped() -> None:
    metric = Accuracy(3, "multi_class")
    assert as_metric(metric, 3, "multi_class") is metric


def test_a_metric_that_is_not_defined_for_the_problem_is_refused() -> None:
    with raises("metric-problem", "r2", "multi_class"):
        R2(3, "multi_class")
    with raises("metric-problem", "multi_class, multi_label"):
        Accuracy(1, "regression")


class _TwoNumbers(torchmetrics.Metric):
    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("rows", torch.tensor(0.0), "sum")
        self.add_state("total", torch.tensor(0.0), "sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        self.rows += len(preds)
        self.total += target.sum()

    def compute(self) -> dict[str, Tensor]:
        return {"rows": self.rows, "total": self.total}


@settings(max_examples=50)
@given(multi_class())
def test_top_rows_are_those_of_all_orders_of_equal_probabilities(
    rows: tuple[Tensor, Tensor],
) -> None:
    prediction, target = rows[0][:, :2], rows[1].clamp(max=1)
    metric = TopRows(2, "multi_class", 1, "yes")
    metric.compute(prediction, target)
    found = metric.describe()
    is_positive = (target == 1).numpy()
    if not is_positive.any():
        assert found is None
        return
    scores = prediction.double().softmax(1)[:, 1].numpy()
    for share, num, positive, least in zip(
        found["share"], found["rows"], found["positive"], found["least_probability"], strict=True
    ):
        assert num == max(1, math.ceil(share * len(scores) - 1e-9))
        assert least == np.sort(scores)[::-1][num - 1]
        above, equal = scores > least, scores == least
        expected = is_positive[above].sum() + (num - above.sum()) * is_positive[equal].mean()
        assert positive == pytest.approx(expected)
    assert found["positive"][-1] == is_positive.sum()
