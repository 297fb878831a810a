"""What is wrong in the tables is named: file, column, count, rows and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.errors import DataError
from tests.errors import raises
from tests.graph_writer import cut, write_graph

_EDGES = pa.table({"s": [0, 1], "t": [1, 2]})


def _fails(folder: Path, expected: tuple[object, ...], path: Path) -> None:
    with raises(*expected):
        ingest(path, cache_dir=folder / "cache")
    left = [entry.name for entry in (folder / "cache" / "bundles").glob("*")]
    assert all(name.endswith(".lock") for name in left)


def _nodes(**columns: Any) -> pa.Table:
    return pa.table({"id": np.arange(4), **columns})


_INF = float("inf")


def _indices(values: Any, expected: tuple[object, ...], **more: Any) -> tuple[Any, ...]:
    spec = {"indices": "i", "dim": 5} | ({"values": "v"} if more else {})
    return {"i": values, **more}, {"features": {"x": spec}}, expected


_IDS = [
    (
        [1, 2, 1, 1],
        ("nodes-id-repeated", "node_types.n", "part-1.parquet", "column 'id'", 2, "0, 1", "1, 1"),
    ),
    (["a", "b", "c", "b"], ("nodes-id-repeated", "b")),
    (pa.array([1, None, 2, 3]), ("nodes-null-ids", "part-0", "id", 1)),
    (pa.array([1, 2, 3, 2**63], pa.uint64()), ("nodes-id-range", "part-1", 2, 63, 1, 2**63)),
    ([0.5, 1, 2, 3], ("nodes-id-type", "node_types.n.id='id'", "double")),
]
_FEATURES = [
    ([1.0, np.nan, _INF, 1], ("table-not-finite", "part-0.parquet", "column 'x'", 1)),
    ([1.0, 1e300, 1, 1], ("table-not-finite", 1)),
    ([[1.0, 2], [1, np.nan], [1, 2], [1, 2]], ("table-not-finite", 1, "[1.0, nan]")),
    ([1.0, None, 1, 1], ("table-null-values", "column 'x'", 1)),
    ([[1.0, 2], [1.0], [1, 2, 3], [1, 2]], ("table-width", 1, 2, "[1.0]")),
    ([[1.0, None], [1.0, 2], None, [1, 2]], ("table-null-values", 1, 0)),
    (pa.array([[1, 2], None, [1, 2], [2, 3]], pa.list_(pa.int64(), 2)), ("table-null-values", 1)),
    (["a", "b", "c", "d"], ("table-column-type", "x", "string")),
    (pa.nulls(4), ("table-column-null", "x")),
    ([[], [], [], []], ("table-column-null", "x")),
    (pa.array([b"abc"] * 4, pa.binary(3)), ("table-binary-width", 3, "float32")),
]
_LABELS = [
    ([0, 1, 2, 54321], {}, ("labels-class-gaps", "y", "54,321", 4)),
    ([0, -2, 1, 1], {}, ("labels-out-of-range", 0, 1)),
    ([0, 3, 1, 1], {"num_classes": 3}, ("labels-out-of-range", 0, 2)),
    ([0, 0.5, 1, 1], {"kind": "class"}, ("labels-not-whole", 1)),
    ([[0, 1], [0, 2], [1, 1], [1, 1]], {}, ("labels-not-binary", 0, 1)),
    ([[0, 1], [0, -1], [1, 1], [1, 1]], {}, ("labels-partly-missing",)),
    ([0.5, _INF, 1, 1], {}, ("labels-not-finite",)),
    ([[0, 1], [0], [1, 1], [1, 1]], {}, ("table-width", 2)),
    (["a", "b", "c", "d"], {"num_classes": 3}, ("labels-num-classes", 3, 4)),
    (["a", "b", "c", "d"], {"kind": "regression"}, ("labels-kind-strings", "regression", "y")),
    ([[0, 1]] * 4, {"kind": "class"}, ("labels-kind-columns",)),
]
_SPLITS = [
    (["train", "dev", "x", None], ("split-values-unknown", 1, "dev")),
    ([1, 4, 2, 3], ("split-values-unknown", 4)),
    ([True] * 4, ("table-split-type", "p", "bool")),
]
_TIMES = [
    (["2024-05-21", "a", "2024-13-01", None], ("table-time-text", "column 't'", 1)),
    ([[1]] * 4, ("table-time-type", "t", "list")),
    ([1, None, 2, 3], ("table-null-values", "column 't'", 1)),
]
_FLOAT16 = {"features": {"x": {"columns": "x", "dtype": "float16"}}}
_MISSING = ("table-column-missing", "nodes/part-0.parquet", "xs", "Did you mean 'x'?")


@pytest.mark.parametrize(
    ("columns", "spec", "match"),
    [
        *(({"id": values}, {}, expected) for values, expected in _IDS),
        *(({"x": values}, {"features": {"x": "x"}}, expected) for values, expected in _FEATURES),
        *(
            ({"y": values}, {"labels": {"y": {"columns": "y", **options}}}, expected)
            for values, options, expected in _LABELS
        ),
        *(({"p": values}, {"split": "p"}, expected) for values, expected in _SPLITS),
        *(({"t": values}, {"time": "t"}, expected) for values, expected in _TIMES),
        ({"x": [1.0] * 4}, _FLOAT16, ("table-dtype", "features.x", "float16")),
        ({"x": [1.0] * 4}, {"features": {"x": "xs"}}, _MISSING),
        _indices([[0], [5], [-1], []], ("table-sparse-index", 1, 0, 4, 5, "[5]")),
        _indices(
            [[0], [1], [1], []], ("table-sparse-width", "i", 1), v=[[1.0], [1.0, 2.0], [None], []]
        ),
        _indices([[0], None, [1], []], ("table-null-values", "column 'i'", 1)),
        _indices([1, 2, 3, 4], ("table-sparse-type", "x", "i", "int64")),
        _indices([[1]] * 4, ("table-sparse-type", "x", "v", "list<item: string>"), v=[["a"]] * 4),
    ],
)
def test_node_tables(
    columns: dict[str, Any], spec: dict[str, Any], match: tuple[object, ...], tmp_path: Path
) -> None:
    path = write_graph(tmp_path / "graph", cut(_nodes(**columns), 2), node_spec=spec)
    _fails(tmp_path, match, path)


@pytest.mark.parametrize(
    ("columns", "spec", "match"),
    [
        (
            {"s": [0, 9], "t": [1, 7]},
            {},
            (
                "edges-dangling",
                "edge_types.n__to__n",
                "edges/part-0.parquet",
                "column 's'",
                "n",
                1,
                9,
                "column 't'",
            ),
        ),
        ({"s": [0, None], "t": [1, 1]}, {}, ("edges-null-ids", "column 's'", 1)),
        ({"s": ["0", "1"], "t": [1, 1]}, {}, ("edges-id-kind", "source='s'", "string")),
        (
            {"s": [0, 1], "t": [1, 1], "w": [1.0, -1.0]},
            {"weight": "w"},
            ("edges-negative-weights", "column 'w'", 1, -1.0),
        ),
        ({"s": [0, 1], "t": [1, 1], "w": [1.0, np.nan]}, {"weight": "w"}, ("table-not-finite",)),
        ({"s": [0, 1], "t": [1, 1], "w": [[1], [2]]}, {"weight": "w"}, ("table-weight-type", "w")),
        ({"s": [0, 1], "t": [1, 1], "w": [1.0, None]}, {"time": "w"}, ("table-null-values", 1)),
        (
            {"s": [0, 1], "t": [1, 1], "w": np.array([2**63 - 1, 2**63], np.uint64)},
            {"time": "w"},
            ("table-time-range", "column 'w'", 1, 2**63),
        ),
        ({"s": [0, 1], "t": [1, 1]}, {"features": {"a": "z"}}, ("table-column-missing", "z")),
    ],
)
def test_edge_tables(
    columns: dict[str, Any], spec: dict[str, Any], match: str, tmp_path: Path
) -> None:
    path = write_graph(tmp_path / "graph", _nodes(), pa.table(columns), edge_spec=spec)
    _fails(tmp_path, match, path)


def test_all_findings_are_listed_together(tmp_path: Path) -> None:
    nodes = _nodes(id=[1, 1, None, 3], x=[1.0, np.nan, 1, 1], y=[0, 0, -5, 0])
    spec = {"features": {"x": "x"}, "labels": {"y": "y"}}
    path = write_graph(tmp_path / "graph", nodes, node_spec=spec)
    with pytest.raises(DataError) as raised:
        ingest(path, cache_dir=tmp_path / "cache")
    assert len(str(raised.value).splitlines()) == 4


def test_long_lists_are_cut(tmp_path: Path) -> None:
    names = [f"x{i}" for i in range(30)]
    nodes = _nodes(**{name: [np.nan] * 4 for name in names})
    path = write_graph(tmp_path / "g", nodes, node_spec={"features": {n: n for n in names}})
    _fails(tmp_path, ("table-not-finite", "0, 1, 2, 3", 5, 20), path)


def test_examples_stop_at_five(tmp_path: Path) -> None:
    nodes = pa.table({"id": np.zeros(2000, int)})
    path = write_graph(tmp_path / "graph", nodes)
    _fails(tmp_path, ("nodes-id-repeated", "1,999", "1, 2, 3, 4, 5"), path)


@pytest.mark.parametrize(
    ("columns", "spec", "types"),
    [
        ([["1.0"], [1]], {"features": {"x": "x"}}, ("string", "int64")),
        ([[True], [1]], {"features": {"x": "x"}}, ("bool", "int64")),
        ([[1.0], [1]], {"labels": {"y": "x"}}, ("double", "int64")),
        ([[1.0], [1]], {"time": "x"}, ("double", "int64")),
    ],
)
def test_schemas_that_differ(tmp_path: Path, columns: list, spec: dict, types: tuple) -> None:
    shards = [pa.table({"id": [i], "x": column}) for i, column in enumerate(columns)]
    path = write_graph(tmp_path / "graph", shards, node_spec=spec)
    first, second = "nodes/part-0.parquet", "nodes/part-1"
    _fails(tmp_path, ("table-column-types", "x", types[0], first, types[1], second), path)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ([pa.array([1.5]), pa.array([2])], [1.5, 2]),
        ([pa.array([2], pa.int8()), pa.array([2**40])], [2, 2**40]),
        ([pa.array([1.5], pa.float32()), pa.array([0.25])], [1.5, 0.25]),
        ([pa.array([2**60 + 1]), pa.array([0.5])], [2.0**60, 0.5]),
        ([pa.array([[1, 2]]), pa.array([[0.5, 1.5]])], [[1, 2], [0.5, 1.5]]),
    ],
)
def test_files_of_other_numbers_are_one_table(
    tmp_path: Path, columns: list[pa.Array], expected: list
) -> None:
    shards = [pa.table({"id": [i], "x": column}) for i, column in enumerate(columns)]
    for name, given, wanted in (("a", shards, expected), ("b", shards[::-1], expected[::-1])):
        path = write_graph(tmp_path / name, given, node_spec={"features": {"x": "x"}})
        bundle = ingest(path, cache_dir=tmp_path / "cache")
        assert np.asarray(bundle.column("n", "x")).tolist() == wanted


def test_an_empty_list_is_of_any_kind(tmp_path: Path) -> None:
    shards = [
        pa.table({"id": [0, 1], "x": [["a", "b"], ["b"]]}),
        pa.table({"id": [2], "x": pa.array([[]], pa.list_(pa.null()))}),
    ]
    spec = {"features": {"x": [{"column": "x", "transform": "multi_hot"}]}}
    bundle = ingest(
        write_graph(tmp_path / "graph", shards, node_spec=spec), cache_dir=tmp_path / "cache"
    )
    assert np.asarray(bundle.column("n", "x")).tolist() == [[1, 1], [0, 1], [0, 0]]


def test_ids_are_no_floats_in_one_file_either(tmp_path: Path) -> None:
    shards = [pa.table({"id": [1]}), pa.table({"id": [2.0]})]
    _fails(tmp_path, ("table-column-types", "id"), write_graph(tmp_path / "graph", shards))


def test_storage_variants_are_one_schema(tmp_path: Path) -> None:
    shards = [
        pa.table({"id": pa.array(["a"]), "y": pa.array([None], pa.null())}),
        pa.table({"id": pa.array(["b"], pa.large_string()), "y": [1]}),
        pa.table({"id": pa.array(["c"]).dictionary_encode(), "y": [0]}),
    ]
    path = write_graph(tmp_path / "graph", shards, node_spec={"labels": {"y": "y"}})
    bundle = ingest(path, cache_dir=tmp_path / "cache")
    assert bundle.ids("n").to_pylist() == ["a", "b", "c"]
    assert np.asarray(bundle.column("n", "y")).tolist() == [-1, 1, 0]


def test_no_file_matches(tmp_path: Path) -> None:
    path = write_graph(tmp_path / "graph", _nodes(), node_spec={"files": "nodes/*.csv"})
    _fails(tmp_path, ("data-files-missing", "node_types.n.files='nodes/*.csv'"), path)
    path = write_graph(tmp_path / "other", _nodes(), node_spec={"files": "nodes/one.parquet"})
    _fails(tmp_path, ("data-files-missing",), path)


def test_a_shard_that_is_missing(tmp_path: Path) -> None:
    path = write_graph(tmp_path / "graph", cut(_nodes(), 2))
    for number, shard in enumerate(sorted((path / "nodes").iterdir())):
        shard.rename(path / "nodes" / f"part-{number:05d}-of-00003.parquet")
    match = (
        "data-shards-missing",
        "node_types.n.files='nodes/*.parquet'",
        2,
        3,
        "nodes/part-*-of-00003",
    )
    _fails(tmp_path, match, path)
    write_graph(path, cut(_nodes(), 2), node_spec={"files": "nodes/part-*-of-00003.parquet"})
    assert ingest(path, cache_dir=tmp_path / "cache").num_nodes("n") == 4


def test_a_manifest_that_is_not_utf_8(tmp_path: Path) -> None:
    path = write_graph(tmp_path / "graph", _nodes())
    manifest = path / "graph.yaml"
    manifest.write_bytes("# Zürich\n".encode("latin-1") + manifest.read_bytes())
    _fails(tmp_path, ("data-file-encoding", "graph.yaml"), path)


def test_unknown_suffix(tmp_path: Path) -> None:
    path = write_graph(tmp_path / "graph", _nodes(), node_spec={"files": "*"})
    _fails(tmp_path, ("data-file-format", "graph.yaml", "parquet"), path)


def test_markers_of_other_writers_are_skipped(tmp_path: Path) -> None:
    path = write_graph(tmp_path / "graph", _nodes(), node_spec={"files": "nodes/*"})
    (path / "nodes" / "_SUCCESS").touch()
    (path / "nodes" / ".part-0.crc").touch()
    assert ingest(path, cache_dir=tmp_path / "cache").num_nodes("n") == 4


def test_tables_without_rows(tmp_path: Path) -> None:
    path = write_graph(tmp_path / "graph", _nodes().slice(0, 0), _EDGES)
    _fails(tmp_path, ("table-empty", "node_types.n", "nodes/part-0.parquet"), path)
    path = write_graph(tmp_path / "header", _nodes().slice(0, 0), _EDGES, suffix=".csv")
    _fails(tmp_path, ("table-empty", "node_types.n", "nodes/part-0.csv"), path)


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize("ids", [np.arange(4), list("abcd")])
@pytest.mark.parametrize("directed", [True, False])
def test_an_edge_type_may_have_no_edges(
    suffix: str, ids: Any, directed: bool, tmp_path: Path
) -> None:
    nothing = pa.table({name: pa.nulls(0) for name in "st"} | {"w": pa.array([], pa.float64())})
    spec = {"weight": "w", "directed": directed}
    path = write_graph(tmp_path / "graph", _nodes(id=ids), nothing, edge_spec=spec, suffix=suffix)
    told: list[str] = []
    bundle = ingest(path, IngestOptions(), cache_dir=tmp_path / "cache", progress=told.append)
    assert "ingest: no rows in edge_types.n__to__n" in told
    assert bundle.csc(("n", "to", "n")).indptr.tolist() == [0] * 5
    assert bundle.num_edges(("n", "to", "n")) == 0


@pytest.mark.parametrize("header", ["s,t", "s,t\n", "s,t\r\n", '"s","t"', "t,s,weight"])
def test_a_csv_file_of_a_header_alone_is_an_empty_table(header: str, tmp_path: Path) -> None:
    path = write_graph(tmp_path / "g", _nodes(), _EDGES, suffix=".csv")
    (path / "edges" / "part-0.csv").write_text(header)
    assert ingest(path, cache_dir=tmp_path / "cache").num_edges(("n", "to", "n")) == 0
    (path / "edges" / "part-1.csv").write_text("s,t\n0,1\n")
    assert ingest(path, cache_dir=tmp_path / "cache").num_edges(("n", "to", "n")) == 1


@pytest.mark.parametrize("text", ["", "\n", "\ufeff"])
def test_a_csv_file_without_a_header(text: str, tmp_path: Path) -> None:
    path = write_graph(tmp_path / "g", _nodes(), _EDGES, suffix=".csv")
    (path / "edges" / "part-0.csv").write_text(text)
    _fails(tmp_path, ("table-csv-unreadable", "edges/part-0.csv"), path)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_column_that_is_there_twice(suffix: str, tmp_path: Path) -> None:
    path = write_graph(tmp_path / "g", _nodes(), _EDGES, suffix=suffix)
    twice = pa.table([[0, 1], [1, 2], [2, 3]], names=["s", "t", "t"])
    file = path / "edges" / f"part-0{suffix}"
    if suffix == ".csv":
        file.write_text("s,t,t\n0,1,2\n")
    else:
        pq.write_table(twice, file)
    _fails(tmp_path, ("table-column-twice", f"edges/part-0{suffix}", 2, "t"), path)


def test_empty_shards_among_others_are_fine(tmp_path: Path) -> None:
    shards = [_nodes().slice(0, 0), _nodes(), _nodes().slice(0, 0)]
    path = write_graph(tmp_path / "graph", shards, _EDGES)
    assert ingest(path, cache_dir=tmp_path / "cache").num_nodes("n") == 4


def test_files_that_are_not_parquet(tmp_path: Path) -> None:
    path = write_graph(tmp_path / "graph", _nodes())
    (path / "nodes" / "part-1.parquet").write_bytes(b"")
    _fails(tmp_path, ("table-parquet-unreadable", "part-1.parquet"), path)


def test_cut_off_parquet_beyond_the_hashed_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raygnn.data.ingest.scan._WHOLE_CONTENT_BYTES", 10)
    path = write_graph(tmp_path / "graph", _nodes())
    shard = path / "nodes" / "part-0.parquet"
    shard.write_bytes(shard.read_bytes()[:-20])
    _fails(tmp_path, ("table-parquet-unreadable", "part-0.parquet"), path)


def test_permuted_tensors(tmp_path: Path) -> None:
    kind = pa.fixed_shape_tensor(pa.float32(), [2, 2], permutation=[1, 0])
    storage = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(16, "f4")), 4)
    nodes = _nodes(x=pa.ExtensionArray.from_storage(kind, storage))
    path = write_graph(tmp_path / "graph", nodes, node_spec={"features": {"x": "x"}})
    _fails(tmp_path, ("table-tensor-order",), path)


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_on_error_drop(suffix: str, tmp_path: Path) -> None:
    ids = ["a", "b", "a", None, "c", "d"]
    nodes = {"id": ids, "x": [0, 1, 2, 3, np.nan, 5], "y": ["k", "l", "m", "k", "k", "l"]}
    edges = {"s": ["a", "b", "c", "d", None], "t": ["d", "zz", "a", "b", "a"], "w": [0, 1, 2, 3, 4]}
    if suffix == ".parquet":
        nodes["z"] = [[i] * i for i in range(6)]
    features: dict[str, Any] = {"x": "x"}
    if suffix == ".parquet":
        features["z"] = {"indices": "z", "dim": 9}
    path = write_graph(
        tmp_path / "graph",
        cut(pa.table(nodes), 2),
        cut(pa.table(edges), 2),
        {"features": features, "labels": {"y": "y"}},
        {"features": {"w": "w"}},
        suffix,
    )
    said: list[str] = []
    options = IngestOptions(on_error="drop")
    bundle = ingest(path, options, cache_dir=tmp_path / "cache", progress=said.append)
    assert bundle.ids("n").to_pylist() == ["a", "b", "d"]
    assert np.asarray(bundle.column("n", "x")).tolist() == [0, 1, 5]
    # Classes are numbered by all names in the table, so that repairing rows moves no class.
    assert np.asarray(bundle.column("n", "y")).tolist() == [0, 1, 1]
    assert bundle.id_map("n").lookup(pa.array(["d", "c", "a"])).tolist() == [2, -1, 0]
    csc = bundle.csc(("n", "to", "n"))
    assert csc.indices.tolist() == [2, 0]
    assert csc.indptr.tolist() == [0, 0, 1, 2]
    assert np.asarray(bundle.column(("n", "to", "n"), "w")).tolist() == [3, 0]
    if suffix == ".parquet":
        z = bundle.column("n", "z")
        assert z.indptr.tolist() == [0, 0, 1, 6]
        assert z.indices.tolist() == [1, 5, 5, 5, 5, 5]
    text = "\n".join(said)
    assert "dropped 3 nodes of type 'n'" in text
    assert "dropped 3 edges of type n__to__n" in text
    assert "row with null ids; first at row 0" in text


def test_drop_leaves_something(tmp_path: Path) -> None:
    options = IngestOptions(on_error="drop")
    nodes = _nodes(x=[np.nan] * 4)
    path = write_graph(tmp_path / "a", nodes, node_spec={"features": {"x": "x"}})
    with raises("nodes-all-dropped", "node_types.n", 4):
        ingest(path, options, cache_dir=tmp_path / "cache")
    path = write_graph(tmp_path / "b", _nodes(), pa.table({"s": [8], "t": [9]}))
    with raises("edges-all-dropped", "n__to__n", 1):
        ingest(path, options, cache_dir=tmp_path / "cache")


def test_drop_without_findings_changes_nothing(tmp_path: Path) -> None:
    path = write_graph(
        tmp_path / "graph", _nodes(y=["a", "b", "a", "b"]), _EDGES, {"labels": {"y": "y"}}
    )
    bundle = ingest(path, IngestOptions(on_error="drop"), cache_dir=tmp_path / "cache")
    assert bundle.num_nodes("n") == 4
    assert np.asarray(bundle.column("n", "y")).tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("nodes", "edges", "match"),
    [
        (
            "id\n1\n2,3\n",
            "s,t\n1,1\n",
            ("table-csv-unreadable", "nodes/part-0.csv", "CSV", "Expected 1"),
        ),
        ("id\n1\n", "s,t\n1,a\n", ("edges-id-kind", "target='t'", "string")),
        (
            "nid\n1\n",
            "s,t\n1,1\n",
            ("table-column-missing", "part-0.csv", "id", "Did you mean 'nid'?"),
        ),
        ("id\n1.5\n", "s,t\n1,1\n", ("nodes-id-type", "id='id'", "double")),
    ],
)
def test_csv_tables(nodes: str, edges: str, match: str, tmp_path: Path) -> None:
    path = write_graph(tmp_path / "graph", _nodes(), _EDGES, suffix=".csv")
    (path / "nodes" / "part-0.csv").write_text(nodes)
    (path / "edges" / "part-0.csv").write_text(edges)
    _fails(tmp_path, match, path)


def test_csv_kinds_are_joined_over_shards(tmp_path: Path) -> None:
    path = write_graph(
        tmp_path / "graph", _nodes(), _EDGES, {"features": {"x": ["x", "b"]}}, suffix=".csv"
    )
    # Ids are strings because of one shard; the edge file alone would read as numbers.
    (path / "nodes" / "part-0.csv").write_text("id,x,b\n1,1,true\n2,2,false\n")
    (path / "nodes" / "part-1.csv").write_text('id,x,b\n"a,b",0.5,true\n')
    (path / "edges" / "part-0.csv").write_text("s,t\n1,2\n2,1\n")
    bundle = ingest(path, cache_dir=tmp_path / "cache")
    assert bundle.ids("n").to_pylist() == ["1", "2", "a,b"]
    assert np.asarray(bundle.column("n", "x")).tolist() == [[1, 1], [2, 0], [0.5, 1]]
    assert bundle.csc(("n", "to", "n")).indices.tolist() == [1, 0]


def test_ids_with_leading_zeros_are_texts_in_csv(tmp_path: Path) -> None:
    features = {"features": {"x": ["x"]}}
    path = write_graph(tmp_path / "graph", _nodes(), _EDGES, features, suffix=".csv")
    (path / "nodes" / "part-0.csv").write_text("id,x\n100,01\n200,02\n")
    (path / "nodes" / "part-1.csv").write_text("id,x\n007,03\n0,04\n")
    (path / "edges" / "part-0.csv").write_text("s,t\n100,200\n007,0\n")
    bundle = ingest(path, cache_dir=tmp_path / "cache")
    assert bundle.ids("n").to_pylist() == ["100", "200", "007", "0"]
    assert np.asarray(bundle.column("n", "x")).ravel().tolist() == [1, 2, 3, 4]
    # Only ids of the node table decide: those of edges are read in the same kind.
    (path / "nodes" / "part-1.csv").write_text("id,x\n7,03\n0,04\n")
    bundle = ingest(path, cache_dir=tmp_path / "cache")
    assert bundle.ids("n").to_pylist() == [100, 200, 7, 0]
    assert bundle.csc(("n", "to", "n")).indices.tolist() == [0, 2]


def test_compressed_csv(tmp_path: Path) -> None:
    import gzip

    path = write_graph(tmp_path / "graph", _nodes(), node_spec={"files": "nodes/*.tsv.gz"})
    (path / "nodes" / "part-0.tsv.gz").write_bytes(gzip.compress(b"id\tx\n5\t1\n6\t2\n"))
    assert ingest(path, cache_dir=tmp_path / "cache").ids("n").to_pylist() == [5, 6]


@pytest.mark.parametrize("separator", [";", "|", "\t"])
@pytest.mark.parametrize("suffix", ["csv", "csv.gz"])
def test_csv_files_may_have_other_separators(tmp_path: Path, separator: str, suffix: str) -> None:
    import gzip

    lines = ["id", "x", '"a, b"'], ["5", "1", "2"], ["6", "2", '"0"']
    text = "\r\n".join(separator.join(line) for line in lines).encode("utf-8-sig")
    features = {"features": {"x": ["x", "a, b"]}}
    spec = {"files": f"nodes/*.{suffix}", **features}
    path = write_graph(tmp_path / "graph", _nodes(), node_spec=spec)
    content = gzip.compress(text) if suffix == "csv.gz" else text
    (path / "nodes" / f"part-0.{suffix}").write_bytes(content)
    bundle = ingest(path, cache_dir=tmp_path / "cache")
    assert bundle.ids("n").to_pylist() == [5, 6]
    assert np.asarray(bundle.column("n", "x")).tolist() == [[1, 2], [2, 0]]


def test_words_for_gaps_are_null_among_numbers_and_text_among_texts(tmp_path: Path) -> None:
    words = ["n/a", "NULL", "-", "None", "#N/A", "nan"]
    features = [
        {"column": "amount", "transform": "standard", "missing": "indicator"},
        {"column": "country", "transform": "one_hot"},
    ]
    spec = {"files": "nodes/n.csv", "features": {"x": features}, "labels": {"y": "flag"}}
    edge_spec = {"files": "edges/part-0.csv"}
    edges = pa.table({"s": [7], "t": [8]})
    path = write_graph(tmp_path / "graph", _nodes(), edges, spec, edge_spec, ".csv")
    rows = [f"{i},{word},{word},{word}" for i, word in enumerate(words)]
    rows += ["6,2.5,NA,1", "7,,DE,0", "8,3.5,,1", r"9,\N,\N,\N"]
    (path / "nodes" / "n.csv").write_text("id,amount,country,flag\n" + "\n".join(rows) + "\n")
    (path / "edges" / "part-0.csv").write_text("s,t\n7,8\nn/a,6\n\\N,6\n")
    with raises("edges-null-ids", 2):
        ingest(path, cache_dir=tmp_path / "cache")
    bundle = ingest(path, IngestOptions(on_error="drop"), tmp_path / "cache")
    assert bundle.num_edges(("n", "to", "n")) == 1
    x, (amount, country) = (
        np.asarray(bundle.column("n", "x")),
        bundle.columns("n")["x"].transforms.parts,
    )
    assert x[:, 1].tolist() == [1] * 6 + [0, 1, 0, 1]
    assert amount.fill == 3.0
    assert country.state.vocabulary == (*sorted([*words, "NA", "DE"]), None)
    assert np.asarray(bundle.column("n", "y")).tolist() == [-1] * 6 + [1, 0, 1, -1]


def test_parquet_and_csv_shards_of_one_table(tmp_path: Path) -> None:
    path = write_graph(tmp_path / "graph", _nodes(), node_spec={"files": ["nodes/*"]})
    pq.write_table(pa.table({"id": [10, 11]}), path / "nodes" / "a.parquet")
    (path / "nodes" / "b.csv").write_text("id\n20\n")
    bundle = ingest(path, cache_dir=tmp_path / "cache")
    assert bundle.ids("n").to_pylist() == [10, 11, 20, 0, 1, 2, 3]
