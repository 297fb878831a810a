"""What terms of the loss are called with, what they add up to, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raygnn.config import load_config
from raygnn.documents import parse_yaml
from raygnn.loops.tasks.objective import Objective
from raygnn.losses import Loss
from tests.errors import error_cases, raises

PROVIDED = ("prediction", "outputs", "target", "embeddings", "model", "batch")


def spread(embeddings: Tensor, scale: float = 1.0) -> Tensor:
    """A user's regulariser: a mean over the batch."""
    return scale * embeddings.square().mean()


def two_sums(prediction: Tensor, target: Tensor) -> tuple[Tensor, float]:
    """A user's loss: a sum, and what divides it."""
    return prediction.sum() + target.sum(), 4.0


def smooth_l1(prediction: Tensor, target: Tensor) -> Tensor:
    """A user's loss: a mean over the batch."""
    return nn.functional.smooth_l1_loss(prediction, target)


def per_seed(prediction: Tensor) -> Tensor:
    """Forgets to reduce."""
    return prediction.sum(dim=1)


def per_seed_and_weight(prediction: Tensor) -> tuple[Tensor, float]:
    """Forgets to add up."""
    return prediction.sum(dim=1), float(len(prediction))


class Agreement(nn.Module):
    """A user's class that takes all outputs."""

    def forward(self, outputs: dict[str, Tensor]) -> Tensor:
        return (outputs["main"] - outputs["extra"]).square().mean()


class Renamed(Loss):
    """A loss whose parameters have other names."""

    def forward(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, float]:
        return scores.sum() * 0 + labels.sum(), float(len(labels))


def _objective(*losses: dict[str, Any], provided: tuple[str, ...] = PROVIDED) -> Objective:
    loaded = load_config({"losses": list(losses)}, allow_modules=["tests"])
    return Objective(loaded, "mse", provided, torch.device("cpu"))


def _own(name: str, **settings: Any) -> dict[str, Any]:
    return {"type": f"{__name__}.{name}", **settings}


def _inputs(num_seeds: int = 4) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(num_seeds)
    prediction = torch.randn(num_seeds, 1, generator=generator)
    return {
        "prediction": prediction,
        "outputs": prediction,
        "target": torch.randn(num_seeds, 1, generator=generator),
        "embeddings": torch.randn(num_seeds, 3, generator=generator),
        "model": nn.Linear(2, 1),
        "batch": None,
    }


def test_terms_add_up_by_their_weights_and_each_is_told():
    objective = _objective(
        {"type": "mse"},
        {"type": "embedding_l2", "weight": 0.5},
        {"type": "weight_l1", "weight": 0.1},
        _own("spread", args={"scale": 2.0}, weight=3.0),
    )
    inputs = _inputs()
    output = objective(4, **inputs)
    expected = {
        "loss/mse": (inputs["prediction"] - inputs["target"]).square().sum(),
        "loss/embedding_l2": inputs["embeddings"].square().sum() / 2,
        "loss/weight_l1": 4 * sum(p.detach().abs().sum() for p in inputs["model"].parameters()),
        "loss/spread": 4 * 2 * inputs["embeddings"].square().mean(),
    }
    assert objective.step_metrics == tuple(expected)
    assert output.metrics == pytest.approx({k: float(v) for k, v in expected.items()})
    total = sum(w * v for w, v in zip((1, 0.5, 0.1, 3), output.metrics.values(), strict=True))
    assert float(output.loss_sum.detach()) == pytest.approx(total)
    assert output.weight == 4.0


@pytest.mark.parametrize("labels_are_a_column", [False, True])
@pytest.mark.parametrize(
    "loss",
    [
        {"type": "torch.nn.SmoothL1Loss"},
        {"type": "torch.nn.SmoothL1Loss", "inputs": {"input": "prediction"}},
        _own("smooth_l1"),
    ],
)
def test_prediction_and_target_have_one_shape(loss, labels_are_a_column):
    """[num_seeds, 1] and [num_seeds] would broadcast to [num_seeds, num_seeds]."""
    inputs = _inputs()
    expected = nn.SmoothL1Loss()(inputs["prediction"], inputs["target"])
    target = inputs["target"] if labels_are_a_column else inputs["target"].squeeze(1)
    output = _objective(loss)(4, **{**inputs, "target": target})
    assert float(output.loss_sum / output.weight) == pytest.approx(float(expected))
    assert output.metrics == {}


