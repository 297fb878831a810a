"""Explanations find the neighbors and the column that a planted label follows from."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn
from torch_geometric.nn import HeteroConv, SAGEConv

import raygnn
import raygnn.explain
import raygnn.train
from raygnn.inference.explain import explanations
from raygnn.inference.explain.explanations import Explanations
from raygnn.models import Encoder
from tests.errors import assert_reports, raises
from tests.graph_writer import write_graph
from tests.numerics.infer.conftest import timed_shop
from tests.small_runs import small_config

#: `make test` has other tests of training and inference; these are of one feature each.
pytestmark = pytest.mark.slow

NUM_NODES, NUM_IN, NUM_CAUSES = 600, 8, 2
NODES = [f"n{i:03d}" for i in range(200, 210)]
PAGE = (
    (Path(__file__).parents[3] / "docs" / "explanations.md").read_text("utf-8").replace("\\\n", "")
)


@dataclass(frozen=True)
class Planted:
    run: str
    graph: str
    causes: dict[str, set[str]]
    accuracy: float


def write_planted(folder: Path) -> tuple[str, dict[str, set[str]]]:
    """Two of a node's eight in-neighbors are loud; its label is the sign that both have in `tone`.

    Nobody's own columns say its label, and those of other neighbors say little.
    """
    rng = np.random.default_rng(0)
    loud = np.arange(NUM_NODES) < NUM_NODES // 4
    tone = rng.choice([-1.0, 1.0], NUM_NODES) * np.where(loud, 2.0, 0.05)
    label = rng.integers(0, 2, NUM_NODES)
    ids = np.array([f"n{i:03d}" for i in range(NUM_NODES)])
    sources, causes = [], {}
    for i in range(NUM_NODES):
        same = np.flatnonzero(loud & ((tone > 0) == label[i]) & (np.arange(NUM_NODES) != i))
        chosen = rng.choice(same, NUM_CAUSES, replace=False)
        others = rng.choice(np.flatnonzero(~loud), NUM_IN - NUM_CAUSES, replace=False)
        sources.append(np.concatenate([chosen, others]))
        causes[str(ids[i])] = set(ids[chosen].tolist())
    nodes = {
        "id": ids,
        "color": rng.choice(["red", "green", "blue"], NUM_NODES),
        "age": rng.normal(size=NUM_NODES),
        "tone": tone,
        "y": np.array(["low", "high"])[label],
    }
    color = {"column": "color", "transform": "category"}
    graph = write_graph(
        folder / "graph",
        pa.table(nodes),
        pa.table({"s": ids[np.concatenate(sources)], "t": np.repeat(ids, NUM_IN)}),
        {"features": {"x": [color, "age", "tone"]}, "labels": {"y": "y"}},
    )
    return str(graph), causes


def trained(folder: Path, graph: str, **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "data": {
            "uri": graph,
            "cache_dir": str(folder / "cache"),
            "splits": {"type": "hash", "fractions": [0.6, 0.2, 0.2]},
        },
        "sampling": {"fanouts": [8, 8]},
        "model": {"type": "GraphSAGE", "args": {"hidden_channels": 16}},
        "metrics": [{"type": "accuracy"}],
        "training": {"max_epochs": 15},
        "loader": {"batch_size": 64},
        "optimizer": {"type": "Adam", "args": {"lr": 0.01}},
        "scaling__num_workers": 0,
        **changes,
    }
    return raygnn.train.fit(small_config(folder, **settings), allow_modules=["tests"]).metrics


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    folder = tmp_path_factory.mktemp("planted")
    graph, causes = write_planted(folder)
    metrics = trained(folder, graph)
    return Planted(str(folder / "run"), graph, causes, metrics["test/accuracy"])


@pytest.fixture(scope="module")
def explained(planted: Planted) -> Explanations:
    """Of nodes that are heard by others or not, the explanations as large as the cause."""
    model = raygnn.load(planted.run)
    return model.explain(planted.graph, NODES, num_edges=NUM_CAUSES, num_columns=1)


def test_explanations_are_the_planted_cause(planted, explained):
    assert planted.accuracy > 0.95
    edges = explained.edges.to_pandas()
    kept = edges[edges["kept"]]
    assert len(kept) == NUM_CAUSES * len(NODES)
    hits = [
        source in planted.causes[node] and target == node
        for node, source, target in zip(
            kept["id"], kept["source_id"], kept["target_id"], strict=True
        )
    ]
    # 2 of 72 edges of a neighborhood are the cause.
    assert np.mean(hits) > 0.9
    columns = explained.columns.to_pandas()
    columns = columns[columns["part"] == "gnn"]
    assert columns.groupby("id")["column"].apply(set).eq({"color", "age", "tone"}).all()
    assert (columns[columns["kept"]]["column"] == "tone").all()


def test_an_explanation_keeps_more_of_the_score_than_a_random_one(planted, explained, monkeypatch):
    rng, of = np.random.default_rng(0), explanations._Explained
    edges, columns = of._edge_importance, of._effects
    monkeypatch.setattr(of, "_edge_importance", lambda *args: rng.permutation(edges(*args)))
    monkeypatch.setattr(of, "_effects", lambda *args: rng.permutation(columns(*args)))
    model = raygnn.load(planted.run)
    random = model.explain(planted.graph, NODES, num_edges=NUM_CAUSES, num_columns=1)
    ours, others = (
        each.predictions.to_pandas().mean(numeric_only=True) for each in (explained, random)
    )
    assert ours["score_kept"] > 0.9
    assert others["score_kept"] < 0.7
    assert ours["score_removed"] < others["score_removed"]


def test_calls_are_equal(planted, explained):
    model = raygnn.load(planted.run)
    again = model.explain(planted.graph, NODES[:2], num_edges=NUM_CAUSES, num_columns=1)
    for name in explanations.TABLES:
        table, before = getattr(again, name).arrow, getattr(explained, name).arrow
        assert table.equals(before.slice(0, len(table)))


def test_equal_edges_have_equal_importance(planted, tmp_path):
    rows = {"id": ["a", "b", "c", "d", "lone"], "color": ["red", "blue", "blue", "red", "red"]}
    rows |= {"age": [0.0, 1.0, 1.0, 0.0, 0.0], "tone": [0.0, 2.0, 2.0, 0.1, 0.0]}
    color = {"column": "color", "transform": "category"}
    graph = write_graph(
        tmp_path / "graph",
        pa.table(rows),
        pa.table({"s": ["b", "c", "d"], "t": ["a", "a", "a"]}),
        {"features": {"x": [color, "age", "tone"]}},
    )
    found = raygnn.load(planted.run).explain(graph, ["a", "lone"], num_edges=1)
    of_source = {edge["source_id"]: edge["importance"] for edge in found.edges.arrow.to_pylist()}
    assert of_source["b"] == of_source["c"] > of_source["d"]
    assert found.predictions["num_edges"].tolist() == [3, 0]  # a node alone has columns


def test_predictions_are_those_of_the_graph(planted, explained):
    model = raygnn.load(planted.run)
    predicted = model.predict(planted.graph, NODES).to_pandas()
    rows = explained.predictions.to_pandas()
    assert rows["id"].tolist() == NODES
    assert rows["prediction"].tolist() == predicted["prediction"].tolist()
    np.testing.assert_allclose(rows["score"], predicted["probability"], rtol=1e-5)
    assert (rows["num_edges"] == NUM_IN + NUM_IN**2).all()


def test_a_sampled_neighborhood_is_smaller(planted):
    model = raygnn.load(planted.run, ["--sampling.fanouts", "[3, 2]"])
    found = model.explain(planted.graph, NODES[:2], exact=False)
    assert found.predictions["num_edges"].tolist() == [9, 9]


def test_types_have_ids_and_columns_of_their_own(temporal_labels):
    found = raygnn.load(temporal_labels.run).explain(
        temporal_labels.graph, [3, 7], as_of="1970-02-20"
    )
    edges = found.edges.to_pandas()
    assert set(edges["edge_type"]) <= {"user__buys__item", "item__rev_buys__user"}
    _, shop = timed_shop()
    bought = set(zip(shop["user"][shop["day"] <= 50], shop["item"][shop["day"] <= 50], strict=True))
    for row in edges.itertuples():
        ends = (row.source_id, row.target_id)
        assert (ends if row.edge_type.startswith("user") else ends[::-1]) in bought
    columns = found.columns.to_pandas()
    widths = columns[columns["id"] == 3].groupby("node_type")["element"].nunique()
    assert widths.to_dict() == {"user": 2, "item": 3}
    assert set(columns["column"]) == {"x"}


@pytest.mark.parametrize("problem", ["multi_label", "regression"])
def test_labels_and_values_are_explained(tmp_path, problem):
    rng = np.random.default_rng(1)
    num = 60
    nodes = {"id": np.arange(num), "x": rng.normal(size=num).astype("f")}
    ends = {"s": rng.integers(0, num, 300), "t": rng.integers(0, num, 300)}
    if problem == "regression":
        nodes["y"] = 50 + 10 * nodes["x"]
    else:
        nodes["y"] = pa.array(rng.integers(0, 2, (num, 3)).tolist(), pa.list_(pa.int64(), 3))
    graph = write_graph(
        tmp_path / "graph",
        pa.table(nodes),
        pa.table(ends),
        {"features": {"x": "x"}, "labels": {"y": "y"}},
    )
    trained(tmp_path, str(graph), metrics=[], training={"max_epochs": 1})
    model = raygnn.load(tmp_path / "run")
    found = model.explain(graph, [5, 6]).predictions
    if problem == "regression":
        expected = model.predict(graph, [5, 6])["prediction"]
        np.testing.assert_allclose(found["score"], expected, rtol=1e-5)
    else:
        expected = model.predict(graph, [5, 6], what="probabilities")["probability"]
        np.testing.assert_allclose(found["score"], expected.max(axis=1), rtol=1e-5)
        assert found["prediction"].tolist() == list(map(str, expected.argmax(axis=1)))


def write_planted_edges(folder: Path) -> tuple[str, dict[int, int]]:
    """Each shop delivers to others from one depot; an edge's label is whether depots are near.

    A node's own columns are noise: its depot, one of its four in-neighbors, has `tone` loud.
    """
    rng = np.random.default_rng(0)
    num = 400
    depot = np.arange(num) < num // 4
    tone = rng.choice([-1.0, 1.0], num) * np.where(depot, 2.0, 0.05)
    mine = rng.choice(np.flatnonzero(depot), num)
    others = rng.choice(np.flatnonzero(~depot), (num, 3))
    ends = rng.choice(np.flatnonzero(~depot), (2, 3000))
    ends = ends[:, ends[0] != ends[1]]
    near = tone[mine[ends[0]]] * tone[mine[ends[1]]] > 0
    nodes = {"id": np.arange(num), "tone": tone, "age": rng.normal(size=num)}
    supply = {"s": np.column_stack([mine, others]).ravel(), "t": np.repeat(np.arange(num), 4)}
    graph = folder / "graph"
    graph.mkdir(parents=True)
    pq.write_table(pa.table(nodes), graph / "nodes.parquet")
    pq.write_table(pa.table(supply), graph / "supply.parquet")
    sent = {"s": ends[0], "t": ends[1], "near": near.astype(np.int64)}
    pq.write_table(pa.table(sent), graph / "sends.parquet")
    (graph / "graph.yaml").write_text(
        """
