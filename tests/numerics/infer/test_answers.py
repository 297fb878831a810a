"""A server's answers are those of the model in memory, however requests are batched."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from pydantic import BaseModel

import raygnn
import raygnn.monitor
import raygnn.replay
from raygnn.data.edge_types import edge_type_name
from raygnn.data.event_log import Entry, EventLog
from raygnn.data.manifest import Manifest
from raygnn.serving.answers import Answers
from raygnn.serving.messages import (
    Embed,
    EmbeddingRows,
    Neighbors,
    PairScores,
    Predict,
    Predictions,
    Question,
    Refused,
    Score,
    TopK,
)
from raygnn.serving.records import Recorder

#: Of float32 sums in another order.
CLOSE = {"rel": 1e-4, "abs": 1e-5}


@pytest.fixture(scope="module")
def papers(node_model) -> Answers:
    return Answers(raygnn.load(node_model.run), node_model.plain_graph, precomputed=True)


@pytest.fixture(scope="module")
def shop(link_model) -> Answers:
    return Answers(raygnn.load(link_model.run), link_model.graph, precomputed=True)


def rows(answers: Answers, question: Question, schema: type[BaseModel]) -> list[dict[str, Any]]:
    (answer,) = answers.answer([question])
    assert not isinstance(answer, Refused), answer
    schema.model_validate({"rows": answer})
    return answer


def test_precomputed_answers_are_those_of_all_nodes(papers, node_model):
    graph = raygnn.load(node_model.run).open(node_model.plain_graph)
    every = {row["id"]: row for row in graph.predict().arrow.to_pylist()}
    nodes = ["n007", "n001", "n007"]
    predicted = rows(papers, Predict(nodes=nodes), Predictions)
    # A product of matrices may round otherwise for another number of rows.
    for row, expected in zip(predicted, map(every.get, nodes), strict=True):
        assert row == {**expected, "probability": pytest.approx(expected["probability"], rel=1e-6)}
    found = rows(papers, Predict(nodes=nodes, what="probabilities"), Predictions)
    assert [max(row["probability"]) for row in found] == pytest.approx(
        [every[node]["probability"] for node in nodes]
    )
    table = graph.embed().arrow.to_pylist()
    assert rows(papers, Embed(nodes=["n001"]), EmbeddingRows) == [
        row for row in table if row["id"] == "n001"
    ]


def test_links_are_scored_and_ranked_as_in_memory(shop, link_model):
    graph = raygnn.load(link_model.run).open(link_model.graph)
    graph.precompute()
    pairs = [(0, 3), (5, 1)]
    expected = graph.score(pairs).arrow.to_pylist()
    assert rows(shop, Score(pairs=pairs), PairScores) == expected
    question = TopK(anchors=[4, 0, 4], k=3, filter_known=True)
    found = rows(shop, question, Neighbors)
    assert found == graph.top_k([4, 0], 3, filter_known=True).arrow.to_pylist()
    assert [row["anchor_id"] for row in found] == [4, 4, 4, 0, 0, 0]


def test_only_columns_of_the_servers_choice_are_given(node_model):
    graph = node_model.plain_graph
    nodes = pq.read_table(f"{graph}/nodes/node")
    name, column = nodes.column_names[0], nodes.column_names[1]
    given = Answers(raygnn.load(node_model.run), graph, precomputed=True, columns=[column])
    (row,) = rows(given, TopK(anchors=["n004"], k=1, columns=[column]), Neighbors)
    place = nodes[name].to_pylist().index(row["neighbor_id"])
    assert row[column] == nodes[column][place].as_py()
    (refused,) = given.answer([TopK(anchors=["n004"], k=1, columns=[name])])
    assert refused.id == "serve-columns"


def test_each_question_of_a_batch_is_answered_as_alone(shop):
    questions = [
        TopK(anchors=[1, 2], k=2),
        Score(pairs=[(0, 3)]),
        TopK(anchors=[2, 3], k=2),
        TopK(anchors=[2], k=1),
        Embed(nodes=[1, 0], node_type="item"),
        Score(pairs=[(5, 1), (0, 3)]),
        Embed(nodes=[0], node_type="user"),
        Score(pairs=[(0, 3)], score="inner_product"),
    ]
    together = shop.answer(questions)
    assert together == [shop.answer([question])[0] for question in questions]


def test_pairs_are_predicted_by_models_of_edges_only(papers):
    (refused,) = papers.answer([Predict(nodes=[("n001", "n002")])])
    assert refused.id == "serve-pairs"


def test_a_wrong_question_spoils_no_other_of_its_batch(papers):
    questions = [Predict(nodes=nodes) for nodes in (["n001"], ["n002", "nobody"], [7], ["n003"])]
    good, unknown, kind, last = papers.answer(questions)
    assert [good, last] == [papers.answer([questions[place]])[0] for place in (0, 3)]
    assert isinstance(unknown, Refused)
    assert unknown.id == "infer-ids-unknown"
    assert "'nobody'" in unknown.message
    assert isinstance(kind, Refused)
    assert kind.id == "nodes-id-kind"


def test_a_failing_computation_fails_the_bad_question_alone(papers, monkeypatch, caplog):
    predict = papers._near.predict

    def fail_for_one(items: Any, **options: Any) -> Any:
        if "n002" in items:
            raise RuntimeError("a defect")
        return predict(items, **options)

    monkeypatch.setattr(papers._near, "predict", fail_for_one)
    questions = [Predict(nodes=[f"n{number:03}"]) for number in range(5)]
    found = papers.answer(questions)
    failed = found.pop(2)
    assert isinstance(failed, Refused)
    assert (failed.id, failed.is_question_wrong) == ("serve-failed", False)
    assert "a defect" in caplog.text
    assert [answer[0]["id"] for answer in found] == ["n000", "n001", "n003", "n004"]


def test_a_refusal_shows_little_of_long_ids(papers):
    names = [f"{number}'\n{'long' * 200}" for number in range(9)]
    (found,) = papers.answer([Predict(nodes=names)])
    assert isinstance(found, Refused)
    assert found.id == "infer-ids-unknown"
    assert "longlong" in found.message
    assert found.message.count("long") < 25


def test_what_the_model_does_not_give_is_refused(papers, shop):
    asked = [
        (papers, TopK(anchors=["n001"], k=150), "infer-top-k"),
        (papers, Score(pairs=[("n001", "n002")], score="decoder"), "infer-score-no-decoder"),
        (papers, Embed(nodes=["n001"], node_type="author"), "infer-node-type-unknown"),
        (shop, Predict(nodes=[1]), "infer-what-links"),
        (shop, Score(pairs=[("a", 1)]), "nodes-id-kind"),
        (shop, Score(pairs=[(1, 1), ("a", 1)]), "infer-ids-kinds"),
    ]
    for answers, question, id in asked:
        (found,) = answers.answer([question])
        assert isinstance(found, Refused), question
        assert found.id == id


def test_sampled_answers_with_fanouts_that_take_all_are_exact(node_model, papers):
    model = raygnn.load(node_model.run, ["--sampling.fanouts", "[-1, -1]"])
    sampled = Answers(model, node_model.plain_graph)
    nodes = ["n007", "n001"]
    found = rows(sampled, Embed(nodes=nodes), EmbeddingRows)
    exact = rows(papers, Embed(nodes=nodes), EmbeddingRows)
    for got, expected in zip(found, exact, strict=True):
        assert got["embedding"] == pytest.approx(expected["embedding"], **CLOSE)
    question = TopK(anchors=nodes, k=4)
    assert rows(sampled, question, Neighbors) == rows(papers, question, Neighbors)


def test_a_sampled_answer_encodes_the_nodes_that_are_asked_for_alone(node_model, monkeypatch):
    model = raygnn.load(node_model.run)
    answers = Answers(model, node_model.plain_graph)
    encoder, seeds = model.module.encoder, []
    encoder.register_forward_hook(lambda _, batch, out: seeds.append(len(batch[0].seed_index)))
    rows(answers, Predict(nodes=["n007", "n001", "n007"]), Predictions)
    assert seeds == [2]


def test_a_model_in_time_answers_as_of_a_moment(temporal_links):
    model = raygnn.load(temporal_links.run)
    graph = model.open(temporal_links.graph, as_of="1970-02-20")
    answers = Answers(model, temporal_links.graph, precomputed=True, as_of="1970-02-20")
    expected = graph.top_k([3], 5, filter_known=True).arrow.to_pylist()
    found = rows(answers, TopK(anchors=[3], k=5, filter_known=True), Neighbors)
    assert found == expected
    latest = Answers(model, temporal_links.graph)
    question = TopK(anchors=[3], k=5, filter_known=True, time="1970-02-20")
    other = question.model_copy(update={"time": "1970-02-21"})
    first, second = latest.answer([question, other])
    assert first == expected
    assert second != expected
    (refused,) = latest.answer([question.model_copy(update={"time": "soon"})])
    assert refused.id == "infer-as-of"
    every = graph.embed(node_type="item").arrow.to_pylist()
    assert rows(answers, Embed(nodes=[2], node_type="item"), EmbeddingRows) == [every[2]]


def test_recorded_answers_are_monitored(node_model, tmp_path, capsys):
    """Answers for nodes as in training are no alarm; those with other labels, and others, are."""
    path, graph = (
        str(tmp_path / "answers.jsonl"),
        raygnn.load(node_model.run).open(node_model.graph),
    )
    answers, recorder = Answers(raygnn.load(node_model.run), node_model.graph), Recorder(path)
    ids = graph.bundle.ids("node").to_pylist()
    recorder.record_question(Predict(nodes=ids), *answers.answer([Predict(nodes=ids)]))
    recorder.close()
    predicted = [row["prediction"] for row in graph.predict().arrow.to_pylist()]
    others = [predicted[0] if name != predicted[0] else "class-001" for name in predicted]
    for name, labels in (("right", predicted), ("wrong", others)):
        pd.DataFrame({"id": ids, "y": labels}).to_csv(tmp_path / f"{name}.csv", index=False)
    command = [node_model.run, path, "--graph", node_model.graph, "--labels"]
    assert raygnn.monitor.main([*command, str(tmp_path / "right.csv")]) == 0
    assert "served_metric accuracy" in capsys.readouterr().out
    text = (tmp_path / "answers.jsonl.prom").read_text()
    assert 'raygnn_served_metric{metric="accuracy"} 1.0\n' in text
    assert f"raygnn_answered_rows {float(len(ids))}" in text
    assert 'raygnn_drift_psi{column="prediction",of="answers"} 0.0\n' in text
    wrong = [*command, str(tmp_path / "wrong.csv"), "--json"]
    assert raygnn.monitor.main(wrong) == raygnn.monitor.ALARM
    *_, result = map(json.loads, capsys.readouterr().out.splitlines())
    figure = {"figure": "raygnn_drift_psi", "column": "prediction", "of": "answers"}
    assert {**figure, "value": 0.0, "alarm": ""} in result["figures"]
    assert any(each["alarm"] and each.get("metric") == "accuracy" for each in result["figures"])
    page = (tmp_path / "answers.jsonl.html").read_text()
    assert "served_metric" in page
    assert "on the test rows" in page


def test_recorded_neighbors_are_monitored_and_computed_again(link_model, tmp_path, capsys):
    """By links that came later: in a table, or in an event log."""
    path, answers = (
        tmp_path / "answers.jsonl",
        Answers(raygnn.load(link_model.run), link_model.graph),
    )
    recorder = Recorder(str(path))
    for anchors in ([3, 7], [11]):
        question = TopK(anchors=anchors, k=3)
        recorder.record_question(question, *answers.answer([question]))
    recorder.close()
    assert raygnn.replay.replay(link_model.run, path, link_model.graph) == 2
    rows = [row for line in path.read_text().splitlines() for row in json.loads(line)["rows"]]
    near = {a: [r["neighbor_id"] for r in rows if r["anchor_id"] == a] for a in (3, 7, 11)}
    far = next(item for item in range(25) if item not in {*near[3], *near[7], *near[11]})
    # Three of four links are among the neighbors; of the anchors with links, on average 3 / 4.
    links = [(3, near[3][2]), (3, far), (7, near[7][0]), (7, near[7][1])]
    table = pd.DataFrame(links, columns=["anchor_id", "neighbor_id"])
    old = pd.DataFrame({"anchor_id": [11], "neighbor_id": [far], "time": ["2000-01-01"]})
    pd.concat([table.assign(time="2999-01-01"), old]).to_csv(tmp_path / "labels.csv", index=False)
    log = EventLog.create(str(tmp_path / "log"))
    manifest = Manifest.load(link_model.graph)
    (spec,) = (e for e in manifest.edge_types if edge_type_name(e.type) == "user__buys__item")
    edges = [{spec.source: anchor, spec.target: item} for anchor, item in links]
    log.append([Entry.of(edges={"user__buys__item": edges})])
    command = [link_model.run, str(path), "--graph", link_model.graph]
    for known in (["--labels", str(tmp_path / "labels.csv")], ["--follow", log.uri]):
        assert raygnn.monitor.main([*command, *known]) == 0
        text = (tmp_path / "answers.jsonl.prom").read_text()
        assert 'raygnn_served_metric{metric="full_hits@3"} 0.75\n' in text
        assert 'raygnn_served_metric{metric="full_recall@3"} 0.75\n' in text
    assert 'column="user.' in text
    capsys.readouterr()
