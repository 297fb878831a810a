"""`prepare csv --spec`: tables of any form, and what is wrong with a spec or with its tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raygnn import prepare
from raygnn.config.data_section import HashSplit
from raygnn.data.bundle import Bundle
from raygnn.data.convert.spec import spec_tables
from raygnn.data.ingest.build_bundle import ingest
from raygnn.data.links.split import LinkSplit
from raygnn.data.links.supervision import make_supervision
from raygnn.data.manifest import Manifest
from raygnn.data.tables.graph_tables import GraphTables, write_tables
from raygnn.data.tables.spec import TablesSpec
from tests.errors import raises

_EXAMPLES = Path(__file__).parents[3] / "examples"
_HEAD = "format: raygnn/tables-v1\n"
_LISTENS = ("user", "listens", "artist")


def _tables(folder: Path, spec: str, **files: str) -> GraphTables:
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    return spec_tables(TablesSpec.parse(_HEAD + spec), str(folder))


def _column(rows: Any, name: str) -> list:
    return rows.table.column(name).to_pylist()


def _run(example: str, folder: Path, **files: str) -> Bundle:
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    spec = str(_EXAMPLES / example / "tables.yaml")
    out = str(folder / "out")
    assert prepare.main(["csv", "--spec", spec, "--data", str(folder), "--out", out]) == 0
    return ingest(out, cache_dir=folder / "cache")


def test_lastfm_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [(user, artist) for user in range(1, 21) for artist in range(1, 11)]
    bundle = _run(
        "lastfm",
        tmp_path,
        data1="".join(f"{user}\t{artist}\t{user + artist}\n" for user, artist in pairs),
        test1="3\t4489\t7\n1892\t4\t1\n",
        trustnetwork="1\t2\n2\t1892\n",
    )
    said = capsys.readouterr().out
    assert "positive label edges user__listens__artist: 202 directed edges; weight" in said
    assert "--data.splits" not in said
    assert bundle.num_nodes("user") == 1892
    assert bundle.ids("artist")[4488].as_py() == 4489
    assert bundle.num_edges(("user", "trusts", "user")) == 2
    assert sorted(bundle.column(_LISTENS, "weight"))[0] == 2
    splits = make_supervision(bundle, LinkSplit(_LISTENS, labels=True))
    assert splits["test"].anchors.tolist() == [2, 1891]
    assert splits["test"].targets.tolist() == [4488, 3]
    assert splits["train"].num_links + splits["val"].num_links == len(pairs)
    # A share drawn here is the split that a rule of type hash draws from the same links.
    rule = HashSplit(type="hash", fractions=[0.9, 0.1, 0.0])
    again = make_supervision(bundle, LinkSplit(_LISTENS, rule=rule))
    assert np.array_equal(again["val"].targets, splits["val"].targets)


def test_fb15k237_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = _run(
        "fb15k237",
        tmp_path,
        train2id="3\n0 1 0\n2 3 10\n4 5 2\n",
        valid2id="1\n6 7 2\n",
        test2id="1\n14540 8 10\n",
    )
    assert [relation for _, relation, _ in bundle.edge_types] == ["r0", "r2", "r10"]
    edge_type = ("entity", "r10", "entity")
    csc = bundle.csc(edge_type)
    assert csc.indices.tolist() == [2, 14540]
    assert np.asarray(bundle.column(edge_type, "split")).tolist() == [1, 3]
    assert (
        "edge type entity__r2__entity: 2 directed edges; split train 1" in capsys.readouterr().out
    )


def test_all_roles_of_columns(tmp_path: Path) -> None:
    tables = _tables(
        tmp_path,
        """
node_types:
  a:
    files: a.csv
    id: {column: key, offset: 100}
    features: {x: [f, {first: 2, last: 3}], z: g}
    labels: {y: kind, r: {column: score}}
    split: part
    time: {column: 7}
edge_types:
  - {type: [a, to, a], files: [e.csv], source: {column: s, offset: 100},
     target: {column: 1, offset: 100}, features: {edge_attr: [w]}, weight: w, time: day,
     directed: false}
