"""Any batch is predicted: of any rows, entities without edges, and edge types without edges."""

from __future__ import annotations

import errno
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import raygnn
import raygnn.events
import raygnn.infer
import raygnn.monitor
import raygnn.replay
import raygnn.train
from raygnn.data.checksums import Seal
from raygnn.data.compactions import newest_tables
from raygnn.data.event_log import Entry, EventLog
from raygnn.inference.open_graph import OpenGraph
from raygnn.models.hetero import CONVS
from raygnn.serving import compaction
from raygnn.serving.answers import Answers
from raygnn.serving.compaction import overrides_of
from raygnn.serving.messages import (
    Embed,
    Explain,
    ExplainedRows,
    NewRows,
    Predict,
    Question,
    Refused,
    Score,
    TopK,
)
from raygnn.serving.records import Recorder
from raygnn.trained_model import TrainedModel
from tests.errors import raises
from tests.numerics.infer.conftest import dates
from tests.small_runs import small_config
from tests.tiers import slow

NUM_USERS, NUM_ITEMS, NUM_DAYS = 14, 6, 100
#: Users without any edge: a known one, and one of the new ones.
ALONE, NEW = NUM_USERS - 3, [NUM_USERS - 2, NUM_USERS - 1]
ASKED = np.array([1, 30, 60, 90])  # on the first day, hardly anything is known

_MANIFEST: dict[str, Any] = {
    "format": "raygnn/graph-v1",
    "node_types": {
        "user": {"files": "user.parquet", "id": "id", "features": {"x": "x"}, "labels": {"y": "y"}},
        "item": {"files": "item.parquet", "id": "id", "features": {"x": "x"}},
        "ticket": {"files": "ticket.parquet", "id": "id", "features": {"x": "x"}, "time": "day"},
    },
    "edge_types": [
        # Rare edges are missing in most batches, the last type has no edge in any graph.
        *(
            {
                "type": ["user", name, "item"],
                "files": f"{name}.parquet",
                **{"source": "user", "target": "item", "time": "day"},
                "features": {"edge_attr": {"columns": columns}},
                **({"labels": {"stars": "stars"}} if name == "buys" else {}),
            }
            for name, columns in {"buys": ["a", "b"], "returns": ["a"], "loses": ["a"]}.items()
        ),
        {"type": ["ticket", "by", "user"], "files": "by.parquet", "source": "s", "target": "t"},
        {
            "type": ["item", "like", "item"],
            "files": "like.parquet",
            **{"source": "s", "target": "t", "features": {"edge_attr": {"columns": ["a"]}}},
        },
    ],
    "training_tables": {
        "asked": {
            "files": "asked.parquet",
            **{"node_type": "user", "node": "user", "time": "day", "split": "split"},
            "labels": {"y": "y"},
        }
    },
}


def _tables() -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(0)

    def purchases(num: int) -> pd.DataFrame:
        user = rng.choice(np.setdiff1d(np.arange(NUM_USERS), [ALONE, NEW[1]]), num)
        columns: dict[str, Any] = {"user": user, "item": rng.integers(0, NUM_ITEMS, num)}
        columns["day"] = dates(np.sort(rng.integers(2, NUM_DAYS, num)))
        columns |= {name: rng.random(num, np.float32) for name in ("a", "b", "stars")}
        return pd.DataFrame(columns)

    buys = purchases(60)
    buys.loc[[30, 59], "user"] = NEW[0]  # a new user with edges, of which one is the latest event
    buys.loc[59, "day"] = dates(np.array([NUM_DAYS + 5]))[0]
    tickets = 20
    users, items = rng.random((NUM_USERS, 2), np.float32), rng.random(NUM_ITEMS, np.float32)
    by = rng.integers(0, ALONE, tickets)
    asked = pd.DataFrame(
        {
            "user": np.repeat(np.arange(NUM_USERS), len(ASKED)),
            "day": dates(np.tile(ASKED, NUM_USERS)),
            "y": rng.integers(0, 2, NUM_USERS * len(ASKED)),
            "split": np.tile(["train", "train", "val", "test"], NUM_USERS),
        }
    )
    return {
        "user": pd.DataFrame(
            {"id": np.arange(NUM_USERS), "x": list(users), "y": np.arange(NUM_USERS) % 3}
        ),
        "item": pd.DataFrame({"id": np.arange(NUM_ITEMS), "x": items}),
        "ticket": pd.DataFrame(
            {
                "id": np.arange(tickets),
                "x": rng.random(tickets, np.float32),
                "day": dates(rng.integers(2, NUM_DAYS, tickets)),
            }
        ),
        "buys": buys,
        "returns": purchases(2),
        "loses": purchases(0),
        "by": pd.DataFrame({"s": np.arange(tickets), "t": by}),
        "like": pd.DataFrame({"s": [0, 1], "t": [1, 2], "a": np.float32([0.5, 0.1])}),
        "asked": asked,
    }


