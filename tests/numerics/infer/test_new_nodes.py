"""Rows of new nodes are those of a run on the whole tables, and only they are written."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import raygnn.infer
import raygnn.train
from raygnn.data.tables.graph_tables import EdgeRows, GraphTables, write_tables
from raygnn.prepare.synthetic import synthetic_tables
from tests.errors import raises
from tests.numerics.infer.conftest import Trained, plain
from tests.small_runs import small_config
from tests.tiers import slow

NUM_OLD = 130
LOCAL = ["--scaling.num_workers", "0"]


def cut(tables: GraphTables) -> tuple[GraphTables, GraphTables]:
    """The graph of the first nodes, and the other nodes with all edges that touch them."""

    def is_old(table: pa.Table, *columns: str) -> pa.Array:
        old = [pc.less(table.column(column), NUM_OLD) for column in columns]
        return old[0] if len(old) == 1 else pc.and_(*old)

    parts = []
    for keeps in (lambda mask: mask, pc.invert):
        nodes = {
            name: replace(rows, table=rows.table.filter(keeps(is_old(rows.table, rows.id))))
            for name, rows in tables.nodes.items()
        }
        edges: dict[Any, EdgeRows] = {
            key: replace(
                rows, table=rows.table.filter(keeps(is_old(rows.table, rows.source, rows.target)))
            )
            for key, rows in tables.edges.items()
        }
        parts.append(GraphTables(nodes, edges))
    return parts[0], parts[1]


@pytest.fixture(scope="module", params=["GAT", *slow("GraphSAGE", "GCN")])
def grown(request, tmp_path_factory) -> tuple[Trained, str, str]:
    """A model of the first nodes, the tables of the new ones, and those of all."""
    folder = tmp_path_factory.mktemp("new-nodes")
    tables = synthetic_tables(
        "planted_partition", num_nodes=150, num_classes=3, num_features=6, seed=3
    )
    old, new = cut(tables)
    uris = [
        str(Path(write_tables(part, str(folder / name), num_shards=2)).parent)
        for name, part in (("old", old), ("new", plain(new)), ("whole", plain(tables)))
    ]
    config = small_config(
        folder,
        scaling__num_workers=0,
        data__uri=uris[0],
        data__cache_dir=str(folder / "cache"),
        model={"type": request.param, "args": {"hidden_channels": 8}},
        training__eval="exact",
        task={"type": "node_classification", "args": {"blend": False, "propagate_labels": False}},
    )
    metrics = raygnn.train.fit(config).metrics
    return Trained(str(folder / "run"), uris[0], uris[0], metrics), uris[1], uris[2]


def table(written: raygnn.infer.Written) -> pa.Table:
    return pq.read_table(written.table_uri("node"))


@pytest.mark.parametrize("what", ["embeddings", "probabilities"])
def test_rows_of_new_nodes_are_those_of_a_run_on_all_tables(grown, tmp_path, what):
    trained, new, whole = grown
    args = {"what": what, "rows_per_file": 7}
    overrides = ["--data.uri", trained.graph, "--loader.eval_batch_size", "6", *LOCAL]
    written = raygnn.infer.predict(trained.run, tmp_path / "new", overrides, new_nodes=new, **args)
    found = table(written)
    overrides = ["--data.uri", whole, *LOCAL]
    every = table(raygnn.infer.predict(trained.run, tmp_path / "whole", overrides, **args))
    expected = every.filter(pc.greater_equal(every["id"], NUM_OLD))
    assert found["id"].to_pylist() == list(range(NUM_OLD, 150))
    column = found.column_names[1]
    values, wanted = (np.array(rows[column].to_pylist()) for rows in (found, expected))
    assert np.abs(values).max() > 0.01
    assert values == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def test_a_folder_may_have_the_files_of_the_graph_without_a_manifest(grown, tmp_path):
    trained, new, _ = grown
    plain_folder = shutil.copytree(new, tmp_path / "arrivals")
    (plain_folder / "graph.yaml").unlink()
    overrides = ["--data.uri", trained.graph, *LOCAL]
    found, expected = (
        table(raygnn.infer.predict(trained.run, tmp_path / out, overrides, new_nodes=folder))
        for out, folder in (("found", str(plain_folder)), ("expected", new))
    )
    assert found.equals(expected)
    shutil.copy(next(plain_folder.rglob("*.parquet")), plain_folder / "people.parquet")
    with raises("append-file-unknown", "people.parquet would not be read"):
        raygnn.infer.predict(trained.run, tmp_path / "out", overrides, new_nodes=str(plain_folder))
    with raises("append-no-files", "parquet"):
        (tmp_path / "empty").mkdir()
        raygnn.infer.predict(
            trained.run, tmp_path / "out", overrides, new_nodes=str(tmp_path / "empty")
        )


def test_only_new_nodes_are_encoded(grown, tmp_path, monkeypatch):
    from raygnn.inference import embeddings

    trained, new, _ = grown
    seeds = []
    original = embeddings.SampledEmbeddings

    def sampled(applied: Any, nodes: Any, *args: Any) -> Any:
        seeds.append({name: len(ids) for name, ids in nodes.items()})
        return original(applied, nodes, *args)

    monkeypatch.setattr(embeddings, "SampledEmbeddings", sampled)
    overrides = ["--data.uri", trained.graph, "--training.eval", "sampled", *LOCAL]
    raygnn.infer.predict(trained.run, tmp_path / "out", overrides, new_nodes=new)
    assert seeds == [{"node": 20}]


def _write_new(folder: Path, trained: Trained, ids: list, x: list[bytes]) -> str:
    known = next(Path(trained.graph).glob("nodes/node/*.parquet"))
    types = pq.read_schema(known)
    columns = {"id": pa.array(ids, types.field("id").type), "x": pa.array(x, types.field("x").type)}
    (folder / "nodes" / "node").mkdir(parents=True)
    pq.write_table(pa.table(columns), folder / "nodes" / "node" / "part-0.parquet")
    return str(folder)


@pytest.mark.parametrize("on_error", ["fail", "drop"])
@pytest.mark.parametrize(
    ("ids", "bad", "id", "values"),
    [
        ([5, 1000], [], "append-ids-known", [1, 2, "node", "[5]"]),
        ([1000, 1000], [], "nodes-id-repeated", [1000]),
        ([1000, 1001], [1], "table-not-finite", ["x"]),
        ([1000, None], [], "nodes-null-ids", ["id"]),
    ],
)
def test_rows_of_new_nodes_are_never_dropped(grown, tmp_path, ids, bad, id, values, on_error):
    trained, _, _ = grown
    rows = [np.full(6, np.nan if i in bad else 0.5, np.float32) for i in range(len(ids))]
    new = _write_new(tmp_path / "new", trained, ids, [row.tobytes() for row in rows])
    overrides = ["--data.uri", trained.graph, "--data.on_error", on_error, *LOCAL]
    with raises(id, *values):
        raygnn.infer.predict(trained.run, tmp_path / "out", overrides, new_nodes=new)


def test_wrong_uses_are_refused(grown, link_model, tmp_path):
    trained, new, _ = grown
    with raises("append-no-tables"):
        raygnn.infer.predict(trained.run, tmp_path / "out", LOCAL, new_nodes=new)
    with raises("append-type-unknown", "user"):
        overrides = ["--data.uri", trained.graph, *LOCAL]
        raygnn.infer.predict(trained.run, tmp_path / "out", overrides, new_nodes=link_model.graph)
