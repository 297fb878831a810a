"""`scaling.gradients: ddp`: buckets that leave while the backward pass runs sum to the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from raygnn.errors import TrainingError
from raygnn.parallel import all_reduce, collectives
from raygnn.parallel.all_reduce import GradientReducer, LocalTotals, OverlappingReducer, StepTotals
from tests.small_runs import (
    run_rank,
    run_rank_in_small_buckets,
    small_bundle,
    small_config,
    trained_weights,
)
from tests.tiers import slow

CPU = torch.device("cpu")


def _model() -> nn.ModuleDict:
    torch.manual_seed(0)
    sizes = {"first": (3, 5), "odd": (5, 5), "unused": (5, 5), "last": (5, 2)}
    return nn.ModuleDict({name: nn.Linear(*size) for name, size in sizes.items()})


def _loss(model: nn.ModuleDict, number: int) -> Tensor:
    """Of batches of different sizes, of which every second has no part in some weights."""
    x = torch.randn(number + 1, 3, generator=torch.Generator().manual_seed(number))
    hidden = model["first"](x).relu()
    if number % 2:
        hidden = model["odd"](hidden).relu()
    return model["last"](hidden).square().sum()


def _step(
    kind: type[GradientReducer], num_batches: int, bucket_bytes: int
) -> list[tuple[list[Tensor], StepTotals]]:
    """Two steps, each batch on the rank of its number."""
    model, sums = _model(), torch.zeros(2)
    with patch.object(all_reduce, "_BUCKET_BYTES", bucket_bytes):
        reducer = kind(model, ("seen",), CPU, sums)
    found = []
    for step in range(2):
        model.zero_grad()
        sums.fill_(1.0)
        local = LocalTotals()
        own = list(range(collectives.rank(), num_batches, collectives.world_size()))
        for number in own:
            if number == own[-1]:
                reducer.begin_last_backward()
            _loss(model, number + step).backward()
            local.add(weight=number + 1.0, loss_sum=1.0, num_samples=1)
            local.add_metrics({"seen": 1.0})
        totals, _ = reducer.reduce(local).read()
        assert sums.tolist() == [collectives.world_size()] * 2
        found.append(([p.grad.clone() for p in model.parameters()], totals))
    return found


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("num_batches", [1, 2, 5])
@pytest.mark.parametrize("bucket_bytes", [4, 150, 1 << 20])
def test_sums_are_those_of_one_all_reduce(ranks, world_size, num_batches, bucket_bytes):
    given = (num_batches, bucket_bytes)
    flat = ranks.run(_step, world_size, GradientReducer, *given)
    kind = OverlappingReducer if world_size > 1 else GradientReducer
    for steps, expected in zip(ranks.run(_step, world_size, kind, *given), flat, strict=True):
        for (grads, totals), (wanted, wanted_totals) in zip(steps, expected, strict=True):
            assert totals == wanted_totals
            for grad, reference in zip(grads, wanted, strict=True):
                torch.testing.assert_close(grad, reference, rtol=1e-6, atol=1e-7)
                assert world_size > 2 or torch.equal(grad, reference)


def _left_early() -> list[list[bool]]:
    """For each of two backward passes, which weights have sent their gradient when it is over."""
    model = _model()
    with patch.object(all_reduce, "_BUCKET_BYTES", 4):
        reducer = OverlappingReducer(model, (), CPU)
    left = []
    for is_last in (False, True):
        if is_last:
            reducer.begin_last_backward()
        _loss(model, 1).backward()
        left.append([model[name].weight.grad is None for name in ("last", "unused", "first")])
    reducer.reduce(LocalTotals())
    return left


def test_buckets_leave_in_the_last_backward_pass_in_a_fixed_order(ranks):
    # `unused` gets no gradient, so what comes behind it waits for the end of the pass.
    for left in ranks.run(_left_early, 2):
        assert left == [[False, True, False], [True, True, False]]


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        raise ValueError("in the middle of the backward pass")


def _fail_on_one() -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """Rank 1 fails when some of its buckets have left; the next step is as if it had not."""
    model, local = _model(), LocalTotals()
    with patch.object(all_reduce, "_BUCKET_BYTES", 4):
        reducer = OverlappingReducer(model, (), CPU)
    hidden = model["first"](torch.ones(2, 3))
    if collectives.rank() == 1:
        hidden = _Fails.apply(hidden)
    reducer.begin_last_backward()
    try:
        model["last"](hidden).sum().backward()
    except ValueError:
        local.failed = True
    early = model["last"].weight.grad is None
    failed = reducer.reduce(local).read()[0].failed_ranks
    model.zero_grad()
    return failed, reducer.reduce(LocalTotals()).read()[0].failed_ranks, early


@pytest.mark.parametrize("world_size", [3])
def test_a_rank_that_fails_in_the_middle_is_known_to_all(ranks, world_size):
    assert ranks.run(_fail_on_one, world_size) == [((1,), (), True)] * world_size


def _checkpointed() -> tuple[str | None, tuple[int, ...]]:
    """A layer used twice, whose backward pass runs by itself for each use."""
    layer, local, found = nn.Linear(5, 5), LocalTotals(), None
    with patch.object(all_reduce, "_BUCKET_BYTES", 4):
        reducer = OverlappingReducer(layer, (), CPU)
    reducer.begin_last_backward()
    x = torch.ones(2, 5, requires_grad=True)
    for _ in range(2):
        x = checkpoint(layer, x, use_reentrant=True)
    try:
        x.sum().backward()
    except TrainingError as error:
        found, local.failed = error.id, True
    return found, reducer.reduce(local).read()[0].failed_ranks


def test_gradients_that_come_twice_are_refused(ranks):
    assert ranks.run(_checkpointed, 2) == [("gradients-twice", (0, 1))] * 2


@pytest.fixture(scope="module")
def bundle_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(small_bundle(tmp_path_factory.mktemp("graph"), num_nodes=280).path)


def _config(folder: Path, **changes: Any) -> dict[str, Any]:
    given = {"scaling__num_workers": 2, "scaling__gradients": "ddp"}
    return small_config(folder, **{**given, "training__global_batch_size": 96, **changes})


@pytest.mark.parametrize("shard", ["none", *slow("optimizer")])
def test_whole_runs_train_the_same_weights(ranks, bundle_path, tmp_path, shard):
    """11 micro-batches, six a step: in the last step of an epoch ranks have different numbers."""
    flat = _config(tmp_path / "flat", scaling__gradients="flat", scaling__shard=shard)
    ranks.run(run_rank, 2, flat, bundle_path)
    expected = trained_weights(flat)
    for world_size in (2, 3):
        config = _config(
            tmp_path / str(world_size), scaling__num_workers=world_size, scaling__shard=shard
        )
        ranks.run(run_rank_in_small_buckets, world_size, config, bundle_path)
        for name, weight in trained_weights(config).items():
            assert world_size > 2 or torch.equal(weight, expected[name])
            torch.testing.assert_close(weight, expected[name], rtol=1e-4, atol=1e-5)