format: raygnn/graph-v1
node_types: {shop: {files: nodes.parquet, id: id, features: {x: [tone, age]}}}
edge_types:
  - {type: [shop, supplies, shop], files: supply.parquet, source: s, target: t}
  - {type: [shop, sends, shop], files: sends.parquet, source: s, target: t, labels: {y: near}}
"""
    )
    return str(graph), dict(enumerate(mine.tolist()))


def test_predictions_of_edges_rest_on_neighbors_of_both_ends(tmp_path):
    graph, depots = write_planted_edges(tmp_path)
    metrics = trained(
        tmp_path,
        graph,
        task={"type": "edge_prediction", "args": {"edge_type": "shop__sends__shop"}},
        sampling={"fanouts": {"shop__supplies__shop": [4], "shop__sends__shop": [0]}},
        model={"type": "Hetero", "args": {"hidden_channels": 16}},
        training={"max_epochs": 20},
    )
    assert metrics["test/accuracy"] > 0.9
    model = raygnn.load(tmp_path / "run")
    pairs = [(150, 160), (200, 311), (333, 120), (222, 223), (350, 111), (190, 380)]
    found = model.explain(graph, pairs=pairs, num_edges=2, num_columns=1)
    predicted = model.predict(graph, pairs).to_pandas()
    rows = found.predictions.to_pandas()
    assert list(zip(rows["from_id"], rows["to_id"], strict=True)) == pairs
    np.testing.assert_allclose(rows["score"], predicted["probability"], rtol=1e-4)
    edges = found.edges.to_pandas()
    kept = edges[edges["kept"]]
    hits = [depots[row.target_id] == row.source_id for row in kept.itertuples()]
    assert len(hits) == 2 * len(pairs)
    assert np.mean(hits) > 0.5  # chance: 0.25; by seed: 0.58 to 0.92
    columns = found.columns.to_pandas()
    assert (columns[columns["kept"]]["column"] == "tone").all()
    with raises("explain-seeds", "pairs"):
        model.explain(graph, [150])


def test_scores_of_links_are_explained(link_model, tmp_path, capsys):
    model = raygnn.load(link_model.run)
    links = pq.read_table(Path(link_model.graph) / "edges" / "buys")
    known = set(zip(*(links.column(i).to_pylist() for i in range(2)), strict=True))
    pairs = [(u, i) for u in range(4) for i in range(25) if (u, i) not in known][:3]
    found = model.explain(link_model.plain_graph, pairs=pairs, exact=True).predictions
    expected = model.score(link_model.plain_graph, pairs, exact=True)["score"]
    np.testing.assert_allclose(found["score"], expected, rtol=1e-4, atol=1e-6)
    (tmp_path / "pairs.csv").write_text("\n".join(["user,item", *(f"{u},{i}" for u, i in pairs)]))
    where = ["--graph", link_model.plain_graph, "--pairs", str(tmp_path / "pairs.csv")]
    assert raygnn.explain.main([link_model.run, *where, "--out", str(tmp_path / "out")]) == 0
    written = pq.read_table(tmp_path / "out" / "predictions")
    assert written["to_id"].to_pylist() == [item for _, item in pairs]


class BipartiteLayer(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, divides: bool) -> None:
        super().__init__()
        self.conv, self.divides = SAGEConv(in_channels, out_channels), divides

    def forward(self, x_src, block):
        if self.divides:
            counts = block.edge_index[0].bincount(minlength=block.num_src)
            x_src = x_src / counts.clamp(min=1)[:, None]
        return self.conv((x_src, x_src[: block.num_dst]), block.edge_index)


class OverConvolutions(Encoder):
    """An encoder as docs/models.md shows it."""

    divides = False

    def build_layer(self, in_channels, out_channels, *, is_output):
        return BipartiteLayer(in_channels, out_channels, self.divides)


class OverCounts(OverConvolutions):
    """Its layers count the edges of each source, which a row per edge changes."""

    divides = True


def test_encoders_of_convolutions_of_pyg_are_explained(planted, tmp_path):
    trained(tmp_path, planted.graph, model__type=f"{__name__}.OverConvolutions")
    model = raygnn.load(tmp_path / "run", allow_modules=["tests"])
    found = model.explain(planted.graph, NODES, num_edges=NUM_CAUSES, num_columns=1)
    edges = found.edges.to_pandas()
    kept = edges[edges["kept"]]
    hits = [row.source_id in planted.causes[row.id] for row in kept.itertuples()]
    assert np.mean(hits) > 0.9
    assert found.predictions.to_pandas()["score_kept"].mean() > 0.8


class OverTypes(nn.Module):
    """A module for `HeteroData`, with one convolution for each edge type and layer."""

    def __init__(self, out_channels: int, hidden_channels: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            HeteroConv({("n", "to", "n"): SAGEConv((-1, -1), channels)})
            for channels in (hidden_channels, out_channels)
        )

    def forward(self, x_dict, edge_index_dict):
        first, second = self.layers
        hidden = {name: x.relu() for name, x in first(x_dict, edge_index_dict).items()}
        return second(hidden, edge_index_dict)


class WithoutConvolutions(nn.Module):
    """Sums neighbors by itself, which PyG cannot mask."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels)

    def forward(self, x, edge_index):
        source, target = edge_index
        return self.linear(x + torch.zeros_like(x).index_add(0, target, x[source]))


