"""The accuracy benchmark: its tables, its plain PyG peer, and its verdict."""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from raygnn.config import load_config
from raygnn.data.ingest.build_bundle import ingest

ROOT = Path(__file__).resolve().parents[2]
# Of torch, about its sparse CSR tensors, which PyG makes too.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse (invariant|CSR):UserWarning"),
    pytest.mark.slow,
]

NUM_NODES, NUM_FEATURES, NUM_CLASSES = 240, 12, 3


@pytest.fixture
def accuracy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setenv("RAYGNN_CACHE_DIR", str(tmp_path / "cache"))
    return importlib.import_module("accuracy")


@pytest.fixture
def plain_pyg(accuracy: ModuleType) -> ModuleType:
    return importlib.import_module("plain_pyg")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A graph in the npz layout, in which neighbors and features tell the class."""
    generator = np.random.default_rng(0)
    labels = np.arange(NUM_NODES) % NUM_CLASSES
    is_edge = generator.random((NUM_NODES, NUM_NODES)) < np.where(
        labels[:, None] == labels, 0.06, 0.005
    )
    x = generator.random((NUM_NODES, NUM_FEATURES)) + np.eye(NUM_FEATURES)[labels]
    arrays: dict[str, Any] = {
        "adj_data": np.ones(int(is_edge.sum())),
        "adj_indices": np.nonzero(is_edge)[1],
        "adj_indptr": np.concatenate([[0], np.cumsum(is_edge.sum(1))]),
        "adj_shape": np.array(is_edge.shape),
        "attr_matrix": x.astype(np.float32),
        "labels": labels,
    }
    folder = tmp_path / "data"
    folder.mkdir()
    np.savez(folder / "small.npz", **arrays)
    return folder


@pytest.fixture
def case(accuracy: ModuleType, tmp_path: Path) -> Any:
    config = {
        "data": {"splits": {"type": "per_class", "train": 20, "val": 10}},
        "sampling": {"fanouts": [5, 5]},
        "model": {"type": "GraphSAGE", "args": {"hidden_channels": 8, "dropout": 0.2}},
        "optimizer": {"type": "Adam", "args": {"lr": 0.02}},
        "training": {
            "max_epochs": 20,
            "validate_every": {"epochs": 1},
            "global_batch_size": 30,
            "accumulate_grad_batches": 1,
        },
        "early_stopping": {"monitor": "val/accuracy", "mode": "max", "patience": 10},
        "loggers": [],
    }
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(config))
    prepare = ("npz", "{data}/small.npz", "--normalize-features", "row")
    return accuracy.Case("small", "Small", "small", prepare, "none", 0.8, path)


MODELS: dict[str, dict[str, Any]] = {
    "GCN": {"input_dropout": 0.1, "norm": "batch"},
    "GraphSAGE": {"norm": "layer"},
    "GAT": {"num_heads": 2, "num_output_heads": 1, "attn_dropout": 0.1, "activation": "elu"},
}


@pytest.mark.parametrize("type_", MODELS)
def test_plain_run_learns_from_the_tables(
    accuracy: ModuleType, plain_pyg: ModuleType, case: Any, source: Path, tmp_path: Path, type_: str
) -> None:
    tables = accuracy.make_tables(case, source, tmp_path)
    config = load_config(case.config_path, ["--data.uri", str(tables)]).config
    args = {"hidden_channels": 8, "dropout": 0.2, **MODELS[type_]}
    model = config.model.model_copy(update={"type": type_, "args": args})
    config = config.model_copy(update={"model": model})
    graph = plain_pyg.FullGraph.of_bundle(ingest(tables), config)
    assert {name: len(ids) for name, ids in graph.splits.items()} == {
        "train": 60,
        "val": 30,
        "test": 150,
    }
    assert graph.x.sum(1).numpy() == pytest.approx(1)
    result = plain_pyg.train_full_graph(graph, config)
    assert 0.8 < result <= 1
    assert plain_pyg.train_full_graph(graph, config) == result


def test_plain_model_is_the_same_model(plain_pyg: ModuleType) -> None:
    from raygnn.models import GAT, GCN, GraphSAGE

    for encoder in (GCN, GraphSAGE, GAT):
        args = {"hidden_channels": 8, "norm": "layer"}
        ours = encoder(in_channels=12, out_channels=3, num_layers=2, **args)
        plain = plain_pyg.FullGraphModel(encoder.__name__, args, 12, 3, 2)
        shapes = [sorted(tuple(p.shape) for p in m.parameters()) for m in (ours, plain)]
        assert shapes[0] == shapes[1]


def test_the_benchmark_runs(
    accuracy: ModuleType,
    case: Any,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A data set that fails costs no other result, and the exit status says so."""
    missing = replace(case, name="missing", prepare=("npz", "{data}/missing.npz"))
    monkeypatch.setattr(accuracy, "CASES", (missing, case))
    results = tmp_path / "results.json"
    arguments = ["--data", str(source), "--work", str(tmp_path / "work"), "--seeds", "0"]
    arguments += ["--num-workers", "0", "--full-graph-seeds", "1", "--json", str(results)]
    assert accuracy.main(arguments) == 1
    assert "failed: missing" in capfd.readouterr().err
    (record,) = json.loads(results.read_text())
    assert record["raygnn"]["accuracy"]["0"] > 0.8
    assert record["plain_pyg"]["accuracy"]["0"] > 0.8


