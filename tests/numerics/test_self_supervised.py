"""Self-supervised learning: the same for 1 and 2 workers and resumed, heads and probe too."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml

import raygnn
import raygnn.train
from raygnn import infer
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from raygnn.loops.callbacks import Callback
from raygnn.loops.engine import Engine
from raygnn.prepare.synthetic import synthetic_tables
from tests.errors import raises
from tests.small_runs import (
    check_resumed_bits,
    check_workers_agree,
    read_history,
    run_rank,
    small_config,
    trained_weights,
)
from tests.tiers import slow

METHODS = ("barlow_twins", "cca_ssg", "bgrl", "grace", "graphmae")
#: The first trains a second encoder; the second has a loss of all micro-batches.
USUAL = ("bgrl", "cca_ssg")
ALL_METHODS = [*USUAL, *slow(*(method for method in METHODS if method not in USUAL))]
JOINT = ("barlow_twins", "cca_ssg", "grace")
FULL = {"sampling": {"type": "full"}}


def _config(folder: Path, method: Any = "bgrl", world_size: int = 0, **changes: Any) -> dict:
    settings = {
        "task": {"type": "self_supervised", "args": {"method": method}},
        "metrics": ["accuracy"],
        "scaling__num_workers": world_size,
        "model": {"type": "GCN", "args": {"hidden_channels": 8, "norm": "batch", "dropout": 0.1}},
        "loader": {"batch_size": 16, "eval_batch_size": 32},
        "optimizer": {"type": "SGD", "args": {"lr": 0.05, "momentum": 0.9}},
    }
    if "sampling" not in changes:
        settings["training__global_batch_size"] = 96
    return small_config(folder, **{**settings, **changes})


@pytest.mark.parametrize("method", ALL_METHODS)
def test_workers_agree(ranks, small_bundle_path, tmp_path, method):
    def config(folder: Path, size: int) -> dict:
        return _config(folder, method, size)

    names = ("train/loss", "val/loss", "train/embedding_std", "val/embedding_std")
    close = {"rtol": 1e-3, "atol": 1e-4}
    check_workers_agree(ranks, config, tmp_path, small_bundle_path, *names, **close)


@pytest.mark.parametrize(
    ("method", "how"),
    [
        ("bgrl", {"scaling__shard": "full"}),
        *slow(
            ("graphmae", {"scaling__shard": "full"}),
            ("cca_ssg", {"scaling__shard": "full"}),
        ),
    ],
)
def test_sharded_weights_train_the_same(ranks, small_bundle_path, tmp_path, method, how):
    """Also the copy of BGRL, whose weights are sharded as the encoder's are."""

    def config(folder: Path, size: int) -> dict:
        return _config(folder, method, size, **(how if size > 1 else {}))

    close = {"rtol": 1e-3, "atol": 1e-4}
    check_workers_agree(ranks, config, tmp_path, small_bundle_path, **close)


@pytest.mark.parametrize("method", ["cca_ssg", *slow("bgrl", "graphmae")])
def test_any_number_of_workers_gives_the_same_bits_on_the_whole_graph(
    ranks, small_bundle_path, tmp_path, method
):
    def config(folder: Path, size: int) -> dict:
        return _config(folder, method, size, training__max_epochs=4, **FULL)

    how = {"sizes": (1, 3), "in_bits": True}
    check_workers_agree(ranks, config, tmp_path, small_bundle_path, "test/accuracy", **how)


@pytest.mark.parametrize("method", USUAL)
def test_resumed_and_straight_end_with_the_same_bits(ranks, small_bundle_path, tmp_path, method):
    config = partial(_config, method=method, world_size=2)
    check_resumed_bits(ranks, config, tmp_path, small_bundle_path)


class Weights(Callback):
    """Keeps the weights that training begins with."""

    seen: dict[str, torch.Tensor]

    def on_train_start(self, engine: Engine) -> None:
        Weights.seen = {
            name: parameter.detach().clone()
            for name, parameter in engine.optimization.module.named_parameters()
        }


@pytest.mark.parametrize("method", ALL_METHODS)
def test_every_parameter_is_trained(small_bundle_path, tmp_path, method):
    """GiGL's heads of self-supervised losses were left out of its optimizer."""
    callbacks = [{"type": "tests.numerics.test_self_supervised.Weights"}]
    config = _config(tmp_path, method, callbacks=callbacks, training__max_epochs=3)
    run_rank(config, small_bundle_path)
    weights = trained_weights(config)
    heads = {name for name in Weights.seen if name.startswith("method.")}
    assert heads or method in ("barlow_twins", "cca_ssg")
    for name, before in Weights.seen.items():
        # The bias before a batch norm has no effect, and what stands on no edge has no gradient.
        if not name.endswith("bias"):
            assert not torch.equal(weights[name], before), name


