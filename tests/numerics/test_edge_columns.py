"""Edge columns reach the models that read them, sampled and exact, in both tasks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import raygnn.train
from raygnn.config import load_config
from raygnn.data.bundle import Bundle
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from raygnn.loops.task import TaskEnvironment
from raygnn.loops.tasks.exact_encoding import encode_exactly
from raygnn.loops.tasks.find_inputs import find_standardization
from raygnn.loops.tasks.link_prediction.task import LinkPrediction
from raygnn.loops.tasks.node_classification.task import NodeClassification
from raygnn.models.exact import ExactOptions
from raygnn.runtime.data_source import open_bundle
from raygnn.sampling import LocalFeatureStore, LocalGraphStore
from tests.errors import raises
from tests.small_runs import small_config
from tests.tiers import slow

HASH = {"type": "hash", "fractions": [0.6, 0.2, 0.2]}
LINKS = {"num_random_negatives": 8, "num_random_negatives_eval": 8, "full_ranking": True}


def _edges(rng: np.random.Generator, label: np.ndarray, ends: tuple[int, int]):
    """The first feature and the weight tell the edges within a class from the others."""
    source, target = (rng.integers(0, num, 900) for num in ends)
    is_true = label[source] == label[target]
    attr = np.stack([is_true, rng.random(900)], 1).astype(np.float32)
    return edge_rows(source, target, {"edge_attr": attr}, weight=is_true.astype(np.float32))


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    rng = np.random.default_rng(0)
    label = rng.integers(0, 3, 120)
    own = {"x": rng.random((120, 3), dtype=np.float32)}
    told = {"x": np.eye(3, dtype=np.float32)[label]}
    one = GraphTables(
        {"node": node_rows(np.arange(120), told, {"y": label})},
        {("node", "to", "node"): _edges(rng, label, (120, 120))},
    )
    two = GraphTables(
        {
            "user": node_rows(np.arange(120), own, {"y": label}),
            "item": node_rows(np.arange(120), told),
        },
        {
            ("item", "of", "user"): _edges(rng, label, (120, 120)),
            ("user", "knows", "user"): edge_rows(*rng.integers(0, 120, (2, 200))),
        },
    )
    folder = tmp_path_factory.mktemp("graphs")
    return {
        name: write_tables(tables, str(folder / name))
        for name, tables in {"one": one, "two": two}.items()
    }


def _config(folder: Path, uri: str, model: str, task: str = "node_classification", **args):
    config = small_config(folder, scaling__num_workers=0, metrics=[], training__max_epochs=3)
    config["data"] = {"uri": uri, "splits": HASH}
    config["sampling"]["fanouts"] = [-1, -1]
    config["model"] = {"type": model, "args": {"hidden_channels": 8}}
    if task == "link_prediction":
        args = {**LINKS, **args}
        if "two" in Path(uri).parts:
            args["edge_type"] = "item__of__user"
    config["task"] = {"type": task, "args": args}
    return config


VARIANTS = [
    ("one", "GINE", {}, {}),
    ("one", "GATv2", {"num_heads": 2}, {"edge_feature": "edge_attr"}),
    ("one", "GAT", {"num_heads": 2, "edge_dim": 2}, {}),
    ("one", "Transformer", {"num_heads": 2}, {"edge_feature": "weight"}),
    ("one", "GCN", {}, {"edge_weight": "weight"}),
    ("two", "Hetero", {"conv": "GINE"}, {}),
    ("two", "Hetero", {"conv": "GATv2", "num_heads": 2}, {"edge_feature": "edge_attr"}),
    ("two", "LightGCN", {"out_channels": 4}, {"edge_weight": "weight"}),
]
USUAL_VARIANTS = [*slow(*VARIANTS[:4]), VARIANTS[4], VARIANTS[5], *slow(*VARIANTS[6:])]


def _set_up(config, task_type) -> tuple[NodeClassification | LinkPrediction, Bundle]:
    loaded = load_config(config, allow_modules=["tests"])
    bundle = open_bundle(loaded, None)
    task = task_type(**config["task"]["args"])
    task.setup(TaskEnvironment(loaded, bundle, 0, 1, torch.device("cpu")))
    torch.manual_seed(0)
    task.model = task.build_model().eval()
    return task, bundle


def _encode(task, bundle, node_type, columns) -> torch.Tensor:
    config = task.env.loaded.config
    rows = task.target.fit_rows(bundle, config)
    scales = find_standardization(config, bundle, "x", columns, bundle.node_types, rows)
    graph, features = LocalGraphStore(bundle), LocalFeatureStore(bundle, scales)
    spec = replace(task.spec, edge_inputs=columns)
    options = ExactOptions(chunk_size=200)
    encoder = task.model.encoder
    return encode_exactly(encoder, graph, features, spec, [node_type], options=options)[node_type]


@pytest.mark.parametrize(
    ("model", "args"), [("LightGCN", {}), ("RGCN", {}), ("Hetero", {"conv": "GraphSAGE"})]
)
def test_what_is_not_sampled_carries_no_messages(tmp_path, graphs, model, args):
    config = _config(tmp_path, graphs["two"], model)
    config["model"]["args"] = {**args, "out_channels": 4}
    config["data"]["reverse_edges"] = False
    config["sampling"]["fanouts"] = {"item__of__user": [-1, -1], "user__knows__user": [0, 0]}
    task, bundle = _set_up(config, NodeClassification)
    encoder, node_type = task.model.encoder, task.output.node_type
    exact = _encode(task, bundle, node_type, {})
    batch = next(task.loader("train").iterate(0))
    with torch.no_grad():
        rows = encoder(batch)[node_type]
    torch.testing.assert_close(rows, exact[batch.nodes[node_type].n_id[: len(rows)]])
    task.close()


@pytest.mark.parametrize(("graph", "model", "model_args", "args"), VARIANTS)
def test_blocks_of_a_batch_give_the_rows_of_the_whole_graph(
    tmp_path, graphs, graph, model, model_args, args
):
    config = _config(tmp_path, graphs[graph], model, **args)
    config["model"]["args"] = {**model_args, "out_channels": 4}
    if model != "LightGCN":
        config["model"]["args"]["hidden_channels"] = 8
    task, bundle = _set_up(config, NodeClassification)
    columns = task.spec.edge_inputs
    assert set(columns.values()) & {"edge_attr", "edge_weight"}
    encoder, node_type = task.model.encoder, task.output.node_type
    exact = _encode(task, bundle, node_type, columns)
    batch = next(task.loader("train").iterate(0))
    seeds = batch.nodes[node_type]
    with torch.no_grad():
        rows = encoder(batch)[node_type]
    torch.testing.assert_close(rows, exact[seeds.n_id[: seeds.num_seeds]])
    if model in ("GCN", "LightGCN"):
        blind = _encode(task, bundle, node_type, {})
        assert not torch.allclose(rows, blind[seeds.n_id[: seeds.num_seeds]])
    task.close()


@pytest.mark.parametrize("task", ["link_prediction", *slow("node_classification")])
@pytest.mark.parametrize(("graph", "model", "model_args", "args"), USUAL_VARIANTS)
def test_training_goes_end_to_end_and_evaluates_exactly(
    tmp_path, graphs, graph, model, model_args, args, task
):
    config = _config(tmp_path, graphs[graph], model, task, **args)
    width = {} if "out_channels" in model_args else {"hidden_channels": 8}
    config["model"]["args"] = {**width, **model_args}
    config["training"].update(max_epochs=1, eval="exact")
    metrics = raygnn.train.fit(config).metrics
    assert np.isfinite(metrics["test/loss"])
    assert task == "node_classification" or 0 < metrics["test/full_mrr"] <= 1


@pytest.mark.parametrize(
    ("model", "model_args", "args", "message"),
    [
        ("GINE", {}, {"edge_feature": "cost"}, ("task-edge-column-unknown", "edge_feature='cost'")),
        ("GCN", {}, {"edge_weight": "cost"}, ("task-edge-column-unknown", "edge_weight='cost'")),
        ("GCN", {}, {"edge_feature": "edge_attr"}, ("task-edge-column-unread", "GCN")),
        ("GINE", {}, {"edge_weight": "weight"}, ("task-edge-column-unread", "GINE")),
        ("GINE", {"edge_dim": 5}, {}, ("model-edge-dim", 5, 2)),
        ("GCN", {}, {"edge_weight": "edge_attr"}, ("task-edge-weight-width", 2)),
        (
            "tests.user_code.PlainPyG",
            {},
            {"edge_weight": "weight"},
            ("task-edge-column-unread", "GCN, LightGCN", "reads_edge_weight = True"),
        ),
        (
            "tests.user_code.NeedsEdgeWeights",
            {},
            {"edge_feature": "weight", "edge_weight": "weight"},
            ("task-edge-columns-same",),
        ),
    ],
)
@pytest.mark.parametrize("task", ["link_prediction", *slow("node_classification")])
def test_a_column_that_is_not_there_or_not_read(
    tmp_path, graphs, model, model_args, args, message, task
):
    config = _config(tmp_path, graphs["one"], model, task, **args)
    config["model"]["args"] = model_args
    with raises(*message):
        raygnn.train.fit(config, allow_modules=["tests"])


@pytest.mark.parametrize(
    ("model", "args", "columns"),
    [
        ("AttendsToEdges", {"edge_feature": "edge_attr"}, {"edge_attr": "edge_attr"}),
        ("WeighsMessages", {"edge_weight": "weight"}, {"weight": "edge_weight"}),
        ("NeedsEdgeWeights", {}, {"weight": "edge_weight"}),
        ("PlainPyG", {}, {}),
    ],
)
def test_a_class_of_ones_own_says_what_it_reads(tmp_path, graphs, model, args, columns):
    config = _config(tmp_path, graphs["one"], f"tests.user_code.{model}", **args)
    config["model"]["args"] = {}
    task, _ = _set_up(config, NodeClassification)
    assert task.spec.edge_inputs == columns
    assert getattr(getattr(task.model.encoder.module, "options", None), "edge_dim", None) == (
        2 if model == "AttendsToEdges" else None
    )


def test_features_of_other_edge_types(tmp_path, graphs):
    config = _config(tmp_path, graphs["two"], "Hetero")
    config["model"]["args"].update(conv="GINE", edge_dims={"item__of__user": 7})
    with raises("model-edge-dim", "item__of__user=7"):
        raygnn.train.fit(config)
