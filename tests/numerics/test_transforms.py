"""Whole runs on raw columns: texts, gaps, times, lists; trained, evaluated exactly, and used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from safetensors.torch import load_file

import raygnn.infer
import raygnn.train
from tests.errors import raises

NUM_USERS, NUM_CITIES = 400, 30
FEATURES: list[Any] = [
    "noise",
    {"column": "city", "transform": "category"},
    {"column": "age", "transform": "auto"},
    {"column": "income", "transform": "auto"},
    {"column": "joined", "transform": "time"},
    {"column": "tags", "transform": "multi_hot"},
]


def users() -> pa.Table:
    """Users whose class is known from their city, and from nothing else."""
    rng = np.random.default_rng(0)
    cities = rng.integers(0, NUM_CITIES, NUM_USERS)
    return pa.table(
        {
            "id": [f"user {i}" for i in range(NUM_USERS)],
            "noise": rng.normal(scale=500, size=NUM_USERS),
            "city": [f"city {c}" for c in cities],
            "age": pa.array([None if i % 9 == 0 else 20 + i % 50 for i in range(NUM_USERS)]),
            "income": rng.lognormal(8, 2, NUM_USERS),
            "joined": pa.array(rng.integers(1.5e9, 1.6e9, NUM_USERS), pa.timestamp("s")),
            "tags": [list("abc"[: i % 4]) for i in range(NUM_USERS)],
            "class": [f"class {c % 3}" for c in cities],
            "split": rng.choice(["train", "train", "val", "test"], NUM_USERS),
        }
    )


def write(folder: Path, table: pa.Table, *, with_shops: bool = False) -> str:
    rng = np.random.default_rng(1)
    folder.mkdir(parents=True)
    pq.write_table(table, folder / "users.parquet")
    ids = table["id"].to_pylist()
    labels: dict[str, Any] = {}
    if "class" in table.column_names:
        labels = {"labels": {"class": "class"}, "split": "split"}
    types = {"user": {"files": "users.parquet", "id": "id", "features": {"x": FEATURES}, **labels}}
    end, targets = "user", rng.choice(ids, 3 * len(ids))
    if with_shops:
        shops = pa.table({"id": np.arange(20), "kind": [f"kind {i % 4}" for i in range(20)]})
        pq.write_table(shops, folder / "shops.parquet")
        kind = {"column": "kind", "transform": "category"}
        types["shop"] = {"files": "shops.parquet", "id": "id", "features": {"x": kind}}
        end, targets = "shop", rng.integers(0, 20, 3 * len(ids))
    edges = pa.table({"s": rng.choice(ids, 3 * len(ids)), "t": targets})
    pq.write_table(edges, folder / "edges.parquet")
    edge_type: dict[str, Any] = {
        "type": ["user", "knows", end],
        "files": "edges.parquet",
        "source": "s",
        "target": "t",
        "directed": with_shops,
    }
    manifest = {"format": "raygnn/graph-v1", "node_types": types, "edge_types": [edge_type]}
    (folder / "graph.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))
    return str(folder)


def train(folder: Path, uri: str, model: Any, **changes: Any) -> dict[str, Any]:
    config = {
        "data": {"uri": uri, "cache_dir": str(folder / "cache"), "reverse_edges": True},
        "task": {"args": {"target": "user"}},
        "sampling": {"fanouts": [4, 4]},
        "loader": {"batch_size": 32},
        "model": model,
        "optimizer": {"type": "Adam", "args": {"lr": 0.02}},
        "training": {"max_epochs": 40, **changes},
        "loggers": [],
        "scaling": {"num_workers": 0},
        "run": {"storage_path": str(folder), "name": "run"},
    }
    return dict(raygnn.train.fit(config, allow_modules=["tests"]).metrics)


@pytest.mark.parametrize(
    ("model", "with_shops"),
    [
        ({"type": "Hetero", "args": {"hidden_channels": 32}}, True),
        ({"type": "tests.user_code.PlainPyG", "args": {"width": 32}}, False),
        ({"type": "GraphSAGE", "args": {"hidden_channels": 32}}, False),
    ],
    ids=["Hetero", "own module", "GraphSAGE"],
)
def test_classes_are_learned_from_a_category(
    tmp_path: Path, model: dict[str, Any], with_shops: bool
) -> None:
    """A third is chance. As plain numbers, 30 cities in three interleaved classes are not told."""
    uri = write(tmp_path / "graph", users(), with_shops=with_shops)
    eval_ = {} if model["type"].startswith("tests") else {"eval": "exact"}
    metrics = train(tmp_path, uri, model, **eval_)
    assert metrics["test/accuracy"] > 0.9
    weights = load_file(tmp_path / "run" / "model.safetensors")
    (name,) = [name for name in weights if "categories.user" in name]
    assert weights[name].shape[0] in (NUM_CITIES, NUM_CITIES + 1)


def probabilities(folder: Path, uri: str, out: str) -> dict[str, Any]:
    overrides = ["--data.uri", uri, "--scaling.num_workers", "0"]
    written = raygnn.infer.predict(
        folder / "run", folder / out, overrides, what="probabilities", node_types=["user"]
    )
    rows = pq.read_table(written.table_uri("user")).to_pylist()
    return {row["id"]: row["probability"] for row in rows}


def test_a_table_of_one_row_gives_the_same_predictions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = users()
    uri = write(tmp_path / "graph", table)
    train(tmp_path, uri, {"type": "MLP"}, max_epochs=3)
    said = capsys.readouterr()
    assert "city: category" in said.out + said.err
    expected = probabilities(tmp_path, uri, "all")
    capsys.readouterr()
    plain = table.drop_columns(["class", "split"])
    for i in (0, 27):
        one = write(tmp_path / f"graph {i}", plain.slice(i, 1))
        (found,) = probabilities(tmp_path, one, f"one {i}").values()
        assert np.allclose(found, expected[f"user {i}"], atol=1e-6)
    said = capsys.readouterr()
    assert "ingest: reading 1 nodes" in said.out + said.err
    assert "fitting" not in said.out + said.err

    new = plain.slice(0, 1).set_column(2, "city", pa.array(["a new one"]))
    found = probabilities(tmp_path, write(tmp_path / "new", new), "out")
    assert np.isfinite(found["user 0"]).all()
    assert not np.allclose(found["user 0"], expected["user 0"], atol=1e-3)


def test_a_model_without_transforms_reads_no_transformed_graph(tmp_path: Path) -> None:
    uri = write(tmp_path / "graph", users())
    manifest = Path(uri, "graph.yaml")
    content = yaml.safe_load(manifest.read_text())
    features = content["node_types"]["user"]["features"]
    features["x"] = ["noise"]
    manifest.write_text(yaml.safe_dump(content))
    train(tmp_path, uri, {"type": "MLP"}, max_epochs=1)
    features["x"] = [{"column": "noise", "transform": "standard"}]
    manifest.write_text(yaml.safe_dump(content))
    with raises("model-transforms", "'x'", "'user'"):
        probabilities(tmp_path, uri, "out")