""",
        a="key,f,g,h,kind,score,part,t\n1,1,2,3,p,0.5,train,5\n2,4,5,6,,,,6\n3,0,0,1,q,2,test,7\n",
        e="s,t,w,day\n1,2,0.5,2024-01-31T12:00:00\n3,3,2,2024-02-01\n",
    )
    node, edge = tables.nodes["a"], tables.edges["a", "to", "a"]
    assert _column(node, "id") == [101, 102, 103]
    rows = np.frombuffer(b"".join(_column(node, "x")), "<f4").reshape(3, 3)
    assert rows.tolist() == [[1, 2, 3], [4, 5, 6], [0, 0, 1]]
    assert _column(node, "y") == ["p", None, "q"]
    assert _column(node, "r") == [0.5, None, 2]
    assert _column(node, "split") == ["train", "", "test"]
    assert _column(node, "time") == [5, 6, 7]
    assert _column(edge, "source") == [101, 103]
    assert _column(edge, "weight") == [0.5, 2]
    assert str(edge.table.schema.field("time").type) == "timestamp[us]"
    assert not edge.directed
    assert tables.notes == ()


def test_parquet_and_implied_text_ids(tmp_path: Path) -> None:
    columns = {
        "u": pa.array(["x", "y"]).dictionary_encode(),
        "v": [7, 8],
        "e": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
        "t": [3, 4],
    }
    pq.write_table(pa.table(columns), tmp_path / "edges.parquet")
    tables = _tables(
        tmp_path,
        """
separator: ";"
node_types: {a: {}, b: {}}
edge_types:
  - {type: [a, to, b], files: edges.parquet, source: u, target: 1, features: {e: [e, t]}, time: t}
label_edges:
  - {type: [a, to, b], files: "l*.csv", source: 1, target: 2, sign: negative, header: false,
     skip_lines: 1}
""",
        l1="anything\n0;z;9\n",
        l2="anything\n0;x;7\n",
    )
    assert _column(tables.nodes["a"], "id") == ["x", "y", "z"]
    assert _column(tables.nodes["b"], "id") == [7, 8, 9]
    rows = np.frombuffer(b"".join(_column(tables.edges["a", "to", "b"], "e")), "<f4")
    assert rows.tolist() == [1, 2, 3, 3, 4, 4]
    labels = tables.label_edges[("a", "to", "b"), "negative"]
    assert _column(labels, "source") == ["z", "x"]
    assert _column(labels, "target") == [9, 7]
    assert len(tables.notes) == 3
    assert tables.notes[2].endswith("l1.csv: columns not written: 0")
    assert "node type a: its 3 nodes are the ids that edges name" in tables.notes[0]


def test_node_splits_by_shares(tmp_path: Path) -> None:
    tables = _tables(
        tmp_path,
        """
node_types:
  a:
    files: {files: a.csv, separator: ",", add: {part: {hash: [0.5, 0.5, 0], seed: 1}}}
    id: 0
    split: part
""",
        a="id\n" + "".join(f"n{i}\n" for i in range(40)),
    )
    split = _column(tables.nodes["a"], "split")
    assert set(split) == {"train", "val"}
    assert 10 < split.count("val") < 30


def test_relations_of_words_and_reverse(tmp_path: Path) -> None:
    tables = _tables(
        tmp_path,
        """
node_types: {a: {count: 3}}
edge_types:
  - {type: [a, {column: r}, a], files: e.csv, source: s, target: t}
  - {type: [a, back, a], files: e.csv, source: t, target: s, reverse_of: [a, likes, a]}
