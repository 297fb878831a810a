"""A loaded link model reads learned rows of targets in the graph of training, and in no other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import raygnn
import raygnn.train
from raygnn.data.synthetic.link_graphs import likes
from raygnn.data.tables.graph_tables import write_tables
from tests.small_runs import small_config

WIDTH, FILMS = 8, 40


def _graph(folder: Path, num_films: int = FILMS) -> str:
    tables = likes(num_users=80, num_films=num_films, num_likes=1200, num_series=8)
    return str(Path(write_tables(tables, str(folder))).parent)


def test_rows_are_those_of_the_graph_of_training(tmp_path: Path) -> None:
    uri, other = _graph(tmp_path / "graph"), _graph(tmp_path / "other", 50)
    config = small_config(
        tmp_path,
        data={"uri": uri, "reverse_edges": True, "splits": {"type": "hash"}},
        task={"type": "link_prediction", "args": {"num_random_negatives": 16}},
        model={"type": "Hetero", "args": {"hidden_channels": 8, "out_channels": WIDTH}},
        metrics=[{"type": "mrr"}],
        training__eval="exact",
        scaling__num_workers=0,
    )
    fitted = raygnn.train.fit(config)
    model = raygnn.load(str(tmp_path / "run"))

    def rows_of(graph: str, node_type: str = "film") -> np.ndarray:
        found: np.ndarray = model.embed(graph, node_type=node_type)["embedding"]
        return found[:, WIDTH // 2 :]

    weight = model.module.encoder.module.node_rows.tables["film"].rows.weight
    scale = rows_of(uri) / weight.detach().numpy()
    np.testing.assert_allclose(scale, np.full_like(scale, scale[0, 0]), rtol=1e-4)
    assert np.abs(rows_of(uri, "user")).min() > 0
    assert not rows_of(other).any()
    assert not rows_of(other, "user").any()
    assert np.abs(rows_of(uri)).min() > 0  # the other graph leaves the model as it is
    assert model.evaluate(uri)["mrr"] == pytest.approx(fitted.metrics["test/mrr"], abs=1e-6)
    ids = model.embed(uri, node_type="film")["id"]
    new = {"film": [{"id": int(ids.max()) + 1, "x": [0.5] * 8}]}
    with model.extended(uri, new) as graph:
        (row,) = graph.embed(node_type="film")["embedding"]
    assert not row[WIDTH // 2 :].any()
    assert row[: WIDTH // 2].any()
