"""Edge lists, label files and feature files: what is read, what is said, and what is refused."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raygnn.data.tables.graph_tables import GraphTables
from raygnn.prepare.csv import CsvSource, csv_tables
from tests.errors import raises

EDGE = ("node", "to", "node")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "edges.csv").write_text("from,to,when\n10,7,x\n7,3,y\n")
    (tmp_path / "labels.csv").write_text("id,kind\n3,cat\n7,dog\n10,cat\n")
    (tmp_path / "features.csv").write_text("id,a,b\n7,1,2.5\n3,3,4\n10,-1,0\n")
    (tmp_path / "features.json").write_text(json.dumps({"10": [2, 40, 2], "3": []}))
    return tmp_path


def pairs(tables: GraphTables) -> list[tuple[object, object]]:
    table = tables.edges[EDGE].table
    return list(
        zip(*(table.column(name).to_pylist() for name in ("source", "target")), strict=True)
    )


def features(tables: GraphTables) -> list[list[float]]:
    column = tables.nodes["node"].table.column("x").combine_chunks()
    rows: list[list[float]] = (
        np.frombuffer(column.buffers()[1], np.float32).reshape(len(column), -1).tolist()
    )
    return rows


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


@pytest.mark.parametrize(
    ("text", "has_header"),
    [
        *((f"a{separator}b\n1{separator}2\n", True) for separator in ",\t;| "),
        ('"a","b"\n"x, y","z;"\n', True),
        ("% bip weighted\n% 2 4\n1 2\n3 4\n", False),
        ("# from\tto\n1\t2\n", False),
    ],
)
def test_separators_are_found(text: str, has_header: bool, folder: Path) -> None:
    edges = write(folder, "some.txt", text)
    ids = csv_tables(CsvSource(edges=edges, has_header=has_header)).nodes["node"].table.column("id")
    assert sorted(ids.to_pylist()) in (["x, y", "z;"], [1, 2, 3, 4], [1, 2])
    given = CsvSource(edges=edges, separator=text[1])
    assert not text.startswith("a") or csv_tables(given).nodes["node"].table.num_rows == 2


def test_a_first_line_of_ids_is_an_edge(folder: Path) -> None:
    """Beside labels with a header, which would be a node without one."""
    edges = write(folder, "bare.txt", "10\t7\n7\t3\n")
    files = CsvSource(edges=edges, nodes=str(folder / "labels.csv"))
    tables = csv_tables(files)
    assert pairs(tables) == [(3, 7), (7, 3), (7, 10), (10, 7)]
    assert pairs(csv_tables(replace(files, source="1", target="0"), True)) == [(7, 10), (3, 7)]
    with raises("prepare-header", "--id", "--no-header"):
        csv_tables(replace(files, has_header=False))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 1\n1 2\n", [(0, 1), (1, 2)]),
        ("1 2 0.5\n2 3 0.7\n", [(1, 2), (2, 3)]),
        ("# a graph, of votes\n# Nodes: 3 Edges: 2\n# From\tTo\n1\t2\n2\t3\n", [(1, 2), (2, 3)]),
        ("% bip weighted\n% 3 2 2\n1 2 4.5 9\n1 1 0.5 8\n", [(1, 2), (1, 1)]),
        ("# one\n% two\n1 2\n2 3\n", [(1, 2), (2, 3)]),
        ("0,1\n1,2\n", [(1, 2)]),  # as pandas writes columns without names
    ],
)
def test_no_edge_is_taken_for_a_header(folder: Path, text: str, expected: list) -> None:
    """Nor a comment for an edge. A first line that can be either is printed."""
    tables = csv_tables(CsvSource(edges=write(folder, "bare.txt", text)), directed=True)
    assert pairs(tables) == expected
    is_named = any("the first line, 0,1, is read as the header" in note for note in tables.notes)
    assert is_named is text.startswith("0,1")


def test_edges_labels_and_features(folder: Path) -> None:
    files = CsvSource(
        edges=str(folder / "edges.csv"),
        nodes=str(folder / "labels.csv"),
        features=str(folder / "features.csv"),
    )
    tables = csv_tables(files)
    node = tables.nodes["node"].table
    assert node.column("id").to_pylist() == [3, 7, 10]
    assert node.column("y").to_pylist() == ["cat", "dog", "cat"]
    assert features(tables) == [[3, 4], [1, 2.5], [-1, 0]]
    assert pairs(tables) == [(3, 7), (7, 3), (7, 10), (10, 7)]
    assert tables.notes[0].endswith("edges.csv: columns not written: when")
    assert tables.notes[1].startswith("made undirected: 2 entries became 4 directed edges")
    assert "no split written" in tables.notes[2]


def test_ragged_features_are_sparse(folder: Path) -> None:
    files = CsvSource(edges=str(folder / "edges.csv"), features=str(folder / "features.json"))
    tables = csv_tables(files)
    node = tables.nodes["node"]
    assert node.features == {"x": {"indices": "x_indices", "values": None, "dim": 41}}
    assert node.table.column("x_indices").to_pylist() == [[], [], [2, 40]]
    notes = "\n".join(tables.notes)
    assert "features.json: 1 repeated feature indices dropped" in notes
    assert "1 nodes have no row in" in notes
    normalized = csv_tables(files, normalize=True).nodes["node"].table
    assert normalized.column("x_values").to_pylist() == [[], [], [0.5, 0.5]]


def test_columns_are_found_by_name(folder: Path) -> None:
    edges = write(folder, "e.csv", "kind,a,b\nx,1,2\n")
    labels = write(folder, "l.csv", "label,extra,key\n5,?,2\n4,?,1\n")
    files = CsvSource(edges=edges, source="b", target="a", nodes=labels, id="key", label="label")
    tables = csv_tables(files, directed=True)
    assert pairs(tables) == [(2, 1)]
    assert tables.nodes["node"].table.column("y").to_pylist() == [4, 5]
    assert any(note.endswith("l.csv: columns not written: extra") for note in tables.notes)


def test_files_without_header_and_with_comments(folder: Path) -> None:
    edges = write(folder, "e.txt", "# a graph\n# from to\n1\t2\n2\t3\n")
    files = CsvSource(edges=edges, has_header=False, source="1", target="0")
    assert pairs(csv_tables(files, directed=True)) == [(2, 1), (3, 2)]


def test_compressed_files(folder: Path) -> None:
    (folder / "edges.csv.gz").write_bytes(gzip.compress(b"a,b\n1,2\n"))
    (folder / "features.json.gz").write_bytes(gzip.compress(b'{"1": [0], "2": [33]}'))
    files = CsvSource(edges=str(folder / "edges.csv.gz"), features=str(folder / "features.json.gz"))
    assert csv_tables(files).nodes["node"].table.num_rows == 2


def test_string_ids_keep_their_order_of_appearance(folder: Path) -> None:
    edges = write(folder, "e.csv", "a,b\nzoe, bob\n007,7\n")
    tables = csv_tables(CsvSource(edges=edges))
    assert tables.nodes["node"].table.column("id").to_pylist() == ["zoe", "007", "bob", "7"]
    assert pairs(tables) == [("zoe", "bob"), ("007", "7"), ("bob", "zoe"), ("7", "007")]


def test_ids_are_texts_in_all_files_where_they_are_in_one(folder: Path) -> None:
    labels = write(folder, "l.csv", "id,y\n1,0\nx,1\n")
    edges = write(folder, "e.csv", "a,b\n1,2\n")
    tables = csv_tables(CsvSource(edges=edges, nodes=labels))
    assert tables.nodes["node"].table.column("id").to_pylist() == ["1", "x", "2"]
    assert tables.nodes["node"].table.column("y").to_pylist() == [0, 1, None]
    assert any("1 nodes have no row in" in note for note in tables.notes)


@pytest.mark.parametrize(
    ("fields", "values", "kind"),
    [
        (["3", "", "1"], [3, None, 1], pa.int64()),
        (["3.5", "", "1"], [3.5, None, 1.0], pa.float64()),
        (["a", "", "1"], ["a", None, "1"], pa.large_string()),
    ],
)
def test_label_types_follow_the_column(
    folder: Path, fields: list[str], values: list[object], kind: pa.DataType
) -> None:
    lines = "".join(f"{i},{field}\n" for i, field in enumerate(fields))
    labels = write(folder, "l.csv", f"id,y\n{lines}")
    edges = write(folder, "e.csv", "a,b\n0,1\n1,2\n")
    column = csv_tables(CsvSource(edges=edges, nodes=labels)).nodes["node"].table.column("y")
    assert column.to_pylist() == values
    assert column.type == kind


def test_a_backslash_n_is_a_gap_in_numbers_and_in_texts(folder: Path) -> None:
    nodes = write(folder, "nodes.csv", "id,kind\n3,cat\n7,\\N\n10,dog\n")
    tables = csv_tables(CsvSource(str(folder / "edges.csv"), nodes=nodes))
    assert tables.nodes["node"].table.column("y").to_pylist() == ["cat", None, "dog"]
    nodes = write(folder, "nodes.csv", "id,kind\n3,5\n7,\\N\n10,6\n")
    tables = csv_tables(CsvSource(str(folder / "edges.csv"), nodes=nodes))
    assert tables.nodes["node"].table.column("y").to_pylist() == [5, None, 6]


def test_splits_by_class_names_and_by_hash(folder: Path) -> None:
    lines = "".join(f"{i},{'odd' if i % 2 else 'even'}\n" for i in range(20))
    labels = write(folder, "l.csv", f"id,y\n{lines}20,\n")
    edges = write(folder, "e.csv", "a,b\n0,20\n")
    files = CsvSource(edges=edges, nodes=labels)
    names = csv_tables(files, split="per-class:3,2").nodes["node"].table.column("split").to_pylist()
    assert sorted(names[:20:2]) == ["test"] * 5 + ["train"] * 3 + ["val"] * 2
    assert names[20] is None
    hashed = [
        csv_tables(files, split="hash:0.5,0.2,0.3", split_seed=seed).nodes["node"].table
        for seed in (0, 0, 1)
    ]
    assert hashed[0].equals(hashed[1])
    assert not hashed[0].equals(hashed[2])


def test_per_class_needs_classes(folder: Path) -> None:
    labels = write(folder, "l.csv", "id,y\n7,0.5\n3,1.5\n10,2.5\n")
    files = CsvSource(edges=str(folder / "edges.csv"), nodes=labels)
    with raises("split-no-labels"):
        csv_tables(files, split="per-class:1,1")


@given(
    edges=st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=1, max_size=20),
    as_text=st.booleans(),
)
@settings(max_examples=25)
def test_directed_edges_come_back_as_they_are(
    tmp_path_factory: pytest.TempPathFactory, edges: list[tuple[int, int]], as_text: bool
) -> None:
    prefix = "n" if as_text else ""
    named = [(f"{prefix}{a}", f"{prefix}{b}") for a, b in edges]
    text = "a,b\n" + "".join(f"{a},{b}\n" for a, b in named)
    path = write(tmp_path_factory.mktemp("csv"), "e.csv", text)
    found = pairs(csv_tables(CsvSource(edges=path), directed=True))
    assert found == (named if as_text else edges)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,b\n1,2\n", {"source": "x"}, ("spec-column-missing", "--source='x'", "'a', 'b'")),
        ("a,b\n1,2\n", {"source": "0"}, ("spec-column-missing", "--source='0'")),
        (
            "1,2\n",
            {"target": "9", "has_header": False},
            ("spec-column-missing", "--target=9", "2 columns", "--no-header"),
        ),
        ("a;b\n1;2\n", {"separator": ","}, ("spec-column-missing", "--target=1")),
        ("a,b\n1,\n,2\n,\n", {}, ("spec-values-missing", "--source", "a", 2, "3, 4")),
        ("a,b\n1,2,3\n", {"separator": ","}, ("table-csv-unreadable", "e.csv")),
        ("a,b,a\n1,2,3\n", {}, ("prepare-header-repeated", "e.csv", "a")),
        ("a,b,a,b\n1,2,3,4\n", {"source": "a"}, ("prepare-header-repeated", "a", "b")),
        ("a\n1\n", {}, ("prepare-separator", "a")),
        ("", {}, ("prepare-separator",)),
        ("a,b\n1,2\n", {"separator": ",,"}, ("prepare-separator", "--separator=',,'")),
        ("", {"separator": ","}, ("table-csv-unreadable", "e.csv")),
    ],
)
def test_malformed_edges_are_refused(
    tmp_path: Path, text: str, options: dict[str, object], message: str
) -> None:
    path = write(tmp_path, "e.csv", text)
    with raises(*message):
        csv_tables(CsvSource(edges=path, **options))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,a,b\n3,1,2\n", ("prepare-label-missing", 3, "a, b")),
        ("id,y\n3,1\n3,1\n7,1\n7,1\n", ("prepare-ids-repeated", 2, "3, 7")),
    ],
)
def test_malformed_labels_are_refused(folder: Path, text: str, message: str) -> None:
    labels = write(folder, "l.csv", text)
    with raises(*message):
        csv_tables(CsvSource(edges=str(folder / "edges.csv"), nodes=labels))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("f.csv", "id,a\n3,1\n", ("prepare-features-incomplete", 2, "7, 10")),
        ("f.csv", "id,a\n3,1\n7,x\n10,1\n", ("spec-not-numbers", "--features", "a", "x")),
        ("f.csv", "id,a\n3,1\n7,\n10,1\n", ("spec-values-missing", "--features", "a", 1)),
        ("f.csv", "id,a,a\n3,1,1\n7,1,1\n10,1,1\n", ("prepare-header-repeated", "a")),
        ("f.csv", "id,a\n3,1\n3,1\n", ("prepare-ids-repeated", 1, 3)),
        ("f.json", "{", ("document-syntax", "f.json:1")),
        ("f.json", "[1]", ("prepare-ragged-features", "f.json")),
        ("f.json", '{"3": 1}', ("prepare-ragged-features", 3)),
        ("f.json", '{"3": [0], "7": [-1]}', ("prepare-ragged-features", 7)),
        ("f.json", '{"3": [0.5]}', ("prepare-ragged-features", 3)),
        ("f.json", '{"3": [true]}', ("prepare-ragged-features", 3)),
    ],
)
def test_malformed_features_are_refused(folder: Path, name: str, text: str, message: str) -> None:
    path = write(folder, name, text)
    with raises(*message):
        csv_tables(CsvSource(edges=str(folder / "edges.csv"), features=path))


def test_features_need_a_column_of_numbers(folder: Path) -> None:
    path = write(folder, "f.csv", "id\n3\n")
    with raises("prepare-features-missing", "id"):
        csv_tables(CsvSource(edges=str(folder / "edges.csv"), features=path, separator=","))


def test_missing_files_are_named(folder: Path) -> None:
    with raises("prepare-file-missing", "gone.csv"):
        csv_tables(CsvSource(edges=str(folder / "gone.csv")))
    with raises("prepare-file-missing", "gone.json"):
        csv_tables(CsvSource(str(folder / "edges.csv"), features=str(folder / "gone.json")))


def test_edges_may_be_parquet(folder: Path) -> None:
    path = folder / "e.parquet"
    pq.write_table(pa.table({"when": [1, 2], "a": [7, 3], "b": [3, 10]}), path)
    files = CsvSource(edges=str(path), source="a", target="b", nodes=str(folder / "labels.csv"))
    tables = csv_tables(files, directed=True)
    assert pairs(tables) == [(7, 3), (3, 10)]
    assert tables.nodes["node"].table.column("y").to_pylist() == ["cat", "dog", "cat"]
    assert any(note.endswith("e.parquet: columns not written: when") for note in tables.notes)


def test_names_of_files_are_not_patterns(folder: Path) -> None:
    edges = write(folder, "e[12].csv", "a,b\n1,2\n")
    write(folder, "e1.csv", "a,b\n8,9\n")
    assert pairs(csv_tables(CsvSource(edges=edges), directed=True)) == [(1, 2)]
