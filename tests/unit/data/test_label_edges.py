"""Label edges, split columns of edges, and reverse edge types, from tables to the bundle."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from raygnn.data.bundle import Bundle
from raygnn.data.ingest import pieces, sort_edges
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from tests.errors import raises
from tests.graph_writer import cut, write_shards

_USERS, _ITEMS = ["u1", "u2", "u3"], [10, 20, 30, 40]
_TYPE = ("user", "buys", "item")
_REVERSE = ("item", "rev_buys", "user")
_NODES = {
    "user": {"files": "users/*.parquet", "id": "id"},
    "item": {"files": "items/*.parquet", "id": "id"},
}


def _write(
    folder: Path,
    edges: dict[str, Any] | None,
    labels: dict[str, Any] | None = None,
    suffix: str = ".parquet",
    num_shards: int = 1,
    **spec: Any,
) -> Path:
    write_shards(folder / "users", [pa.table({"id": _USERS})])
    write_shards(folder / "items", [pa.table({"id": _ITEMS})])
    manifest: dict[str, Any] = {"format": "raygnn/graph-v1", "node_types": _NODES}
    for key, name, columns in (("edge_types", "buys", edges), ("label_edges", "labels", labels)):
        if columns is None:
            continue
        write_shards(folder / name, cut(pa.table(columns), num_shards), suffix)
        roles = {role: role for role in ("time", "weight", "split") if role in columns}
        manifest[key] = [
            {
                "type": list(_TYPE), "files": f"{name}/*{suffix}", "source": "u", "target": "i",
                **roles, **spec,
            }
        ]  # fmt: skip
    (folder / "graph.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))
    return folder


_ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3), st.integers(-2, 2)),
    min_size=1,
    max_size=30,
)


def _columns(rows: list[tuple[int, int, int, int]]) -> dict[str, Any]:
    return {
        "u": [_USERS[user] for user, _, _, _ in rows],
        "i": [_ITEMS[item] for _, item, _, _ in rows],
        "split": [split for _, _, split, _ in rows],
        "time": [time for _, _, _, time in rows],
        "weight": [float(row) for row in range(len(rows))],
    }


def _few_per_bucket(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sort_edges, "BUCKET_EDGES", 3)
    patch.setattr(pieces, "PIECE_BYTES", 1)


@settings(max_examples=15)
@given(_ROWS, st.sampled_from([".parquet", ".csv"]), st.integers(1, 3))
def test_label_edges_equal_the_reference(
    rows: list[tuple[int, int, int, int]], suffix: str, num_shards: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        _few_per_bucket(patch)
        path = _write(Path(folder) / "graph", None, _columns(rows), suffix, num_shards)
        bundle = ingest(path, cache_dir=Path(folder) / "cache")
        assert bundle.edge_types == []
        (labels,) = bundle.label_edges
        assert (labels.edge_type, labels.sign) == (_TYPE, "positive")
        expected = sorted((u, i, row) for row, (u, i, _, _) in enumerate(rows))
        anchors = np.repeat(np.arange(len(_USERS)), np.diff(labels.indptr))
        assert anchors.tolist() == [u for u, _, _ in expected]
        assert labels.targets.tolist() == [i for _, i, _ in expected]
        assert labels.split is not None
        assert labels.time is not None
        assert labels.weight is not None
        assert labels.weight.tolist() == [row for _, _, row in expected]
        assert labels.split.tolist() == [rows[row][2] for _, _, row in expected]
        assert labels.time.tolist() == [rows[row][3] for _, _, row in expected]


@settings(max_examples=15)
@given(_ROWS, st.integers(1, 3))
def test_added_reverse_types_hold_the_same_edges(
    rows: list[tuple[int, int, int, int]], num_shards: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        _few_per_bucket(patch)
        path = _write(Path(folder) / "graph", _columns(rows), num_shards=num_shards)
        bundle = ingest(path, IngestOptions(reverse_edges=True), Path(folder) / "cache")
        assert bundle.edge_types == [_TYPE, _REVERSE]
        assert bundle.reverse_of(_TYPE) == _REVERSE
        assert bundle.reverse_of(_REVERSE) == _TYPE
        expected = sorted((u, time, i, row) for row, (u, i, _, time) in enumerate(rows))
        csc, csr = bundle.csc(_REVERSE), bundle.csr(_TYPE)
        assert np.array_equal(csc.indptr, csr.indptr)
        assert np.array_equal(csc.indices, csr.indices)
        assert csc.indices.tolist() == [i for _, _, i, _ in expected]
        weights = np.asarray(bundle.column(_REVERSE, "weight"))
        assert weights.tolist() == [row for _, _, _, row in expected]
        assert np.array_equal(np.asarray(bundle.column(_TYPE, "weight"))[csr.e_id], weights)
        split = np.asarray(bundle.column(_REVERSE, "split"))
        assert split.tolist() == [rows[row][2] for _, _, _, row in expected]
        assert bundle.columns(_TYPE)["split"].role == "split"


_EDGES = {"u": ["u1", "u2"], "i": [10, 20]}


def test_reverse_types_within_one_node_type(tmp_path: Path) -> None:
    write_shards(tmp_path / "users", [pa.table({"id": _USERS})])
    write_shards(tmp_path / "e", [pa.table({"a": ["u1", "u1"], "b": ["u2", "u3"]})])
    tables = [
        {"type": ["user", name, "user"], "files": "e/*.parquet", "source": "a", "target": "b",
         "directed": directed}
        for name, directed in (("follows", True), ("knows", False))
    ]  # fmt: skip
    manifest = {
        "format": "raygnn/graph-v1",
        "node_types": {"user": _NODES["user"]},
        "edge_types": tables,
    }
    (tmp_path / "graph.yaml").write_text(yaml.safe_dump(manifest))
    bundle = ingest(tmp_path, IngestOptions(reverse_edges=True), tmp_path / "cache")
    follows, knows, reverse = bundle.edge_types
    assert reverse == ("user", "rev_follows", "user")
    assert bundle.reverse_of(knows) == knows
    assert bundle.reverse_of(follows) == reverse
    assert bundle.csc(reverse).indices.tolist() == [1, 2]
    again = ingest(tmp_path, IngestOptions(undirected=True, reverse_edges=True), tmp_path / "cache")
    assert again.edge_types == [follows, knows]
    assert again.reverse_of(follows) == follows
    assert ingest(tmp_path, cache_dir=tmp_path / "cache").reverse_of(follows) is None


def _with_second_type(folder: Path, edge_type: list[str], **spec: Any) -> None:
    manifest = yaml.safe_load((folder / "graph.yaml").read_text())
    given = manifest["edge_types"][0]
    second = {**given, "type": edge_type, "source": "i", "target": "u", **spec}
    manifest["edge_types"].append(second)
    (folder / "graph.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))


@pytest.mark.parametrize(
    ("relation", "spec"), [("rev_buys", {}), ("bought_by", {"reverse_of": list(_TYPE)})]
)
def test_declared_reverse_types_are_not_added_again(
    relation: str, spec: dict[str, Any], tmp_path: Path
) -> None:
    path = _write(tmp_path / "graph", _EDGES)
    _with_second_type(path, ["item", relation, "user"], **spec)
    bundle = ingest(path, IngestOptions(reverse_edges=True), tmp_path / "cache")
    reverse = ("item", relation, "user")
    assert bundle.edge_types == [_TYPE, reverse]
    assert bundle.reverse_of(_TYPE) == reverse
    assert bundle.reverse_of(reverse) == _TYPE


def test_a_taken_name_of_a_reverse_type_is_an_error(tmp_path: Path) -> None:
    path = _write(tmp_path / "graph", _EDGES)
    _with_second_type(path, ["item", "rev_buys", "user"], reverse_of=["user", "sees", "item"])
    _with_second_type(path, ["user", "sees", "item"], source="u", target="i")
    with raises("graph-reverse-taken", "item__rev_buys__user"):
        ingest(path, IngestOptions(reverse_edges=True), tmp_path / "cache")


def test_hard_negatives_are_a_set_of_their_own(tmp_path: Path) -> None:
    path = _write(tmp_path / "graph", None, _EDGES, sign="negative")
    (labels,) = Bundle.open(ingest(path, cache_dir=tmp_path / "cache").path).label_edges
    assert labels.sign == "negative"
    assert labels.indptr.tolist() == [0, 1, 2, 2]
    assert (labels.split, labels.time, labels.weight) == (None, None, None)


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        (
            {"u": ["u1", "zz"], "i": [10, 10]},
            (
                "edges-dangling",
                "label_edges.user__buys__item.positive",
                "labels/part-0.parquet",
                "column 'u'",
                "1 row with ids that node type 'user'",
                "1 (values 'zz'",
            ),
        ),
        ({"u": ["u1"], "i": ["x"]}, ("edges-id-kind", "target='i'", "string")),
        ({**_EDGES, "split": ["train", "x"]}, ("split-values-unknown", "column 'split'", 1)),
        ({**_EDGES, "split": [0.5, 1]}, ("table-split-type", "positive", "split", "double")),
        ({**_EDGES, "time": [1.0, None]}, ("table-null-values", "column 'time'", 1)),
        ({**_EDGES, "weight": [1.0, -1]}, ("edges-negative-weights", "column 'weight'", 1)),
    ],
)
def test_bad_label_edges_are_named(columns: dict[str, Any], match: str, tmp_path: Path) -> None:
    path = _write(tmp_path / "graph", None, columns)
    with raises(*match):
        ingest(path, cache_dir=tmp_path / "cache")


def test_bad_label_edges_can_be_dropped(tmp_path: Path) -> None:
    path = _write(tmp_path / "graph", _EDGES, {"u": ["u1", "zz", "u2"], "i": [10, 10, 20]})
    said: list[str] = []
    options = IngestOptions(on_error="drop")
    bundle = ingest(path, options, tmp_path / "cache", progress=said.append)
    assert bundle.label_edges[0].targets.tolist() == [0, 1]
    assert any("dropped 1 edges of type user__buys__item.positive" in line for line in said)
