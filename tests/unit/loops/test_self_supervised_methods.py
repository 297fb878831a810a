"""Losses of the methods, against their formulas on all seeds at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from raygnn.config import Component, build
from raygnn.loops.tasks.self_supervised.methods import Method, Setting
from raygnn.loops.tasks.self_supervised.reconstruction import GraphMAE
from raygnn.loops.tasks.self_supervised.task import spread
from raygnn.loops.tasks.self_supervised.two_views import BGRL, CCASSG, GRACE, BarlowTwins
from raygnn.losses import Candidates
from raygnn.models.encoder import MLP
from raygnn.models.graph_encoder import GraphEncoder
from tests.batches import batch_of
from tests.errors import raises

CHANNELS = 5


def _setting(num_features: int = 4) -> Setting:
    torch.manual_seed(0)
    encoder = GraphEncoder(MLP(4, CHANNELS, hidden_channels=8, num_layers=1))
    return Setting("node", CHANNELS, num_features, encoder, lambda out: MLP(5, out, num_layers=1))


def _views(num_seeds: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    one = torch.randn(num_seeds, CHANNELS, generator=draw) + 3
    return one, one + torch.randn(num_seeds, CHANNELS, generator=draw)


def _in_parts(method: Method, views, cuts: list[int]) -> tuple[float, list[torch.Tensor]]:
    """The loss of a step that is cut into micro-batches, and its gradients, as the engine does."""
    views = [view.clone().requires_grad_() for view in views]
    batches, own = [], []
    first = 0
    for index, size in enumerate(cuts):
        batch = batch_of(torch.zeros(size, 4), torch.zeros(2, 0, dtype=torch.int64), size)
        ids = torch.arange(first, first + size)
        batches.append(replace(batch, index=index, input_id=ids))
        own.append({f"view_{i + 1}": view[first : first + size] for i, view in enumerate(views)})
        first += size
    # Ranks may gather them in another order than that of the micro-batches.
    offered = [method.offer(b, rows) for b, rows in zip(batches, own, strict=True)]
    offered = Candidates.joined([*offered[1::2], *offered[::2]])
    parts = [method.loss(b, rows, offered) for b, rows in zip(batches, own, strict=True)]
    loss = sum(part for part, _ in parts) / sum(weight for _, weight in parts)
    loss.backward()
    return float(loss.detach()), [view.grad for view in views]


def _cca(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    one, other = ((z - z.mean(0)) / z.std(0) for z in (one, other))
    identity, n = torch.eye(CHANNELS), len(one)
    decorrelated = [(identity - z.T @ z / n).square().sum() for z in (one, other)]
    return -(one.T @ other / n).trace() + 0.1 * sum(decorrelated)


def _barlow(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    one, other = ((z - z.mean(0)) / z.std(0, correction=0) for z in (one, other))
    c = one.T @ other / len(one)
    off = ~torch.eye(CHANNELS, dtype=torch.bool)
    return (1 - c.diagonal()).square().sum() + c[off].square().sum() / CHANNELS


def _grace(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """As the published script has it."""

    def side(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        within, between = (torch.exp(a @ c.T / 0.5) for c in (a, b))
        others = within.sum(1) + between.sum(1) - within.diag()
        return -torch.log(between.diag() / others)

    return ((side(one, other) + side(other, one)) / 2).mean()


@pytest.mark.parametrize("cuts", [[12], [4, 4, 4], [1, 7, 4]])
@pytest.mark.parametrize("name", ["cca", "barlow", "grace"])
def test_a_loss_of_a_step_is_that_of_the_paper_however_it_is_cut(name, cuts):
    method, formula = {
        "cca": (CCASSG(_setting(), decorrelation=0.1), _cca),
        "barlow": (BarlowTwins(_setting()), _barlow),
        "grace": (GRACE(_setting()), _grace),
    }[name]
    views = _views()
    if name == "grace":
        views = tuple(functional.normalize(view) for view in views)
    found, gradients = _in_parts(method, views, cuts)
    expected_views = [view.clone().requires_grad_() for view in views]
    expected = formula(*expected_views)
    expected.backward()
    assert found == pytest.approx(float(expected.detach()), rel=1e-4)
    for gradient, view in zip(gradients, expected_views, strict=True):
        torch.testing.assert_close(gradient, view.grad, rtol=1e-3, atol=1e-5)


def test_correlations_do_not_suffer_from_large_means():
    views = [view * 0.01 + 100 for view in _views(64)]
    precise = _cca(*(view.double() for view in views))
    found, _ = _in_parts(CCASSG(_setting(), decorrelation=0.1), views, [32, 32])
    assert found == pytest.approx(float(precise), rel=1e-2)


def test_constant_embeddings_give_finite_gradients():
    for method in (CCASSG(_setting()), BarlowTwins(_setting())):
        _, gradients = _in_parts(method, [torch.ones(8, CHANNELS)] * 2, [8])
        assert all(gradient.isfinite().all() for gradient in gradients)


def test_the_copy_of_bgrl_follows_by_a_cosine_and_gets_no_gradient():
    setting = _setting()
    method, encoder = BGRL(setting, decay=0.9), setting.encoder
    before = next(method.target_encoder.parameters()).clone()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(1)
    for progress, share in ((0.0, 0.1), (0.5, 0.05), (1.0, 0.0)):
        now = next(method.target_encoder.parameters()).clone()
        method.after_step(encoder, progress)
        moved = next(method.target_encoder.parameters()) - now
        wanted = (next(encoder.parameters()) - now) * share
        torch.testing.assert_close(moved, wanted, rtol=1e-4, atol=1e-6)
    assert not torch.equal(before, next(method.target_encoder.parameters()))
    method.on_start(encoder)
    for copied, own in zip(method.target_encoder.parameters(), encoder.parameters(), strict=True):
        torch.testing.assert_close(copied, own)
        assert not copied.requires_grad


def test_bgrl_compares_each_view_with_the_other():
    method = BGRL(_setting())
    one, other = _views()
    rows = {"predicted_1": one, "predicted_2": other, "target_1": other, "target_2": one}
    batch = batch_of(torch.zeros(12, 4), torch.zeros(2, 0, dtype=torch.int64), 12)
    loss, weight = method.loss(batch, rows, None)
    assert weight == 12
    assert float(loss) == pytest.approx(0, abs=1e-4)
    opposite = rows | {"target_2": -one, "target_1": -other}
    assert float(method.loss(batch, opposite, None)[0]) == pytest.approx(4 * 12)


def test_the_error_of_a_reconstruction_is_a_power_of_the_cosine():
    method = GraphMAE(_setting(), alpha=2)
    found, features = torch.eye(4)[:2], torch.tensor([[1.0, 0, 0, 0], [1, 1, 0, 0]])
    batch = batch_of(torch.zeros(2, 4), torch.zeros(2, 0, dtype=torch.int64), 2)
    loss, weight = method.loss(batch, {"found": found, "features": features}, None)
    assert float(loss) == pytest.approx((1 - 2**-0.5) ** 2, abs=1e-4)
    assert weight == 2
    zeros = torch.zeros(2, 4, requires_grad=True)
    loss, _ = method.loss(batch, {"found": zeros, "features": features}, None)
    loss.backward()
    assert float(zeros.grad.abs().max()) <= 200


@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("bgrl", {"drop_edges": 1.0}),
        ("bgrl", {"drop_edges": True}),
        ("cca_ssg", {"mask_features": [0.1, -0.1]}),
        ("cca_ssg", {"decorrelation": -1}),
        ("barlow_twins", {"redundancy": float("nan")}),
        ("grace", {"temperature": 0}),
        ("graphmae", {"mask": 0}),
        ("graphmae", {"alpha": 0.5}),
    ],
)
def test_arguments_out_of_range_are_refused(method, args):
    with raises("method-argument-range", next(iter(args))):
        build(Component(type=method, args=args), "method", setting=_setting())


def test_other_than_two_views_are_refused():
    with raises("method-views", "drop_edges"):
        BGRL(_setting(), drop_edges=[0.1, 0.2, 0.3])


def test_features_that_are_not_there_cannot_be_given_back():
    with raises("method-no-features", "node"):
        GraphMAE(_setting(num_features=0))


def test_the_spread_of_embeddings_shows_a_collapse():
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(4000, 16, generator=draw)
    assert spread(rows) == pytest.approx(1, abs=0.02)
    assert spread(torch.ones(50, 16)) == pytest.approx(0, abs=1e-5)
    assert spread(rows * 0.001 + torch.ones(16)) < 0.01
    assert spread(rows[:0]) == 0
