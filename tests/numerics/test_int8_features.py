"""A run on int8 features learns what one on float32 learns, and its model reads either graph."""

from __future__ import annotations

import numpy as np
import pytest

import raygnn
import raygnn.train
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from raygnn.outputs.saved_model import SavedModel
from tests.small_runs import small_config

DTYPES = ("float32", "int8")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A graph of raw scales; runs by storage type; their accuracies."""
    folder = tmp_path_factory.mktemp("int8")
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 900)
    source = rng.integers(0, 900, 4000)
    of_class = [np.flatnonzero(y == number) for number in range(3)]
    target = np.array([rng.choice(of_class[y[node]]) for node in source])
    x = rng.normal(size=(3, 8))[y] + 2 * rng.normal(size=(900, 8))
    x = (x * np.logspace(-4, 4, 8) + [0, 1, 0, -3, 100, 0, 0, 1e5]).astype(np.float32)
    nodes = node_rows(np.arange(900), {"x": x}, {"y": y})
    tables = GraphTables({"node": nodes}, {("node", "to", "node"): edge_rows(source, target)})
    graph = write_tables(tables, str(folder / "graph"))
    runs, accuracies = {}, {}
    for dtype in DTYPES:
        config = small_config(
            folder / dtype,
            data={
                "uri": graph,
                "feature_dtype": dtype,
                "splits": {"type": "hash", "fractions": [0.6, 0.2, 0.2]},
            },
            scaling__num_workers=0,
            training__max_epochs=6,
        )
        accuracies[dtype] = raygnn.train.fit(config).metrics["test/accuracy"]
        runs[dtype] = str(folder / dtype / "run")
    return graph, runs, accuracies


def test_accuracy_is_that_of_float32(trained):
    _, _, accuracies = trained
    assert accuracies["float32"] > 0.6
    assert abs(accuracies["int8"] - accuracies["float32"]) <= 0.05


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_model_predicts_alike_on_a_graph_of_either_storage(trained, dtype, tmp_path):
    graph, runs, _ = trained
    model = raygnn.load(runs[dtype])
    found = []
    for storage in DTYPES:
        bundle = ingest(graph, IngestOptions(feature_dtype=storage), tmp_path)
        assert bundle.column("node", "x").dtype == storage
        found.append(model.predict(bundle, what="probabilities")["probability"])
    assert not np.array_equal(*found)  # they have read different bits
    assert np.abs(found[0] - found[1]).max() < 0.05
    assert (found[0].argmax(axis=1) == found[1].argmax(axis=1)).mean() > 0.98


def test_what_is_saved_is_in_units_of_the_tables(trained):
    _, runs, _ = trained
    scales = [SavedModel.open(runs[dtype]).spec.standardization["node"]["x"] for dtype in DTYPES]
    assert np.allclose(scales[0].mean, scales[1].mean, rtol=1e-2, atol=0.01 * np.max(scales[0].std))
    assert np.allclose(scales[0].std, scales[1].std, rtol=1e-2)