""",
        e="s,r,t\n0,likes,1\n1,knows,2\n2,likes,0\n",
    )
    knows, likes, back = tables.edges
    assert (knows[1], likes[1], back[1]) == ("knows", "likes", "back")
    assert _column(tables.edges[likes], "source") == [0, 2]
    assert tables.edges[back].reverse_of == likes


_NODES = "node_types: {a: {count: 3}}\n"
_EDGE = "type: [a, to, a], files: e.csv, source: 0, target: 1"


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("node_types: [", ("document-syntax", "tables.yaml:2")),
        (
            "node_types: {a: {}}\nnode_types: {a: {}}",
            ("document-key-twice", "tables.yaml:3", "node_types"),
        ),
        ("", ("config-required", "tables.yaml:1", "node_types")),
        ("node_types: {}", ("config-length", "tables.yaml:2", "node_types", 1)),
        (_NODES + "foo: 1", ("config-unknown-key", "tables.yaml:3", "foo", "Keys here")),
        (
            "node_types:\n  a:\n    countt: 1",
            (
                "config-unknown-key",
                "yaml:4",
                "node_types.a.countt",
                "Did you mean count? Keys here",
                "separator",
            ),
        ),
        (
            "node_types:\n  a:\n    count: x",
            ("config-type", "yaml:4", "node_types.a.count", "a whole"),
        ),
        ("node_types: {a: {files: a.csv}}", ("spec-id-missing", "node_types.a")),
        ("node_types: {a: {id: 0}}", ("spec-files-missing", "node_types.a")),
        (
            "node_types: {a: {files: a.csv, id: 0, count: 3}}",
            ("spec-count", "node_types.a"),
        ),
        ("node_types: {a: {first_id: 3}}", ("spec-count", "node_types.a")),
        (
            "node_types: {artist: {}}\nedge_types:\n - {type: [artists, to, artist], files: e, "
            "source: 0, target: 1}",
            ("graph-node-type-undeclared", "artists", "Did you mean artist?", "artist"),
        ),
        (
            _NODES + "edge_types:\n  - type: [a, to, a]\n    files: e.csv\n    source: [0]\n",
            ("config-type", "tables.yaml:6", "edge_types.0.source", "a mapping"),
        ),
        (
            _NODES + f"edge_types:\n  - {{{_EDGE}, sourc: 0}}",
            ("config-unknown-key", "yaml:4", "edge_types.0.sourc", "Did you mean source?"),
        ),
        (_NODES + "header: 1", ("config-type", "tables.yaml:3", "header", "true or false")),
    ],
)
def test_bad_specs_are_named(spec: str, match: str) -> None:
    with raises(*match):
        TablesSpec.parse(_HEAD + spec)


def test_other_formats_are_refused() -> None:
    with raises("document-format", "x.yaml", "format=None"):
        TablesSpec.parse("a: 1", "x.yaml")
    with raises("document-format", "format=None"):
        TablesSpec.parse("[1]")


_NODE_TABLE = "node_types: {a: {files: a.csv, id: 0, %s}}"


@pytest.mark.parametrize(
    ("spec", "files", "match"),
    [
        (
            _NODES + f"edge_types: [{{{_EDGE}}}]",
            {},
            ("data-files-missing", "edge_types.0", "e.csv"),
        ),
        (
            _NODES + f"edge_types: [{{{_EDGE}}}]",
            {"e": "s,t\n"},
            ("spec-file-empty", "e.csv", "edge_types.0"),
        ),
        (
            _NODES + "edge_types: [{type: [a, to, a], files: e.csv, source: s, target: x}]",
            {"e": "s,t\n0,1\n"},
            ("spec-column-missing", "e.csv", "edge_types.0.target='x'", 2, "s', 't"),
        ),
        (
            _NODES + f"edge_types: [{{{_EDGE}, weight: 9, header: false}}]",
            {"e": "0,1\n"},
            ("spec-column-missing", "edge_types.0.weight=9", "false"),
        ),
        (
            _NODES + f"edge_types: [{{{_EDGE}}}]",
            {"e": "s,t\n0,1\n2,3\n0,7\n"},
            ("edges-dangling", "e.csv", "lines 3, 4", "edge_types.0.target", 2, 3, "a"),
        ),
        (
            _NODES + f"edge_types: [{{{_EDGE}}}]",
            {"e": "s,t\n0,1\n,2\n"},
            ("spec-values-missing", "e.csv", "line 3", "edge_types.0.source", 1),
        ),
        (
            _NODES + "edge_types: [{type: [a, to, a], files: e.csv, source: {column: 0, offset: 1},"
            " target: 1}]",
            {"e": "s,t\n0,1\nq,2\n"},
            (
                "spec-offset",
                "e.csv",
                "line 3",
                "edge_types.0.source",
                "offset 1 cannot be added to 'q'",
            ),
        ),
        (
            _NODES + f"edge_types: [{{{_EDGE}, weight: w}}]",
            {"e": "s,t,w\n0,1,1\n1,2,x\n"},
            ("spec-not-numbers", "e.csv", "line 3", "edge_types.0.weight", "x"),
        ),
        (
            _NODES + f"edge_types: [{{{_EDGE}, weight: w}}]",
            {"e": "s,t,w\n0,1,1\n1,2,\n"},
            ("spec-values-missing", "line 3", "edge_types.0.weight", 1),
        ),
        (
            _NODES + f"edge_types: [{{{_EDGE}, time: w}}]",
            {"e": "s,t,w\n0,1,1\n1,2,\n"},
            ("spec-values-missing", "line 3", "edge_types.0.time", 1),
        ),
        (
            _NODES + f"edge_types: [{{{_EDGE}, time: w}}]",
            {"e": "s,t,w\n0,1,soon\n"},
            ("spec-times", "line 2", "edge_types.0.time", "soon"),
        ),
        (
            _NODES + f"edge_types: [{{{_EDGE}, count_line: true, header: false}}]",
            {"e": "3\n0,1\n"},
            ("spec-row-count", "e.csv", 1, 3),
        ),
        (
            _NODES + f"edge_types: [{{{_EDGE}, count_line: true, header: false}}]",
            {"e": "s,t\n0,1\n"},
            ("spec-count-line", "e.csv", 1, "s,t"),
        ),
        (
            _NODES + "edge_types: [{type: [a, to, a], files: {files: e.csv, add: {k: {hash: "
            "[1.0, 0.0, 0.0]}}}, source: k, target: 1}]",
            {"e": "s,t\n0,1\n"},
            ("spec-hash-shares", "edge_types.0.source='k'"),
        ),
        (
            _NODES + f"edge_types: [{{{_EDGE}}}, {{{_EDGE}}}]",
            {"e": "s,t\n0,1\n"},
            ("graph-edge-type-twice", 1, "a__to__a"),
        ),
        (
            _NODES + f"label_edges: [{{{_EDGE}}}, {{{_EDGE}}}]",
            {"e": "s,t\n0,1\n"},
            ("graph-label-edges-twice", 1, "positive", "a__to__a"),
        ),
        (
            "node_types: {a: {files: a.csv, id: 0}}",
            {"a": "id\n1\n"},
            ("prepare-separator", "id", "node_types.a.separator"),
        ),
        ("node_types: {a: {}}", {}, ("spec-node-type-empty", "a")),
        (
            _NODE_TABLE % "features: {x: {first: 2, last: 1}}",
            {"a": "i,f\n0,1\n"},
            ("spec-column-range", "node_types.a.features.x", 2, 1),
        ),
    ],
)
def test_bad_tables_are_named(spec: str, files: dict[str, str], match: str, tmp_path: Path) -> None:
    with raises(*match):
        _tables(tmp_path, spec, **files)


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ({"i": [0.5], "f": [[1.0]]}, ("spec-id-type", "node_types.a.id=0", "double")),
        ({"i": [0, 1], "f": [[1.0], [1.0, 2.0]]}, ("spec-list-width", "row 1", "features.x")),
        ({"i": [0], "f": [[None, 1.0]]}, ("spec-not-numbers", "row 0", "features.x")),
        ({"i": [0], "f": [{"k": 1}]}, ("spec-not-numbers",)),
    ],
)
def test_bad_parquet_columns_are_named(
    columns: dict[str, list], match: str, tmp_path: Path
) -> None:
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    spec = "node_types: {a: {files: a.parquet, id: 0, features: {x: f}}}"
    with raises(*match):
        _tables(tmp_path, spec)


def test_command_line_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "out")]
    assert prepare.main(["csv", *out]) == 2
    assert "--spec and --edges are invalid: give exactly one" in capsys.readouterr().err
    assert prepare.main(["csv", *out, "--spec", "s.yaml", "--separator", ";", "--directed"]) == 2
    assert "--separator, --directed is invalid with --spec" in capsys.readouterr().err
    assert prepare.main(["csv", *out, "--spec", str(tmp_path / "s.yaml")]) == 2
    assert "s.yaml" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_many_edge_types_are_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "e.csv").write_text("s,r\n" + "".join(f"{i},{i}\n" for i in range(30)))
    (tmp_path / "spec.yaml").write_text(
        _HEAD + "node_types: {a: {count: 30}}\n"
        "edge_types: [{type: [a, {column: r, prefix: r}, a], files: e.csv, source: s, target: r}]\n"
    )
    arguments = ["--spec", str(tmp_path / "spec.yaml"), "--data", str(tmp_path)]
    assert prepare.main(["csv", *arguments, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "... 30 edge types with 30 edges in all" in said
    assert said.count("edge type a__") == 5
    assert len(Manifest.load(tmp_path / "out").edge_types) == 30


def test_relations_that_are_one_number_stay_two(tmp_path: Path) -> None:
    spec = (
        "node_types: {a: {}}\n"
        "edge_types: [{type: [a, {column: r, prefix: r}, a], files: e.csv, source: s, target: t}]\n"
    )
    tables = _tables(tmp_path, spec, e="s,r,t\n1,1,2\n2,01,3\n3,10,1\n1,2,3\n2,x,1\n")
    assert [relation for _, relation, _ in tables.edges] == ["r01", "r1", "r2", "r10", "rx"]
    assert {rows.table.num_rows for rows in tables.edges.values()} == {1}


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_missing_relation_is_told(tmp_path: Path, form: str) -> None:
    spec = (
        "node_types: {a: {}}\n"
        f"edge_types: [{{type: [a, {{column: r}}, a], files: e.{form}, source: s, target: t}}]\n"
    )
    (tmp_path / "e.csv").write_text("s,r,t\n1,likes,2\n2,,3\n")
    columns = {"s": [1, 2], "r": ["likes", None], "t": [2, 3]}
    pq.write_table(pa.table(columns), tmp_path / "e.parquet")
    with raises("spec-values-missing", "edge_types.0.type", 1):
        _tables(tmp_path, spec)


_RAW = """
node_types:
  user:
    files: "user*.csv"
    id: key
    features:
      x: [age, {column: country, transform: category}, {first: 4, last: 5}]
      late: {column: joined, transform: time}
      gaps: [{column: income, missing: median}]
    labels: {y: plan}