def test_examples_say_how_their_tables_are_made(accuracy: ModuleType) -> None:
    """The command in an example's header is what the benchmark runs."""
    for case in accuracy.CASES:
        text = case.config_path.read_text()
        header = "\n".join(line[2:] for line in text.splitlines() if line.startswith("# "))
        found = re.search(r"^ *python (.*)", header.replace("\\\n", " "), re.MULTILINE)
        assert found is not None, case.name
        words = found[1].removeprefix("-m raygnn.prepare").split()
        *command, out = [word for word in words if word != "--out"]
        assert out == yaml.safe_load(text)["data"]["uri"]
        root = f"{accuracy.EXAMPLES.parent}/"
        prepare = [part.replace("{data}/", "").removeprefix(root) for part in case.prepare]
        assert command == prepare


def test_examples_train_on_any_number_of_workers(accuracy: ModuleType) -> None:
    for case in accuracy.CASES:
        sizes = {
            load_config(case.config_path, ["--scaling.num_workers", str(n)]).config.batch
            for n in (0, 1, 2)
        }
        assert len({batch.global_batch_size for batch in sizes}) == 1


@pytest.fixture
def tuned(accuracy: ModuleType) -> ModuleType:
    return importlib.import_module("tuned_gnns")


def test_tuned_configs_train_on_the_whole_graph(tuned):
    for name in tuned.NAMES:
        config = load_config(tuned.CONFIGS / f"{name}.yaml").config
        assert config.sampling.is_full
        assert config.model.args["jump"] == "last"
        metric = {graph.name: graph.metric for graph in tuned.GRAPHS}[name.split("_")[0]]
        assert config.checkpoint.monitor == f"val/{metric}"
    assert len(list(tuned.CONFIGS.glob("*.yaml"))) == len(tuned.NAMES)


def test_the_random_split_has_20_nodes_of_each_class(tuned):
    labels = np.random.default_rng(0).integers(0, 7, 2708)
    split = tuned.random_split(labels)
    assert np.bincount(labels[split["train"]]).tolist() == [20] * 7
    assert (len(split["valid"]), len(split["test"])) == (500, 1000)
    assert len(np.unique(np.concatenate(list(split.values())))) == 1640
    # The first draw is of the first class, the last one of all other nodes.
    generator = torch.Generator().manual_seed(123)
    of_class = np.flatnonzero(labels == 0)
    first = of_class[torch.randperm(len(of_class), generator=generator).numpy()[:20]]
    assert split["train"][:20].tolist() == first.tolist()


