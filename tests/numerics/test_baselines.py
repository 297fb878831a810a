"""A run says beside its result what a guess would have given."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import raygnn.train
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from raygnn.loops.baselines import Baselines
from raygnn.outputs.ladder import verdicts
from tests.small_runs import run_rank, small_config

NUM_ACCOUNTS = 600


def _accounts(folder: Path) -> str:
    """Accounts of which 2 % are fraud; nothing says which."""
    rng = np.random.default_rng(0)
    is_fraud = rng.random(NUM_ACCOUNTS) < 0.02
    source, target = rng.integers(0, NUM_ACCOUNTS, (2, 2400))
    tables = GraphTables(
        {
            "account": node_rows(
                np.arange(NUM_ACCOUNTS),
                {"x": rng.random((NUM_ACCOUNTS, 4), dtype=np.float32)},
                labels={"y": is_fraud.astype(np.int64)},
            )
        },
        {("account", "pays", "account"): edge_rows(source, target)},
    )
    return write_tables(tables, str(folder))


@pytest.mark.parametrize(("lr", "is_said"), [(1.0, True), (1e-4, False)])
def test_a_run_that_was_best_at_its_first_validation(tmp_path, capsys, lr, is_said):
    config = small_config(
        tmp_path,
        data={"uri": _accounts(tmp_path / "graph"), "splits": {"type": "hash"}},
        scaling__num_workers=0,
        loader={"batch_size": 512, "eval_batch_size": 64},
        optimizer={"type": "Adam", "args": {"lr": lr}},
        training={"max_epochs": 6, "validate_every": {"epochs": 1}},
        early_stopping={"patience": 2},
    )
    warnings = raygnn.train.fit(config).metrics["warnings"]
    text = "val/loss was best at the first validation (step "
    assert (text in warnings) == is_said
    assert (text in capsys.readouterr().out) == is_said


@pytest.mark.slow
def test_a_model_of_noise_is_no_better_than_the_majority(tmp_path, capsys):
    uri = _accounts(tmp_path / "graph")
    config = small_config(
        tmp_path,
        data={"uri": uri, "splits": {"type": "hash", "fractions": [0.5, 0.2, 0.3]}},
        scaling__num_workers=0,
        metrics=[],
        loader={"batch_size": 512, "eval_batch_size": 64},
        training={"max_epochs": 100, "validate_every": {"epochs": 1}},
        early_stopping={"patience": 3},
    )
    result = raygnn.train.fit(config)
    metrics, out = result.metrics, capsys.readouterr().out
    names = ("accuracy", "f1_macro", "auroc", "average_precision")
    assert {f"test/{name}" for name in names} <= metrics.keys()
    for guess in ("majority", "stratified"):
        assert {f"baseline/{guess}/{split}/{n}" for split in ("val", "test") for n in names} <= (
            metrics.keys()
        )
        assert (
            f"baseline {guess}: test/accuracy {metrics[f'baseline/{guess}/test/accuracy']:.4f}"
            in out
        )
    assert metrics["baseline/majority/test/auroc"] == 0.5
    told = metrics["no_better_than_baseline"]
    assert f"test/accuracy {metrics['test/accuracy']:.4f} (majority: " in told
    assert "test/auroc" in told
    assert "not better than a baseline by two standard errors: test/" in out
    assert metrics["steps_per_epoch"] == 1
    assert "early stopping (patience 3) may end the run after 4 steps (4 epochs)" in out
    assert metrics["warnings"].startswith("an epoch has 1 step")
    written = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert written["no_better_than_baseline"] == metrics["no_better_than_baseline"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<td>majority</td>" in page
    assert "The model is not better than a baseline by two standard errors: test/" in page
    assert "an epoch has 1 step" in page


@pytest.mark.parametrize("names", [None, ("zeta", "alpha"), ("alpha", "zeta")])
def test_a_model_that_ranks_rare_rows_well_is_not_only_accused(tmp_path, capsys, names):
    """Two of a hundred are rare, and one column orders them well without deciding."""
    rng = np.random.default_rng(0)
    rare = (rng.random(20_000) < 0.02).astype(np.int64)
    x = (rng.normal(size=20_000) + 2 * rare).astype(np.float32)
    ids = np.arange(20_000)
    y = rare if names is None else pa.array(np.array(names)[rare])
    nodes = {"n": node_rows(ids, {"x": x[:, None]}, labels={"y": y})}
    edges = {("n", "to", "n"): edge_rows(ids, ids)}
    write_tables(GraphTables(nodes, edges), str(tmp_path / "graph"))
    config = small_config(
        tmp_path,
        data={"uri": str(tmp_path / "graph"), "splits": {"type": "hash"}},
        scaling__num_workers=0,
        metrics=[],
        loader={"batch_size": 512, "eval_batch_size": 512},
        optimizer={"type": "Adam", "args": {"lr": 0.01}},
        training={"max_epochs": 4, "validate_every": {"epochs": 1}},
        early_stopping=None,
    )
    metrics, out = raygnn.train.fit(config).metrics, capsys.readouterr().out
    assert metrics["test/auroc"] > 0.7
    # Of the rarer class, whatever the names are.
    assert metrics["baseline/majority/test/average_precision"] == pytest.approx(0.02, abs=0.01)
    assert 0.05 < metrics["test/average_precision"] < 0.5
    assert names is None or f"2 classes ({names[1]!r} is rarer)" in out
    assert "test/accuracy" in metrics["no_better_than_baseline"]
    assert "test/auroc" not in metrics["no_better_than_baseline"]
    assert f"better by test/auroc {metrics['test/auroc']:.4f} and test/average_precision" in out
    noise = {**metrics, "no_better_than_baseline": "test/accuracy 0.5 (a: 0.5), test/auroc 0.5 (a)"}
    assert "By test/" not in verdicts(noise)[0]


def test_a_model_that_learns_is_not_accused(tmp_path, small_bundle_path):
    config = small_config(tmp_path, training={"max_epochs": 4})
    metrics = run_rank(config, small_bundle_path)
    assert metrics["baseline/majority/test/accuracy"] < 0.45
    accused = metrics["no_better_than_baseline"]  # on 64 nodes, labels alone are as good
    assert "majority" not in accused
    assert "stratified" not in accused
    assert metrics["warnings"] == ""


def _baselines(config: dict, path: str) -> dict:
    metrics = run_rank(config, path)
    return {k: v for k, v in metrics.items() if k.startswith("baseline/")}


def test_baselines_do_not_depend_on_the_number_of_ranks(ranks, tmp_path, small_bundle_path):
    found = []
    for size in (1, 2, 3):
        config = small_config(
            tmp_path / str(size), scaling__num_workers=0, training={"max_steps": 1}
        )
        results = ranks.run(_baselines, size, config, small_bundle_path)
        assert all(result == results[0] for result in results)
        found.append(results[0])
    assert found[0] == found[1] == found[2]
    assert found[0]["baseline/majority/val/accuracy"] > 0


def test_a_single_training_class_is_warned_about(tmp_path):
    nodes = node_rows(
        np.arange(20), {"x": np.ones((20, 1), np.float32)}, {"y": pa.array(["a"] * 20)}
    )
    tables = GraphTables({"n": nodes}, {("n", "to", "n"): edge_rows(np.arange(20), np.arange(20))})
    splits = {"type": "hash", "fractions": [0.6, 0.2, 0.2]}
    config = small_config(
        tmp_path,
        data={"uri": write_tables(tables, str(tmp_path / "graph")), "splits": splits},
        scaling__num_workers=0,
        training={"max_steps": 1},
        metrics=[],
    )
    assert "training labels are 'a', so" in raygnn.train.fit(config).metrics["warnings"]


SILENT = "receive no messages: they have no incoming edges."
AWAY = "100% of these have outgoing edges"
FLOW = f"{AWAY}; data.reverse_edges: true lets messages flow both ways."


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({}, f"95% of the training nodes of type 'account' {SILENT} {FLOW}"),
        ({"data__undirected": True}, None),
        ({"data__reverse_edges": True, "model__type": "RGCN"}, None),
    ],
)
def test_nodes_that_take_no_messages_are_named(tmp_path, changes, warning):
    """All accounts pay one of 30, which pay nobody."""
    source = np.arange(30, NUM_ACCOUNTS)
    nodes = node_rows(
        np.arange(NUM_ACCOUNTS),
        {"x": np.ones((NUM_ACCOUNTS, 2), np.float32)},
        labels={"y": np.arange(NUM_ACCOUNTS) % 2},
    )
    edges = {("account", "pays", "account"): edge_rows(source, source % 30)}
    uri = write_tables(GraphTables({"account": nodes}, edges), str(tmp_path / "graph"))
    data = {"uri": uri, "splits": {"type": "hash", "fractions": [0.9, 0.05, 0.05]}}
    config = small_config(tmp_path, data=data, scaling__num_workers=0, **changes)
    told = raygnn.train.fit(config).metrics["warnings"]
    assert (warning in told) if warning else (SILENT not in told), told


@pytest.mark.parametrize("reverse_edges", [None, False])
def test_users_that_take_no_messages_are_named(tmp_path, reverse_edges):
    config = small_config(
        tmp_path,
        data={
            "synthetic": {"type": "shop", "num_users": 60, "num_items": 20},
            "reverse_edges": reverse_edges,
            "splits": {"type": "hash"},
        },
        task={"type": "link_prediction", "args": {"edge_type": "user__buys__item"}},
        model={"type": "Hetero", "args": {"hidden_channels": 8}},
        scaling__num_workers=0,
        metrics=[],
        training__max_epochs=1,
    )
    told = raygnn.train.fit(config).metrics["warnings"]
    assert (f"100% of the nodes of type 'user' {SILENT} {FLOW}" in told) == (reverse_edges is False)
    assert "of type 'item'" not in told


@pytest.mark.parametrize(("spread", "is_said"), [(0.2, False), (2.0, True)])
def test_a_target_with_a_long_tail_is_named(tmp_path, spread, is_said):
    rng = np.random.default_rng(2)
    usage = np.exp(spread * rng.normal(size=2000))
    rows = {"x": rng.random((2000, 2), dtype=np.float32)}
    nodes = node_rows(np.arange(2000), rows, {"usage": pa.array(usage.astype(np.float32))})
    edges = edge_rows(*rng.integers(0, 2000, (2, 4000)))
    tables = GraphTables({"n": nodes}, {("n", "to", "n"): edges})
    config = small_config(
        tmp_path,
        data={"uri": write_tables(tables, str(tmp_path / "graph")), "splits": {"type": "hash"}},
        scaling__num_workers=0,
        training={"max_steps": 1},
        losses=[],
        metrics=[],
    )
    warnings = raygnn.train.fit(config).metrics["warnings"]
    assert ("'usage' has a long tail" in warnings) == is_said


def test_what_cannot_be_beaten_is_no_verdict():
    guesses = Baselines({"popularity": {"hits@500": 1.0, "hits@10": 0.2}}, num_rows=400)
    assert guesses.not_beaten({"hits@500": 1.0, "hits@10": 0.2}) == {"hits@10": "popularity"}
