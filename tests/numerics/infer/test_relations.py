"""Top-k neighbors along one of several relations: the decoder's own scores, by brute force."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

import raygnn.infer
import raygnn.train
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from raygnn.inference.job import known_types, relation_of
from raygnn.outputs.saved_model import SavedModel
from tests.errors import raises
from tests.numerics.infer.test_nodes import read
from tests.small_runs import small_config
from tests.tiers import slow

VIEWS, BUYS = "user__views__item", "user__buys__item"
RELATIONS = (BUYS, VIEWS)
ANCHORS = [3, 17, 8]
NUM_ITEMS = 20


@pytest.fixture(scope="module")
def links() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    return {name: (rng.integers(0, 30, 150), rng.integers(0, NUM_ITEMS, 150)) for name in RELATIONS}


@pytest.fixture(scope="module")
def model(links: dict, tmp_path_factory: pytest.TempPathFactory) -> str:
    """R-GCN and DistMult over two relations between the same two types, and their reverses."""
    folder = tmp_path_factory.mktemp("relations")
    edges = {tuple(name.split("__")): edge_rows(*ends) for name, ends in links.items()}
    nodes = {"user": node_rows(np.arange(30)), "item": node_rows(np.arange(NUM_ITEMS))}
    args = {
        "edge_type": "user__*__item",
        "decoder": {"type": "distmult"},
        "num_random_negatives": 10,
        "num_random_negatives_eval": 10,
    }
    config = small_config(
        folder,
        data__uri=write_tables(GraphTables(nodes, edges), str(folder / "graph")),
        data__cache_dir=str(folder / "cache"),
        data__reverse_edges=True,
        data__splits={"type": "hash"},
        task={"type": "link_prediction", "args": args},
        metrics=[{"type": "auc"}],
        model={"type": "RGCN", "args": {"hidden_channels": 8}},
        losses=[{"type": "softmax", "args": {"temperature": 1.0}}],
        optimizer={"type": "Adam", "args": {"lr": 0.1}},
        training__eval="exact",
        scaling__num_workers=0,
    )
    raygnn.train.fit(config)
    return str(folder / "run")


def _top_k(model: str, out: Path, k: int = NUM_ITEMS, **args: Any) -> Any:
    return raygnn.infer.top_k(model, out, k, ANCHORS, _local(model), **args)


def _local(model: str) -> list[str]:
    return ["--data.uri", str(Path(model).with_name("graph")), "--scaling.num_workers", "0"]


def _expected(model: str, folder: Path, weights: np.ndarray, known: set) -> list[tuple]:
    written = raygnn.infer.predict(model, folder, _local(model))
    rows = []
    users, items = read(written, "user"), read(written, "item")
    user_of = dict(zip(users["id"].tolist(), users["embedding"], strict=True))
    for anchor in ANCHORS:
        query = user_of[anchor].astype(np.float64) * weights
        scored = [
            (-np.float32(query @ vector.astype(np.float64)), item)
            for item, vector in zip(items["id"].tolist(), items["embedding"], strict=True)
            if (anchor, item) not in known
        ]
        for rank, (score, item) in enumerate(sorted(scored), start=1):
            rows.append((anchor, item, float(-score), rank))
    return rows


@pytest.mark.parametrize("filter_known", [True, *slow(False)])
@pytest.mark.parametrize("edge_type", RELATIONS)
def test_scores_are_the_decoders_for_the_relation(model, links, tmp_path, edge_type, filter_known):
    every = load_file(Path(model) / "model.safetensors")["decoder.relation"].double().numpy()
    weights = every[RELATIONS.index(edge_type)]
    assert np.abs(every[0] - every[1]).max() > 0.1
    known = set(zip(*(ends.tolist() for ends in links[edge_type]), strict=True))
    expected = _expected(model, tmp_path / "rows", weights, known if filter_known else set())
    args = {"edge_type": edge_type, "filter_known": filter_known}
    written = _top_k(model, tmp_path / "out", **args)
    found = read(written, "neighbors")
    assert list(zip(*(column.tolist() for column in found.values()), strict=True)) == expected
    assert (len(expected) < len(ANCHORS) * NUM_ITEMS) == filter_known
    assert (written.manifest["score"], written.manifest["edge_type"]) == ("decoder", edge_type)


def test_without_a_relation_it_is_the_inner_product(model, links, tmp_path):
    expected = _expected(model, tmp_path / "rows", np.ones(8), set())
    for number, args in enumerate(({}, {"edge_type": BUYS, "score": "inner_product"})):
        found = read(_top_k(model, tmp_path / str(number), **args), "neighbors")
        assert list(zip(*(column.tolist() for column in found.values()), strict=True)) == expected
    # Links of all relations of the model are known.
    known = {pair for ends in links.values() for pair in zip(*ends, strict=True)}
    found = read(_top_k(model, tmp_path / "new", filter_known=True), "neighbors")
    assert len(found["rank"]) == sum((a, i) not in known for a in ANCHORS for i in range(NUM_ITEMS))


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"score": "decoder"}, ("infer-score-edge-type", f"{BUYS}, {VIEWS}")),
        ({"edge_type": "user__likes__item"}, ("infer-edge-type-unknown", "user__likes__item")),
        (
            {"edge_type": BUYS, "anchor_type": "item"},
            ("infer-node-type-fixed", "anchor_type='item'", BUYS, "user"),
        ),
    ],
)
def test_what_cannot_be_meant_is_told(model, tmp_path, args, expected):
    with raises(*expected):
        _top_k(model, tmp_path / "out", 2, **args)
    assert not list(tmp_path.iterdir())


def test_a_model_of_labels_has_no_relations(node_model, tmp_path):
    with raises("infer-edge-type-unused"):
        _top_k(node_model.run, tmp_path / "out", 2, edge_type=BUYS)


def test_known_links_of_a_relation_have_to_be_there(model, links, tmp_path):
    spec = SavedModel.open(model).spec
    edges = {("user", "views", "item"): edge_rows(*links[VIEWS])}
    nodes = {"user": node_rows(np.arange(30)), "item": node_rows(np.arange(NUM_ITEMS))}
    uri = write_tables(GraphTables(nodes, edges), str(tmp_path / "graph"))
    bundle = ingest(uri, IngestOptions(), tmp_path / "cache")
    with raises("infer-filter-known", BUYS):
        known_types(spec, bundle, "user", "item", relation_of(spec, BUYS))
