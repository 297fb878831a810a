"""Writing of graph tables: whole or not at all, and read back equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from raygnn.data.manifest import Manifest
from raygnn.data.tables import graph_tables as tables_module
from raygnn.data.tables.columns import SparseRows, feature_columns, label_columns, sparse_rows
from raygnn.data.tables.graph_tables import (
    GraphTables,
    check_folder,
    edge_rows,
    node_rows,
    summarize_tables,
    write_tables,
)
from tests.errors import raises

EDGE = ("node", "to", "node")


def small_tables(num_nodes: int = 10, num_edges: int = 7, **node: Any) -> GraphTables:
    ids = np.arange(num_nodes)
    features = {"x": np.arange(num_nodes * 3, dtype=np.float32).reshape(num_nodes, 3)}
    return GraphTables(
        {"node": node_rows(ids, features, {"y": ids % 3}, **node)},
        {EDGE: edge_rows(ids[:num_edges], ids[:num_edges][::-1].copy())},
    )


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_shards_cover_the_rows_in_order(tmp_path: Path) -> None:
    tables = small_tables()
    progress: list[str] = []
    uri = write_tables(tables, str(tmp_path / "g"), num_shards=4, progress=progress.append)
    assert uri == str(tmp_path / "g" / "graph.yaml")
    assert files_below(tmp_path / "g") == [
        *(f"edges/to/part-0000{i}-of-00004.parquet" for i in range(4)),
        "graph.yaml",
        *(f"nodes/node/part-0000{i}-of-00004.parquet" for i in range(4)),
    ]
    read = pq.read_table(tmp_path / "g" / "nodes" / "node")
    assert read.equals(tables.nodes["node"].table)
    manifest = Manifest.load(str(tmp_path / "g"))
    assert manifest.node_types["node"].id == "id"
    assert manifest.edge_types[0].type == EDGE
    assert progress == ["wrote nodes/node: 10 rows", "wrote edges/to: 7 rows"]


@pytest.mark.parametrize(("num_rows", "num_files"), [(2, 2), (10, 5)])
def test_no_shard_is_empty(tmp_path: Path, num_rows: int, num_files: int) -> None:
    write_tables(small_tables(num_edges=num_rows), str(tmp_path / "g"), num_shards=5)
    found = list((tmp_path / "g" / "edges" / "to").iterdir())
    assert len(found) == num_files
    assert pq.read_table(tmp_path / "g" / "edges" / "to").num_rows == num_rows


def test_types_without_rows(tmp_path: Path) -> None:
    tables = small_tables(num_edges=0)
    write_tables(tables, str(tmp_path / "g"))
    assert Manifest.load(str(tmp_path / "g")).edge_types == []
    assert "edge type node__to__node: no edges, left out" in list(summarize_tables(tables))
    with raises("graph-node-type-empty", "node"):
        write_tables(small_tables(0), str(tmp_path / "h"))
    assert not (tmp_path / "h").exists()


def test_relations_of_one_name_get_folders_of_their_own(tmp_path: Path) -> None:
    nodes = {name: node_rows(np.arange(2)) for name in ("a", "b")}
    edge = edge_rows(np.arange(2), np.arange(2))
    tables = GraphTables(
        nodes, {("a", "to", "b"): edge, ("b", "to", "a"): edge, ("a", "likes", "a"): edge}
    )
    write_tables(tables, str(tmp_path / "g"))
    folders = sorted(path.name for path in (tmp_path / "g" / "edges").iterdir())
    assert folders == ["a__to__b", "b__to__a", "likes"]
    assert len(Manifest.load(str(tmp_path / "g")).edge_types) == 3


def test_roles_reach_the_manifest(tmp_path: Path) -> None:
    ids = np.arange(3)
    tables = GraphTables(
        {"node": node_rows(ids, time=ids)},
        {EDGE: edge_rows(ids, ids, {"edge_attr": ids}, weight=ids.astype(np.float32), time=ids)},
    )
    write_tables(tables, str(tmp_path / "g"))
    manifest = Manifest.load(str(tmp_path / "g"))
    edge = manifest.edge_types[0]
    assert manifest.node_types["node"].time.column == "time"
    assert (edge.weight, edge.time.column, list(edge.features)) == ("weight", "time", ["edge_attr"])


def test_overwrite_replaces_the_graph_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "g"
    write_tables(small_tables(), str(folder), num_shards=4)
    (folder / "notes.txt").write_text("mine")
    with raises("output-not-empty", 10):
        write_tables(small_tables(), str(folder))
    write_tables(small_tables(5), str(folder), overwrite=True)
    assert files_below(folder) == [
        "edges/to/part-00000-of-00001.parquet",
        "graph.yaml",
        "nodes/node/part-00000-of-00001.parquet",
        "notes.txt",
    ]
    assert pq.read_table(folder / "nodes" / "node").num_rows == 5


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises("output-is-file"):
        check_folder(str(tmp_path / "file"))
    with raises("output-not-empty", 1):
        check_folder(str(tmp_path))
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / "mine.parquet").write_text("")
    with raises("output-foreign-files", 1, "nodes/mine.parquet"):
        check_folder(str(tmp_path), overwrite=True)


def test_credentials_stay_out_of_messages() -> None:
    with fsspec.open("memory://user:secret@bucket/g/x", "w") as file:
        file.write("")
    with raises("output-not-empty") as caught:
        check_folder("memory://user:secret@bucket/g")
    assert "secret" not in str(caught.value)


def test_num_shards_is_checked(tmp_path: Path) -> None:
    with raises("prepare-num-shards", 0):
        write_tables(small_tables(), str(tmp_path / "g"), num_shards=0)
    assert not list(tmp_path.iterdir())


def test_unusable_type_names_are_refused_before_writing(tmp_path: Path) -> None:
    tables = GraphTables({"no/slash": node_rows(np.arange(2))}, {})
    with raises("graph-type-name", "no/slash"):
        write_tables(tables, str(tmp_path / "g"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("existing", [False, True])
def test_a_failed_write_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: bool, existing: bool
) -> None:
    uri = f"memory://fail-{existing}/g" if remote else str(tmp_path / "g")
    if existing:
        write_tables(small_tables(), uri)
    fs, path = fsspec.core.url_to_fs(uri)
    before = {name: fs.cat_file(name) for name in fs.find(path)}
    calls = []

    def full_disk(table: pa.Table, file: Any, **options: Any) -> None:
        calls.append(table)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        write(table, file, **options)

    write = pq.write_table
    monkeypatch.setattr(tables_module.pq, "write_table", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_tables(small_tables(5), uri, num_shards=2, overwrite=True)
    after = {name: fs.cat_file(name) for name in fs.find(path)}
    # a local graph is replaced only by a whole one; a remote one is gone, and not a part of it left
    assert after == ({} if remote else before)
    assert remote or [entry.name for entry in tmp_path.iterdir()] == (["g"] if existing else [])


def test_any_fsspec_uri_works() -> None:
    write_tables(small_tables(), "memory://tables-test/deep/g/", num_shards=2)
    manifest = Manifest.load("memory://tables-test/deep/g")
    assert manifest.node_types["node"].files == ("nodes/node/*.parquet",)
    with fsspec.open("memory://tables-test/deep/g/edges/to/part-00001-of-00002.parquet") as file:
        assert pq.read_table(file).num_rows == 4


def test_dense_rows_are_fixed_size_binary_of_their_own_type() -> None:
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    made = feature_columns("x", rows)
    assert made.columns["x"].type == pa.binary(12)
    assert made.spec == "x"
    half = feature_columns("x", rows.astype(np.float16))
    assert half.spec == {"columns": "x", "dtype": "float16"}
    assert half.columns["x"].type == pa.binary(6)
    flags = feature_columns("x", rows > 2)
    assert flags.spec == {"columns": "x", "dtype": "uint8"}
    assert flags.columns["x"][0].as_py() == b"\0\0\0"
    assert feature_columns("x", rows[:, 0]).columns["x"].type == pa.float32()


def test_wide_rows_with_few_entries_are_sparse() -> None:
    rows = np.zeros((4, 50), np.float32)
    rows[1, 7] = rows[3, 2] = 1
    made = feature_columns("x", rows)
    assert made.spec == {"indices": "x_indices", "values": None, "dim": 50}
    assert made.columns["x_indices"].to_pylist() == [[], [7], [], [2]]
    rows[3, 2] = 0.5
    assert feature_columns("x", rows).columns["x_values"].to_pylist() == [[], [1.0], [], [0.5]]
    assert feature_columns("x", rows, may_be_sparse=False).spec == "x"
    assert feature_columns("x", rows + 1).spec == "x"
    assert feature_columns("x", rows[:, :20]).spec == "x"
    dense = SparseRows(np.array([0, 2]), np.array([0, 1]), None, 4)
    assert feature_columns("x", dense).columns["x"].type == pa.binary(16)


def test_labels_of_several_targets() -> None:
    several = np.array([[0, 1], [1, 1]])
    assert label_columns("y", several).spec == {"columns": "y", "kind": "multilabel"}
    assert label_columns("y", several / 2).spec == {"columns": "y", "kind": "regression"}
    assert label_columns("y", several).columns["y"].to_pylist() == [[0, 1], [1, 1]]


@given(
    rows=hnp.arrays(
        np.float32, st.tuples(st.integers(0, 6), st.integers(1, 5)), elements=st.integers(-1, 1)
    ),
    data=st.data(),
)
def test_sparse_rows_are_the_dense_ones(rows: np.ndarray, data: st.DataObject) -> None:
    sparse = sparse_rows(rows)
    assert sparse.num_rows == len(rows)
    assert np.array_equal(sparse.to_dense(), rows)
    position = data.draw(hnp.arrays(np.int64, 4, elements=st.integers(-1, len(rows) - 1)))
    padded = np.vstack([rows, np.zeros((1, rows.shape[1]), np.float32)])
    assert np.array_equal(sparse.take(position).to_dense(), padded[position])
    twice = SparseRows(
        sparse.indptr * 2, np.repeat(sparse.indices, 2), np.repeat(_values(sparse), 2), sparse.dim
    )
    canonical = twice.canonical()
    assert np.array_equal(canonical.indices, sparse.indices)
    assert np.array_equal(canonical.to_dense(), rows * 2)


def _values(rows: SparseRows) -> np.ndarray:
    return np.ones(len(rows.indices), np.float32) if rows.values is None else rows.values


def test_manifest_is_readable_yaml(tmp_path: Path) -> None:
    write_tables(small_tables(), str(tmp_path / "g"))
    content = yaml.safe_load((tmp_path / "g" / "graph.yaml").read_text())
    assert content["node_types"]["node"]["features"] == {"x": "x"}
