"""Number formats reach what they are meant for, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from raygnn.config import load_config
from raygnn.loops.optimization import Optimization
from raygnn.loops.precision import Precision, matmul_precision
from raygnn.sampling import NodeBatch
from tests.batches import batch_of
from tests.errors import raises

CPU = torch.device("cpu")


class Seen(nn.Module):
    """Notes the formats of what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.norm = nn.BatchNorm1d(2)
        self.wide = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, batch: NodeBatch) -> dict[str, torch.dtype]:
        nodes, edges = batch.nodes["node"], batch.edges["node", "to", "node"]
        read = {"x": nodes.columns["x"], "y": batch.y, "edge_index": edges.edge_index}
        return {name: tensor.dtype for name, tensor in read.items()}


def _formats(setting: object) -> tuple[Seen, dict[str, torch.dtype]]:
    training = load_config({"training": {"precision": setting}}).config.training
    module = Seen()
    Precision(training.precision, CPU).apply(module)
    batch = batch_of(torch.ones(3, 2).half(), torch.zeros(2, 1).long(), 3)
    return module, module(replace(batch, labels={"y": torch.ones(3)}))


@pytest.mark.parametrize(
    ("setting", "param", "buffer", "inputs"),
    [
        ("fp32", torch.float32, torch.float32, torch.float32),
        ("bf16-mixed", torch.float32, torch.float32, torch.float32),
        ("bf16-true", torch.bfloat16, torch.bfloat16, torch.bfloat16),
        ({"param": "bf16"}, torch.bfloat16, torch.float32, torch.float32),
        ({"buffer": "bf16", "input": "fp16"}, torch.float32, torch.bfloat16, torch.float16),
    ],
)
def test_formats_of_weights_buffers_and_inputs(setting, param, buffer, inputs):
    module, seen = _formats(setting)
    assert module.linear.weight.dtype == param
    assert module.norm.running_mean.dtype == buffer
    assert module.norm.num_batches_tracked.dtype == torch.int64
    assert seen == {"x": inputs, "y": torch.float32, "edge_index": torch.int64}
    assert module.wide.dtype == (torch.float64 if param == torch.float32 else torch.bfloat16)


@pytest.mark.parametrize(("setting", "dtype"), [("bf16-mixed", "bfloat16"), ("fp16-mixed", "half")])
def test_mixed_precision_multiplies_in_less(setting, dtype):
    linear = nn.Linear(2, 2)
    with Precision(setting, CPU).autocast():
        assert linear(torch.ones(1, 2)).dtype == getattr(torch, dtype)
    with Precision("fp32", CPU).autocast():
        assert linear(torch.ones(1, 2)).dtype == torch.float32


def _sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=1.0)


def test_the_scaler_skips_a_step_that_overflows_and_goes_into_checkpoints():
    loaded = load_config({"training": {"precision": "fp16-mixed"}, "loader": {"batch_size": 4}})
    module = nn.Linear(2, 1)
    parts = Optimization(module, loaded, CPU, _sgd)
    before = module.weight.detach().clone()
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, float("inf"))
    assert _clip(parts, 1) == float("inf")
    parts.step()
    parts.step_schedulers(step=1, epoch=0, epoch_ended=False)
    assert parts.scheduler.last_epoch == 0  # the step that was skipped does not count
    assert torch.equal(module.weight, before)
    assert parts.scaler.get_scale() == 2.0**13  # halved from 2^16 / 4
    saved = parts.state_dict()
    again = Optimization(nn.Linear(2, 1), loaded, CPU, _sgd)
    again.load_state_dict(saved)
    assert again.scaler.get_scale() == 2.0**13


def _clip(parts: Optimization, step: int) -> float:
    return parts.clip(float(parts.grad_norm()), step)


def _with_gradients(sparse: bool, value: float, clip: float | None = None) -> Optimization:
    loaded = load_config({"training": {"clip_grad_norm": clip}})
    module = nn.Sequential(nn.Embedding(4, 2, sparse=sparse), nn.Linear(2, 1))
    parts = Optimization(module, loaded, CPU, _sgd)
    module[1](module[0](torch.tensor([1, 3]))).sum().backward()
    table = module[0].weight.grad
    (table._values() if sparse else table)[0] = value
    return parts


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_gradient_that_is_not_finite_is_named_before_the_update(sparse, value, clip):
    parts = _with_gradients(sparse, value, clip)
    before = [p.detach().clone() for p in parts.module.parameters()]
    with raises("training-gradient-not-finite", "0.weight", 7):
        _clip(parts, 7)
    for parameter, weight in zip(parts.module.parameters(), before, strict=True):
        assert torch.equal(parameter, weight)


@pytest.mark.parametrize("sparse", [False, True])
def test_gradients_whose_squares_overflow_are_clipped(sparse):
    """Their norm is infinite in float32, and a weight times 1 / inf would not move at all."""
    parts = _with_gradients(sparse, 1e30, clip=1.0)
    assert _clip(parts, 1) == pytest.approx(2.0**0.5 * 1e30)
    table = parts.module[0].weight.grad
    assert (table.to_dense() if sparse else table).norm() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("setting", "device", "expected"),
    [(None, "cuda", "high"), (None, "cpu", None), ("medium", "cpu", "medium")],
)
def test_float32_products_are_rounded_on_gpus_unless_the_config_says_otherwise(
    setting, device, expected
):
    loaded = load_config({"training": {"matmul_precision": setting}})
    assert matmul_precision(loaded.config, torch.device(device)) == expected
    before = torch.get_float32_matmul_precision()
    try:
        Optimization(nn.Linear(2, 1), loaded, CPU, _sgd)
        assert torch.get_float32_matmul_precision() == (setting or before)
    finally:
        torch.set_float32_matmul_precision(before)
