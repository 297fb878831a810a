"""Stability indices, metrics of answers by time, alarms, and Prometheus' text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi")  # an extra
from fastapi.testclient import TestClient

from raygnn.loops.tasks.node_classification.target import NodeOutput
from raygnn.serving.app import build_app
from raygnn.serving.drift import stability_index
from raygnn.serving.event_intake import EventIntake
from raygnn.serving.messages import AnsweredRows, Predict
from raygnn.serving.monitoring import (
    FIGURES,
    AnsweredRow,
    Figure,
    Limits,
    prometheus_text,
    served_metrics,
)
from raygnn.serving.records import Recorder

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
        position = num_late = num_refused = 0

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
