"""Recorded answers: stability indices, metrics by time, alarms, and Prometheus' text."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from raygnn.serving.messages import AnsweredRows, Predict, Version
from raygnn.serving.records import Recorder, read_records

pytest.importorskip("fastapi")  # an extra
from fastapi.testclient import TestClient

from raygnn.data.manifest import Manifest
from raygnn.loops.tasks.edge_prediction.target import EdgeOutput
from raygnn.loops.tasks.label_target import LabelOutput
from raygnn.loops.tasks.node_classification.target import NodeOutput
from raygnn.monitor import _read_labels
from raygnn.serving.app import build_app
from raygnn.serving.drift import stability_index
from raygnn.serving.event_intake import EventIntake
from raygnn.serving.monitoring import (
    FIGURES,
    AnsweredRow,
    Figure,
    KnownLink,
    Limits,
    prometheus_text,
    served_metrics,
)
from tests.errors import raises

DASHBOARD = Path(__file__).parents[3] / "cluster" / "grafana.json"
DAY_US = 86_400_000_000


def test_a_stability_index_is_that_of_shares_by_bin():
    before, now = ["a"] * 60 + ["b"] * 40, ["a"] * 30 + ["b"] * 70
    expected = (0.3 - 0.6) * np.log(0.3 / 0.6) + (0.7 - 0.4) * np.log(0.7 / 0.4)
    assert stability_index(before, now) == pytest.approx(expected)
    assert stability_index(before, before) == 0
    numbers = np.random.default_rng(0).normal(size=5_000)
    assert stability_index(numbers[:2_500].tolist(), numbers[2_500:].tolist()) < 0.02
    assert stability_index(numbers.tolist(), (numbers + 1).tolist()) > 0.5
    gaps = [None if i % 2 else 1.0 for i in range(100)]
    assert stability_index([1.0] * 100, gaps) > 1


def _answers(day: int, share_right: float) -> tuple[list[AnsweredRow], dict[tuple[int, None], str]]:
    rng = np.random.default_rng(day)
    answers, labels = [], {}
    for number in range(200):
        id, is_right = 1_000 * day + number, rng.random() < share_right
        label = "no" if number % 2 else "yes"
        predicted = label if is_right else {"no": "yes", "yes": "no"}[label]
        row = {"id": id, "prediction": predicted, "probability": 0.6 + 0.3 * rng.random()}
        answers.append(AnsweredRow(id, None, row, day * DAY_US + number))
        labels[id, None] = label
    return answers, labels


def test_metrics_of_answers_are_by_day_and_worse_ones_are_alarms():
    output = NodeOutput(
        label="y", problem="multi_class", num_outputs=2, node_type="user", class_names=("no", "yes")
    )
    good, of_good = _answers(1, 0.9)
    bad, of_bad = _answers(2, 0.6)
    test = {"test/accuracy": 0.9, "standard_errors": {"test/accuracy": 0.02}}
    figures = list(
        served_metrics(output, good + bad, of_good | of_bad, test, "1d", Limits(least_rows=50))
    )
    found = {figure.labels: figure for figure in figures if figure.name == "raygnn_served_metric"}

    def by_day(metric: str, day: int) -> Figure:
        return found[("metric", metric), ("window", f"1970-01-0{day + 1}T00:00")]

    first, second = by_day("accuracy", 1), by_day("accuracy", 2)
    for figure, (answers, labels) in ((first, (good, of_good)), (second, (bad, of_bad))):
        right = [a.row["prediction"] == labels[a.id, None] for a in answers]
        assert figure.value == pytest.approx(np.mean(right))
    assert not first.alarm
    assert "0.9000 on the test rows" in second.alarm
    assert by_day("auroc", 1).value > 0.8 > by_day("auroc", 2).value
    newest = prometheus_text(figures)
    assert f'raygnn_served_metric{{metric="accuracy"}} {second.value!r}' in newest
    assert 'raygnn_test_metric{metric="accuracy"} 0.9' in newest


def _metrics(
    output: LabelOutput, rows: list[dict[str, Any]], labels: list[Any]
) -> dict[str, float]:
    ids = [(f"u{i}", i) if isinstance(output, EdgeOutput) else i for i in range(len(rows))]
    answers = [AnsweredRow(id, None, row, 0) for id, row in zip(ids, rows, strict=True)]
    known = dict(zip(((id, None) for id in ids), labels, strict=True))
    figures = served_metrics(output, answers, known, {}, "1d", Limits())
    return {
        dict(figure.labels)["metric"]: figure.value
        for figure in figures
        if figure.name == "raygnn_served_metric"
    }


def test_metrics_of_several_labels_numbers_and_edges():
    tags = NodeOutput("post", label="tags", problem="multi_label", num_outputs=2)
    labels, predicted = [[1, 0], [0, 1], [1, 1]], [[1, 0], [1, 0], [1, 1]]
    rows: list[dict[str, Any]] = [{"prediction": row} for row in predicted]
    assert _metrics(tags, rows, labels) == {  # F1 of the labels: 4 / 5 and 2 / 3
        "f1_micro": pytest.approx(6 / 8),
        "f1_macro": pytest.approx((4 / 5 + 2 / 3) / 2),
    }
    rows = [{"probability": row} for row in ([0.9, 0.2], [0.6, 0.4], [0.7, 0.8])]
    found = _metrics(tags, rows, labels)
    assert (found["f1_micro"], found["auroc"]) == (pytest.approx(6 / 8), 1)
    wrong = {"multi_label": [1, 2], "regression": ["a", "b"], "multi_class": 7}
    for problem, label in wrong.items():
        output = replace(tags, problem=problem)
        row = {"prediction": [0, 1]} if problem != "multi_class" else {"probability": [0.5, 0.5]}
        with raises("monitor-labels", repr(label)):
            _metrics(output, [row], [label])
    sizes = replace(tags, problem="regression")
    rows = [{"prediction": [1.0, 2.0]}, {"prediction": [3.0, 4.0]}]
    assert _metrics(sizes, rows, [[1.0, 2.5], [2.5, 4.0]])["mae"] == 0.25
    stars = EdgeOutput(("user", "rates", "film"), label="s", problem="regression", num_outputs=1)
    assert _metrics(stars, [{"prediction": 3.0}, {"prediction": 1.0}], [4.0, 1.0])["mae"] == 0.5


def test_labels_are_read_by_the_columns_of_training(tmp_path: Path):
    table = {"files": "post.csv", "id": "id", "labels": {"tags": ["b", "a"]}}
    content = {"format": "raygnn/graph-v1", "node_types": {"post": table}, "edge_types": []}
    (tmp_path / "graph.yaml").write_text(json.dumps(content))
    (table,), file = Manifest.load(str(tmp_path)).all_tables.values(), tmp_path / "labels.csv"
    other = type(table).model_validate(table.model_dump() | {"labels": {"y": ["a", "b"]}})
    tables = [None, table, other]

    def read(kind: str, text: str, *kinds: str) -> dict[Any, Any]:
        file.write_text(text)
        return _read_labels(str(file), kind, kinds, tables)

    several = read("nodes", "id,time,a,b\n7,2024-05-01,0,1\n8,2024-05-01,,1\n")
    assert several == {(7, "2024-05-01T00:00:00"): [1, 0]}
    one = read("edges", "source_id,target_id,stars\n007,3,4.5\n", "string", "int")
    assert one == {(("007", 3), None): 4.5}
    links = read("links", "anchor_id,neighbor_id\n1,007\n", "int", "string")
    assert links == {1: [KnownLink("007", None)]}
    for kind, text in (("nodes", "id,a,c\n7,0,1\n"), ("edges", "source_id,y\n1,2\n")):
        with raises("monitor-labels"):
            read(kind, text)


def test_a_server_adds_the_figures_of_its_answers(tmp_path: Path):
    async def ask(question: Predict) -> AnsweredRows:
        return AnsweredRows([])

    async def check_alive() -> None: ...

    recorder = Recorder(str(tmp_path / "answers.jsonl"))
    asking = TestClient(build_app(ask, check_alive, recorder=recorder))
    assert "raygnn_drift" not in asking.get("/metrics").text
    figure = Figure("raygnn_drift_psi", 0.5, (("column", 'a "b"'), ("of", "log")))
    (tmp_path / "answers.jsonl.prom").write_text(prometheus_text([figure]))
    lines = asking.get("/metrics").text.splitlines()
    assert r'raygnn_drift_psi{column="a \"b\"",of="log"} 0.5' in lines
    recorder.close()


def test_the_dashboard_shows_metrics_that_exist(tmp_path: Path):
    class Events(EventIntake):
        rows = Mock(position=0, num_late=0, num_refused=0)

        def __init__(self) -> None: ...

    async def nothing(*_: object) -> None: ...

    asking = TestClient(build_app(nothing, nothing, events=Events()))
    asking.get("/metrics")
    served = set(re.findall(r"^# TYPE (\w+)", asking.get("/metrics").text, re.MULTILINE))
    known = {*served, *FIGURES, *(f"{name}_bucket" for name in served)}
    panels = json.loads(DASHBOARD.read_text())["panels"]
    shown = {
        name
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"raygnn_\w+", target["expr"])
    }
    assert shown <= known
    assert shown >= {*FIGURES, "raygnn_requests_total", "raygnn_log_position"}


class _FullDisk(io.FileIO):
    def write(self, line: bytes) -> int:  # type: ignore[override]
        return super().write(line[: len(line) // 2])


def _record(recorder: Recorder, node: int) -> None:
    answer = AnsweredRows([{"id": node}], version=Version("model", "graph"))
    recorder.record_question(Predict(nodes=[node]), answer)


def test_answers_that_are_not_written_whole_are_left_out(tmp_path: Path, caplog):
    path = str(tmp_path / "answers.jsonl")
    recorder = Recorder(path)
    _record(recorder, 1)
    whole, recorder._file = recorder._file, _FullDisk(path, "a+b")
    _record(recorder, 2)
    assert "No space left on device" in caplog.text
    recorder.close()
    recorder._file = whole
    _record(recorder, 3)
    recorder.close()
    with open(path, "ab") as file:  # killed
        file.write(b"x" * 100_000)
    assert len(list(read_records(path))) == 2
    recorder = Recorder(path)
    _record(recorder, 4)
    recorder.close()
    assert [record.rows[0]["id"] for record in read_records(path)] == [1, 3, 4]
    Recorder(str(tmp_path / "empty")).close()
