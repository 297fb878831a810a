"""What is saved with a model fits the graph it was trained on, and tells every other one."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from raygnn.data.bundle import Bundle
from raygnn.data.checksums import dump_record
from raygnn.data.edge_types import edge_type_name
from raygnn.data.standardization import ColumnScale
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows
from raygnn.loops.model_spec import ModelSpec, NodeInput, edge_widths
from raygnn.loops.tasks.link_prediction.target import LinkOutput
from raygnn.loops.tasks.node_classification.target import NodeOutput
from raygnn.loops.tasks.target import output_classes
from tests.errors import raises
from tests.graph_writer import ingest_tables

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
    return ingest_tables(folder / name, tables)


def _spec(bundle: Bundle, widths: dict[str, int], output: LinkOutput) -> ModelSpec:
    """Of a model with learned rows of users, which reads the amount of edges."""
    return ModelSpec(
        "x",
        {
            name: NodeInput.of(bundle, name, widths.get(name), embedded=name == "user")
            for name in bundle.node_types
        },
        tuple(bundle.edge_types),
        {"amount": edge_widths(bundle, "amount", bundle.edge_types)},
        output,
        edge_inputs={"amount": "edge_attr"},
        fanouts={edge_type_name(edge_type): (4, 3) for edge_type in bundle.edge_types},
    )


def _read(text: str) -> ModelSpec:
    return ModelSpec.from_json(text, "model.json", output_classes())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spec")


@pytest.fixture(scope="module")
def spec(folder: Path) -> ModelSpec:
    return _spec(_bundle(folder, "training"), {"item": 2}, LinkOutput((BUYS, LIKES), True))


def test_it_reads_back_as_written(spec):
    assert _read(spec.to_json()) == spec
    output = NodeOutput(
        "user", label="y", problem="multi_class", num_outputs=2, class_names=("a", "b")
    )
    scales = {
        "item": {"x": ColumnScale((0.1, 1 / 3), (1e-7, 0.0))},
        "user__buys__item": {"amount": ColumnScale((60_000.0, 0.0), (2.0, 1.0))},
    }
    other = ModelSpec("x", spec.node_types, (BUYS,), {}, output, scales)
    assert _read(other.to_json()) == other
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_it_fits_its_own_graph_in_any_order_and_with_more_types(folder, spec):
    more = [LIKES, SOLD, BUYS]
    bundle = _bundle(folder, "more", edge_types=more, node_types=["item", "user"])
    assert spec.unread_types(bundle) == ["user__likes__item"]
    fitted = spec.fitted(bundle)
    assert fitted.node_types == ["user", "item"]
    assert fitted.edge_types == [BUYS, SOLD]
    again = pickle.loads(pickle.dumps(fitted))
    assert again.edge_types == [BUYS, SOLD]
    assert np.array_equal(again.csc(SOLD).indices, bundle.csc(SOLD).indices)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 3}, ("model-feature-width", "item", 3, "a width of 2")),
        ({"edge_types": [BUYS]}, ("model-edge-type-missing", "item__sold_to__user")),
        ({"amount": 1}, ("model-edge-column-width", "amount", "user__buys__item", 1)),
        ({"ids": [f"u{i}" for i in (1, 0, 2, 3, 4, 5)]}, ("model-nodes-differ", "user", 6)),
        ({"ids": [f"u{i}" for i in range(7)]}, ("model-nodes-differ", 7)),
        ({"user_features": True}, ("model-feature-width", 2, "without it")),
    ],
)
def test_what_does_not_fit_is_told(folder, spec, changes, message):
    bundle = _bundle(folder, f"other-{abs(hash(message))}", **changes)
    with raises(*message):
        spec.fitted(bundle)


def test_a_missing_node_type_is_told(folder, spec):
    likes = ("item", "near", "item")
    tables = GraphTables(
        {"item": node_rows(np.arange(3), {"x": np.ones((3, 2), np.float32)})},
        {likes: edge_rows(np.arange(3), np.arange(3))},
    )
    bundle = ingest_tables(folder / "items", tables)
    with raises("model-node-type-missing", "user", "item"):
        spec.fitted(bundle)
    with raises("graph-node-type-unknown", "user"):
        bundle.of_types(["user"], [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (dump_record({"format": "raygnn/model-v9"}), ("model-file-format", "raygnn/model-v9")),
        (dump_record({"format": "raygnn/model-v1"}), ("model-file-damaged", "KeyError", "feature")),
        ("[]", ("model-file-format", "None")),
        ("{", ("model-file-damaged", "model.json")),
        ("[" * 100_000, ("model-file-damaged", 64)),
        ('{"a": 1, "a": 2}', ("model-file-damaged", "a")),
    ],
)
def test_a_damaged_file_is_told(text, message):
    with raises(*message):
        _read(text)
