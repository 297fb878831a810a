"""One flat all-reduce gives the gradient of the whole global batch, however it is spread."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from raygnn.errors import TrainingError
from raygnn.parallel import collectives
from raygnn.parallel.all_reduce import GradientReducer, LocalTotals
from tests.small_runs import run_rank, small_config

NUM_BATCHES = 5


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.ModuleDict({"used": nn.Linear(3, 2), "unused": nn.Linear(3, 2)})


def _batch(index: int) -> torch.Tensor:
    return torch.randn(index + 1, 3, generator=torch.Generator().manual_seed(index))


def _reduce_share() -> tuple[list[torch.Tensor], object]:
    """Each rank takes every world-size-th of five batches of different sizes."""
    model = _model()
    local = LocalTotals()
    for index in range(collectives.rank(), NUM_BATCHES, collectives.world_size()):
        x = _batch(index)
        loss_sum = model["used"](x).square().sum()
        loss_sum.backward()
        local.add(weight=len(x), loss_sum=float(loss_sum.detach()), num_samples=len(x))
        local.add_metrics({"seen": float(len(x))})
    reducer = GradientReducer(model, ("seen",), torch.device("cpu"))
    totals, _ = reducer.reduce(local).read()
    reducer.scale(1 / totals.weight)
    return [p.grad.clone() for p in model.parameters()], totals


@pytest.mark.parametrize("world_size", [2, 3])
def test_any_number_of_ranks_gives_the_gradient_of_one(ranks, world_size):
    expected, expected_totals = _reduce_share()
    for grads, totals in ranks.run(_reduce_share, world_size):
        for grad, reference in zip(grads, expected, strict=True):
            torch.testing.assert_close(grad, reference)
        assert totals.weight == expected_totals.weight == 15
        assert totals.num_samples == 15
        assert totals.metrics == {"seen": 15.0}
        assert totals.loss_sum == pytest.approx(expected_totals.loss_sum, rel=1e-6)


def test_a_parameter_without_part_has_a_zero_gradient():
    grads, _ = _reduce_share()
    assert torch.count_nonzero(grads[2]) == 0
    assert torch.count_nonzero(grads[3]) == 0


def _reduce_with_failure() -> tuple[list[torch.Tensor], object]:
    model = _model()
    model["used"](torch.ones(1, 3)).sum().backward()
    local = LocalTotals(weight=1.0, failed=collectives.rank() == 1)
    totals, _ = GradientReducer(model, (), torch.device("cpu")).reduce(local).read()
    return [p.grad for p in model.parameters()], totals


def test_a_failed_rank_is_known_to_all_and_adds_nothing(ranks):
    results = ranks.run(_reduce_with_failure, 3)
    for _, totals in results:
        assert totals.failed_ranks == (1,)
        assert totals.weight == 2.0


def _stop_flags() -> bool:
    local = LocalTotals(stop=collectives.rank() == 0)
    return GradientReducer(_model(), (), torch.device("cpu")).reduce(local).read()[0].stop


def test_one_rank_asks_and_all_stop(ranks):
    assert ranks.run(_stop_flags, 2) == [True, True]


@pytest.mark.parametrize("shard", ["none", "optimizer", "full"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_gradient_that_is_not_finite_stops_all_ranks_before_the_update(
    ranks, small_bundle_path, tmp_path, world_size, shard
):
    """Whichever rank it comes from. What `checkpoint.every` saved last is the step before."""
    bad = {"batch": 3, "rank": world_size - 1}
    common = {
        "scaling": {"num_workers": world_size, "shard": shard},
        "training__clip_grad_norm": 1.0,
        "checkpoint": {"every": {"steps": 1}, "policy": "all"},
    }
    broken = small_config(
        tmp_path, model={"type": "tests.user_code.BadGradient", "args": bad}, **common
    )
    message = r"TrainingError: The gradient of \S+root is not finite at step 3"
    for failure in ranks.run(_failure_of, world_size, broken, small_bundle_path):
        assert re.search(message, failure)
    fine = small_config(
        tmp_path / "fine",
        model={"type": "tests.user_code.BadGradient", "args": {**bad, "batch": 0}},
        **{**common, "training__max_steps": 2},
    )
    ranks.run(run_rank, world_size, fine, small_bundle_path)
    saved, expected = _last_weights(tmp_path), _last_weights(tmp_path / "fine")
    for name, weight in expected.items():
        assert torch.equal(saved[name], weight), name


def _failure_of(config: dict[str, Any], bundle_path: str) -> str:
    try:
        run_rank(config, bundle_path)
    except TrainingError as error:
        return f"TrainingError: {error}"
    return "none"


def _last_weights(folder: Path) -> dict[str, torch.Tensor]:
    *_, last = sorted((folder / "run" / "checkpoints").glob("step-*"))
    assert last.name.startswith("step-0000000002-")
    return torch.load(last / "state.pt", weights_only=True)["model"]