edge_types:
  - type: [user, follows, user]
    files: e.csv
    source: s
    target: t
    features: {edge_attr: [{column: how, transform: one_hot}]}
"""
_RAW_FILES = {
    "user1": "key,age,country,joined,a,b,income,plan\n1,30,de,2024-01-01,1,2,10,p\n",
    "user2": "key,age,country,joined,a,b,income,plan\n2,40,,2024-03-01,3,4,,q\n",
    "e": "s,t,how\n1,2,mail\n2,1,phone\n",
}


def test_transforms_are_written_for_ingest(tmp_path: Path) -> None:
    tables = _tables(tmp_path, _RAW, **_RAW_FILES)
    user = tables.nodes["user"]
    assert user.features == {
        "x": ["x:age.0", {"column": "x:country", "transform": "category"}, "x:4.5"],
        "late": [{"column": "late:joined", "transform": "time"}],
        "gaps": [{"column": "gaps:income", "missing": "median"}],
    }
    assert _column(user, "x:country") == ["de", None]
    assert _column(user, "gaps:income") == [10, None]
    write_tables(tables, str(tmp_path / "out"))
    bundle = ingest(str(tmp_path / "out"), cache_dir=tmp_path / "cache")
    assert np.asarray(bundle.column("user", "gaps")).tolist() == [[10], [10]]
    assert np.asarray(bundle.column("user", "x"))[:, [0, 2, 3]].tolist() == [[30, 1, 2], [40, 3, 4]]
    edges = np.asarray(bundle.column(("user", "follows", "user"), "edge_attr"))
    assert sorted(edges.tolist()) == [[0, 1], [1, 0]]


def test_a_gap_without_a_transform_names_the_remedy(tmp_path: Path) -> None:
    spec = "node_types: {user: {files: user2.csv, id: key, features: {x: income}}}"
    with raises("spec-values-missing", "income", "missing: median"):
        _tables(tmp_path, spec, **_RAW_FILES)


def test_sparse_features(tmp_path: Path) -> None:
    columns = {"id": [5, 6, 7], "i": [[2, 0], [], None], "v": [[0.5, 2.0], [], None]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    spec = "node_types: {a: {files: a.parquet, id: id, features: {x: {indices: i, %s}}}}"
    rows = _tables(tmp_path, spec % "values: v, dim: 40").nodes["a"]
    assert rows.features == {"x": {"indices": "x_indices", "values": "x_values", "dim": 40}}
    assert _column(rows, "x_indices") == [[0, 2], [], []]
    assert _column(rows, "x_values") == [[2.0, 0.5], [], []]
    with raises("spec-sparse-indices", "node_types.a.features.x", 1):
        _tables(tmp_path, spec % "dim: 2")
    with raises("spec-not-lists", "a.parquet", "int64"):
        _tables(tmp_path, spec.replace("i, %s", "id"))
    pq.write_table(pa.table(columns | {"v": [[0.5], [], None]}), tmp_path / "a.parquet")
    with raises("spec-sparse-lengths", 0, 2, 1):
        _tables(tmp_path, spec % "values: v")


_JOINED = """
node_types:
  a:
    files: a.csv
    id: id
    features: {x: f}
    more:
      - {files: b.csv, id: key, labels: {y: kind}, time: t, split: part}
      - {files: b.csv, id: key, features: {z: {column: g, transform: auto}}}
    normalize_features: row
    %s