def _write(folder: Path, tables: dict[str, pd.DataFrame]) -> str:
    folder.mkdir()
    for name, table in tables.items():
        pq.write_table(pa.Table.from_pandas(table), folder / f"{name}.parquet")
    (folder / "graph.yaml").write_text(yaml.safe_dump(_MANIFEST))
    return str(folder)


def _is_of(tables: dict[str, pd.DataFrame], name: str, users: list[int]) -> pd.Series:
    column = {"user": "id", "by": "t"}.get(name, "user")
    table = tables[name]
    return table[column].isin(users) if column in table else pd.Series(False, table.index)


TIMED = {"data__splits": {"type": "temporal"}, "sampling__temporal": {}}
BUYS = "user__buys__item"
TASKS: dict[str, dict[str, Any]] = {
    "rows": {"task": {"type": "node_classification", "args": {"table": "asked"}}},
    "nodes": {
        "task": {"type": "node_classification", "args": {"blend": False, "target": "user"}},
        "data__splits": {"type": "hash", "fractions": [0.4, 0.3, 0.3]},
    },
    "edges": {
        "task": {"type": "edge_prediction", "args": {"edge_type": BUYS, "inputs": []}},
        **TIMED,
    },
    "links": {"task": {"type": "link_prediction", "args": {"edge_type": BUYS}}, **TIMED},
}
MODELS = {
    **{conv: {"type": "Hetero", "args": {"conv": conv}} for conv in CONVS},
    **{name: {"type": name, "args": {}} for name in ("HGT", "RGCN", "SimpleHGN")},
}
FAST = [("rows", "GraphSAGE"), ("edges", "GATv2"), ("links", "HGT")]
OTHERS = [(task, model) for task in TASKS for model in MODELS if (task, model) not in FAST]


@dataclass(frozen=True)
class Case:
    """A model of the graph without new users, the graph with them, and their rows."""

    task: str
    run: str
    old: str
    whole: str
    new: NewRows
    asked: pd.DataFrame

    @cached_property
    def model(self) -> TrainedModel:
        return raygnn.load(self.run)

    @cached_property
    def graph(self) -> OpenGraph:
        return self.model.open(self.old)

    @cached_property
    def answers(self) -> Answers:
        return Answers(self.model, self.old)


@pytest.fixture(scope="module", params=[*FAST, *slow(*((case,) for case in OTHERS))], ids="-".join)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    task, model = request.param
    folder, tables = tmp_path_factory.mktemp("any-batch"), _tables()
    is_new = {name: _is_of(tables, name, NEW) for name in tables}
    old = _write(folder / "old", {name: table[~is_new[name]] for name, table in tables.items()})
    new = {name: tables[name][is_new[name]].to_dict("records") for name in ("user", "buys")}
    config = small_config(
        folder,
        data__uri=old,
        data__cache_dir=str(folder / "cache"),
        **TASKS[task],
        model=MODELS[model],
        model__args__hidden_channels=8,
        metrics=[],
        sampling__fanouts=[50, 50],
        loader={"batch_size": 2, "eval_batch_size": 1},
        training__max_steps=3,
        scaling__num_workers=0,
    )
    metrics = raygnn.train.fit(config).metrics
    assert np.isfinite([value for name, value in metrics.items() if name.startswith("test/")]).all()
    whole = _write(folder / "whole", tables)
    rows = NewRows(nodes={"user": new["user"]}, edges={BUYS: new["buys"]})
    return Case(task, str(folder / "run"), old, whole, rows, tables["asked"][~is_new["asked"]])


def _answer(answers: Answers, question: Question) -> list[dict[str, Any]]:
    (found,) = answers.answer([question])
    assert not isinstance(found, Refused), found
    return found


def _values(rows: list[dict[str, Any]], column: str) -> np.ndarray:
    return np.array([row[column] for row in rows])


