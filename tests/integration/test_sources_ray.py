"""Readers and datasets of Ray Data as tables."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from raygnn.config import load_config
from raygnn.data.manifest import Manifest
from raygnn.data.tables.graph_tables import EdgeRows, GraphTables, NodeRows
from raygnn.data.tables.warehouses import open_snowflake
from raygnn.prepare.__main__ import main as prepare
from raygnn.runtime.data_source import open_bundle
from raygnn.runtime.sources import snapshot_records, with_snapshots
from raygnn.train import fit
from tests.bigquery_server import bigquery
from tests.errors import raises
from tests.small_runs import small_config
from tests.snowflake_server import snowflake

pytestmark = pytest.mark.ray

_IDS = np.arange(2000)
_NODES = pa.table({"id": _IDS, "x": _IDS / 2})
_EDGES = pa.table({"from": _IDS, "to": (_IDS * 7 + 1) % 2000})


def _graph(folder: Path, read: str) -> dict[str, object]:
    pd.DataFrame({"from": _EDGES["from"], "to": _EDGES["to"]}).to_csv(folder / "e.csv", index=False)
    (folder / "graph.yaml").write_text(
        f"format: raygnn/graph-v1\nnode_types:\n  n: {{read: {read}, id: id, features: {{x: x}}}}\n"
        "edge_types:\n  - {type: [n, to, n], files: e.csv, source: from, target: to}\n"
    )
    return {"data": {"uri": str(folder), "cache_dir": str(folder / "cache")}}


@pytest.mark.slow  # 7 s on a busy machine, as the first query of Ray Data
def test_a_table_of_delta(ray_session: None, tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    for start in (0, 1000):
        rows = _NODES.slice(start, 1000)
        deltalake.write_deltalake(str(tmp_path / "users"), rows, mode="append")
    config = load_config(_graph(tmp_path, "{type: delta, path: users}"))
    bundle = open_bundle(config, None)
    ids = bundle.ids("n").to_numpy()
    assert sorted(ids) == _IDS.tolist()
    assert np.array_equal(np.asarray(bundle.column("n", "x")), ids / 2)


@pytest.mark.slow  # 2 s
def test_a_table_of_iceberg(ray_session: None, tmp_path: Path) -> None:
    catalogs = pytest.importorskip("pyiceberg.catalog")
    where = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": str(tmp_path)}
    catalog = catalogs.load_catalog("default", **where)
    catalog.create_namespace("shop")
    catalog.create_table("shop.users", schema=_NODES.schema).append(_NODES)
    kwargs = "{name: default, " + ", ".join(f"{k}: '{v}'" for k, v in where.items()) + "}"
    read = f"{{type: iceberg, table_identifier: shop.users, catalog_kwargs: {kwargs}}}"
    bundle = open_bundle(load_config(_graph(tmp_path, read)), None)
    assert sorted(bundle.ids("n").to_numpy()) == _IDS.tolist()


def _read_from(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the reader of BigQuery ask a server at this address."""

    def client() -> Any:  # in workers too, which receive it with their task
        import grpc
        from google.cloud import bigquery_storage
        from google.cloud.bigquery_storage_v1.services.big_query_read import transports

        channel = grpc.insecure_channel(address)
        transport = transports.BigQueryReadGrpcTransport(channel=channel)
        return bigquery_storage.BigQueryReadClient(transport=transport)

    reader = "ray.data._internal.datasource.bigquery_datasource"
    monkeypatch.setattr(f"{reader}._create_read_client", client)


_CUSTOMERS = pa.table({"pk": [1, 2, 3, 4], "size": [0.5, 1.5, 2.5, 4.5]})
_ORDERS = pa.table({"nr": [1, 2, 3, 4], "whose": [3, 3, 1, None], "size": [0.5, 1.5, 3.5, 1.0]})


