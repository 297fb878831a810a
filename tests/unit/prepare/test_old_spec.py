"""What the removed `prepare csv --spec` says, and the examples that used it."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
import yaml

from raygnn.config.data_section import HashSplit
from raygnn.data.bundle import Bundle
from raygnn.data.ingest.build_bundle import ingest
from raygnn.data.links.split import LinkSplit
from raygnn.data.links.supervision import make_supervision
from raygnn.prepare import __main__ as prepare
from raygnn.prepare.csv import spec_error

_EXAMPLES = Path(__file__).parents[3] / "examples"
_LISTENS = ("user", "listens", "artist")

OLD_SPEC = """
format: raygnn/tables-v1
separator: ";"
node_types:
  item: {files: items.txt, id: sku, features: {x: [price, weight]}, labels: {y: kind}}
edge_types:
  - type: [item, to, item]
    files: [{files: pairs.txt, header: false, count_line: true}]
    source: 0
    target: 1
"""


def test_the_graph_yaml_in_the_error_reads_the_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "items.txt").write_text("sku;price;weight;kind\na;1.5;2;toy\nb;2;3;\n")
    (tmp_path / "pairs.txt").write_text("2\na;b\nb;a\n")
    (tmp_path / "tables.yaml").write_text(OLD_SPEC)
    options = ["--spec", str(tmp_path / "tables.yaml"), "--out", str(tmp_path / "out")]
    assert prepare.main(["csv", *options]) == 2
    _, graph, message = capsys.readouterr().err.split("\n\n")
    assert "It has no count_line" in message
    assert "prepare-spec-removed" in message
    (tmp_path / "graph.yaml").write_text(graph)
    bundle = ingest(str(tmp_path), cache_dir=tmp_path / "cache")
    assert bundle.ids("item").to_pylist() == ["a", "b"]
    assert np.asarray(bundle.column("item", "x")).tolist() == [[1.5, 2], [2, 3]]
    assert bundle.num_edges(("item", "to", "item")) == 2


def test_keys_without_a_counterpart_are_named() -> None:
    spec = "node_types: {a: {count: 3}}\nedge_types: [{type: [a, {prefix: r}, a], files: e.csv}]"
    error = str(spec_error(spec, "tables.yaml"))
    assert "It has no count, prefix" in error
    assert yaml.safe_load(error.split("\n\n")[1])["node_types"] == {"a": {"files": []}}


def _make(example: str, folder: Path, **files: str) -> Bundle:
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    main = runpy.run_path(str(_EXAMPLES / example / "prepare.py"))["main"]
    main(folder, str(folder / "out"))
    return ingest(folder / "out", cache_dir=folder / "cache")


def test_lastfm_tables(tmp_path: Path) -> None:
    pairs = [(user, artist) for user in range(1, 21) for artist in range(1, 11)]
    bundle = _make(
        "lastfm",
        tmp_path,
        data1="".join(f"{user}\t{artist}\t{user + artist}\n" for user, artist in pairs),
        test1="3\t4489\t7\n1892\t4\t1\n",
        trustnetwork="1\t2\n2\t1892\n",
    )
    assert bundle.num_nodes("user") == 1892
    assert bundle.ids("artist")[4488].as_py() == 4489
    assert bundle.num_edges(("user", "trusts", "user")) == 2
    assert sorted(bundle.column(_LISTENS, "weight"))[0] == 2
    splits = make_supervision(bundle, LinkSplit(_LISTENS, labels=True))
    assert splits["test"].anchors.tolist() == [2, 1891]
    assert splits["test"].targets.tolist() == [4488, 3]
    assert splits["train"].num_links + splits["val"].num_links == len(pairs)
    # The script draws the split that a rule of type hash draws from the same links.
    rule = HashSplit(type="hash", fractions=[0.9, 0.1, 0.0])
    again = make_supervision(bundle, LinkSplit(_LISTENS, rule=rule))
    assert np.array_equal(again["val"].targets, splits["val"].targets)


def test_fb15k237_tables(tmp_path: Path) -> None:
    bundle = _make(
        "fb15k237",
        tmp_path,
        train2id="3\n0 1 0\n2 3 10\n4 5 2\n",
        valid2id="1\n6 7 2\n",
        test2id="1\n14540 8 10\n",
    )
    assert [relation for _, relation, _ in bundle.edge_types] == ["r0", "r2", "r10"]
    edge_type = ("entity", "r10", "entity")
    assert bundle.csc(edge_type).indices.tolist() == [2, 14540]
    assert np.asarray(bundle.column(edge_type, "split")).tolist() == [1, 3]
