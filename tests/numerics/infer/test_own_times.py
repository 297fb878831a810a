"""Rows with times of their own are encoded at these times: nothing later changes a prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raygnn
import raygnn.infer
import raygnn.train
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from raygnn.serving.answers import Answers
from raygnn.serving.messages import Predict
from tests.numerics.infer.conftest import DAY, NUM_ITEMS, NUM_USERS, Trained, dates, timed_shop
from tests.small_runs import small_config

BUYS = ("user", "buys", "item")
HOW = {"exact": {"exact": True}, "sampled": {"exact": False, "own_batches": True}}


def _written(tables: GraphTables, folder: Path) -> str:
    return str(Path(write_tables(tables, str(folder))).parent)


def _with_another_future(folder: Path, day: int) -> str:
    """The shop with other, more and fewer rows after a day: purchases, and features of users."""
    tables, shop = timed_shop()
    rng = np.random.default_rng(day)
    past = shop["day"] <= day
    num_later = int(rng.integers(0, 2 * (~past).sum()))
    users = np.append(shop["user"][past], rng.integers(0, NUM_USERS, num_later))
    items = np.append(shop["item"][past], rng.integers(0, NUM_ITEMS, num_later))
    days = np.append(shop["day"][past], rng.integers(day + 1, 200, num_later))
    x = np.stack([np.frombuffer(v, "f4") for v in tables.nodes["user"].table["x"].to_pylist()])
    x = np.where(shop["born"][:, None] <= day, x, rng.random(x.shape, dtype=np.float32))
    born = np.where(shop["born"] <= day, shop["born"], rng.integers(day + 1, 200, NUM_USERS))
    nodes = {
        "user": node_rows(np.arange(NUM_USERS), {"x": x}, time=dates(born)),
        "item": tables.nodes["item"],
    }
    edges = {BUYS: edge_rows(users, items, time=dates(days))}
    return _written(GraphTables(nodes, edges), folder)


@pytest.mark.parametrize("how", HOW)
def test_nothing_later_than_a_node_changes_a_bit_of_its_prediction(temporal_labels, tmp_path, how):
    model = raygnn.load(temporal_labels.run)
    graph = model.open(temporal_labels.graph, **HOW[how])
    _, shop = timed_shop()
    for day in (5, 40, 80):
        nodes = np.flatnonzero(shop["born"] <= day)
        other = model.open(_with_another_future(tmp_path / str(day), day), **HOW[how])
        for what in ("probabilities", "embeddings"):
            found, expected = (g.predict(nodes, what=what) for g in (other, graph))
            assert found.arrow.equals(expected.arrow)
        assert not graph.predict(nodes).arrow.equals(
            model.open(temporal_labels.graph, **HOW[how], as_of="latest").predict(nodes).arrow
        )


def test_each_way_to_ask_takes_the_same_times(temporal_labels, tmp_path):
    """Command line, Python, chosen nodes, metrics and a server agree; the record says how."""
    model, graph = raygnn.load(temporal_labels.run), temporal_labels.graph
    _, shop = timed_shop()
    every = model.predict(graph)
    overrides = ["--data.uri", graph, "--scaling.num_workers", "0", "--training.eval", "exact"]
    written = raygnn.infer.predict(temporal_labels.run, tmp_path / "own", overrides)
    assert (written.manifest["own_times"], written.manifest["time_unit"]) == (["user"], "us")
    assert "as_of" not in written.manifest
    truth = shop["taste"][every["id"]]
    judged = model.evaluate(graph, exact=True)
    assert np.mean(every["prediction"] == truth) == pytest.approx(judged["accuracy"], abs=1e-6)
    (served,) = Answers(model, graph, precomputed=True).answer([Predict(nodes=[3, 7])])
    assert served == model.predict(graph, [3, 7]).arrow.to_pylist()
    assert served[0]["probability"] == pytest.approx(every["probability"][3], rel=1e-4)


def test_all_rows_of_one_moment_on_request(temporal_labels, tmp_path, capsys):
    model, graph = raygnn.load(temporal_labels.run), temporal_labels.graph
    arguments = [temporal_labels.run, "--data.uri", graph, "--scaling.num_workers", "0"]
    for name, more in (("own", []), ("latest", ["--as-of", "latest"])):
        assert raygnn.infer.main([*arguments, "--out", str(tmp_path / name), *more]) == 0
    log = capsys.readouterr().out
    assert "each at its own time" in log
    assert "as of 1970-04-10" in log
    latest = model.predict(graph, as_of="latest")
    assert latest.arrow.equals(model.predict(graph, as_of=99 * DAY).arrow)


@pytest.fixture(scope="module")
def future_labels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trained, np.ndarray]:
    """Purchases carry the taste; those of test users all come after the user's time."""
    folder = tmp_path_factory.mktemp("future-labels")
    tables, shop = timed_shop()
    born, rng = np.arange(NUM_USERS), np.random.default_rng(0)
    user = np.repeat(born, 8)
    item = 3 * rng.integers(0, NUM_ITEMS // 3, len(user)) + shop["taste"][user]
    is_test = born >= 200
    day = np.where(is_test[user], 400, 0)
    users = node_rows(
        born,
        {"x": np.zeros((NUM_USERS, 2), np.float32)},
        labels={"y": shop["taste"]},
        time=dates(born),
    )
    nodes = {"user": users, "item": tables.nodes["item"]}
    graph = _written(
        GraphTables(nodes, {BUYS: edge_rows(user, item, time=dates(day))}), folder / "graph"
    )
    settings: dict[str, Any] = {
        "data": {
            "uri": graph,
            "cache_dir": str(folder / "cache"),
            "reverse_edges": True,
            "splits": {"type": "temporal", "quantiles": [0.6, 200 / NUM_USERS]},
        },
        "sampling": {"fanouts": [10, 10], "temporal": {}},
        "model": {"type": "Hetero", "args": {"conv": "GraphSAGE", "hidden_channels": 16}},
        "metrics": [{"type": "accuracy"}],
        "loader": {"batch_size": 64, "eval_batch_size": 128},
        "training": {"max_steps": 80},
        "optimizer": {"type": "Adam", "args": {"lr": 0.01}},
        "scaling__num_workers": 0,
    }
    metrics = raygnn.train.fit(small_config(folder, **settings)).metrics
    return Trained(str(folder / "run"), graph, graph, metrics), shop["taste"]


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "sampled"])
def test_a_future_edge_with_the_label_gives_chance(future_labels, exact):
    trained, taste = future_labels
    model, nodes = raygnn.load(trained.run), np.arange(200, NUM_USERS)

    def accuracy(**how: Any) -> float:
        found = model.predict(trained.graph, nodes, exact=exact, **how)
        return float(np.mean(found["prediction"] == taste[nodes]))

    assert accuracy(as_of="latest") > 0.95  # the model reads such edges
    assert accuracy() < 1 / 3 + 4 * np.sqrt(2 / 9 / len(nodes))
    assert trained.metrics["test/accuracy"] == pytest.approx(accuracy(), abs=1e-6)


