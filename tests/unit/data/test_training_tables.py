"""Training tables in a bundle: rows of (node, time) in the order of the files."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raygnn.data.bundle import Bundle, SeedRows
from raygnn.data.ingest.build_bundle import ingest
from raygnn.data.ingest.plan_bundle import IngestOptions
from raygnn.data.partition.build import Partitioning, partition
from raygnn.data.partition.part import Outline, open_partitioned
from raygnn.data.splits import make_splits
from tests.errors import raises

DAYS = [datetime(2024, 1, day) for day in range(1, 6)]

GRAPH = """\
format: raygnn/graph-v1
node_types:
  user: {files: users.parquet, id: id, time: since}
training_tables:
  churn:
    files: churn/*.parquet
    node_type: user
    node: user
    time: at
    labels: {y: churned, name: word}
    split: split
"""


def _write(folder: Path, rows: dict[str, Any]) -> str:
    folder.mkdir(exist_ok=True)
    users = pa.table({"id": ["c", "a", "b"], "since": DAYS[:3]})
    pq.write_table(users, folder / "users.parquet")
    (folder / "churn").mkdir(exist_ok=True)
    half = len(rows["user"]) // 2
    for number, part in enumerate((slice(None, half), slice(half, None))):
        table = pa.table({name: values[part] for name, values in rows.items()})
        pq.write_table(table, folder / "churn" / f"{number}.parquet")
    (folder / "graph.yaml").write_text(GRAPH)
    return str(folder)


def _rows(**changes: Any) -> dict[str, Any]:
    rows = {
        "user": ["b", "a", "b", "c", "b"],
        "at": [DAYS[4], DAYS[2], DAYS[3], DAYS[4], DAYS[3]],
        "churned": [1, 0, 0, 1, 1],
        "word": ["x", "y", "x", "x", "z"],
        "split": ["train", "train", "val", "test", "train"],
    }
    return rows | changes


def _ingest(tmp_path: Path, on_error: str = "fail", **changes: Any) -> Bundle:
    uri = _write(tmp_path / "graph", _rows(**changes))
    if "how_much" in changes:
        (tmp_path / "graph" / "graph.yaml").write_text(GRAPH + "    weight: how_much\n")
    return ingest(uri, IngestOptions(on_error=on_error), cache_dir=tmp_path / "cache")


def test_rows_keep_their_order_and_repeat_entities(tmp_path: Path) -> None:
    bundle = _ingest(tmp_path)
    rows = bundle.training_tables["churn"]
    assert (rows.node_type, rows.num_rows, rows.time_unit) == ("user", 5, "us")
    assert rows.node_ids(np.arange(5)).tolist() == [2, 1, 2, 0, 2]
    assert rows.time is not None
    assert rows.time.tolist() == pa.array(_rows()["at"]).cast(pa.int64()).to_pylist()
    assert rows.split is not None
    assert rows.split.tolist() == [1, 1, 2, 3, 1]
    assert bundle.row_column(rows, "y").tolist() == [1, 0, 0, 1, 1]
    assert rows.columns["name"].class_names == ("x", "y", "z")
    assert bundle.row_column(rows, "name").tolist() == [0, 1, 0, 0, 2]


def test_rows_have_weights_and_those_of_weight_0_are_in_no_split(tmp_path: Path) -> None:
    bundle = _ingest(tmp_path, how_much=[2.0, 0.25, 0.0, 1e-9, 3.0])
    rows = bundle.training_tables["churn"]
    weights = bundle.row_weights(rows)
    assert weights is not None
    assert weights.tolist() == [2, 0.25, 0, 0, 3]  # in steps of 2^-22
    splits = make_splits(bundle, rows, None, "y", 0)
    assert (splits.train.tolist(), len(splits.val)) == ([0, 1, 4], 0)
    assert bundle.row_weights(SeedRows.of_nodes(bundle, "user")) is None


@pytest.mark.parametrize(
    ("weights", "error"),
    [
        ([1.0, -1.0, 1.0, 1.0, 1.0], "edges-negative-weights"),
        ([1.0, float("inf"), 1.0, 1.0, 1.0], "table-not-finite"),
        ([1.0, None, 1.0, 1.0, 1.0], "table-null-values"),
        (["1", "2", "1", "1", "1"], "table-column-type"),
        ([0.0, 0.0, 1.0, 1.0, 0.0], "split-empty"),
    ],
)
def test_weights_are_checked(tmp_path: Path, weights: list[Any], error: str) -> None:
    with raises(error, "churn"):
        bundle = _ingest(tmp_path, how_much=weights)
        make_splits(bundle, bundle.training_tables["churn"], None, "y", 0)


def test_the_nodes_of_a_type_are_rows_too(tmp_path: Path) -> None:
    rows = SeedRows.of_nodes(_ingest(tmp_path), "user")
    assert rows.num_rows == 3
    assert rows.node_ids(np.array([2, 0])).tolist() == [2, 0]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"user": ["b", "a", "nobody", "c", "b"]}, "training-rows-unknown-ids"),
        ({"user": ["b", "a", None, "c", "b"]}, "training-rows-null-ids"),
    ],
)
def test_bad_rows_are_errors_or_dropped(
    tmp_path: Path, changes: dict[str, Any], error: str
) -> None:
    with raises(error, "training_tables.churn"):
        _ingest(tmp_path, **changes)
    bundle = _ingest(tmp_path, "drop", **changes)
    rows = bundle.training_tables["churn"]
    assert rows.node_ids(np.arange(rows.num_rows)).tolist() == [2, 1, 0, 2]
    assert bundle.row_column(rows, "name").tolist() == [0, 1, 0, 2]


def test_times_are_of_the_graphs_kind(tmp_path: Path) -> None:
    with raises("training-table-time-unit", "training_tables.churn.time", "dates"):
        _ingest(tmp_path, at=[1, 2, 3, 4, 5])


def test_an_undeclared_node_type_is_an_error(tmp_path: Path) -> None:
    uri = _write(tmp_path / "graph", _rows())
    text = GRAPH.replace("node_type: user", "node_type: usr")
    (tmp_path / "graph" / "graph.yaml").write_text(text)
    with raises("graph-node-type-undeclared", "churn", "usr"):
        ingest(uri, cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("method", ["range", "hash"])
@pytest.mark.parametrize("num_parts", [1, 2, 3])
def test_parts_have_the_rows_in_the_order_of_the_files(
    tmp_path: Path, num_parts: int, method: Any
) -> None:
    changes = {"user": ["b", "a", "nobody", "c", "b"]}
    expected = _ingest(tmp_path, "drop", **changes)
    graph, options = _write(tmp_path / "graph", _rows(**changes)), IngestOptions(on_error="drop")
    with raises("training-rows-unknown-ids", "training_tables.churn"):
        partition(graph, tmp_path / "refused", Partitioning(num_parts, method))
    parts = tmp_path / "parts"
    partition(graph, parts, Partitioning(num_parts, method), options)
    rows = expected.training_tables["churn"]
    ids = expected.take_ids("user", rows.node_ids(np.arange(rows.num_rows)))
    for found in (Outline.build(parts, tmp_path), open_partitioned(parts, tmp_path)):
        same = found.training_tables["churn"]
        assert same.columns == rows.columns
        assert found.take_ids("user", same.node_ids(np.arange(rows.num_rows))).equals(ids)
        for name in rows.columns:
            assert np.array_equal(found.row_column(same, name), expected.row_column(rows, name))
    lengths = [len(np.load(path)) for path in parts.glob("part-*/training_tables/churn/nodes.npy")]
    assert (len(lengths), sum(lengths)) == (num_parts, 4)
    assert max(lengths) - min(lengths) <= 1
