"""Embeddings and predictions: whole, exact, under the original ids, equal for 1 to 3 ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

import raygnn.infer
from raygnn.data.bundle import Bundle
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.loops.tasks.label_task import prediction_columns, probability_columns
from raygnn.loops.tasks.node_classification.target import NodeOutput
from raygnn.models import GraphSAGE
from raygnn.sampling.blocks import Block
from tests.folders import contents
from tests.numerics.infer.conftest import Trained
from tests.tiers import slow

EXACT, SAMPLED = ["--training.eval", "exact"], ["--training.eval", "sampled"]


def predict(trained: Trained, out: Path | str, overrides: list[str] = EXACT, **args: Any) -> Any:
    """One call in this process, on the graph without labels."""
    graph = ["--data.uri", trained.plain_graph, "--scaling.num_workers", "0"]
    return raygnn.infer.predict(trained.run, out, [*graph, *overrides], **args)


def read(written: raygnn.infer.Written, table: str) -> dict[str, np.ndarray]:
    """Columns of a table, in its order; vectors as matrices."""
    rows = pq.read_table(written.table_uri(table))
    return {name: np.array(rows.column(name).to_pylist()) for name in rows.column_names}


def test_predictions_are_those_that_the_run_was_tested_with(node_model, tmp_path):
    labelled = ["--data.uri", node_model.graph, *EXACT]
    written = predict(node_model, tmp_path / "out", labelled)
    found = read(written, "node")
    table = pq.read_table(Path(node_model.graph) / "nodes" / "node")
    assert sorted(found["id"]) == sorted(table.column("id").to_pylist())
    assert set(found["prediction"]) <= {"class-000", "class-001", "class-002"}
    predicted = dict(zip(found["id"], found["prediction"], strict=True))
    test = [row for row in table.select(["id", "y", "split"]).to_pylist() if row["split"] == "test"]
    right = [predicted[row["id"]] == row["y"] for row in test]
    assert np.mean(right) == pytest.approx(node_model.metrics["test/accuracy"], abs=1e-12)
    probabilities = read(
        predict(node_model, tmp_path / "p", labelled, what="probabilities"), "node"
    )
    assert np.allclose(probabilities["probability"].sum(1), 1, atol=1e-6)
    assert np.allclose(probabilities["probability"].max(1), found["probability"])


def _whole_graph(trained: Trained) -> tuple[Bundle, torch.Tensor, Block]:
    """A graph, its features as the model reads them, and its edges."""
    cache = Path(trained.run).parent / "cache"
    bundle = ingest(trained.plain_graph, IngestOptions(), cache)
    (edge_type,) = bundle.edge_types
    csc, num_nodes = bundle.csc(edge_type), bundle.num_nodes("node")
    degree = torch.from_numpy(np.diff(csc.indptr)).float()
    target = np.repeat(np.arange(num_nodes), np.diff(csc.indptr))
    block = Block(
        edge_index=torch.from_numpy(np.stack([csc.indices.astype(np.int64), target])),
        dst_ptr=torch.from_numpy(csc.indptr.copy()),
        num_src=num_nodes,
        num_dst=num_nodes,
        src_in_degree=degree,
        dst_degree=degree,
    )
    saved = json.loads((Path(trained.run) / "model.json").read_text())["standardization"]
    x = np.asarray(bundle.column("node", "x"), np.float64)
    x = (x - saved["node"]["x"]["mean"]) / saved["node"]["x"]["std"]
    return bundle, torch.from_numpy(x.astype(np.float32)), block


@pytest.mark.parametrize(
    "overrides", [EXACT, [*SAMPLED, "--sampling.fanouts", "[-1, -1]", "--loader.batch_size", "7"]]
)
def test_embeddings_are_the_forward_pass_on_the_whole_graph(node_model, tmp_path, overrides):
    found = read(predict(node_model, tmp_path, overrides, what="embeddings", chunk_size=50), "node")
    bundle, x, block = _whole_graph(node_model)
    assert found["id"].tolist() == bundle.ids("node").to_pylist()
    assert np.allclose(found["embedding"], _encoded(node_model, x, block), atol=1e-5)


def _encoded(trained: Trained, x: torch.Tensor, block: Block) -> np.ndarray:
    weights = load_file(Path(trained.run) / "model.safetensors")
    inner = {k.removeprefix("encoder.module."): v for k, v in weights.items() if "encoder" in k}
    encoder = GraphSAGE(x.shape[1], 5, 8, 2)
    encoder.load_state_dict(inner)
    return encoder.eval()(x, [block, block]).detach().numpy()


def _call(name: str, trained: Trained, out: str, overrides: list[str], args: dict) -> None:
    raygnn.infer.__dict__[name](trained.run, out, overrides=overrides, **args)


@pytest.mark.parametrize("how", ["exact", "sampled"])
@pytest.mark.parametrize("call", ["top_k", *slow("predictions", "embeddings")])
def test_any_number_of_ranks_writes_the_same_files(
    ranks, node_model, link_model, tmp_path, how, call
):
    trained = node_model if call == "predictions" else link_model
    overrides = ["--data.uri", trained.plain_graph, "--scaling.num_workers", "0"]
    overrides += ["--training.eval", how, "--loader.eval_batch_size", "8"]
    args: dict[str, Any] = {"rows_per_file": 20, "chunk_size": 40}
    if call == "top_k":
        args |= {"k": 5, "anchors": [7, 3, 21, 0, 39, 12, 13, 14, 30], "filter_known": True}
    found = {}
    for size in (1, 2, 3):
        out = tmp_path / str(size)
        name = "top_k" if call == "top_k" else "predict"
        ranks.run(_call, size, name, trained, str(out), overrides, args)
        found[size] = contents(out, "*.parquet")
        assert sorted(p.name for p in tmp_path.iterdir()) == [str(i + 1) for i in range(size)]
    assert len(found[1]) > 2
    assert found[1] == found[2] == found[3]


def test_exact_embeddings_of_several_types_are_those_of_all_neighbors(link_model, tmp_path):
    exact = predict(link_model, tmp_path / "exact", chunk_size=30)
    overrides = [*SAMPLED, "--sampling.fanouts", "[-1, -1]"]
    sampled = predict(link_model, tmp_path / "sampled", overrides)
    for name, num_nodes in (("user", 40), ("item", 25)):
        rows, others = read(exact, name), read(sampled, name)
        assert sorted(rows["id"]) == list(range(num_nodes))
        assert np.allclose(rows["embedding"], others["embedding"], atol=1e-5)
    assert pq.read_schema(f"{exact.table_uri('user')}/part-00000-of-00001.parquet").types == [
        pa.int64(),
        pa.list_(pa.float32(), 8),
    ]


def test_the_manifest_says_what_is_there(node_model, tmp_path):
    written = predict(node_model, tmp_path / "out", rows_per_file=100)
    manifest = json.loads((tmp_path / "out" / "_manifest.json").read_text())
    assert manifest == written.manifest
    assert manifest["classes"] == ["class-000", "class-001", "class-002"]
    assert manifest["tables"]["node"]["num_rows"] == 150
    for file in manifest["tables"]["node"]["files"]:
        path = tmp_path / "out" / file["file"]
        assert path.stat().st_size == file["num_bytes"]
        assert pq.read_metadata(path).num_rows == file["num_rows"]


def _output(problem: str, num_outputs: int, names: tuple[str, ...] | None = None) -> NodeOutput:
    named = {"problem": problem, "num_outputs": num_outputs, "class_names": names}
    return NodeOutput("n", label="y", **named)


def test_columns_of_other_problems():
    logits = torch.tensor([[1.0, -2.0], [-0.5, 3.0]])
    labels = _output("multi_label", 2)
    columns = prediction_columns(logits, labels)
    assert columns["prediction"].tolist() == [[1, 0], [0, 1]]
    shares = probability_columns(logits, labels)["probability"]
    assert np.allclose(shares, 1 / (1 + np.exp(-logits.numpy())))
    numbers = prediction_columns(logits[:, :1], _output("regression", 1))
    assert numbers["prediction"].tolist() == [1.0, -0.5]
    numbers = prediction_columns(logits, _output("regression", 2))
    assert numbers["prediction"].tolist() == logits.tolist()
    classes = prediction_columns(logits, _output("multi_class", 2))
    assert classes["prediction"].to_pylist() == [0, 1]
    single = prediction_columns(logits, _output("multi_class", 2, ("a",)))
    assert single["prediction"].to_pylist() == ["a", None]