@pytest.mark.slow
def test_a_step_is_one_loss_however_it_is_cut(small_bundle_path, tmp_path):
    """With all neighbors and no views, micro-batches differ from one batch in rounding alone."""
    plain = {"drop_edges": 0.0, "mask_features": 0.0}
    for method in JOINT:
        found = []
        for batch_size in (100, 300):
            config = _config(
                tmp_path / f"{method}{batch_size}",
                {"type": method, "args": plain},
                model={"type": "GCN", "args": {"hidden_channels": 8}},
                sampling={"fanouts": [-1, -1]},
                loader={"batch_size": batch_size},
                training__global_batch_size=300,
                training__max_epochs=3,
                training__validate_every={"epochs": 3},
            )
            run_rank(config, small_bundle_path)
            losses = read_history(tmp_path / f"{method}{batch_size}")[-1]["train/loss"]
            found.append((losses, trained_weights(config)))
        assert found[0][0] == pytest.approx(found[1][0], rel=1e-4)
        for name, tensor in found[0][1].items():
            torch.testing.assert_close(tensor, found[1][1][name], rtol=1e-3, atol=1e-4)


def _tables(folder: Path, labels: np.ndarray | None, seed: int = 0, **more: Any) -> Path:
    """A planted partition, with these labels in the place of its own; None leaves them out."""
    given = {"num_nodes": 240, "num_classes": 3, "num_features": 8, "noise": 1.0, **more}
    tables = synthetic_tables("planted_partition", seed=seed, **given)
    nodes = tables.nodes["node"]
    if labels is None:
        nodes = replace(nodes, labels={})
    else:
        place = nodes.table.column_names.index("y")
        nodes = replace(nodes, table=nodes.table.set_column(place, "y", pa.array(labels)))
    write_tables(GraphTables({"node": nodes}, tables.edges), str(folder))
    return folder


def _fit(folder: Path, graph: Path, **changes: Any) -> dict[str, Any]:
    settings = {"data": {"uri": str(graph), "cache_dir": str(folder / "cache")}, **changes}
    return raygnn.train.fit(_config(folder, **settings)).metrics


def test_labels_do_not_reach_the_encoder(tmp_path):
    """Other labels give other probes, and the same weights and losses."""
    found = []
    for seed in (1, 2):
        labels = np.random.default_rng(seed).integers(0, 3, 240)
        graph = _tables(tmp_path / f"tables{seed}", labels)
        metrics = _fit(tmp_path / str(seed), graph, training__max_epochs=3)
        folder = tmp_path / str(seed)
        losses = [row["val/loss"] for row in read_history(folder)]
        found.append((losses, trained_weights(_config(folder)), metrics["test/accuracy"]))
    assert found[0][0] == found[1][0]
    assert found[0][2] != found[1][2]
    for name, tensor in found[0][1].items():
        assert torch.equal(tensor, found[1][1][name]), name


def test_without_labels_the_loss_is_monitored(tmp_path):
    graph = _tables(tmp_path / "tables", None)
    metrics = _fit(tmp_path, graph, metrics=[], early_stopping={"monitor": "val/loss"})
    assert metrics["test/loss"] > 0
    assert "test/accuracy" not in metrics
    assert raygnn.load(tmp_path / "run").embed(str(graph))["embedding"].shape == (240, 8)
    with raises("probe-no-labels", "accuracy", "node"):
        _fit(tmp_path / "no", graph)


def test_without_splits_it_trains(tmp_path):
    graph = _tables(tmp_path / "tables", None)
    manifest = yaml.safe_load((graph / "graph.yaml").read_text())
    del manifest["node_types"]["node"]["split"]
    (graph / "graph.yaml").write_text(yaml.safe_dump(manifest))
    metrics = _fit(tmp_path, graph, metrics=[])
    assert metrics["stop_reason"] == "training.max_epochs=2"
    assert [row["train/loss"] > 0 for row in read_history(tmp_path)] == [True, True]


