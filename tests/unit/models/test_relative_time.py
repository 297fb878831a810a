"""Columns of relative time and counts, against the graph up to each seed's time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
import torch

from raygnn.data.transforms.state import YEAR_S
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.models.hetero import Hetero
from raygnn.models.relative_time import AGE_CHANNELS, DateColumn, RelativeTime, encode_age
from raygnn.sampling.temporal import Temporal
from tests.batches import node_loader
from tests.small_graph import SmallGraph

BUYS, BOUGHT = ("user", "buys", "item"), ("item", "rev_buys", "user")
SPAN = 100.0
TIMES = RelativeTime(
    SPAN, ("user", "item"), frozenset({"user"}), (BUYS, BOUGHT), frozenset({BUYS, BOUGHT})
)


def shop(shift: int = 0, late: int = 0) -> SmallGraph:
    """20 users, 5 items and 200 purchases at times 0 to 99, and `late` ones at time 200."""
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 20, 200), rng.integers(0, 5, 200)
    time = rng.integers(0, 100, 200) + shift
    user = np.append(user, np.arange(late) % 20)
    item = np.append(item, np.arange(late) % 5)
    time = np.append(time, np.full(late, 200 + shift))
    x = rng.normal(size=(20, 3)).astype(np.float32)
    return SmallGraph(
        {"user": 20, "item": 5},
        {BUYS: (user, item), BOUGHT: (item, user)},
        stored={"user": {"x": x, "time": np.zeros(20, np.int64) + shift}},
        roles={"time": "time"},
        reverses={BUYS: BOUGHT, BOUGHT: BUYS},
        times={BUYS: time, BOUGHT: time},
    )


def batch_of(
    graph: SmallGraph,
    as_of: int,
    fanouts: tuple[int, ...] = (3, 2),
    columns: Mapping[str, str] = MappingProxyType({"time": "time"}),
):
    return node_loader(
        graph,
        list(fanouts),
        sampling={"temporal": Temporal(strategy="last")},
        node_type="user",
        columns={"x": "x", "time": "time"},
        edge_columns=columns,
        as_of=as_of,
        batch_size=20,
    ).build(0, 0)


def test_columns_are_age_count_and_recency_up_to_the_seed():
    graph = shop()
    columns = TIMES.columns(batch_of(graph, as_of=50), "user")
    user, time = graph.edges[BUYS][0], graph.times[BUYS]
    known = [np.sort(time[(user == u) & (time <= 50)]) for u in range(20)]
    assert columns.shape == (20, TIMES.channels("user"))
    assert torch.equal(columns[:, :AGE_CHANNELS], encode_age(torch.full((20,), 50), SPAN))
    count, latest, ages = columns[:, AGE_CHANNELS:].split([1, 1, AGE_CHANNELS], dim=1)
    expected = torch.tensor([[float(len(times))] for times in known]).log1p()
    torch.testing.assert_close(count, expected)  # all edges, not the three sampled ones
    for u, times in enumerate(known):
        taken = encode_age(torch.from_numpy(50 - times[-3:]), SPAN)
        torch.testing.assert_close(ages[u], taken.mean(0) if len(times) else torch.zeros(9))
        assert latest[u] == (taken[:, 0].min() if len(times) else 1)


@pytest.mark.parametrize("averages", [False, True])
def test_edges_and_their_features_fade_with_age(averages: bool):
    graph = shop()
    amount = torch.rand(200, 1).numpy()
    graph.stored[BUYS] = {"amount": amount}
    graph.stored[BOUGHT] = {"amount": amount}
    graph.roles["amount"] = "feature"
    batch = batch_of(graph, 50, columns={"time": "time", "amount": "amount"})
    times = replace(TIMES, edge_features={BOUGHT: {"amount": 1}}, averages=averages)
    found = times.columns(batch, "user")
    assert found.shape == (20, TIMES.channels("user") + 8)
    assert torch.equal(found[:, :-8], TIMES.columns(batch, "user"))
    edges = batch.edges[BOUGHT]
    age, place = 50 - edges.columns["time"], edges.edge_index[1]
    for i, memory in enumerate((SPAN / 512, SPAN / 128, SPAN / 32, SPAN / 8)):
        weight = (-age / memory).exp()
        num = torch.zeros(20).index_add(0, place, weight)
        total = torch.zeros(20).index_add(0, place, weight * edges.columns["amount"][:, 0])
        torch.testing.assert_close(found[:, -8 + 2 * i], num.log1p())
        expected = total / (num + 0.1) if averages else total.log1p()
        torch.testing.assert_close(found[:, -7 + 2 * i], expected)


@pytest.mark.parametrize("timed_edges", [frozenset(), frozenset({BUYS})])
def test_the_latest_events_count_most(timed_edges: frozenset[tuple[str, str, str]]):
    """Items read the users that bought them as events, at the times of these users or purchases."""
    time = np.arange(20) * 5
    x = np.arange(20, dtype=np.float32)[:, None]
    graph = shop()
    graph.stored["user"] = {"x": x, "time": time}
    times = replace(TIMES, timed_edges=timed_edges, event_widths={BUYS: 1})
    batch = batch_of(graph, 90)
    found = times.columns(batch, "item", {"user": batch.nodes["user"].columns["x"]})
    assert found.shape[1] == times.channels("item")
    user, item = batch.edges[BUYS].edge_index
    of_users = batch.nodes["user"].columns["time"][user]
    ages = 90 - (batch.edges[BUYS].columns["time"] if timed_edges else of_users).float()
    for node in item.unique().tolist():
        age, row = ages[item == node], batch.nodes["user"].columns["x"][user[item == node], 0]
        torch.testing.assert_close(found[node, 1:10], encode_age(age.min()[None], SPAN)[0])
        for i, memory in enumerate((SPAN / 512, SPAN / 128, SPAN / 32, SPAN / 8)):
            weight = (-age / memory).exp()
            torch.testing.assert_close(found[node, 10 + i], weight.sum().log1p())
            mean = (weight * row).sum() / (weight.sum() + 0.1)
            torch.testing.assert_close(found[node, 14 + i], mean)


def test_a_season_returns_after_a_year():
    year, half = YEAR_S * 1e6, YEAR_S * 5e5
    times = replace(TIMES, season="user")
    columns = [
        times.columns(batch_of(shop(), as_of=int(at)), "user")[0, -4:]
        for at in (year, 2 * year, 3 * half)
    ]
    torch.testing.assert_close(columns[0], columns[1])
    assert (columns[0] - columns[2]).abs().max() > 1


@pytest.mark.parametrize("node_type", ["user", "item"])
def test_only_differences_of_times_count(node_type):
    columns = TIMES.columns(batch_of(shop(), as_of=50), node_type)
    shifted = TIMES.columns(batch_of(shop(shift=10**15), as_of=50 + 10**15), node_type)
    assert torch.equal(columns, shifted)


def test_later_rows_change_no_bit_of_an_embedding():
    torch.manual_seed(0)
    widths = {"user": 3 + TIMES.channels("user"), "item": TIMES.channels("item")}
    encoder = GraphEncoder(Hetero(widths, 4, 8, edge_types=[BUYS, BOUGHT]), relative_time=TIMES)
    rows = [encoder(batch_of(shop(late=late), as_of=150))["user"] for late in (0, 40)]
    assert torch.equal(*rows)
    later = encoder(batch_of(shop(), as_of=170))["user"]
    assert not torch.allclose(rows[0], later)  # the same rows, seen 20 later


def test_ages_of_days_and_years_differ():
    day, year = 1.0, 365.0
    ages = torch.tensor([0, day, 2 * day, 30 * day, year, 2 * year, 30 * year])
    encoded = encode_age(ages, span=50 * year)
    distance = torch.cdist(encoded, encoded) + torch.eye(len(ages)) * 9
    assert distance.min() > 0.04
    assert encoded.abs().max() <= 1


def test_dates_become_ages_at_the_seed():
    """Rows a century apart whose dates and seeds move together have the same columns."""
    x = torch.tensor([[3.0, 0.5], [-1.0, 0.5]])
    dates = {"user": [DateColumn(0, unit=10.0, origin=100.0)]}  # 3 is 30 before time 100
    times = RelativeTime(SPAN, ("user",), frozenset(), (), frozenset(), dates=dates)

    def rows(x: torch.Tensor, as_of: int) -> torch.Tensor:
        batch = batch_of(shop(), as_of)
        nodes = replace(
            batch.nodes["user"], n_id=torch.arange(2), seed_time=torch.tensor([as_of] * 2)
        )
        return times.joined(replace(batch, nodes={"user": nodes}), "user", {"user": x})

    found = rows(x, 105)
    assert found.shape == (2, 2 + times.channels("user"))
    assert found[:, :3].tolist() == [[0, 0.5, 1], [0, 0.5, -1]]
    assert torch.equal(found[:, 3:], encode_age(torch.tensor([35, 5]), SPAN))
    assert torch.equal(found, rows(x - torch.tensor([100.0, 0]), 105 + 1000))
