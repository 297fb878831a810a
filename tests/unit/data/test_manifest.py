from __future__ import annotations

from pathlib import Path

import pytest

from raygnn.data.manifest import (
    DenseFeature,
    Manifest,
    SparseFeature,
    manifest_folder,
    manifest_uri,
)
from raygnn.errors import DataError

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
        ("[1", r"graph\.yaml:1: the file is invalid: it is not YAML"),
        ("", "format=None is invalid: this raygnn reads 'raygnn/graph-v1' only"),
        ("format: x", "format='x' is invalid: this raygnn reads 'raygnn/graph-v1' only"),
        ("format: raygnn/graph-v1", "yaml:1: node_types is invalid: it is required"),
        (
            "format: raygnn/graph-v1\nnode_types: {}",
            "yaml:2: node_types is invalid: it needs at least 1 entry",
        ),
        (_with(", foo: 1"), "node_types.n.foo is invalid: there is no such key"),
        (_with(", feature: 1"), r"n.feature is .* no such key. Did you mean features\? Keys here:"),
        (_with(", labels: {y: {columns: y, kid: class}}"), r"labels.y.kid .* Did you mean kind\?"),
        (_with(", features: {x: {indices: i, dims: 3}}"), r"x.dims .* Did you mean dim\? Keys"),
        (_with() + "edge_type: []", r"yaml:4: edge_type is .* Did you mean edge_types\?"),
        (_with(", features: {x: {indices: i}}"), r"features.x.dim is invalid: it is required"),
        (_with(", features: {x: 5}"), r"node_types.n.features.x is invalid: it must be a mapping"),
        (_with(", features: {id: x}"), "column name 'id' is taken by raygnn"),
        (_with(", features: {a/b: x}"), "column name 'a/b' must be letters"),
        (_with(", features: {x: a}, labels: {x: b}"), r"\['x'\] are features and labels at once"),
        (_with().replace("n:", "n__m:", 1).replace("{n:", "{n__m:"), "type name 'n__m' must be"),
        (_with("", "{type: [n, to, m], files: e, source: s, target: t}"), "names node type 'm'"),
        (_with("", f"{{{_EDGE}}}, {{{_EDGE}}}"), "n__to__n is given twice"),
        (
            _with("", f"{{{_EDGE}, features: {{x: {{indices: i, dim: 3}}}}}}"),
            "sparse, which only features of nodes can be",
        ),
        (
            "format: raygnn/graph-v1\n"
            "node_types: {a: {files: a, id: i}, b: {files: b, id: i}}\n"
            "edge_types: [{type: [a, to, b], files: e, source: s, target: t, directed: false}]",
            "directed: false needs equal source and target types",
        ),
        (
            _with("", f"{{{_EDGE}}}") + f"label_edges: [{{{_EDGE}}}, {{{_EDGE}}}]",
            "positive label edges of type n__to__n are given twice",
        ),
        (
            _with("", f"{{{_EDGE}, reverse_of: [n, x, n]}}"),
            r"reverse_of=\['n', 'x', 'n'\] is no other",
        ),
        (_with("", f"{{{_EDGE}, reverse_of: [n, to, n]}}"), r"is no other edge type"),
        (
            "format: raygnn/graph-v1\n"
            "node_types: {a: {files: a, id: i}, b: {files: b, id: i}}\n"
            "edge_types: [{type: [a, to, b], files: e, source: s, target: t}, "
            "{type: [a, by, b], files: e, source: s, target: t, reverse_of: [a, to, b]}]",
            "yaml:1: the file is invalid: .* does not join 'b' to 'a'. Name a type that does",
        ),
        (
            _with("", f"{{{_EDGE}}}, {_REVERSE}, {_REVERSE.replace('back', 'rev_to')}"),
            "edge type n__to__n has two reverses, n__back__n and n__rev_to__n",
        ),
    ],
)
def test_broken_rules_are_named(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Manifest.parse(text)


def test_all_problems_are_listed() -> None:
    with pytest.raises(DataError) as raised:
        Manifest.parse(_with(", foo: 1, bar: 2"))
    assert "n.foo" in str(raised.value)
    assert "n.bar" in str(raised.value)