def test_modules_for_several_types_are_explained(planted, tmp_path, capsys):
    trained(tmp_path, planted.graph, model__type=f"{__name__}.OverTypes")
    model = raygnn.load(tmp_path / "run", allow_modules=["tests"])
    found = model.explain(planted.graph, NODES, num_edges=NUM_CAUSES, num_columns=1)
    edges = found.edges.to_pandas()
    kept = edges[edges["kept"]]
    hits = [row.source_id in planted.causes[row.id] for row in kept.itertuples()]
    assert len(hits) == NUM_CAUSES * len(NODES)
    assert np.mean(hits) > 0.9
    assert "warning: edges" not in capsys.readouterr().out


def test_edges_that_masks_do_not_reach_are_named(planted, tmp_path, capsys):
    model = {"type": f"{__name__}.WithoutConvolutions"}
    trained(tmp_path, planted.graph, model=model, training={"max_epochs": 1})
    model = raygnn.load(tmp_path / "run", allow_modules=["tests"])
    found = model.explain(planted.graph, NODES[:1], num_columns=1)
    assert not found.edges.to_pandas()["importance"].any()
    assert "warning: edges have importance 0" in capsys.readouterr().out


def test_layers_that_masked_edges_change_are_refused(planted, tmp_path):
    changes = {"model__type": f"{__name__}.OverCounts", "training__max_epochs": 1}
    trained(tmp_path, planted.graph, **changes)
    model = raygnn.load(tmp_path / "run", allow_modules=["tests"])
    with raises("explain-layer", "OverCounts"):
        model.explain(planted.graph, NODES[:1])


