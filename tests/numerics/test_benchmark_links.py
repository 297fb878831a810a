"""The benchmark of link prediction: its cases, its plain PyG peer, its search and its verdict."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from sklearn.metrics import roc_auc_score

from raygnn.config import load_config
from raygnn.data.ingest.build_bundle import ingest
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from raygnn.runtime.data_source import open_bundle

ROOT = Path(__file__).resolve().parents[2]
# Of torch, about its sparse CSR tensors, which PyG makes too.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse (invariant|CSR):UserWarning"),
    pytest.mark.slow,
]

NUM_NODES, NUM_GROUPS = 120, 4


@pytest.fixture(scope="module")
def links(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        patch.setenv("RAYGNN_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield importlib.import_module("link_accuracy")


@pytest.fixture(scope="module")
def plain(links: ModuleType) -> ModuleType:
    return importlib.import_module("plain_pyg_links")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph in the npz layout, whose links and features follow groups of nodes."""
    generator = np.random.default_rng(0)
    group = np.arange(NUM_NODES) % NUM_GROUPS
    is_edge = generator.random((NUM_NODES, NUM_NODES)) < np.where(
        group[:, None] == group, 0.2, 0.005
    )
    is_edge |= is_edge.T
    np.fill_diagonal(is_edge, val=False)
    arrays: dict[str, Any] = {
        "adj_data": np.ones(int(is_edge.sum())),
        "adj_indices": np.nonzero(is_edge)[1],
        "adj_indptr": np.concatenate([[0], np.cumsum(is_edge.sum(1))]),
        "adj_shape": np.array(is_edge.shape),
        "attr_matrix": (generator.random((NUM_NODES, 8)) + np.eye(8)[group]).astype(np.float32),
        "labels": group,
    }
    folder = tmp_path_factory.mktemp("data")
    np.savez(folder / "small.npz", **arrays)
    return folder


