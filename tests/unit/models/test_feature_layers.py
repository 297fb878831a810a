"""Cross layers against their formula, categories as learned rows, and both before an encoder."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from raygnn.models.encoder import MLP
from raygnn.models.feature_layers import (
    CategoryInputs,
    CrossNetwork,
    embedding_channels,
)
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.models.to_pyg import to_pyg
from tests.errors import raises


def _crossed(x: list[float], weights: list[list[list[float]]], biases: list[list[float]]) -> list:
    """Equation 1 of the paper for one row, element by element."""
    row = list(x)
    for weight, bias in zip(weights, biases, strict=True):
        row = [
            x[i] * (sum(weight[i][j] * row[j] for j in range(len(x))) + bias[i]) + row[i]
            for i in range(len(x))
        ]
    return row


@pytest.mark.parametrize(("num_layers", "rank"), [*product([1, 3], [None, 2])])
def test_cross_layers_are_their_formula(num_layers, rank):
    torch.manual_seed(0)
    cross = CrossNetwork(4, num_layers, rank).double()
    weights, biases = [], []
    for layer in cross.layers:
        last = layer if rank is None else layer[1]
        weight = last.weight if rank is None else last.weight @ layer[0].weight
        assert rank is None or layer[0].weight.shape == (rank, 4)
        weights.append(weight.tolist())
        biases.append(last.bias.tolist())
    x = torch.randn(5, 4, dtype=torch.float64)
    expected = torch.tensor([_crossed(row, weights, biases) for row in x.tolist()])
    torch.testing.assert_close(cross(x), expected.double())


def test_layers_raise_the_degree_by_one():
    """Along a line through 0, n layers give a polynomial of degree n + 1."""
    torch.manual_seed(0)
    cross = CrossNetwork(3, 2).double()
    line = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
    values = cross(line * torch.tensor([[1.0, -0.7, 0.4]], dtype=torch.float64))
    powers = line ** torch.arange(4)
    found = torch.linalg.lstsq(powers, values).solution
    torch.testing.assert_close(powers @ found, values)
    assert found[3].abs().min() > 1e-6


def test_it_crosses_what_categories_give():
    torch.manual_seed(0)
    categories = CategoryInputs(3, {1: 5})
    interaction = CrossNetwork(categories.out_channels)
    encoder = GraphEncoder(
        MLP(categories.out_channels, 2, 8), {"user": categories}, {"user": interaction}
    )
    x = torch.tensor([[0.5, 3.0, -1.0], [2.0, 0.0, 1.0]])
    torch.testing.assert_close(encoder.embed("user", x), interaction(categories(x)))
    assert not encoder.reads_rows_as_they_are("user")
    assert encoder.embed("item", x) is x
    assert encoder.reads_rows_as_they_are("item")


def test_what_is_refused():
    encoder = GraphEncoder(MLP(3, 2, 8), interactions={"user": CrossNetwork(3)})
    with raises("model-to-pyg", "model.interaction"):
        to_pyg(encoder, "MLP")


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