def test_a_loss_of_torch_takes_binary_labels_and_classes():
    binary = _objective({"type": "torch.nn.BCEWithLogitsLoss"})
    prediction, labels = torch.randn(4, 3), torch.randint(2, (4, 3))
    expected = nn.BCEWithLogitsLoss()(prediction, labels.float())
    output = binary(4, **{**_inputs(), "prediction": prediction, "target": labels})
    assert float(output.loss_sum) == pytest.approx(4 * float(expected))
    classes = torch.tensor([0, 2, 1, 1])
    output = _objective({"type": "torch.nn.CrossEntropyLoss"})(
        4, **{**_inputs(), "prediction": prediction, "target": classes}
    )
    expected = nn.CrossEntropyLoss()(prediction, classes)
    assert float(output.loss_sum) == pytest.approx(4 * float(expected))


@pytest.mark.parametrize("target", [torch.zeros(3), torch.zeros(3, 1), torch.tensor([0, 2, 1])])
def test_a_loss_of_torch_does_not_broadcast(target):
    objective = _objective({"type": "torch.nn.L1Loss"})
    with raises("loss-label-shape", "L1Loss", [3, 3]):
        objective(3, **{**_inputs(3), "prediction": torch.zeros(3, 3), "target": target})


def test_outputs_go_to_their_terms():
    objective = _objective({"type": "mse", "on": "main"}, {"type": "mse", "on": "extra"})
    inputs = _inputs()
    main, extra = torch.zeros(4, 1), torch.ones(4, 1)
    output = objective(4, **{**inputs, "prediction": {"main": main, "extra": extra}})
    assert objective.step_metrics == ("loss/mse.main", "loss/mse.extra")
    assert output.metrics["loss/mse.main"] == pytest.approx(float(inputs["target"].square().sum()))
    both = _objective(_own("Agreement"))
    assert float(both(4, outputs={"main": main, "extra": extra}).loss_sum) == 4.0
    assert both.needs == {"outputs"}


def test_equal_names_are_numbered_and_other_parameter_names_are_fine():
    objective = _objective({"type": "mse"}, {"type": "mse"}, _own("Renamed"))
    assert objective.step_metrics == ("loss/mse", "loss/mse_2", "loss/Renamed")
    inputs = _inputs()
    told = objective(4, **inputs).metrics["loss/Renamed"]
    assert told == pytest.approx(float(inputs["target"].sum()))


def test_a_function_may_give_a_sum_and_its_weight():
    inputs = _inputs(3)
    output = _objective(_own("two_sums"))(3, **inputs)
    assert output.weight == 4.0
    assert float(output.loss_sum) == pytest.approx(
        float(inputs["prediction"].sum() + inputs["target"].sum())
    )


@pytest.mark.parametrize(
    ("text", "message"),
    error_cases(
        """
{type: retrieval}
    loss-inputs-missing | retrieval | scores
{type: tests.unit.loops.test_objective.spread, on: main}
    loss-on-unused | main
{type: torch.nn.CosineEmbeddingLoss}
    loss-inputs-missing | input1, input2 | losses.inputs
{type: torch.nn.L1Loss, inputs: {given: prediction}}
    loss-input-unknown | given='prediction' | input, target
{type: torch.nn.L1Loss, args: {reduction: sum}}
    loss-reduction | sum
{type: torch.nn.BCEWithLogitsLoss, args: {weight: {__type: tests.unit.loops.test_objective.ones}}}
    loss-reduction
{type: torch.nn.NLLLoss, args: {ignore_index: 1}}
    loss-reduction | 1
{type: mse, inputs: {x: ''}}
    config-type | losses.0.inputs.x=''
"""
    ),
)
def test_what_cannot_be_called_is_refused_at_set_up(text, message):
    with raises(*message):
        _objective(parse_yaml(text).value)


def ones() -> Tensor:
    """A tensor as an argument."""
    return torch.ones(1)


@pytest.mark.parametrize("num_seeds", [1, 4])
def test_a_loss_that_is_not_a_scalar_is_refused(num_seeds):
    for name in ("per_seed", "per_seed_and_weight"):
        with raises("loss-result", name, [num_seeds]):
            _objective(_own(name))(num_seeds, **_inputs(num_seeds))


def test_terms_that_divide_by_different_weights_are_refused():
    with raises("loss-weights-differ", "3.0, 4.0"):
        _objective({"type": "mse"}, _own("two_sums"))(3, **_inputs(3))
