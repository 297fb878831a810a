"""All ranks start with rank 0's weights; and what a run leaves behind does not hold the group."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from raygnn.errors import TrainingError
from raygnn.parallel import collectives
from raygnn.parallel.agreement import broadcast_initial_weights
from tests.rank_pool import RankPool
from tests.small_runs import run_rank, small_config


class _Mixed(nn.Module):
    """Weights of several kinds, other ones on each rank."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.transposed = nn.Parameter(torch.randn(3, 5, generator=random).t())
        self.narrow = nn.Parameter(torch.randn(4, generator=random).bfloat16())
        self.frozen = nn.Parameter(torch.randn(2, generator=random), requires_grad=False)
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.tied = self.narrow
        self.register_buffer("count", torch.tensor(seed))
        self.register_buffer("hidden", torch.randn(2, generator=random), persistent=False)


def _values(module: nn.Module) -> dict[str, Tensor]:
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: tensor.detach().clone() for name, tensor in named.items()}


def _broadcast() -> dict[str, Tensor]:
    module = _Mixed(seed=collectives.rank())
    pointers = {name: p.data_ptr() for name, p in module.named_parameters()}
    broadcast_initial_weights(module)
    assert pointers == {name: p.data_ptr() for name, p in module.named_parameters()}
    return _values(module)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_rank_gets_the_weights_and_buffers_of_rank_0(ranks, world_size):
    expected = _values(_Mixed(seed=0))
    assert not torch.equal(expected["narrow"], _values(_Mixed(seed=1))["narrow"])
    for values in ranks.run(_broadcast, world_size):
        assert values.keys() == expected.keys()
        for name, value in values.items():
            assert value.dtype == expected[name].dtype
            assert torch.equal(value, expected[name]), name


def _refused(widths: list[int], has_bias: list[bool], dtypes: list[torch.dtype]) -> str:
    rank = collectives.rank()
    layer = nn.Linear(2, widths[rank], bias=has_bias[rank], dtype=dtypes[rank])
    with pytest.raises(TrainingError) as raised:
        broadcast_initial_weights(layer)
    return str(raised.value)


_WIDTHS, _BIAS, _DTYPES = [4, 4, 4], [True] * 3, [torch.float32] * 3


@pytest.mark.parametrize(
    ("widths", "has_bias", "dtypes", "difference"),
    [
        (
            [4, 4, 5],
            _BIAS,
            _DTYPES,
            "weight is [5, 2] of torch.float32 on rank 2, [4, 2] of torch.float32 on rank 0",
        ),
        (
            _WIDTHS,
            [True, False, True],
            _DTYPES,
            "bias is missing on rank 1, [4] of torch.float32 on rank 0",
        ),
        (
            _WIDTHS,
            [False, True, True],
            _DTYPES,
            "bias is [4] of torch.float32 on rank 1, missing on rank 0",
        ),
        (
            _WIDTHS,
            _BIAS,
            [torch.float32, torch.float64, torch.float32],
            "weight is [4, 2] of torch.float64 on rank 1, [4, 2] of torch.float32 on rank 0",
        ),
    ],
)
def test_ranks_that_built_different_models_are_told_where(
    ranks, widths, has_bias, dtypes, difference
):
    for message in ranks.run(_refused, 3, widths, has_bias, dtypes):
        assert message.startswith(f"the ranks have built different models: {difference}. ")


def _gloo_threads() -> int:
    names = []
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # threads may end while they are listed
            names.append((thread / "comm").read_text())
    return sum(name.startswith("pt_gloo_runloop") for name in names)


def _gloo_threads_of_a_run(config: Any, bundle_path: str) -> tuple[str, int, int]:
    """How the run ended, and gloo's threads before and after its group was left."""
    gc.collect()
    gc.disable()
    failure: Exception | None = None
    try:
        try:
            run_rank(config, bundle_path)
        except TrainingError as error:  # holds the frames of the run, and so its engine
            failure = error
        before = _gloo_threads()
        dist.destroy_process_group()
        return ("" if failure is None else str(failure)), before, _gloo_threads()
    finally:
        gc.enable()


@pytest.fixture(scope="module")
def own_ranks() -> Iterator[RankPool]:
    """Processes of this module alone: the device meshes of sharded runs keep their groups."""
    pool = RankPool(2)
    yield pool
    pool.close()


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_that_is_over_holds_no_process_group(own_ranks, small_bundle_path, tmp_path, fails):
    """Held by C++ objects that wait for the collector, such as DDP's reducer, a group would end
    its threads with the interpreter locked, and wait without end for one that frees a tensor."""
    optimizer = {"type": "SGD", "args": {"lr": float("1e38") if fails else 0.1}}
    config = small_config(tmp_path, scaling__num_workers=2, optimizer=optimizer)
    for failure, before, after in own_ranks.run(
        _gloo_threads_of_a_run, 2, config, small_bundle_path
    ):
        assert ("loss is nan" in failure) == fails, failure
        assert before > 0
        assert after == 0