@pytest.mark.slow  # 3 s, and 12 s as the first query of Ray Data
def test_a_draft_of_bigquery(
    ray_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small numbers in columns of other names prove nothing; the declared key does."""
    monkeypatch.setenv("RAYGNN_CACHE_DIR", str(tmp_path / "cache"))
    place = {"projectId": "shop", "datasetId": "sales"}
    reference = {
        "name": "fk",
        "referencedTable": {**place, "tableId": "customers"},
        "columnReferences": [{"referencingColumn": "whose", "referencedColumn": "pk"}],
    }
    elsewhere = {**reference, "referencedTable": {**place, "datasetId": "x", "tableId": "orders"}}
    with bigquery() as server:
        server.tables |= {"sales.customers": _CUSTOMERS, "sales.orders": _ORDERS}
        server.tables["sales.empty"] = _ORDERS.slice(0, 0)
        server.constraints = {
            "sales.customers": {"primaryKey": {"columns": ["pk"]}, "foreignKeys": [elsewhere]},
            "sales.orders": {"primaryKey": {"columns": ["nr"]}, "foreignKeys": [reference]},
        }
        server.descriptions["size"] = "in metres"
        query = "SELECT DISTINCT `nr`, `whose` FROM `sales`.`orders` WHERE `whose` IS NOT NULL"
        server.queries[query] = _ORDERS.select(["nr", "whose"]).slice(0, 3)
        _read_from(server.address, monkeypatch)
        draft = ["draft", "bigquery://shop/sales", "--out", str(tmp_path / "out")]
        assert prepare(draft) == 0
        graph = Manifest.load(tmp_path / "out")
        bundle = open_bundle(load_config({"data": {"uri": str(tmp_path / "out")}}), None)
    assert list(graph.node_types) == ["customers", "orders"]
    assert (tmp_path / "out" / "graph.yaml").read_text().count("}  # in metres\n") == 2
    source = graph.node_types["customers"].read
    assert source is not None
    assert source.type == "bigquery"
    assert source.args == {"project_id": "shop", "dataset": "sales.customers"}
    (edges,) = graph.edge_types
    assert edges.type == ("orders", "whose", "customers")
    assert bundle.num_edges(edges.type) == 3


@pytest.mark.slow  # 40 s: fakesnow, and Ray starts twice, so that its workers find the password
def test_a_draft_of_snowflake(tmp_path: Path) -> None:
    with snowflake() as url, closing(open_snowflake(url)) as connection:
        for table, rows in {
            "A (PK INTEGER PRIMARY KEY, SIZE FLOAT)": "(1, .5), (2, 1.5), (3, 2.5), (4, 4.5)",
            "B (NR INTEGER PRIMARY KEY, WHOSE INTEGER REFERENCES A (PK), SIZE FLOAT)": (
                "(1, 3, .5), (2, 3, 1.5), (3, 1, 3.5), (4, NULL, 1)"
            ),
            "C (X INTEGER, Y INTEGER, PRIMARY KEY (X, Y))": "",
        }.items():
            connection.cursor().execute(f"CREATE TABLE {table}")
            if rows:
                connection.cursor().execute(f"INSERT INTO {table[0]} VALUES {rows}")
        env = os.environ | {"RAY_ADDRESS": "local", "RAYGNN_CACHE_DIR": str(tmp_path / "cache")}
        out = str(tmp_path / "out")
        for command in (["draft", f"{url}&warehouse=W", "--out", out], ["snapshot", out]):
            done = subprocess.run(
                [sys.executable, "-m", "raygnn", "prepare", *command],
                env=env, capture_output=True, text=True,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert "s3cret" not in done.stdout + done.stderr
    assert "s3cret" not in "".join(p.read_text() for p in (tmp_path / "out").glob("*.yaml"))
    graph = Manifest.load(out)
    assert sorted(graph.node_types) == ["A", "B", "CUSTOMERS", "ORDERS"]
    sources = {name: table.read for name, table in graph.all_tables.items()}
    source = sources["node_types.A"]
    assert source is not None
    assert source.type == "snowflake"
    assert source.args == {
        "sql": 'SELECT * FROM "A"',
        "connection_parameters": {
            "connection_name": "shop", "database": "SHOP", "schema": "PUBLIC", "warehouse": "W",
        },
    }  # fmt: skip
    query = sources["edge_types.B__WHOSE__A"]
    assert query is not None
    assert query.args["sql"] == 'SELECT DISTINCT "NR", "WHOSE" FROM "B" WHERE "WHOSE" IS NOT NULL'
    assert "edge_types.ORDERS__CUSTOMER__CUSTOMERS" in sources
    record = snapshot_records(with_snapshots(out, str(tmp_path / "cache")))
    assert record["node_types.A"]["num_rows"] == 4


@pytest.mark.slow  # 2 s, and 12 s as the first query of Ray Data
@pytest.mark.parametrize("rows", ["dataset: sales.users", "query: SELECT * FROM sales.users"])
def test_a_table_of_bigquery(
    ray_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: str
) -> None:
    """Google's clients read a server that answers as BigQuery does, in two streams."""
    with bigquery() as server:
        server.tables["sales.users"] = _NODES
        server.queries["SELECT * FROM sales.users"] = _NODES
        _read_from(server.address, monkeypatch)
        config = load_config(_graph(tmp_path, f"{{type: bigquery, project_id: shop, {rows}}}"))
        bundle = open_bundle(config, None)
    ids = bundle.ids("n").to_numpy()
    assert sorted(ids) == _IDS.tolist()
    assert np.array_equal(np.asarray(bundle.column("n", "x")), ids / 2)


@pytest.mark.slow  # 15 s: Ray starts, so that its workers find the message of TensorFlow
def test_tfrecords(tmp_path: Path) -> None:
    """Features of one value and of several, as GiGL writes them; the message is TensorFlow's."""
    protos = Path(__file__).parents[1] / "example_protos"
    write = f"""
import struct
from tensorflow import train
for part in range(2):
    with open(f"{tmp_path}/users-{{part}}.tfrecord", "wb") as file:
        for i in range(part * 1000, part * 1000 + 1000):
            example = train.Example()
            feature = example.features.feature
            feature["id"].int64_list.value.append(i)
            feature["x"].float_list.value.append(i / 2)
            feature["pair"].float_list.value.extend([i, -i])
            data = example.SerializeToString()
            # Ray Data does not compare the checksums
            file.write(struct.pack("<QI", len(data), 0) + data + struct.pack("<I", 0))
"""
    env = os.environ | {"PYTHONPATH": f"{protos}:{os.environ.get('PYTHONPATH', '')}"}
    subprocess.run([sys.executable, "-c", write], env=env, check=True)
    files = "[users-0.tfrecord, users-1.tfrecord]"
    config = _graph(tmp_path, f"{{type: tfrecords, paths: {files}, file_extensions: [tfrecord]}}")
    graph = (tmp_path / "graph.yaml").read_text()
    (tmp_path / "graph.yaml").write_text(graph.replace("{x: x}", "{x: [x, pair]}"))
    snapshot = [sys.executable, "-m", "raygnn", "prepare", "snapshot", str(tmp_path)]
    cache = ["--cache-dir", str(tmp_path / "cache")]
    subprocess.run([*snapshot, *cache], env=env | {"RAY_ADDRESS": "local"}, check=True)
    bundle = open_bundle(load_config(config), None)
    ids = bundle.ids("n").to_numpy()
    assert sorted(ids) == _IDS.tolist()
    assert np.array_equal(bundle.column("n", "x"), np.stack([ids / 2, ids, -ids], axis=1))


@pytest.mark.parametrize(
    ("read", "id", "part"),
    [
        ("{type: detla, path: x}", "source-type", "mean delta"),
        ("{type: sqlite, path: x}", "source-type", "sql"),
        ("{type: delta, pth: x}", "source-argument", "mean path"),
        ("{type: delta}", "source-argument", "needs path"),
        ("{type: delta, path: missing}", "source-unreadable", "node_types.n"),
        ("{type: delta, path: /etc}", "data-outside", "/etc"),
        ("{type: json, paths: broken.json}", "source-unreadable", "JSONDecodeError"),
        (
            "{type: mongo, uri: 'mongodb://h', database: d, collection: c}",
            "source-package",
            "pymongo",
        ),
    ],
)
def test_an_invalid_reader(
    ray_session: None, tmp_path: Path, capfd, read: str, id: str, part: str
) -> None:
    (tmp_path / "broken.json").write_text('{"id": 1}\n{"id": {"x": 2}}\nno json')
    with raises(id, part) as raised:
        open_bundle(load_config(_graph(tmp_path, read)), None)
    assert len(str(raised.value)) < 1000
    assert "Traceback" not in capfd.readouterr().err


def test_a_dataset_is_a_table(ray_session: None, tmp_path: Path) -> None:
    """Its rows keep their order, and equal rows are the same graph."""
    import ray.data

    config = load_config({"data": {"cache_dir": str(tmp_path)}})
    paths = set()
    for num_blocks in (1, 8):
        nodes = ray.data.from_arrow(_NODES).repartition(num_blocks).map_batches(lambda b: b)
        edges = EdgeRows(_EDGES, source="from", target="to")
        tables = GraphTables({"n": NodeRows(nodes, "id", {"x": "x"})}, {("n", "to", "n"): edges})
        bundle = open_bundle(config, tables)
        assert bundle.ids("n").to_numpy().tolist() == _IDS.tolist()
        assert np.array_equal(np.asarray(bundle.column("n", "x")), _IDS / 2)
        assert bundle.num_edges(("n", "to", "n")) == 2000
        paths.add(bundle.path)
    assert len(paths) == 1


@pytest.mark.slow  # 3 s: two trainings
def test_a_run_on_datasets_is_that_on_data_frames(ray_session: None, tmp_path: Path) -> None:
    import ray.data

    rng = np.random.default_rng(0)
    users = pd.DataFrame({"id": _IDS, "x": rng.random(2000), "y": np.where(_IDS % 3, "a", "b")})

    def weights(name: str, make: Callable[[pd.DataFrame], Any]) -> bytes:
        nodes = NodeRows(make(users), "id", {"x": "x"}, {"y": "y"})
        edges = EdgeRows(make(_EDGES.to_pandas()), source="from", target="to")
        tables = GraphTables({"user": nodes}, {("user", "knows", "user"): edges})
        config = small_config(tmp_path / name, training__max_epochs=1, scaling={"num_workers": 0})
        config["data"] = {"cache_dir": str(tmp_path / name), "splits": {"type": "hash"}}
        fit(config, data=tables)
        return (tmp_path / name / "run" / "model.safetensors").read_bytes()

    of_frames = weights("frames", lambda frame: frame)
    assert (
        weights("datasets", lambda frame: ray.data.from_pandas(frame).repartition(5)) == of_frames
    )
