"""Categories in the model's input layer: numbers in a row become learned rows."""

from __future__ import annotations

import pytest
import torch

from raygnn.models.feature_layers import CategoryInputs, embedding_channels


def test_a_row_is_its_numbers_then_its_embeddings() -> None:
    inputs = CategoryInputs(4, {1: 3, 3: 100_000})
    first, second = inputs.embeddings
    x = torch.tensor([[0.5, 2.0, -1.0, 99_999.0], [1.5, 0.0, 7.0, 1.0]])
    out = inputs(x)
    assert out.shape == (2, inputs.out_channels) == (2, 2 + 3 + 50)
    assert torch.equal(out[:, :2], x[:, [0, 2]])
    assert torch.equal(out[:, 2:5], first.weight[[2, 0]] / 3**0.5)
    assert torch.equal(out[:, 5:], second.weight[[99_999, 1]] / 50**0.5)


def test_what_training_never_met_adds_nothing() -> None:
    inputs = CategoryInputs(1, {0: 40})
    assert not inputs(torch.zeros(2, 1)).any()
    lengths = inputs(torch.arange(1.0, 40.0)[:, None]).square().sum(dim=1)
    assert 0.5 < lengths.mean() < 1.5
    inputs(torch.zeros(2, 1)).sum().backward()
    assert inputs.embeddings[0].weight.grad[0].all()  # and is learned where it is met


@pytest.mark.parametrize(
    ("num_codes", "channels"), [(1, 2), (2, 2), (10, 6), (100, 21), (9999, 50)]
)
def test_width_follows_the_rule(num_codes: int, channels: int) -> None:
    assert embedding_channels(num_codes) == channels


def test_saved_weights_hold_the_embeddings_only() -> None:
    assert list(CategoryInputs(3, {1: 4}).state_dict()) == ["embeddings.0.weight"]