def test_any_rows_are_predicted_as_among_all(case: Case) -> None:
    if case.task != "rows":
        pytest.skip("nodes and pairs are below")
    graph, answers, rng = case.graph, case.answers, np.random.default_rng(0)
    asked = case.asked[["user", "day"]]
    every = graph.predict(rows=asked, what="probabilities")["probability"]
    alone = np.flatnonzero(asked["user"] == ALONE)
    for chosen in (alone[:1], alone, *(rng.permutation(len(asked))[:size] for size in (1, 3, 9))):
        rows = asked.iloc[chosen]
        found = graph.predict(rows=rows, what="probabilities")["probability"]
        assert found == pytest.approx(every[chosen], rel=1e-4, abs=1e-5)
        times = [day.isoformat() for day in rows["day"]]
        question = Predict(nodes=rows["user"].tolist(), time=times, what="probabilities")
        assert _values(_answer(answers, question), "probability") == pytest.approx(found, abs=1e-5)


def test_any_nodes_and_pairs_are_predicted_as_among_all(case: Case) -> None:
    graph, answers, rng = case.graph, case.answers, np.random.default_rng(1)
    every = graph.embed(node_type="user")["embedding"]
    for chosen in ([ALONE], [0], rng.permutation(NEW[0])[:5]):
        users = np.asarray(chosen)
        found = graph.embed(users, node_type="user")["embedding"]
        assert found == pytest.approx(every[users], rel=1e-4, abs=1e-5)
        question = Embed(nodes=users.tolist(), node_type="user")
        assert _values(_answer(answers, question), "embedding") == pytest.approx(found, abs=1e-4)
        pairs = [(int(user), int(user) % NUM_ITEMS) for user in users]
        if case.task in ("edges", "links"):
            scores = graph.score(pairs)["score"]
            answered = _values(_answer(answers, Score(pairs=pairs)), "score")
            assert answered == pytest.approx(scores, rel=1e-3, abs=1e-4)
        if case.task == "edges":
            predicted = graph.predict(pairs)["prediction"]
            assert np.isfinite(predicted).all()
            answer = _answer(answers, Predict.parse(json.dumps({"pairs": pairs}).encode()))
            assert _values(answer, "prediction") == pytest.approx(predicted, rel=1e-3, abs=1e-4)
            assert [(row["source_id"], row["target_id"]) for row in answer] == pairs
            (explained,) = _answer(answers, Explain(nodes=pairs[:1]))
            assert (explained["from_id"], explained["to_id"]) == pairs[0]
            ExplainedRows.model_validate({"rows": [explained]})
        if case.task == "links":
            assert len(_answer(answers, TopK(anchors=users.tolist(), k=2))) == 2 * len(users)


def test_answers_for_edges_are_monitored(case: Case, tmp_path: Path) -> None:
    if case.task != "edges":
        pytest.skip("others are in test_answers.py")
    edges = pd.read_parquet(Path(case.old) / "buys.parquet")[["user", "item", "stars"]]
    question = Predict(nodes=list(zip(edges["user"], edges["item"], strict=True)))
    answer, recorder = _answer(case.answers, question), Recorder(str(tmp_path / "a.jsonl"))
    recorder.record_question(question, answer)
    recorder.close()
    edges.columns = ["source_id", "target_id", "stars"]
    edges.to_csv(tmp_path / "labels.csv", index=False)
    how = {"labels": tmp_path / "labels.csv", "least_rows": 1}
    figures = raygnn.monitor.monitor(case.run, tmp_path / "a.jsonl", case.old, **how)
    found = {(figure.name, figure.of.split()[0]): figure.value for figure in figures if figure.of}
    expected = np.abs(
        _values(answer, "prediction")
        - edges.groupby(["source_id", "target_id"])["stars"].transform("last")
    )
    assert found["raygnn_served_metric", "mae"] == pytest.approx(expected.mean(), rel=1e-6)
    assert found["raygnn_drift_psi", "prediction"] == pytest.approx(0, abs=1e-6)
    assert {"user", "item"} == {of for name, of in found if name == "raygnn_cold_share"}


