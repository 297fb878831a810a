"""Adagrad with one number for each row, beside its formula and beside torch's Adagrad."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from raygnn.errors import ConfigError
from raygnn.loops.row_wise_adagrad import RowWiseAdagrad


def test_rows_follow_the_formula_and_others_stay():
    torch.manual_seed(0)
    table = nn.Embedding(6, 3, sparse=True)
    start = table.weight.detach().clone()
    optimizer = RowWiseAdagrad(table.parameters(), lr=0.1, eps=1e-6)
    expected, sums = start.clone(), torch.zeros(6)
    for ids in ([0, 2, 2], [2, 5], [0]):
        optimizer.zero_grad()
        (table(torch.tensor(ids)) * torch.tensor([1.0, -2.0, 3.0])).sum().backward()
        optimizer.step()
        for row in set(ids):
            gradient = ids.count(row) * torch.tensor([1.0, -2.0, 3.0])
            sums[row] += gradient.square().mean()
            expected[row] -= 0.1 * gradient / (sums[row].sqrt() + 1e-6)
    torch.testing.assert_close(table.weight.detach(), expected)
    assert torch.equal(table.weight[[1, 3, 4]], start[[1, 3, 4]])
    assert optimizer.state[table.weight]["sum"].shape == (6,)


def test_dense_gradients_are_torchs_adagrad():
    def trained(make: type) -> torch.Tensor:
        torch.manual_seed(0)
        layer = nn.Linear(4, 2)
        optimizer = make(layer.parameters(), lr=0.1, initial_accumulator_value=0.5)
        for _ in range(5):
            optimizer.zero_grad()
            layer(torch.randn(3, 4)).square().sum().backward()
            optimizer.step()
        return layer.weight.detach()

    torch.testing.assert_close(trained(RowWiseAdagrad), trained(torch.optim.Adagrad))


def test_negative_arguments_are_refused():
    with pytest.raises(ConfigError, match="optimizer-negative"):
        RowWiseAdagrad([nn.Parameter(torch.zeros(1))], lr=-1.0)