def test_options_are_checked(planted):
    model = raygnn.load(planted.run)
    with raises("explain-number", "num_edges"):
        model.explain(planted.graph, NODES, num_edges=0)


def test_the_commands_of_the_page_write_tables(planted, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ids.csv").write_text("id\nn201\nn202\n")
    commands = re.findall(r"^raygnn explain (\S.*)$", PAGE, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        given = command.replace("runs/papers", planted.run).replace("17,23", "n200,n201")
        given = re.sub(r"--graph graph", f"--graph {planted.graph}", given)
        assert raygnn.explain.main(shlex.split(given)) == 0
        out = tmp_path / shlex.split(given)[shlex.split(given).index("--out") + 1]
        for name in explanations.TABLES:
            columns = pq.read_table(out / name).column_names
            stated = re.search(rf"^\| `{name}` \| (.*) \|", PAGE, re.MULTILINE)
            assert stated is not None
            assert columns == re.findall(r"`(\w+)`", stated[1])
        assert raygnn.explain.main(shlex.split(given)) == 2
        assert_reports(capsys.readouterr().err, "output-not-empty")


def test_the_lines_of_python_on_the_page_run(planted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^    ((?:model|explanations)[ .].*)$", PAGE, re.MULTILINE)
    assert len(lines) == 4
    code = "\n".join(lines).replace("runs/papers", planted.run).replace('"graph"', "GRAPH")
    code = code.replace("[17, 23]", '["n200", "n201"]')
    exec(code, {"raygnn": raygnn, "GRAPH": planted.graph})
    assert pq.read_table(tmp_path / "out" / "why" / "predictions").num_rows == 2


@pytest.mark.parametrize(
    ("arguments", "id"),
    [
        ("", "command-model-missing"),
        ("runs/x --nodes 1 --out o", "explain-option-missing"),
    ],
)
def test_what_is_missing_on_the_command_line_is_named(arguments, id, capsys):
    assert raygnn.explain.main(shlex.split(arguments)) == 2
    assert_reports(capsys.readouterr().err, id)


def test_ids_of_numbers_are_listed_as_such(temporal_labels, tmp_path, capsys):
    where = ["--graph", temporal_labels.graph, "--out", str(tmp_path / "out")]
    assert raygnn.explain.main([temporal_labels.run, *where, "--nodes", "a,b"]) == 2
    assert_reports(capsys.readouterr().err, "explain-nodes", "a,b")
    assert raygnn.explain.main([temporal_labels.run, *where, "--nodes", "3, 4"]) == 0
    assert pq.read_table(tmp_path / "out" / "predictions")["id"].to_pylist() == [3, 4]