@pytest.mark.parametrize("eval_mode", ["sampled", *slow("exact")])
def test_embeddings_are_written_and_judged(tmp_path, capsys, eval_mode):
    graph = _tables(tmp_path / "tables", np.arange(240) % 3)
    changes = {"training__eval": eval_mode, "sampling__fanouts": [-1, -1]}
    metrics = _fit(tmp_path, graph, training__max_epochs=3, **changes)
    run = tmp_path / "run"
    options = ["--data.uri", str(graph), "--scaling.num_workers", "0"]
    written = infer.predict(run, tmp_path / "out", options)
    table = pq.read_table(written.table_uri("node"))
    assert table.column_names == ["id", "embedding"]
    model = raygnn.load(run)
    rows = np.stack(table["embedding"].to_pylist())
    np.testing.assert_allclose(model.embed(str(graph))["embedding"], rows, rtol=1e-3, atol=1e-4)
    judged = model.evaluate(str(graph))
    assert judged == {"accuracy": pytest.approx(metrics["test/accuracy"], abs=0.02)}
    capsys.readouterr()
    assert infer.main([str(run), "--data.uri", str(graph), "--metrics", "all"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == judged
    with raises("infer-what-unknown", "predictions"):
        infer.predict(run, tmp_path / "no", options, what="predictions")


@pytest.mark.parametrize("method", ALL_METHODS)
def test_graphs_of_several_types(tmp_path, method):
    rng = np.random.default_rng(0)
    nodes = {
        "paper": node_rows(
            np.arange(90),
            {"x": rng.normal(size=(90, 4)).astype(np.float32)},
            {"y": np.arange(90) % 3},
        ),
        "author": node_rows(np.arange(40)),
    }
    writes = edge_rows(rng.integers(0, 40, 300), rng.integers(0, 90, 300))
    tables = GraphTables(nodes, {("author", "writes", "paper"): writes})
    write_tables(tables, str(tmp_path / "tables"))
    data = {"splits": {"type": "hash", "fractions": [0.6, 0.2, 0.2]}, "reverse_edges": True}
    settings = {"uri": str(tmp_path / "tables"), "cache_dir": str(tmp_path / "cache"), **data}
    model = {"type": "Hetero", "args": {"hidden_channels": 8}}
    for name, changes in (("sampled", {}), ("full", FULL)):
        config = _config(tmp_path / name, method, data=settings, model=model, **changes)
        assert raygnn.train.fit(config).metrics["test/loss"] is not None
    rows = raygnn.load(tmp_path / "full" / "run").embed(str(tmp_path / "tables"))
    assert rows["embedding"].shape == (90, 8)


@pytest.mark.slow
def test_the_defaults_learn_what_can_be_learned(tmp_path):
    config = {
        "data": {
            "synthetic": {"type": "planted_partition", "num_nodes": 1500, "num_classes": 4},
            "cache_dir": str(tmp_path / "cache"),
        },
        "task": "self_supervised",
        "training": {"max_epochs": 20},
        "loader": {"batch_size": 256},
        "loggers": [],
        "scaling": {"num_workers": 0},
        "run": {"name": "run", "storage_path": str(tmp_path)},
    }
    metrics = raygnn.train.fit(config).metrics
    assert metrics["test/accuracy"] > 0.8
    assert metrics["test/embedding_std"] > 0.4


def test_a_collapse_is_reported(tmp_path, capfd):
    nodes = node_rows(
        np.arange(100), {"x": np.ones((100, 4), np.float32)}, {"y": np.arange(100) % 2}
    )
    edges = edge_rows(np.arange(100), (np.arange(100) + 1) % 100)
    tables = GraphTables({"node": nodes}, {("node", "to", "node"): edges})
    write_tables(tables, str(tmp_path / "constant"))
    splits = {"type": "hash", "fractions": [0.6, 0.2, 0.2]}
    constant = {"uri": str(tmp_path / "constant"), "splits": splits}
    plain = {"drop_edges": 0.0, "mask_features": 0.0}
    config = _config(
        tmp_path / "c",
        {"type": "bgrl", "args": plain},
        data=constant | {"cache_dir": str(tmp_path / "c"), "standardize": False},
        model={"type": "GraphSAGE", "args": {"hidden_channels": 8}},
        training__max_epochs=1,
    )
    metrics = raygnn.train.fit(config).metrics
    assert metrics["val/embedding_std"] == pytest.approx(0, abs=1e-3)
    assert "the embeddings have collapsed" in capfd.readouterr().out