@pytest.fixture(scope="module")
def case(links: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    config = {
        "data": {"splits": {"type": "hash", "fractions": [0.7, 0.1, 0.2]}},
        "task": {
            "type": "link_prediction",
            "args": {"max_labels_per_anchor": 1, "num_random_negatives": 32},
        },
        "sampling": {"fanouts": [-1, -1]},
        "loader": {"batch_size": 64},
        "model": {"type": "GCN", "args": {"hidden_channels": 8, "normalize_output": True}},
        "losses": [{"type": "softmax", "args": {"temperature": 0.2}}],
        "metrics": ["auc"],
        "optimizer": {"type": "Adam", "args": {"lr": 0.02}},
        "training": {"max_epochs": 10, "validate_every": {"epochs": 5}, "eval": "exact"},
        "early_stopping": {"monitor": "val/auc", "mode": "max", "patience": 2},
        "loggers": [],
    }
    path = tmp_path_factory.mktemp("example") / "small.yaml"
    path.write_text(yaml.safe_dump(config))
    return links.Case(
        name="small",
        dataset="Small",
        config=str(path),
        tables="small",
        prepare=("npz", "{data}/small.npz"),
        metrics=("auc", "ap"),
        grid=(links.values("optimizer.args.lr", "0.02", "0.00001"),),
        chosen="lr 0.02",
        plain=links.BINARY,
        plain_chosen="lr 0.00001",
        aims={"auc": 0.6, "ap": 0.6},
    )


@pytest.fixture(scope="module")
def tables(links: ModuleType, case: Any, source: Path, tmp_path_factory: Any) -> Path:
    work = tmp_path_factory.mktemp("tables")
    links.make_tables(case, source, work)
    return Path(work / case.tables)


def graph_of(plain: ModuleType, case: Any, tables: Path, *overrides: str) -> tuple[Any, Any]:
    config = load_config(case.config, ["--data.uri", str(tables), *overrides]).config
    return plain.LinkGraph.of_bundle(ingest(tables), config), config


def test_search_seeds_and_verdict(
    links: ModuleType,
    plain: ModuleType,
    case: Any,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(links, "CASES", (case,))
    monkeypatch.setattr(plain, "MAX_STEPS", 60)
    arguments = ["--data", str(source), "--work", str(tmp_path), "--num-workers", "0"]
    assert links.main([*arguments, "--seeds", "3", "4"]) == 0
    output = capfd.readouterr().out
    assert "grid of both sides: lr 0.02; lr 0.00001" in output
    assert "raygnn: lr 0.02 has the best validation\n" in output
    assert "PyG: lr 0.02 has the best validation (the example and the last search say lr" in output
    assert re.search(r"\| Small +\| ap +\| 0\.\d{4} ± 0\.\d{4} +\| 0\..*\| 0.60 +\| pass", output)
    runs = json.loads((tmp_path / "link_accuracy.json").read_text())
    assert [(run["side"], run["point"], run["seed"]) for run in runs] == [
        (side, point, seed)
        for side in ("raygnn", "plain PyG")
        for point, seed in (("lr 0.02", 3), ("lr 0.00001", 3), ("lr 0.02", 4))
    ]

    # What is there is not run again; an aim that is missed is told.
    monkeypatch.setattr(links, "train_links", None)
    case.aims["ap"] = 1.01
    try:
        assert links.main([*arguments, "--seeds", "3", "4", "--resume"]) == 1
    finally:
        case.aims["ap"] = 0.6
    assert re.search(r"\| ap .*\| FAIL", capfd.readouterr().out)


def test_plain_graph_is_split_as_raygnns(plain: ModuleType, case: Any, tables: Path) -> None:
    graph, _ = graph_of(plain, case, tables)
    pairs = {name: set(zip(*links.tolist(), strict=True)) for name, links in graph.links.items()}
    edges = {name: set(zip(*e.tolist(), strict=True)) for name, e in graph.messages.items()}
    assert edges["train"] == edges["val"] == pairs["train"]
    assert edges["test"] == pairs["train"] | pairs["val"]
    assert not pairs["test"] & edges["test"]
    assert 2 * graph.once("test").shape[1] == len(pairs["test"])


def test_plain_graph_of_two_types_goes_both_ways(plain: ModuleType, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    users, items = np.arange(30), np.arange(50)
    pairs = np.unique(np.stack([rng.choice(users, 300), rng.choice(items, 300)]), axis=1)
    friends = rng.choice(users, (2, 60))
    uri = write_tables(
        GraphTables(
            {"user": node_rows(users), "item": node_rows(items)},
            {
                ("user", "likes", "item"): edge_rows(*pairs),
                ("user", "knows", "user"): edge_rows(*friends),
            },
        ),
        str(tmp_path / "two"),
    )
    none = "user__knows__user: [0, 0], user__rev_knows__user: [0, 0]"
    both = "user__likes__item: [-1, -1], item__rev_likes__user: [-1, -1]"
    for fanouts, has_friends in (("[-1, -1]", True), (f"{{{none}, {both}}}", False)):
        loaded = load_config(
            {
                "data": {"uri": uri, "reverse_edges": True, "splits": {"type": "hash"}},
                "task": {"type": "link_prediction", "args": {"edge_type": "user__likes__item"}},
            },
            ["--sampling.fanouts", fanouts],
        )
        graph = plain.LinkGraph.of_bundle(open_bundle(loaded, None), loaded.config)
        assert graph.num_nodes == 80
        edges = set(zip(*graph.messages["train"].tolist(), strict=True))
        assert edges == {(target, source) for source, target in edges}
        anchor, target = graph.links["train"] - torch.tensor(
            [[graph.anchors.start], [graph.targets.start]]
        )
        known = set(zip(*pairs.tolist(), strict=True))
        assert set(zip(anchor.tolist(), target.tolist(), strict=True)) < known
        simple = dict(plain.recommend_simply(graph))
        assert list(simple) == ["popularity", "iALS", "EASE"]
        recommended = torch.cat([graph.links["train"], graph.links["val"]], dim=1)
        counts = torch.bincount(recommended[1], minlength=80)[graph.targets].float()
        scores = {n: rows[graph.anchors] @ rows[graph.targets].T for n, rows in simple.items()}
        assert torch.equal(scores["popularity"], counts.expand(30, -1))
        is_link = torch.zeros(80, 80, dtype=torch.bool)
        is_link[tuple(recommended)] = True
        is_link = is_link[graph.anchors, graph.targets]
        assert scores["iALS"][is_link].mean() > scores["iALS"][~is_link].mean()
        assert scores["EASE"].shape == (30, 50)
        among = torch.tensor([a for a, b in edges if graph.anchors.start <= b < graph.anchors.stop])
        is_user = (among >= graph.anchors.start) & (among < graph.anchors.stop)
        assert bool(is_user.any()) == has_friends


def test_standard_auc_and_ranking_of_known_embeddings(
    plain: ModuleType, case: Any, tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, _ = graph_of(plain, case, tables)
    adjacency = torch.zeros(NUM_NODES, NUM_NODES)
    adjacency[graph.known()[0], graph.known()[1]] = 1.0
    # Every node is scored by whether it is linked: all links come first.
    values, vectors = torch.linalg.eigh(adjacency)
    rows = vectors[:, values > 0] * values[values > 0].sqrt()
    found = plain.auc_and_ap(graph, rows, "test", seed=0)
    assert 0.8 < found["auc"] <= 1
    assert 0.8 < found["ap"] <= 1
    assert plain.auc_and_ap(graph, torch.ones(NUM_NODES, 2), "test", seed=0) == {
        "auc": 0.5,
        "ap": 0.5,
    }
    assert found == plain.auc_and_ap(graph, rows, "test", seed=0)
    whole = plain.link_metrics(graph, rows, "test", (5,))
    monkeypatch.setattr(plain, "ANCHORS_AT_A_TIME", 7)
    assert plain.link_metrics(graph, rows, "test", (5,)) == pytest.approx(whole)
    assert 0 < whole["full_recall@5"] <= 1


def test_adjacency_is_pygs(plain: ModuleType, case: Any, tables: Path) -> None:
    """Normalised once, PyG's layers give what they give when they normalise themselves."""
    from torch_geometric.nn import GCNConv, LGConv

    graph, _ = graph_of(plain, case, tables)
    edges, x = graph.messages["train"], torch.randn(NUM_NODES, 3)
    layers: list[Any] = [GCNConv(3, 3, bias=False), LGConv()]
    for layer, self_loops in zip(layers, (True, False), strict=True):
        expected = layer(x, edges)
        adjacency = plain._adjacency(edges, NUM_NODES, self_loops=self_loops)
        layer.normalize = False
        torch.testing.assert_close(layer(x, adjacency), expected)


@pytest.mark.parametrize("loss", ["bpr", "softmax"])
def test_plain_lightgcn_learns(
    plain: ModuleType, case: Any, tables: Path, loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "MAX_STEPS", 100)
    args = "{temperature: 0.2}" if loss == "softmax" else "{}"
    graph, config = graph_of(
        plain, case, tables, "--losses", f"[{{type: {loss}, args: {args}}}]", "--model.type",
        "LightGCN", "--model.args", "{out_channels: 8, normalize_output: true}",
        "--optimizer.args.lr", "0.05",
    )  # fmt: skip
    run = plain.train_links(graph, config)
    assert run.rows.shape == (NUM_NODES, 8)
    assert run.validation > 0.7
    links = graph.links["test"]
    others = torch.randint(NUM_NODES, links.shape)
    pairs = torch.cat([links, others], dim=1)
    score = (run.rows[pairs[0]] * run.rows[pairs[1]]).sum(dim=1)
    assert roc_auc_score(np.arange(len(score)) < links.shape[1], score) > 0.7


def test_plain_run_refuses_what_it_does_not_know(
    plain: ModuleType, case: Any, tables: Path
) -> None:
    graph, config = graph_of(plain, case, tables, "--model.args.norm", "batch")
    with pytest.raises(ValueError, match=r"model.args \['norm'\] have no counterpart"):
        plain.train_links(graph, config)
    graph, config = graph_of(plain, case, tables, "--model.type", "GraphSAGE")
    with pytest.raises(ValueError, match=r"model\.type 'GraphSAGE' has no counterpart"):
        plain.train_links(graph, config)


def test_examples_are_what_the_search_chose(links: ModuleType) -> None:
    for case in links.CASES:
        path = links.EXAMPLES / case.config
        chosen = load_config(path, case.points[case.chosen]).config
        assert chosen == load_config(path, []).config, case.name
        assert case.plain_chosen in case.points


def test_examples_say_how_their_tables_are_made(links: ModuleType) -> None:
    """The command in an example's header is what the benchmark runs."""
    for case in links.CASES:
        config = yaml.safe_load((links.EXAMPLES / case.config).read_text())
        path = links.EXAMPLES / case.config
        texts = [p.read_text() for p in (path, path.parent / "prepare.py") if p.exists()]
        header = "\n".join(texts).replace("\\\n#", " ")
        found = re.search(r"python (?:-m raygnn\.prepare )?(\w.*)", header)
        assert found is not None, case.name
        words = [word.replace("examples/", f"{links.EXAMPLES}/") for word in found[1].split()]
        assert words.pop() == config["data"]["uri"]
        out = words.index("--out") if "--out" in words else len(words)
        folder = r"^{data}/(lastfm|citeulike)$"
        made = [re.sub(folder, "DIR", part).removeprefix("{data}/") for part in case.prepare]
        assert words[:out] == made
