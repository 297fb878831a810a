"""Tables that are legal and rare: they train, or it is said at once what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import raygnn.infer
import raygnn.train
from tests.errors import raises
from tests.graph_writer import write_graph
from tests.small_runs import small_config
from tests.tiers import slow

#: `make test` has other tests of training and inference; these are of one feature each.
pytestmark = pytest.mark.slow

NUM_NODES = 40


def _write(
    folder: Path,
    columns: dict[str, Any],
    node_spec: dict[str, Any],
    edge_columns: dict[str, Any] | None = None,
    edge_spec: dict[str, Any] | None = None,
) -> str:
    source, target = np.random.default_rng(0).integers(0, NUM_NODES, (2, 150))
    nodes = {"id": np.arange(NUM_NODES), "y": np.arange(NUM_NODES) % 3, **columns}
    edges = {"s": source, "t": target, **(edge_columns or {})}
    spec = {"labels": {"y": "y"}, **node_spec}
    return str(write_graph(folder / "g", pa.table(nodes), pa.table(edges), spec, edge_spec))


def _config(folder: Path, uri: str, **changes: Any) -> dict[str, Any]:
    splits = {"type": "hash", "fractions": [0.6, 0.2, 0.2]}
    data = {"uri": uri, "splits": splits, "cache_dir": str(folder / "cache")}
    return small_config(folder, data=data, scaling__num_workers=0, **changes)


@pytest.mark.parametrize("model", ["GraphSAGE", *slow("HGT")])
@pytest.mark.parametrize("evaluation", ["sampled", *slow("exact")])
def test_a_feature_of_one_number(tmp_path, model, evaluation):
    uri = _write(tmp_path, {"x": np.arange(NUM_NODES) / 7}, {"features": {"x": "x"}})
    config = _config(tmp_path, uri, model={"type": model}, training__eval=evaluation)
    assert np.isfinite(raygnn.train.fit(config).metrics["test/loss"])


@pytest.mark.parametrize("model", ["RGCN", *slow("LightGCN")])
@pytest.mark.parametrize("evaluation", ["sampled", *slow("exact")])
def test_classes_of_nodes_without_features(tmp_path, model, evaluation):
    uri = _write(tmp_path, {}, {})
    config = _config(tmp_path, uri, model={"type": model}, training__eval=evaluation)
    assert np.isfinite(raygnn.train.fit(config).metrics["test/loss"])
    options = ["--data.uri", uri, "--scaling.num_workers", "0"]
    written = raygnn.infer.predict(str(tmp_path / "run"), str(tmp_path / "out"), options)
    assert pq.read_table(written.table_uri("n"))["id"].to_pylist() == list(range(NUM_NODES))


def test_a_model_that_needs_features_is_refused_without_any(tmp_path):
    config = _config(tmp_path, _write(tmp_path, {}, {}), model={"type": "GCN"})
    with raises("task-no-features", "n", "LightGCN"):
        raygnn.train.fit(config)


def test_tensors_are_no_input_of_flat_models(tmp_path):
    rows = np.zeros((NUM_NODES, 2, 3), np.float32)
    x = pa.FixedShapeTensorArray.from_numpy_ndarray(rows)
    config = _config(tmp_path, _write(tmp_path, {"x": x}, {"features": {"x": "x"}}))
    with raises("task-feature-shape", "2, 3", "GraphSAGE"):
        raygnn.train.fit(config)


@pytest.mark.parametrize("model", ["RGCN", *slow("GraphSAGE", "GAT", "HGT", "LightGCN")])
@pytest.mark.parametrize("evaluation", ["exact", *slow("sampled")])
def test_a_model_of_a_graph_with_edges_takes_one_without(tmp_path, model, evaluation):
    spec = {"features": {"x": "x"}}
    columns = {"x": np.arange(NUM_NODES) / 7}
    uri = _write(tmp_path, columns, spec)
    config = _config(tmp_path, uri, model={"type": model}, training__eval=evaluation)
    raygnn.train.fit(config)
    edges = Path(uri) / "edges" / "part-0.parquet"
    pq.write_table(pq.read_table(edges).slice(0, 0), edges)
    config["run"]["name"] = "alone"
    assert np.isfinite(raygnn.train.fit(config).metrics["test/loss"])
    options = ["--data.uri", uri, "--scaling.num_workers", "0"]
    written = raygnn.infer.predict(str(tmp_path / "run"), str(tmp_path / "out"), options)
    assert pq.read_table(written.table_uri("n")).num_rows == NUM_NODES


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": {"type": "SparseAdam"}}, ("optimizer-sparse",)),
        (
            {"optimizer": {"type": "Adam", "args": {"betas": [0.9]}}},
            ("component-refuses-arguments", "optimizer.args={'betas': [0.9]}", "Adam"),
        ),
        (
            {"lr_scheduler": {"type": "CosineAnnealingLR", "args": {"T_max": 0}}},
            ("scheduler-arguments", "T_max", 0, "CosineAnnealingLR"),
        ),
        (
            {"model": {"type": "torch_geometric.nn.GATConv", "args": {"heads": 2}}},
            ("model-output-width", 6, 3),
        ),
    ],
)
def test_what_shows_in_the_first_steps_is_told_in_words(tmp_path, changes, message):
    uri = _write(tmp_path, {"x": np.arange(NUM_NODES) / 7}, {"features": {"x": "x"}})
    with raises(*message):
        raygnn.train.fit(_config(tmp_path, uri, **changes))


def test_dates_are_compared_with_timestamps_but_not_with_numbers(tmp_path):
    days = pa.array(np.arange(NUM_NODES), pa.int32()).cast(pa.date32())
    stamps = pa.array(np.arange(150)).cast(pa.timestamp("ms"))
    uri = _write(tmp_path, {"d": days}, {"time": "d"}, {"ts": stamps}, {"time": "ts"})
    raygnn.train.fit(_config(tmp_path, uri, model={"type": "LightGCN"}, sampling__temporal={}))
    numbers = np.arange(NUM_NODES)
    uri = _write(tmp_path / "b", {"d": numbers}, {"time": "d"}, {"ts": stamps}, {"time": "ts"})
    config = _config(tmp_path / "b", uri, model={"type": "LightGCN"}, sampling__temporal={})
    with raises("sampling-time-units", "n plain numbers, n__to__n dates"):
        raygnn.train.fit(config)
    config["sampling"]["temporal"] = None
    raygnn.train.fit(config)  # each by itself is well


def test_label_edges_are_in_the_unit_of_the_graph(tmp_path):
    stamps = pa.array(np.arange(150)).cast(pa.timestamp("ms"))
    folder = Path(_write(tmp_path, {}, {}, {"ts": stamps}, {"time": "ts"}))
    source, target = np.random.default_rng(1).integers(0, NUM_NODES, (2, 60))
    likes = {"a": source, "b": target, "at": np.arange(60)}
    pq.write_table(pa.table(likes), folder / "likes.parquet")
    manifest = yaml.safe_load((folder / "graph.yaml").read_text())
    entry = {"files": "likes.parquet", "source": "a", "target": "b", "time": "at"}
    manifest["label_edges"] = [{"type": ["n", "likes", "n"], **entry}]
    (folder / "graph.yaml").write_text(yaml.safe_dump(manifest))
    task = {"type": "link_prediction", "args": {"edge_type": "n__likes__n", "labels": True}}
    config = _config(
        tmp_path,
        str(folder),
        task=task,
        model={"type": "LightGCN"},
        metrics=[],
        sampling__temporal={},
    )
    with raises("sampling-time-units", "n__to__n dates, label edges n__likes__n plain numbers"):
        raygnn.train.fit(config)
