"""Running statistics move once a step, by all of its micro-batches."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn.norm import BatchNorm

from raygnn.loops.batch_statistics import BatchStatistics

WIDTH = 3


def _rows(num_rows: int, seed: int = 0) -> Tensor:
    return 2.0 * torch.randn(num_rows, WIDTH, generator=torch.Generator().manual_seed(seed)) + 1.0


def _step(statistics: BatchStatistics, module: nn.Module, *batches: Tensor) -> None:
    statistics.clear()
    for batch in batches:
        module(batch)
    statistics.move()


@pytest.mark.parametrize("momentum", [0.1, 0.3, 0.0, None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_of_one_micro_batch_are_those_of_torch(momentum, dtype):
    norm = nn.BatchNorm1d(WIDTH, momentum=momentum, dtype=dtype)
    reference = copy.deepcopy(norm)
    statistics = BatchStatistics(norm)
    for seed in range(4):
        batch = _rows(5 + seed, seed).to(dtype)
        _step(statistics, norm, batch)
        torch.testing.assert_close(norm(batch), reference(batch), rtol=0, atol=0)
        for name, expected in reference.named_buffers():
            torch.testing.assert_close(norm.get_buffer(name), expected)


def test_images_count_each_of_their_points():
    norm = nn.BatchNorm2d(WIDTH)
    reference = copy.deepcopy(norm)
    image = _rows(40).view(2, WIDTH, 4, 5)
    _step(BatchStatistics(norm), norm, image)
    reference(image)
    torch.testing.assert_close(norm.running_var, reference.running_var)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_micro_batches_of_a_step_count_by_their_rows_in_any_order(order, momentum):
    norm = nn.BatchNorm1d(WIDTH, momentum=momentum)
    batches = [_rows(4, 0), _rows(9, 1), _rows(2, 2)]
    _step(BatchStatistics(norm), norm, *(batches[i] for i in order))
    mean = torch.cat(batches).mean(0)
    variance = sum(len(batch) * batch.var(0) for batch in batches) / 15
    share = 1.0 if momentum is None else momentum
    torch.testing.assert_close(norm.running_mean, share * mean)
    torch.testing.assert_close(norm.running_var, (1 - share) + share * variance)
    assert norm.num_batches_tracked == 1


def test_sums_of_ranks_add_up():
    """What two modules have seen, added, moves one as if it had seen both."""
    one, other, both = (nn.BatchNorm1d(WIDTH) for _ in range(3))
    parts = [BatchStatistics(norm) for norm in (one, other, both)]
    one(_rows(4, 0))
    other(_rows(7, 1))
    parts[0].sums.add_(parts[1].sums)
    parts[0].move()
    _step(parts[2], both, _rows(4, 0), _rows(7, 1))
    torch.testing.assert_close(one.running_mean, both.running_mean)
    torch.testing.assert_close(one.running_var, both.running_var)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_norm_without_rows_in_a_step_stays(momentum):
    norm = nn.BatchNorm1d(WIDTH, momentum=momentum)
    statistics = BatchStatistics(norm)
    _step(statistics, norm)
    assert norm.num_batches_tracked == 0
    assert torch.equal(norm.running_var, torch.ones(WIDTH))
    _step(statistics, norm, _rows(6))
    before = norm.running_var.clone()
    _step(statistics, norm, _rows(0))
    assert norm.num_batches_tracked == 1
    assert torch.equal(norm.running_var, before)


def test_a_single_row_is_normalised_by_running_statistics_and_moves_none():
    norm = BatchNorm(WIDTH, allow_single_element=True)
    statistics = BatchStatistics(norm)
    _step(statistics, norm, _rows(6))
    mean, variance = norm.module.running_mean.clone(), norm.module.running_var.clone()
    statistics.clear()
    single = norm(_rows(1))
    torch.testing.assert_close(single, (_rows(1) - mean) / (variance + norm.module.eps).sqrt())
    statistics.move()
    assert torch.equal(norm.module.running_mean, mean)


def test_a_forward_pass_that_fails_leaves_the_norm_as_it_was():
    norm = nn.BatchNorm1d(WIDTH)
    statistics = BatchStatistics(norm)
    _step(statistics, norm, _rows(6))
    before = {name: buffer.clone() for name, buffer in norm.named_buffers()}
    statistics.clear()
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        norm(_rows(1))
    statistics.move()
    assert norm.momentum == 0.1
    for name, buffer in before.items():
        assert torch.equal(norm.get_buffer(name), buffer)


def test_only_training_passes_of_the_step_count():
    norm = nn.BatchNorm1d(WIDTH)
    statistics = BatchStatistics(norm)
    norm(_rows(6))  # between steps
    norm.eval()
    _step(statistics, norm, _rows(6))
    assert torch.equal(norm.running_mean, torch.zeros(WIDTH))


def test_half_precision_statistics_are_added_up_in_float32():
    norm = nn.BatchNorm1d(WIDTH, dtype=torch.bfloat16)
    statistics = BatchStatistics(norm)
    _step(statistics, norm, _rows(300).bfloat16(), _rows(300, 1).bfloat16())
    assert statistics.sums.dtype == torch.float32
    assert norm.running_mean.dtype == torch.bfloat16
    torch.testing.assert_close(
        norm.running_mean.float(),
        0.1 * torch.cat([_rows(300), _rows(300, 1)]).mean(0),
        rtol=0.02,
        atol=0.002,
    )


def test_a_copy_keeps_statistics_of_its_own():
    norm = nn.BatchNorm1d(WIDTH)
    statistics = BatchStatistics(norm)
    copy.deepcopy(norm)(_rows(6))
    assert not statistics.sums.any()
    assert torch.equal(norm.running_mean, torch.zeros(WIDTH))


def test_what_has_no_running_statistics_is_left_alone():
    module = nn.Sequential(
        nn.BatchNorm1d(WIDTH, track_running_stats=False), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1)
    )
    statistics = BatchStatistics(module)
    _step(statistics, module, _rows(4))
    assert statistics.sums.numel() == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what torch says of its own way to trace
def test_a_compiled_module_counts_the_same():
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU())
    eager = copy.deepcopy(module)
    parts = [BatchStatistics(module), BatchStatistics(eager)]
    module.compile(dynamic=True, backend="eager")
    for seed in range(3):
        for statistics, norm in zip(parts, (module, eager), strict=True):
            _step(statistics, norm, _rows(4 + seed, seed), _rows(8, seed))
    for name, expected in eager.named_buffers():
        torch.testing.assert_close(module.get_buffer(name), expected)
    assert eager[1].num_batches_tracked == 3
