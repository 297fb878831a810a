from __future__ import annotations

from pathlib import Path

import pytest

from raygnn.data.ingest.build_bundle import ingest
from raygnn.data.manifest import (
    DenseFeature,
    Manifest,
    SparseFeature,
    manifest_folder,
    manifest_uri,
)
from raygnn.errors import DataError
from tests.errors import raises

_FULL = """
format: raygnn/graph-v1
node_types:
  user:
    files: nodes/user/*.parquet
    id: user_id
    features: {x: x, z: [a, b], s: {indices: i, values: v, dim: 5}, h: {columns: q, dtype: float16}}
    labels: {y: label, c: {columns: l, kind: class, num_classes: 4}}
    split: split
    time: null
edge_types:
  - {type: [user, follows, user], files: [a.csv, b.csv], source: src, target: dst,
     features: {edge_attr: w}, weight: null, time: ts, directed: true}
label_edges:
  - {type: [user, bought, user], files: c.csv, source: src, target: dst, split: split}
"""


def _with(changes: str = "", edges: str = "") -> str:
    return (
        "format: raygnn/graph-v1\n"
        f"node_types: {{n: {{files: n.csv, id: id{changes}}}}}\n"
        f"edge_types: [{edges}]\n"
    )


def test_reads_all_forms() -> None:
    manifest = Manifest.parse(_FULL)
    features = manifest.node_types["user"].features
    assert features["x"] == DenseFeature(columns=("x",))
    assert features["z"] == DenseFeature(columns=("a", "b"))
    assert features["s"] == SparseFeature(indices="i", values="v", dim=5)
    assert features["h"] == DenseFeature(columns=("q",), dtype="float16")
    assert manifest.node_types["user"].labels["c"].num_classes == 4
    assert manifest.edge_types[0].type == ("user", "follows", "user")
    assert manifest.edge_types[0].files == ("a.csv", "b.csv")
    assert manifest.label_edges[0].sign == "positive"


def test_dump_reads_back() -> None:
    manifest = Manifest.parse(_FULL)
    assert Manifest.parse(manifest.dump()) == manifest


def test_loads_a_folder_or_the_file(tmp_path: Path) -> None:
    (tmp_path / "graph.yaml").write_text(_FULL)
    assert Manifest.load(tmp_path) == Manifest.load(tmp_path / "graph.yaml")
    assert manifest_folder(tmp_path / "graph.yaml") == str(tmp_path)
    assert manifest_uri("gs://a") == "gs://a/graph.yaml"
    assert manifest_folder("graph.yaml") == "."
    assert manifest_folder("/graph.yaml") == "/"