@pytest.mark.parametrize("users", [NEW, NEW[:1], NEW[1:]], ids=["both", "with-edges", "alone"])
def test_new_nodes_are_those_of_the_whole_tables(case: Case, users: list[int]) -> None:
    """With edges and without, in Python and in a server."""
    nodes = {"user": [row for row in case.new.nodes["user"] if row["id"] in users]}
    edges = {BUYS: [row for row in case.new.edges[BUYS] if row["user"] in users]}
    extended, whole = case.model.extended(case.old, nodes, edges), case.model.open(case.whole)
    expected = whole.embed(users, node_type="user")["embedding"]
    found = extended.embed(users, node_type="user")["embedding"]
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
    new = NewRows(nodes=nodes, edges=edges)
    rows = _answer(case.answers, Embed(nodes=users, node_type="user", new=new))
    assert _values(rows, "embedding") == pytest.approx(expected, rel=1e-3, abs=1e-4)
    if case.task == "rows":
        at = dates(np.full(len(users), 95))
        asked = {"rows": {"id": users, "time": at}, "what": "probabilities"}
        expected = whole.predict(**asked)["probability"]
        assert extended.predict(**asked)["probability"] == pytest.approx(expected, abs=1e-5)
        times = [str(time) for time in at]
        question = Predict(nodes=users, time=times, what="probabilities", new=new)
        rows = _answer(case.answers, question)
        assert _values(rows, "probability") == pytest.approx(expected, abs=1e-5)


def _questions(case: Case, users: list[int], time: str) -> list[Question]:
    """Of all users, alone and together, and as of a time."""
    embed = [Embed(nodes=users, node_type="user"), Embed(nodes=users[-1:], node_type="user")]
    if case.task != "rows":
        return embed
    return [*embed, *(Predict(nodes=users, time=t, what="probabilities") for t in (time, None))]


def _numbers(answers: Answers, question: Question) -> np.ndarray:
    column = "embedding" if isinstance(question, Embed) else "probability"
    return _values(_answer(answers, question), column)