edge_types: [{type: [a, to, a], files: e.csv, source: 0, target: 1}]
"""
_JOINED_FILES = {
    "a": "id,f,o\n9,1,.\n3,2,.\n",
    "b": "key,kind,t,part,g\n3,dog,5,train,0.5\n",
    "e": "s,t\n3,9\n",
}


def test_tables_of_one_node_type_are_joined_by_id(tmp_path: Path) -> None:
    a = _tables(tmp_path, _JOINED % "", **_JOINED_FILES).nodes["a"]
    assert _column(a, "id") == [9, 3]
    assert _column(a, "y") == [None, "dog"]
    assert _column(a, "time") == [None, 5]
    assert _column(a, "split") == [None, "train"]
    assert _column(a, "z:g") == [None, 0.5]
    assert np.frombuffer(b"".join(_column(a, "x")), np.float32).tolist() == [1, 1]


def test_ids_that_the_first_table_lacks(tmp_path: Path) -> None:
    files = _JOINED_FILES | {"b": "key,kind,t,part,g\n4,dog,5,train,0.5\n"}
    with raises("edges-dangling", "b.csv", "node_types.a.more.0.id", 4):
        _tables(tmp_path, _JOINED % "", **files)
    with raises("prepare-features-incomplete", "a.csv", 4):
        _tables(tmp_path, _JOINED % "add_unlisted: true", **files)
    spec = (_JOINED % "add_unlisted: true").replace("x: f", "x: {column: f, transform: auto}")
    assert _column(_tables(tmp_path, spec, **files).nodes["a"], "id") == [3, 4, 9]
    with raises("prepare-ids-repeated", "a.csv", 1, 9):
        _tables(tmp_path, _JOINED % "", **(files | {"a": "id,f,o\n9,1,.\n9,2,.\n"}))


def test_a_table_of_more_needs_files() -> None:
    with raises("spec-files-missing", "node_types.a"):
        TablesSpec.parse(_HEAD + "node_types: {a: {count: 3, more: [{}]}}")


@pytest.mark.parametrize(
    ("feature", "match"),
    [
        (
            "{column: f, transform: categry}",
            ("config-choice", "features.x.transform", "Did you mean category?"),
        ),
        ("{column: f, transform: auto, offset: 1}", ("config-unknown-key", "offset")),
        ("{column: f, n_bins: 3}", ("transform-option", "f", "bucket")),
    ],
)
def test_bad_transforms_are_named(feature: str, match: tuple) -> None:
    with raises(*match):
        TablesSpec.parse(_HEAD + _NODE_TABLE % f"features: {{x: {feature}}}")


def test_labels_of_edges(tmp_path: Path) -> None:
    spec = """
node_types: {user: {}, film: {}}
edge_types:
  - {type: [user, rates, film], files: rates.csv, source: user, target: film, labels: {y: stars}}
label_edges:
  - {type: [user, rates, film], files: asked.csv, source: user, target: film, labels: {y: word}}
"""
    rates, asked = "user,film,stars\n1,5,4.5\n2,6,\n", "user,film,word\n1,6,good\n"
    tables = _tables(tmp_path, spec, rates=rates, asked=asked)
    edge_type = ("user", "rates", "film")
    assert _column(tables.edges[edge_type], "y") == [4.5, None]
    assert dict(tables.edges[edge_type].labels) == {"y": "y"}
    assert _column(tables.label_edges[edge_type, "positive"], "y") == ["good"]