def _ratings(folder: Path) -> tuple[str, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    pairs = rng.permutation(30 * 20)[:400]
    user, film = pairs // 20, pairs % 20
    day = rng.integers(0, 100, len(pairs))
    nodes = {
        name: node_rows(np.arange(size), {"x": rng.normal(size=(size, 3)).astype(np.float32)})
        for name, size in (("user", 30), ("film", 20))
    }
    stars = rng.normal(size=len(pairs)).astype(np.float32)
    rates = edge_rows(user, film, time=dates(day), labels={"stars": stars})
    tables = GraphTables(nodes, {("user", "rates", "film"): rates})
    return _written(tables, folder), {"user": user, "film": film, "day": day}


def test_pairs_are_encoded_at_the_times_of_their_edges(tmp_path):
    """Edges asked for by their ends get what they get as edges; other pairs are of the end."""
    graph, rated = _ratings(tmp_path / "graph")
    config = small_config(
        tmp_path,
        task={
            "type": "edge_prediction",
            "args": {"edge_type": "user__rates__film", "factorize": False},
        },
        metrics=[],
        data={
            "uri": graph,
            "reverse_edges": True,
            "cache_dir": str(tmp_path / "cache"),
            "splits": {"type": "temporal", "quantiles": [0.6, 0.8]},
        },
        sampling={"fanouts": [-1, -1], "temporal": {}},
        model={"type": "Hetero", "args": {"hidden_channels": 8}},
        loader={"batch_size": 32, "eval_batch_size": 64},
        scaling__num_workers=0,
    )
    raygnn.train.fit(config)
    opened = raygnn.load(tmp_path / "run").open(graph)
    every = opened.predict()
    pairs = list(zip(every["source_id"].tolist(), every["target_id"].tolist(), strict=True))
    some = opened.predict(pairs[::7])
    np.testing.assert_allclose(some["prediction"], every["prediction"][::7], atol=1e-5)
    at_the_end = raygnn.load(tmp_path / "run").open(graph, as_of="latest")
    later = at_the_end.predict(pairs[::7])["prediction"]
    assert np.abs(later - some["prediction"]).max() > 1e-2
    rated_pairs = set(zip(rated["user"].tolist(), rated["film"].tolist(), strict=True))
    others = [(u, f) for u in range(30) for f in range(20) if (u, f) not in rated_pairs][::9]
    mixed = opened.predict([*others, pairs[0]])["prediction"]
    np.testing.assert_allclose(mixed[:-1], at_the_end.predict(others)["prediction"], atol=1e-5)
    assert mixed[-1] == pytest.approx(every["prediction"][0], abs=1e-5)


def test_links_are_scored_without_themselves_and_what_is_later(temporal_links, tmp_path):
    tables, shop = timed_shop()
    model = raygnn.load(temporal_links.run)
    pair = int(shop["user"][1700]), int(shop["item"][1700])
    same = (shop["user"] == pair[0]) & (shop["item"] == pair[1])
    day = int(shop["day"][same].min())
    kept = (shop["day"] <= day) & ~same
    rows = edge_rows(shop["user"][kept], shop["item"][kept], time=dates(shop["day"][kept]))
    cut = _written(GraphTables(tables.nodes, {BUYS: rows}), tmp_path / "cut")
    found = model.score(temporal_links.graph, [pair], exact=True)["score"]
    expected = model.score(cut, [pair], as_of=day * DAY, exact=True)["score"]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    now = model.score(temporal_links.graph, [pair], as_of="latest", exact=True)["score"]
    assert abs(found[0] - now[0]) > 1e-4


def test_new_rows_are_encoded_at_their_own_times(temporal_labels, tmp_path):
    """New users, and their purchases, get what they get in the tables; none is written there."""
    tables, shop = timed_shop()
    buys = tables.edges[BUYS].table
    born, days = [10, 70], [5, 9, 50, 90]
    users = {"id": [1000, 1001], "x": [[0.1, 0.2], [0.3, 0.4]], "time": dates(np.array(born))}
    bought = {
        "source": [1000, 1000, 1001, 1001],
        "target": [0, 3, 1, 4],
        "time": dates(np.array(days)),
    }
    rows = [
        [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
        for table in (users, bought)
    ]
    old = tables.nodes["user"].table
    x = [np.frombuffer(v, "f4") for v in old["x"].to_pylist()] + [np.float32(v) for v in users["x"]]
    nodes = {
        "user": node_rows(
            np.append(np.arange(NUM_USERS), users["id"]),
            {"x": np.stack(x)},
            time=dates(np.append(shop["born"], born)),
        ),
        "item": tables.nodes["item"],
    }
    ends = [
        np.append(buys[name].to_numpy(), np.array(bought[name])) for name in ("source", "target")
    ]
    edges = {BUYS: edge_rows(*ends, time=dates(np.append(shop["day"], days)))}
    whole = _written(GraphTables(nodes, edges), tmp_path / "whole")
    model = raygnn.load(temporal_labels.run)
    for as_of in (None, "1970-02-20", "latest"):
        new = {"user": rows[0]}, {"user__buys__item": rows[1]}
        with model.extended(temporal_labels.graph, *new, exact=True, as_of=as_of) as graph:
            found = graph.predict(what="probabilities")
        expected = model.predict(whole, users["id"], what="probabilities", as_of=as_of, exact=True)
        assert found["id"].tolist() == users["id"]
        np.testing.assert_allclose(found["probability"], expected["probability"], rtol=1e-4)