def test_tuned_rows_are_held_against_what_was_published(
    tuned, source, tmp_path, monkeypatch, capsys
):
    with np.load(source / "small.npz") as arrays:
        codes = np.random.default_rng(0).permutation(NUM_NODES) % 3
        masks = {name: codes == i for i, name in enumerate(("train_mask", "val_mask", "test_mask"))}
        np.savez(source / "masked.npz", **arrays, **masks)
    prepare = ("npz", "{data}/masked.npz")
    graph = tuned.TunedGraph("cora", "small", prepare, {"gcn": (99.0, 2.0)})
    monkeypatch.setattr(tuned, "GRAPHS", (graph,))
    monkeypatch.setattr(tuned, "random_split", lambda labels: {})
    np.savez(source / "cora_planetoid.npz", labels=np.zeros(1))
    args = ["--tuned", "--data", str(source), "--work", str(tmp_path / "work"), "--seeds", "0", "1"]
    accuracy = importlib.import_module("accuracy")
    out = tmp_path / "rows.json"
    args += ["--num-workers", "0", "--epochs", "3", "--full-graph-seeds", "1", "--json", str(out)]
    assert accuracy.main(args) in (0, 1)
    (record,) = json.loads(out.read_text())
    assert (record["name"], record["epochs"], len(record["values"])) == ("cora_gcn", 3, 2)
    assert len(record["plain_pyg"]) == 1

    full_graph = importlib.import_module("full_graph")
    timed = ["--data", str(source), "--work", str(tmp_path / "work"), "--rounds", "1"]
    assert full_graph.main([*timed, "--only", "cora_gcn"]) in (0, 1)
    assert "| cora_gcn |" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["GCN", "GraphSAGE", "GAT"])
@pytest.mark.parametrize("metric", ["accuracy", "auroc"])
def test_the_published_model_learns_and_sees_each_node_itself(tuned, kind, metric):
    published, plain_pyg = map(importlib.import_module, ("published_gnns", "plain_pyg"))
    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.permutation(60) % 2)
    ends = torch.from_numpy(rng.integers(0, 60, (2, 200)))
    ends = torch.cat([ends, ends[:, :5]], dim=1)  # some edges twice, some to themselves
    adjacency = torch.sparse_coo_tensor(ends, torch.ones(205), (60, 60)).to_sparse_csr()
    splits = dict(zip(("train", "val", "test"), torch.arange(60).split([20, 20, 20]), strict=True))
    x = torch.eye(2)[y] + 0.1 * torch.from_numpy(rng.random((60, 2), np.float32))
    graph = plain_pyg.FullGraph(x, adjacency, y, 2, splits)
    edges = published.with_self_loops(graph, kind)
    if kind == "GAT":
        assert (edges[0] == edges[1]).sum() == 60
    else:
        assert edges.to_dense().diagonal().tolist() == [1.0] * 60
        assert edges.values().unique().tolist() == [1.0]
    config = load_config(
        {
            "model": {
                "type": kind,
                "args": {
                    "num_layers": 2,
                    "hidden_channels": 16,
                    "dropout": 0.1,
                    "residual": True,
                    "norm": "batch",
                },
            },
            "optimizer": {"type": "Adam", "args": {"lr": 0.05}},
            "training": {"max_epochs": 40},
            "data": {"uri": "x"},
        }
    ).config
    assert published.train_published(graph, config, metric) > 0.9


@pytest.mark.parametrize(("values", "verdict"), [((97.0,), "pass"), ((96.9, 97.0), "FAIL")])
def test_a_mean_within_one_published_deviation_passes(tuned, values, verdict):
    graph = tuned.TunedGraph("cora", "small", (), {"gcn": (99.0, 2.0)})
    row = tuned.TunedRow(graph, "gcn", values, 500, 12.0)
    assert row.reaches_published == (verdict == "pass")
    assert verdict in tuned.table([row])