@pytest.mark.slow
def test_a_followed_log_gives_the_whole_tables(
    case: Case, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows in any portions, with requests and compactions between them."""
    if request.node.callspec.params["case"] not in FAST:
        pytest.skip("one model of each task")
    uri = str(tmp_path / "log")
    if case.task == "edges":
        with raises("serve-follow-edges"):
            Answers(case.model, case.old, follow=uri)
        return
    log = EventLog.create(uri)
    answers = Answers(case.model, case.old, follow=uri)
    first = min(pd.Timestamp(row["day"]) for row in case.new.edges[BUYS])
    known, early = list(range(NEW[0])), (first - pd.Timedelta(days=1)).isoformat()
    past, given = _questions(case, known, early), []
    rows = Entry.of(case.new.nodes, case.new.edges).rows
    ends = [1, len(rows) // 2, len(rows)]
    for first_row, last in zip([0, *ends], ends, strict=False):
        _check_compacted(case, uri, first_row, monkeypatch)
        log.append([Entry((row,), row[1]) for row in rows[first_row:last]])
        answers.catch_up()
        for question in past:
            (answer,) = answers.answer([question])
            given.append((question, answer, answer.version))
        for question, answer in zip(past, answers.answer(past), strict=True):  # in one batch
            column = "embedding" if isinstance(question, Embed) else "probability"
            assert _values(answer, column) == pytest.approx(_numbers(answers, question), abs=1e-5)
    assert {version.position for *_, version in given} == set(ends)
    as_of = [answer for question, answer, _ in given if getattr(question, "time", None)]
    assert all(answer == as_of[0] for answer in as_of)  # no later event changes it
    _check_replayed(case, tmp_path, uri, given)
    restarted = [_restarted(case, uri)]
    _check_compacted(case, uri, ends[-1], monkeypatch)
    restarted.append(_restarted(case, uri))  # which has nothing more to read
    log.append([Entry.of(edges={BUYS: case.new.edges[BUYS][:1]})])
    _check_followed_compaction(case, tmp_path, uri)
    once = tmp_path / "once"  # all rows in one segment
    EventLog.create(str(once)).append([Entry(rows, "all")])
    whole, together = (
        Answers(case.model, case.whole),
        Answers(case.model, case.old, follow=str(once)),
    )
    for question in _questions(case, [*known, *NEW], "2100-01-01"):
        found = _numbers(answers, question)
        assert found == pytest.approx(_numbers(whole, question), rel=1e-4, abs=1e-5)
        np.testing.assert_array_equal(found, _numbers(together, question))
        for again in restarted:
            assert _numbers(again, question) == pytest.approx(found, rel=1e-4, abs=1e-5)
    user = {**case.new.nodes["user"][0], "id": 1_000}
    new = NewRows(
        nodes={"user": [user]}, edges={BUYS: [{**case.new.edges[BUYS][0], "user": NEW[1]}]}
    )
    alone = _answer(answers, Embed(nodes=[1_000, NEW[1]], node_type="user", new=new))
    extended = case.model.extended(case.whole, new.nodes, new.edges)
    expected = extended.embed([1_000, NEW[1]], node_type="user")["embedding"]
    assert _values(alone, "embedding") == pytest.approx(expected, rel=1e-3, abs=1e-4)
    (refused,) = answers.answer([TopK(anchors=[0], k=2)])
    assert isinstance(refused, Refused)
    assert refused.id == "serve-follow-question"


def _check_compacted(case: Case, log: str, position: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is killed or finds no space is not there; a complete one has its rows."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = newest_tables(case.old, log)
    for place, name, fail in ((compaction, "write_parquet", full), (Seal, "write", killed)):
        if position:
            with monkeypatch.context() as patched:
                patched.setattr(place, name, fail)
                with pytest.raises((KeyboardInterrupt, OSError)):
                    raygnn.events.compact(log, case.run, case.old)
    assert newest_tables(case.old, log) == before
    tables = raygnn.events.compact(log, case.run, case.old)
    assert newest_tables(case.old, log)[:2] == (tables, position)
    assert not position or raygnn.events.verify(log) == position


def _restarted(case: Case, log: str) -> Answers:
    """A server that starts with the newest compaction, and reads the rest of the log."""
    tables = newest_tables(case.old, log)
    model = raygnn.load(case.run, overrides_of([], case.old, log, tables.uri))
    return Answers(model, follow=log, start=tables[1:])


def _check_followed_compaction(case: Case, folder: Path, log: str) -> None:
    """Rows that the tables of a compaction contain are not read again from the log."""
    if case.task != "rows":
        return
    tables = newest_tables(case.old, log).uri
    keys = overrides_of([], case.old, log, tables)
    opened = raygnn.load(case.run, keys).followed(tables, log)
    case.asked[["user", "day"]].to_csv(folder / "rows.csv", index=False)
    asked = [
        "--rows",
        str(folder / "rows.csv"),
        "--out",
        str(folder / "out.parquet"),
        "--overwrite",
    ]
    assert raygnn.infer.main([case.run, *asked, "--follow", log, *keys]) == 0
    whole = case.model.followed(case.old, log)
    column = "prediction"
    expected = whole.predict(rows=case.asked[["user", "day"]])[column]
    np.testing.assert_array_equal(
        opened.predict(rows=case.asked[["user", "day"]])[column], expected
    )
    written = pq.read_table(folder / "out.parquet")[column].to_pylist()
    np.testing.assert_array_equal(written, expected)
    for edge_type in whole.bundle.edge_types:
        assert opened.bundle.num_edges(edge_type) == whole.bundle.num_edges(edge_type)


def _check_replayed(case: Case, folder: Path, log: str, given: list[Any]) -> None:
    """Answers are computed again bit for bit, by a server and by infer."""
    answers, recorder = folder / "answers.jsonl", Recorder(str(folder / "answers.jsonl"))
    for question, answer, _ in given[::-1]:
        body = question.model_dump_json(exclude_unset=True).encode()
        recorder.record(type(question).__name__.lower(), body, answer)
    recorder.close()
    assert raygnn.replay.replay(case.run, answers, case.old, follow=log) == len(given)
    lines = answers.read_text().splitlines()
    changed = json.loads(lines[1])
    changed["rows"][0][next(name for name in changed["rows"][0] if name != "id")] = 0
    answers.write_text("\n".join([lines[0], json.dumps(changed), ""]))
    with raises("replay-differs", 1, 2, "line 2") as differing:
        raygnn.replay.replay(case.run, answers, case.old, follow=log)
    assert differing.value.exit_status == 1
    if case.task != "rows":
        return
    question, answer, version = next(each for each in given[::-1] if each[0].options().get("time"))
    rows = pd.DataFrame({"user": question.nodes, "day": question.times})
    rows.to_csv(folder / "rows.csv", index=False)
    asked = ["--rows", str(folder / "rows.csv"), "--out", str(folder / "out.parquet")]
    asked += ["--follow", log, "--position", str(version.position), "--what", "probabilities"]
    assert raygnn.infer.main([case.run, *asked, "--data.uri", case.old]) == 0
    written = pq.read_table(folder / "out.parquet")["probability"].to_pylist()
    assert written == [row["probability"] for row in answer]
    opened = case.model.followed(case.old, log, version.position)
    again = opened.predict(rows=rows.astype({"day": "datetime64[us]"}), what="probabilities")
    assert again["probability"].tolist() == written