_EDGE = "type: [n, to, n], files: e.csv, source: s, target: t"
_REVERSE = f"{{{_EDGE}, reverse_of: [n, to, n]}}".replace("[n, to", "[n, back", 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1", ("document-syntax", "graph.yaml:1")),
        ("", ("document-format", "format=None", "raygnn/graph-v1")),
        ("format: x", ("document-format", "format='x'", "raygnn/graph-v1")),
        ("format: raygnn/graph-v1", ("config-required", "yaml:1", "node_types")),
        ("format: raygnn/graph-v1\nnode_types: {}", ("config-length", "yaml:2", "node_types", 1)),
        (_with(", foo: 1"), ("config-unknown-key", "node_types.n.foo")),
        (
            _with(", feature: 1"),
            ("config-unknown-key", "n.feature", "Did you mean features? Keys here"),
        ),
        (
            _with(", labels: {y: {columns: y, kid: class}}"),
            ("config-unknown-key", "labels.y.kid", "Did you mean kind?"),
        ),
        (
            _with(", features: {x: {indices: i, dims: 3}}"),
            ("config-unknown-key", "x.dims", "Did you mean dim? Keys"),
        ),
        (
            _with() + "edge_type: []",
            ("config-unknown-key", "yaml:4", "edge_type", "Did you mean edge_types?"),
        ),
        (_with(", features: {x: {indices: i}}"), ("config-required", "features.x.dim")),
        (_with(", features: {x: 5.5}"), ("config-type", "node_types.n.features.x", "a mapping")),
        (_with(", features: {id: x}"), ("graph-column-reserved", "id")),
        (
            _with(", features: {x: {indices: i, dim: 5}, x.indptr: y}"),
            ("graph-column-reserved", "x.indptr", "'x'"),
        ),
        (_with(", features: {a/b: x}"), ("graph-column-name", "a/b")),
        (_with(", features: {x: a}, labels: {x: b}"), ("graph-column-twice", "x")),
        (_with().replace("{n:", '{"n\\n":'), ("graph-type-name",)),
        (_with().replace("n:", "n__m:", 1).replace("{n:", "{n__m:"), ("graph-type-name", "n__m")),
        (
            _with("", "{type: [n, to, m], files: e, source: s, target: t}"),
            ("graph-node-type-undeclared", "m"),
        ),
        (_with("", f"{{{_EDGE}}}, {{{_EDGE}}}"), ("graph-edge-type-twice", "n__to__n")),
        (_with("", f"{{{_EDGE}, labels: {{time: y}}}}"), ("graph-column-reserved", "time")),
        (
            _with() + f"label_edges: [{{{_EDGE}, labels: {{bad name: y}}}}]",
            ("graph-column-name", "bad name"),
        ),
        (
            _with("", f"{{{_EDGE}, features: {{x: {{indices: i, dim: 3}}}}}}"),
            ("graph-sparse-edges",),
        ),
        (
            "format: raygnn/graph-v1\n"
            "node_types: {a: {files: a, id: i}, b: {files: b, id: i}}\n"
            "edge_types: [{type: [a, to, b], files: e, source: s, target: t, directed: false}]",
            ("graph-undirected-types",),
        ),
        (
            _with("", f"{{{_EDGE}}}") + f"label_edges: [{{{_EDGE}}}, {{{_EDGE}}}]",
            ("graph-label-edges-twice", "positive", "n__to__n"),
        ),
        (
            _with("", f"{{{_EDGE}, reverse_of: [n, x, n]}}"),
            ("graph-reverse-unknown", "n', 'x', 'n"),
        ),
        (_with("", f"{{{_EDGE}, reverse_of: [n, to, n]}}"), ("graph-reverse-unknown",)),
        (
            "format: raygnn/graph-v1\n"
            "node_types: {a: {files: a, id: i}, b: {files: b, id: i}}\n"
            "edge_types: [{type: [a, to, b], files: e, source: s, target: t}, "
            "{type: [a, by, b], files: e, source: s, target: t, reverse_of: [a, to, b]}]",
            ("graph-reverse-ends", "yaml:1", "b", "a"),
        ),
        (
            _with("", f"{{{_EDGE}}}, {_REVERSE}, {_REVERSE.replace('back', 'rev_to')}"),
            ("graph-reverse-twice", "n__to__n", "n__back__n", "n__rev_to__n"),
        ),
    ],
)
def test_broken_rules_are_named(text: str, message: str) -> None:
    with raises(*message):
        Manifest.parse(text)


def test_all_problems_are_listed() -> None:
    with pytest.raises(DataError) as raised:
        Manifest.parse(_with(", foo: 1, bar: 2"))
    assert "n.foo" in str(raised.value)
    assert "n.bar" in str(raised.value)


def test_text_files_without_a_header_are_read_by_position(tmp_path: Path) -> None:
    (tmp_path / "nodes.dat").write_text("7|a|1.5\n8|b|2\n9|a|3\n")
    (tmp_path / "edges.txt").write_text("3 lines\n7 8 0.5\n8 9 1.5\n")
    (tmp_path / "graph.yaml").write_text("""
format: raygnn/graph-v1
node_types:
  n: {files: nodes.dat, id: 0, labels: {y: 1}, features: {x: [2]}, csv: {header: false}}
edge_types:
  - {type: [n, to, n], files: edges.txt, source: 0, target: 1, weight: 2,
     csv: {header: false, separator: " ", skip_lines: 1}}
""")
    bundle = ingest(tmp_path, cache_dir=tmp_path / "cache")
    assert bundle.ids("n").to_pylist() == [7, 8, 9]
    assert bundle.column("n", "x").ravel().tolist() == [1.5, 2, 3]
    assert bundle.column("n", "y").tolist() == [0, 1, 0]
    assert bundle.csc(("n", "to", "n")).indices.tolist() == [0, 1]
    assert bundle.column(("n", "to", "n"), "weight").tolist() == [0.5, 1.5]
    manifest = Manifest.load(tmp_path)
    assert Manifest.parse(manifest.dump()) == manifest
    assert "csv: {header: false}" in manifest.dump()
