"""What a server answers of new nodes is what raygnn.infer writes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import raygnn
import raygnn.infer
from raygnn.data.manifest import Manifest
from raygnn.serving.answers import Answers
from raygnn.serving.messages import Embed, NewRows, Predict, Question, Refused, Score, TopK
from tests.numerics.infer.test_new_nodes import LOCAL, NUM_OLD, grown  # noqa: F401
from tests.unit.sampling.test_extended_stores import json_rows

NEW = list(range(NUM_OLD, 150))


def rows_of(uri: str) -> NewRows:
    """All rows of graph tables, as JSON has them."""
    manifest = Manifest.load(uri)

    def read(table: Any) -> list[dict[str, Any]]:
        files = sorted(Path(uri).glob(table.files[0]))
        return [row for file in files for row in json_rows(pq.read_table(file))]

    return NewRows(
        nodes={name: read(table) for name, table in manifest.node_types.items()},
        edges={"__".join(table.type): read(table) for table in manifest.edge_types},
    )


def answer(answers: Answers, question: Question) -> list[dict[str, Any]]:
    (found,) = answers.answer([question])
    assert not isinstance(found, Refused), found
    return found


@pytest.mark.parametrize("mode", ["precomputed", "whole neighborhoods"])
def test_answers_are_those_of_a_run_with_the_new_tables(grown, tmp_path, mode):  # noqa: F811
    trained, new, _ = grown
    is_precomputed = mode == "precomputed"
    changes = [] if is_precomputed else ["--sampling.fanouts", "[-1, -1]"]
    model = raygnn.load(trained.run, changes)
    answers = Answers(model, trained.graph, precomputed=is_precomputed)
    rows, overrides = rows_of(new), ["--data.uri", trained.graph, *LOCAL]
    for what, kind in (("embeddings", Embed), ("probabilities", Predict)):
        written = raygnn.infer.predict(
            trained.run, tmp_path / what, overrides, new_nodes=new, what=what
        )
        column = {"embeddings": "embedding", "probabilities": "probability"}[what]
        wanted = pq.read_table(written.table_uri("node"))
        options = {"what": what} if kind is Predict else {}
        found = answer(answers, kind(nodes=NEW, new=rows, **options))
        assert [row["id"] for row in found] == wanted["id"].to_pylist() == NEW
        values = np.array([row[column] for row in found])
        expected = np.array(wanted[column].to_pylist())
        assert values == pytest.approx(expected, rel=1e-4, abs=1e-5)
    # A question beside it does not see the new rows.
    alone = answer(answers, Embed(nodes=[0, 1]))
    together = answers.answer([Embed(nodes=NEW, new=rows), Embed(nodes=[0, 1])])
    assert together[1] == alone


def test_scores_and_neighbors_are_of_the_new_embeddings(grown):  # noqa: F811
    trained, new, _ = grown
    model = raygnn.load(trained.run)
    answers, rows = Answers(model, trained.graph, precomputed=True), rows_of(new)
    ids = [NEW[0], NEW[5]]
    anchors = np.array(
        [row["embedding"] for row in answer(answers, Embed(nodes=ids, new=rows))], np.float64
    )
    known = np.array(
        [row["embedding"] for row in answer(answers, Embed(nodes=list(range(NUM_OLD))))], np.float64
    )
    scores = anchors @ known.T
    linked = {(e["source"], e["target"]) for edges in rows.edges.values() for e in edges}
    for filter_known in (False, True):
        asked = TopK(anchors=ids, k=4, new=rows, filter_known=filter_known)
        found = answer(answers, asked)
        for anchor, row in zip(ids, scores, strict=True):
            order = [
                n
                for n in np.argsort(-row, kind="stable").tolist()
                if not (filter_known and (anchor, n) in linked)
            ]
            own = [each for each in found if each["anchor_id"] == anchor]
            assert [each["neighbor_id"] for each in own] == order[:4]
            assert [each["rank"] for each in own] == [1, 2, 3, 4]
            assert [each["score"] for each in own] == pytest.approx(row[order[:4]], rel=1e-4)
    pairs = answer(answers, Score(pairs=[(NEW[0], NEW[5])], new=rows))
    assert pairs[0]["score"] == pytest.approx(float(anchors[0] @ anchors[1]), rel=1e-4)


def refused(answers: Answers, question: Question) -> str:
    (found,) = answers.answer([question])
    assert isinstance(found, Refused), found
    return found.id


def test_what_does_not_fit_is_refused_with_the_reason(grown, link_model):  # noqa: F811
    trained, new, _ = grown
    answers, rows = Answers(raygnn.load(trained.run), trained.graph, precomputed=True), rows_of(new)
    nodes = rows.nodes["node"]
    short = NewRows(nodes={"node": [{**nodes[0], "x": [1.0]}]})
    known = NewRows(nodes={"node": [{**nodes[0], "id": 3}]})
    assert refused(answers, Embed(nodes=[NEW[0]], new=short)) == "rows-feature-width"
    assert refused(answers, Embed(nodes=[3], new=known)) == "rows-id-known"
    assert refused(answers, TopK(anchors=[3], k=2, new=rows)) == "rows-anchor-known"
    assert refused(answers, Embed(nodes=[999], new=rows)) == "infer-ids-unknown"
    shop = Answers(raygnn.load(link_model.run), link_model.graph, precomputed=True)
    learned = NewRows(nodes={"item": [{"id": 1000}]})
    asked = Embed(nodes=[1000], node_type="item", new=learned)
    assert refused(shop, asked) == "rows-not-taken"


@pytest.mark.parametrize(
    ("id", "changes", "edges"),
    [
        ("table-null-values", {"x": None}, {}),
        ("edges-dangling", {}, {"node__to__node": [{"source": 99_999, "target": 3}]}),
    ],
)
def test_a_bad_row_of_a_request_is_not_to_be_dropped(grown, id, changes, edges):  # noqa: F811
    trained, new, _ = grown
    nodes = rows_of(new).nodes["node"]
    rows = NewRows(nodes={"node": [nodes[0], {**nodes[1], **changes}]}, edges=edges)
    model = raygnn.load(trained.run)
    (found,) = Answers(model, trained.graph).answer([Embed(nodes=[NEW[0]], new=rows)])
    assert isinstance(found, Refused)
    assert found.id == id
    assert "on_error" not in found.message
