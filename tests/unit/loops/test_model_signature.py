"""What is saved with a model fits the graph it was trained on, and tells every other one."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raygnn.data.bundle import Bundle
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.standardization import ColumnScale
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from raygnn.loops.signature import LinkOutput, ModelSignature, NodeOutput
from tests.errors import raises

BUYS, SOLD = ("user", "buys", "item"), ("item", "sold_to", "user")
LIKES = ("user", "likes", "item")


def _bundle(folder: Path, name: str, **changes) -> Bundle:
    ids = changes.get("ids", [f"u{i}" for i in range(6)])
    ends = np.arange(5) % 3
    amount = {"amount": np.ones((5, changes.get("amount", 2)), np.float32)}
    nodes = {
        "user": node_rows(np.array(ids)),
        "item": node_rows(np.arange(3), {"x": np.ones((3, changes.get("width", 2)), np.float32)}),
    }
    if changes.get("user_features"):
        nodes["user"] = node_rows(np.array(ids), {"x": np.ones((len(ids), 2), np.float32)})
    sources = np.array(ids)[:5]
    edges = {
        BUYS: edge_rows(sources, ends, amount),
        SOLD: edge_rows(ends, sources),
        LIKES: edge_rows(sources, ends),
    }
    tables = GraphTables(
        {t: nodes[t] for t in changes.get("node_types", ["user", "item"])},
        {t: edges[t] for t in changes.get("edge_types", [BUYS, SOLD])},
    )
    return ingest(write_tables(tables, str(folder / name)), IngestOptions(), folder / "cache")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("signature")


@pytest.fixture(scope="module")
def signature(folder: Path) -> ModelSignature:
    bundle = _bundle(folder, "training")
    return ModelSignature.of(
        bundle, "x", {"item": 2}, {"user"}, ["amount"], LinkOutput((BUYS, LIKES), True)
    )


def test_it_reads_back_as_written(signature):
    assert ModelSignature.from_json(signature.to_json(), "model.json") == signature
    output = NodeOutput("user", "y", "multi_class", 2, ("a", "b"))
    other = ModelSignature("x", signature.node_types, (BUYS,), {}, output)
    assert ModelSignature.from_json(other.to_json(), "model.json") == other


def test_how_features_were_standardised_is_saved_with_the_model(signature):
    scales = {"item": {"x": ColumnScale((0.1, 1 / 3), (1e-7, 0.0))}}
    scales["user__buys__item"] = {"amount": ColumnScale((60_000.0, 0.0), (2.0, 1.0))}
    saved = replace(signature, standardization=scales)
    assert ModelSignature.from_json(saved.to_json(), "model.json") == saved


def test_a_model_of_before_standardisation_reads_features_as_they_are(signature):
    content = json.loads(signature.to_json())
    del content["standardization"]
    assert ModelSignature.from_json(json.dumps(content), "model.json") == signature


def test_what_is_not_read_is_not_standardised(folder):
    bundle = _bundle(folder, "with users", user_features=True)
    scale = ColumnScale((0.0, 0.0), (2.0, 2.0))
    saved = ModelSignature.of(
        bundle,
        "x",
        {"item": 2, "user": 2},
        {"user"},
        [],
        LinkOutput((BUYS,)),
        {"item": {"x": scale}, "user": {"x": scale}},
    )
    assert dict(saved.standardization) == {"item": {"x": scale}}


def test_it_fits_its_own_graph_in_any_order_and_with_more_types(folder, signature):
    more = [LIKES, SOLD, BUYS]
    bundle = _bundle(folder, "more", edge_types=more, node_types=["item", "user"])
    assert signature.unread_types(bundle) == ["user__likes__item"]
    fitted = signature.fitted(bundle)
    assert fitted.node_types == ["user", "item"]
    assert fitted.edge_types == [BUYS, SOLD]
    again = pickle.loads(pickle.dumps(fitted))
    assert again.edge_types == [BUYS, SOLD]
    assert np.array_equal(again.csc(SOLD).indices, bundle.csc(SOLD).indices)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 3}, ("model-feature-width", "item", 3, "a width of 2")),
        (
            {"edge_types": [BUYS]},
            ("model-edge-type-missing", "item__sold_to__user"),
        ),
        ({"amount": 1}, ("model-edge-column-width", "amount", "user__buys__item", 1)),
        (
            {"ids": [f"u{i}" for i in (1, 0, 2, 3, 4, 5)]},
            ("model-nodes-differ", "user", 6),
        ),
        ({"ids": [f"u{i}" for i in range(7)]}, ("model-nodes-differ", 7)),
        ({"user_features": True}, ("model-feature-width", 2, "without it")),
    ],
)
def test_what_does_not_fit_is_told(folder, signature, changes, message):
    bundle = _bundle(folder, f"other-{abs(hash(message))}", **changes)
    with raises(*message):
        signature.fitted(bundle)


def test_a_missing_node_type_is_told(folder, signature):
    likes = ("item", "near", "item")
    tables = GraphTables(
        {"item": node_rows(np.arange(3), {"x": np.ones((3, 2), np.float32)})},
        {likes: edge_rows(np.arange(3), np.arange(3))},
    )
    bundle = ingest(write_tables(tables, str(folder / "items")), None, folder / "cache")
    with raises("model-node-type-missing", "user", "item"):
        signature.fitted(bundle)
    with raises("graph-node-type-unknown", "user"):
        bundle.of_types(["user"], [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": "raygnn/model-v9"}', ("model-file-format", "raygnn/model-v9")),
        ('{"format": "raygnn/model-v1"}', ("model-file-damaged", "KeyError", "feature")),
        ("[]", ("model-file-format", "None")),
        ("{", ("model-file-damaged", "model.json")),
        ("[" * 100_000, ("model-file-damaged", 64)),
        ('{"a": 1, "a": 2}', ("model-file-damaged", "a")),
    ],
)
def test_a_damaged_file_is_told(text, message):
    with raises(*message):
        ModelSignature.from_json(text, "model.json")
