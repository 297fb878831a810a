"""Top-k neighbors are those of a brute-force search, ties and known links included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import raygnn.infer
from raygnn.models import decoders
from raygnn.models.decoders import top_k
from tests.errors import raises
from tests.numerics.infer.conftest import Trained
from tests.numerics.infer.test_nodes import EXACT, SAMPLED, predict, read
from tests.tiers import slow


@settings(max_examples=60)
@given(data=st.data(), size=st.integers(1, 9))
def test_it_is_a_stable_sort_of_all_scores(data: st.DataObject, size: int) -> None:
    num_anchors, num_candidates = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 20))
    k = data.draw(st.integers(1, num_candidates))
    few = st.integers(-1, 1)  # few values give many ties
    rows = data.draw(st.lists(few, min_size=2 * num_anchors, max_size=2 * num_anchors))
    others = data.draw(st.lists(few, min_size=2 * num_candidates, max_size=2 * num_candidates))
    anchors = torch.tensor(rows).float().view(-1, 2)
    candidates = torch.tensor(others).float().view(-1, 2)
    hidden = torch.rand(num_anchors, num_candidates) < 0.3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoders, "_MAX_CANDIDATES", size)
        scores, places = top_k(
            anchors,
            lambda first, last: candidates[first:last],
            num_candidates,
            k,
            lambda a, c: a @ c.T,
            lambda first, last: hidden[:, first:last],
        )
    every = (anchors @ candidates.T).masked_fill(hidden, -torch.inf)
    expected = every.argsort(dim=1, descending=True, stable=True)[:, :k]
    assert torch.equal(scores, every.gather(1, expected))
    assert torch.equal(places, expected)


def test_scores_that_are_not_numbers_are_told():
    rows = torch.full((2, 3), torch.nan)
    with raises("infer-not-finite"):
        top_k(rows, lambda first, last: rows[first:last], 2, 1, lambda a, c: a @ c.T)


def _top_k(trained: Trained, out: Path, k: int, anchors: Any, **args: Any) -> Any:
    overrides = ["--data.uri", trained.plain_graph, "--scaling.num_workers", "0"]
    overrides += args.pop("overrides", EXACT)
    return raygnn.infer.top_k(trained.run, out, k, anchors, overrides, **args)


def _brute_force(users: dict, items: dict, anchors: list, k: int, known: set) -> list[tuple]:
    rows = []
    vectors = dict(zip(users["id"].tolist(), users["embedding"].astype(np.float64), strict=True))
    for anchor in anchors:
        found = [
            (-np.float32(vectors[anchor] @ vector.astype(np.float64)), item)
            for item, vector in zip(items["id"].tolist(), items["embedding"], strict=True)
            if (anchor, item) not in known
        ]
        for rank, (score, item) in enumerate(sorted(found)[:k], start=1):
            rows.append((anchor, item, float(-score), rank))
    return rows


@pytest.mark.parametrize("overrides", [EXACT, [*SAMPLED, "--loader.eval_batch_size", "6"]])
@pytest.mark.parametrize("filter_known", [True, *slow(False)])
def test_neighbors_are_those_of_the_written_embeddings(
    link_model, tmp_path, overrides, filter_known
):
    anchors = [31, 2, 17, 39, 2]
    embeddings = predict(link_model, tmp_path / "embeddings", overrides)
    args = {"filter_known": filter_known, "overrides": overrides}
    written = _top_k(link_model, tmp_path / "neighbors", 24, anchors, **args)
    found = pq.read_table(written.table_uri("neighbors"))
    links = pq.read_table(Path(link_model.graph) / "edges" / "buys")
    known = set(zip(*(links.column(i).to_pylist() for i in range(2)), strict=True))
    expected = _brute_force(
        read(embeddings, "user"),
        read(embeddings, "item"),
        [31, 2, 17, 39],
        24,
        known if filter_known else set(),
    )
    assert found.column_names == ["anchor_id", "neighbor_id", "score", "rank"]
    assert [tuple(row.values()) for row in found.to_pylist()] == expected
    if filter_known:
        assert found.num_rows < 96  # users who bought some have less than 24 left


def test_columns_of_the_neighbors_table_are_given(node_model, tmp_path):
    nodes = pq.read_table(Path(node_model.plain_graph) / "nodes" / "node")
    features = nodes.column_names[1]
    expected = dict(zip(*(nodes.column(i).to_pylist() for i in range(2)), strict=True))
    written = _top_k(node_model, tmp_path / "out", 5, ["n004", "n100"], columns=[features])
    found = pq.read_table(written.table_uri("neighbors")).to_pylist()
    assert [row[features] for row in found] == [expected[row["neighbor_id"]] for row in found]
    graph = raygnn.load(node_model.run).open(node_model.plain_graph)
    (neighbor,) = graph.top_k(["n004"], 1, columns=[features]).arrow.to_pylist()
    assert neighbor[features] == expected[neighbor["neighbor_id"]]
    with raises("infer-columns-unknown", "'title'", features):
        graph.top_k(["n004"], 1, columns=["title"])
    with raises("infer-columns-no-tables"):
        raygnn.load(node_model.run).open(graph.bundle).top_k(["n004"], 1, columns=[features])


def test_a_node_is_not_its_own_neighbor(node_model, tmp_path):
    written = _top_k(node_model, tmp_path / "out", 149, ["n004", "n100"])
    found = read(written, "neighbors")
    assert len(found["rank"]) == 2 * 149
    assert not (found["anchor_id"] == found["neighbor_id"]).any()
    assert len(set(found["neighbor_id"][:149])) == 149


def test_equal_embeddings_go_by_id(link_model, tmp_path, monkeypatch):
    # All items have one embedding: whatever the order of the table, ids ascend.
    from raygnn.models.hetero_attention import HGT

    forward = HGT.readout
    monkeypatch.setattr(
        HGT, "readout", lambda *args: {t: x * 0 + 1 for t, x in forward(*args).items()}
    )
    written = _top_k(link_model, tmp_path / "out", 4, [5, 6])
    found = read(written, "neighbors")
    assert found["neighbor_id"].tolist() == [0, 1, 2, 3] * 2
    assert found["rank"].tolist() == [1, 2, 3, 4] * 2


def test_types_and_scores_may_be_chosen(link_model, tmp_path):
    plain = read(_top_k(link_model, tmp_path / "plain", 3, [1, 2]), "neighbors")
    decoder = read(
        _top_k(link_model, tmp_path / "decoder", 3, [1, 2], score="decoder"), "neighbors"
    )
    assert plain["score"].tolist() == decoder["score"].tolist()
    args = {"anchor_type": "item", "target_type": "item"}
    items = read(_top_k(link_model, tmp_path / "items", 3, [1, 2], **args), "neighbors")
    assert items["neighbor_id"].max() < 25
    args = {"anchor_type": "item", "target_type": "user", "filter_known": True}
    users = read(_top_k(link_model, tmp_path / "users", 3, [1], **args), "neighbors")
    links = pq.read_table(Path(link_model.graph) / "edges" / "buys")
    buyers = {
        u for u, i in zip(*(links.column(c).to_pylist() for c in (0, 1)), strict=True) if i == 1
    }
    assert not buyers & set(users["neighbor_id"].tolist())


def test_anchors_come_from_files(link_model, node_model, tmp_path):
    expected = read(_top_k(link_model, tmp_path / "list", 2, [9, 4]), "neighbors")
    pq.write_table(pa.table({"user": [9, 4], "id": [1, 1]}), tmp_path / "anchors.parquet")
    (tmp_path / "anchors.csv").write_text("user\n9\n4\n9\n")
    (tmp_path / "anchors.tsv").write_text("user\tname\n9\ta\n4\tb\n")
    for name, column in (("parquet", "user"), ("csv", None), ("tsv", "user")):
        file = tmp_path / f"anchors.{name}"
        written = _top_k(link_model, tmp_path / name, 2, file, anchors_column=column)
        found = read(written, "neighbors")
        assert all(np.array_equal(found[key], expected[key]) for key in expected)
    ids = pa.array(["n003", "n001"]).dictionary_encode()
    pq.write_table(pa.table({"paper": ids}), tmp_path / "names.parquet")
    written = _top_k(node_model, tmp_path / "names", 1, tmp_path / "names.parquet")
    assert read(written, "neighbors")["anchor_id"].tolist() == ["n003", "n001"]


@pytest.mark.parametrize(
    ("anchors", "column", "message"),
    [
        ("two.csv", None, ("infer-ids-column", "a, b", "--anchors")),
        ("two.csv", "c", ("infer-ids-column", "--anchors", "c")),
        ("two.csv", "a", ("infer-ids-unknown", 2, 3, "user", "77, 78")),
        ("empty.csv", None, ("infer-ids-empty",)),
    ],
)
def test_wrong_anchors_are_told(link_model, tmp_path, anchors, column, message):
    (tmp_path / "two.csv").write_text("a,b\n77,1\n1,1\n78,1\n")
    (tmp_path / "empty.csv").write_text("id\n")
    with raises(*message):
        _top_k(link_model, tmp_path / "out", 2, tmp_path / anchors, anchors_column=column)
    assert not (tmp_path / "out").exists()
