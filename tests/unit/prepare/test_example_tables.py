"""Examples that write their own tables."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np

from raygnn.config.data_section import HashSplit
from raygnn.data.bundle import Bundle
from raygnn.data.ingest.build_bundle import ingest
from raygnn.data.links.split import LinkSplit
from raygnn.data.links.supervision import make_supervision

_EXAMPLES = Path(__file__).parents[3] / "examples"
_LISTENS = ("user", "listens", "artist")


def _make(example: str, folder: Path, **files: str) -> Bundle:
    for name, text in files.items():
        (folder / (name if "." in name else f"{name}.txt")).write_text(text)
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


def test_facebook_tables(tmp_path: Path) -> None:
    files = {
        "edges.csv": "id_1,id_2\n0,2\n2,0\n1,1\n1,2\n",
        "target.csv": "id,page_type\n0,tvshow\n2,company\n1,tvshow\n",
        "features.json": '{"1": [3, 3], "0": [], "2": [1, 4]}',
    }
    bundle = _make("facebook", tmp_path, **files)
    csc = bundle.csc(("node", "to", "node"))
    assert csc.indptr.tolist() == [0, 1, 2, 4]
    assert csc.indices.tolist() == [2, 2, 0, 1]
    assert bundle.columns("node")["y"].class_names == ("company", "tvshow")
    assert bundle.column("node", "y").tolist() == [1, 1, 0]
    assert [np.flatnonzero(x).tolist() for x in bundle.column("node", "x")] == [[], [3], [1, 4]]
