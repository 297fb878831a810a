"""Has a model grown old? Metrics of recorded answers whose labels are known, and their figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import torch

from raygnn.data.edge_types import edge_type_name
from raygnn.data.time_units import date_as_time, window_as_time
from raygnn.errors import ConfigError, DataError
from raygnn.inference.open_graph import OpenGraph
from raygnn.loops.baselines import is_error, precision_of
from raygnn.loops.tasks.label_target import LabelOutput
from raygnn.loops.tasks.link_prediction.target import LinkOutput
from raygnn.metrics import (
    AUROC,
    R2,
    Accuracy,
    F1Macro,
    F1Micro,
    MeanAbsoluteError,
    RootMeanSquaredError,
    metrics_of,
)
from raygnn.outputs.comparison import Comparison
from raygnn.outputs.html_page import Chart, Series, show
from raygnn.serving.messages import Predict, TopK
from raygnn.serving.records import Record

#: Names of all figures, for Prometheus, with their help.
FIGURES = {
    "raygnn_answered_rows": "Rows of recorded answers, with a label or not.",
    "raygnn_served_metric": "Metric of recorded answers whose labels are known.",
    "raygnn_test_metric": "The same metric on the test rows of the run.",
    "raygnn_drift_psi": "Population stability index against training.",
    "raygnn_missing_share": "Share of missing values of a column.",
    "raygnn_unknown_share": "Share of texts of a column that training did not have.",
    "raygnn_cold_share": "Share of answered nodes without edges.",
    "raygnn_drift_alarms": "Figures beyond their limits.",
}
_METRICS: dict[str, tuple[Any, ...]] = {
    "multi_class": (Accuracy, AUROC),
    "multi_label": (F1Micro, F1Macro, AUROC),
    "regression": (MeanAbsoluteError, RootMeanSquaredError, R2),
}


_LEAST_PROBABILITY = 1e-12


@dataclass(frozen=True)
class Figure:
    """A number. `labels`: of Prometheus; `alarm`: why it is beyond its limit, or empty."""

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()
    alarm: str = ""

    @property
    def short(self) -> str:
        return self.name.removeprefix("raygnn_")

    @property
    def of(self) -> str:
        return " ".join(value for _, value in self.labels if value)

    @property
    def content(self) -> dict[str, Any]:
        return {"figure": self.name, "value": self.value, **dict(self.labels), "alarm": self.alarm}


@dataclass(frozen=True)
class AnsweredRow:
    """A prediction, or the neighbors of an anchor, by rank. `id`: of an edge, those of both ends;
    `at`: when it was answered, in microseconds since 1970.
    """

    id: Any
    time: Any
    row: Mapping[str, Any]
    at: int | None
    neighbors: tuple[Any, ...] = ()


@dataclass(frozen=True)
class KnownLink:
    """A link of an anchor that arrived later. `time`: in the unit of the answers', or None."""

    target: Any
    time: Any


@dataclass(frozen=True)
class Limits:
    """Beyond them, a figure is an alarm.

    Attributes:
        psi: of a column or of predictions; 0.1 is little change, 0.25 much.
        share: growth of a share of missing values, unknown texts or cold nodes.
        num_errors: standard errors by which a metric is worse than on the test.
        least_rows: fewer rows are no alarm.
    """

    psi: float = 0.25
    share: float = 0.1
    num_errors: float = 3.0
    least_rows: int = 100


def answered_rows(records: Sequence[Record]) -> list[AnsweredRow]:
    """The rows of answers to `/predict`, and the anchors of answers to `/top_k`."""
    found = []
    for record in records:
        at = date_as_time(record.at) if record.at else None
        if isinstance(record.question, Predict):
            found += [AnsweredRow(_id(row), row.get("time"), row, at) for row in record.rows]
        elif isinstance(record.question, TopK):
            by_anchor: dict[Any, list[Any]] = {anchor: [] for anchor in record.question.anchors}
            for row in record.rows:
                by_anchor[row["anchor_id"]].append(row["neighbor_id"])
            time, k = record.question.time, {"k": record.question.k}
            found += [AnsweredRow(id, time, k, at, tuple(n)) for id, n in by_anchor.items()]
    return found


def _id(row: Mapping[str, Any]) -> Any:
    return row["id"] if "id" in row else (row["source_id"], row["target_id"])


#: A metric of answers with their labels: name, value and standard error.
_Measured = Iterator[tuple[str, float, float]]


def served_metrics(
    output: LabelOutput | LinkOutput,
    answers: Sequence[AnsweredRow],
    labels: Mapping[Any, Any],
    test: Mapping[str, Any],
    every: str,
    limits: Limits,
    task: str | None = None,
) -> Iterator[Figure]:
    """Metrics of answers whose labels are known, by window of the time of the answer.

    Args:
        labels: by id and time, or by id and None; of links, `KnownLink`s by anchor.
        test: `metrics.json` of the run.
        task: of a run of several.
    """
    split = "test" if task is None else f"test/{task}"
    windows: dict[str, list[tuple[AnsweredRow, Any]]] = {}
    width = window_as_time(every, "us", "--every")
    assert isinstance(width, int)
    for answer in answers:
        if isinstance(output, LinkOutput):
            label = _later(answer, labels.get(answer.id, ())) or None
        else:
            label = labels.get((answer.id, answer.time), labels.get((answer.id, None)))
        if label is not None:
            begin = ""
            if answer.at is not None:
                start = datetime.fromtimestamp(answer.at // width * width / 1e6, UTC)
                begin = f"{start:%Y-%m-%dT%H:%M}"
            windows.setdefault(begin, []).append((answer, label))
    for begin, rows in sorted(windows.items()):
        yield Figure("raygnn_answered_rows", len(rows), (("window", begin),))
        if isinstance(output, LinkOutput):
            measured = _link_metrics(rows)
        else:
            measured = _label_metrics(output, rows)
        for name, value, error in measured:
            own = test.get("standard_errors", {}).get(f"{split}/{name}", 0.0)
            of_test = test.get(f"{split}/{name}")
            alarm = ""
            if of_test is not None and len(rows) >= limits.least_rows:
                loss = (value - of_test) * (1 if is_error(name) else -1)
                if loss > limits.num_errors * math.hypot(error, own):
                    alarm = f"{value:.4f} ± {error:.4f}, and {of_test:.4f} on the test rows"
            of_window = ("metric", name), ("window", begin)
            yield Figure("raygnn_served_metric", value, of_window, alarm)
            if of_test is not None:
                yield Figure("raygnn_test_metric", of_test, (("metric", name),))


def _label_metrics(output: LabelOutput, rows: Sequence[tuple[AnsweredRow, Any]]) -> _Measured:
    """Metrics of order need all probabilities, which an answer may lack."""
    targets = _targets(output, [label for _, label in rows])
    answered = [answer.row for answer, _ in rows]
    kinds = [kind(output.num_outputs, output.problem) for kind in _METRICS[output.problem]]
    if not (output.is_binary or all(isinstance(row.get("probability"), list) for row in answered)):
        kinds = [kind for kind in kinds if not isinstance(kind, AUROC)]
    for kind in kinds:
        if isinstance(kind, AUROC):
            kind.positive = output.positive_class
    precision = precision_of(output.problem, output.num_outputs, targets, output.positive_class)
    scores = torch.from_numpy(scores_of(output, answered))
    for name, value in metrics_of(kinds, scores, torch.from_numpy(targets)).items():
        yield name, value, precision.standard_error(name, value) or math.nan


def _targets(output: LabelOutput, labels: Sequence[Any]) -> np.ndarray:
    """Labels as metrics read them. Raises a DataError if the model does not predict one."""
    codes = _codes(output)
    targets = [_target(output, codes, label) for label in labels]
    for label, target in zip(labels, targets, strict=True):
        if target is None:
            raise DataError(
                f"--labels has values that the model does not predict, such as {label!r}. Write "
                f"{output.words} as in training. [monitor-labels]"
            )
    return np.array(targets)


def _target(output: LabelOutput, codes: Mapping[Any, int], label: Any) -> Any:
    if output.problem == "multi_class":
        return None if isinstance(label, list) else codes.get(label)
    values = np.atleast_1d(label)
    fits = values.dtype.kind in "biuf" and len(values) == output.num_outputs
    is_label = output.problem == "multi_label"
    return values.astype(np.float64) if fits and not (is_label and set(values) - {0, 1}) else None


def _link_metrics(rows: Sequence[tuple[AnsweredRow, set[Any]]]) -> _Measured:
    """Share of later links among the answered neighbors, over links and by anchor."""
    for k in sorted({answer.row["k"] for answer, _ in rows}):
        chosen = [(answer.neighbors, later) for answer, later in rows if answer.row["k"] == k]
        hits = np.array([len(later.intersection(found)) for found, later in chosen])
        links = np.array([len(later) for _, later in chosen])
        share = float(hits.sum() / links.sum())  # a ratio of sums over anchors
        error = np.sqrt(np.square(hits - share * links).sum()) / links.sum()
        yield f"full_hits@{k}", share, float(error)
        recall = hits / links
        yield f"full_recall@{k}", float(recall.mean()), float(recall.std() / math.sqrt(len(links)))


def _later(answer: AnsweredRow, links: Iterable[KnownLink]) -> set[Any]:
    """Targets of links that came after the answer, or of its time."""
    moment = answer.at if answer.time is None else as_number(answer.time)
    return {link.target for link in links if None in (link.time, moment) or link.time > moment}


def as_number(time: Any) -> Any:
    """A time as a number: microseconds since 1970 of dates."""
    text = time.isoformat() if isinstance(time, date) else time
    return date_as_time(text) if isinstance(text, str) else text


def logged_links(
    graph: OpenGraph, logged: Mapping[str, Sequence[tuple[Mapping[str, Any], int]]]
) -> dict[Any, list[KnownLink]]:
    """The links of a model's relations among the rows of an event log, by anchor, at their own
    times or when they were appended.
    """
    manifest, found = graph.manifest(), dict[Any, list[KnownLink]]()
    assert manifest is not None
    tables = {edge_type_name(e.type): e for e in manifest.edge_types}
    for name in map(edge_type_name, graph.saved.spec.output.links):
        if (table := tables.get(name)) is not None:
            for row, arrived_us in logged.get(name, ()):
                time = row.get(table.time.column) if table.time is not None else arrived_us
                link = KnownLink(row[table.target], None if time is None else as_number(time))
                found.setdefault(row[table.source], []).append(link)
    return found


def scores_of(output: LabelOutput, rows: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """[num_rows, num_outputs] of answers: logarithms of probabilities of classes, logits of labels,
    or numbers. Probabilities that an answer lacks are equal; labels without any are -1 and 1.
    """
    codes = _codes(output)
    return np.array([_scores(output, codes, row) for row in rows], np.float64)


def _scores(output: LabelOutput, codes: Mapping[Any, int], row: Mapping[str, Any]) -> Any:
    if output.problem == "regression":
        return np.atleast_1d(row["prediction"])
    if output.problem == "multi_label" and "probability" not in row:
        return 2 * np.array(row["prediction"]) - 1
    probability = row["probability"]
    if not isinstance(probability, list):
        others = (1 - probability) / max(output.num_outputs - 1, 1)
        chosen = codes[row["prediction"]]
        probability = [probability if c == chosen else others for c in range(output.num_outputs)]
    p = np.maximum(probability, _LEAST_PROBABILITY)
    is_label = output.problem == "multi_label"
    return np.log(p) - np.log(np.maximum(1 - p, _LEAST_PROBABILITY)) if is_label else np.log(p)


def _codes(output: LabelOutput) -> dict[Any, int]:
    classes = output.shown_classes if output.class_names else range(output.num_outputs)
    return {label: code for code, label in enumerate(classes)}


def prometheus_text(figures: Sequence[Figure]) -> str:
    """The figures in Prometheus' text format; of windows, the newest."""
    newest: dict[Any, Figure] = {}
    for figure in figures:
        labels = tuple(label for label in figure.labels if label[0] != "window")
        newest[figure.name, labels] = figure
    lines = []
    for name, help in FIGURES.items():
        chosen = [(labels, f) for (of, labels), f in newest.items() if of == name]
        if chosen:
            lines += [f"# HELP {name} {help}", f"# TYPE {name} gauge"]
        for labels, figure in chosen:
            shown = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels)
            braces = f"{{{shown}}}" if shown else ""
            lines.append(f"{name}{braces} {float(figure.value)!r}")
    return "\n".join([*lines, ""])


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def page(title: str, figures: Sequence[Figure]) -> str:
    """The figures on a self-contained page: metrics by window, alarms, and drift."""
    lines: dict[str, list[Figure]] = {}
    for figure in figures:
        if figure.name == "raygnn_served_metric":
            lines.setdefault(dict(figure.labels)["metric"], []).append(figure)
    of_test = {dict(f.labels)["metric"]: f.value for f in figures if f.name == "raygnn_test_metric"}
    charts = []
    for metric, by_window in lines.items():
        served = Series("answers", [(i, figure.value) for i, figure in enumerate(by_window)])
        test = [(i, of_test.get(metric, math.nan)) for i in range(len(by_window))]
        names = [dict(figure.labels)["window"] for figure in by_window]
        series = [served, Series("test", test, 1)]
        charts.append(Chart(metric, series, x_label="window", x_names=names))
    heads, cells = ("figure", "of", "value", "alarm"), []
    for figure in sorted(figures, key=lambda figure: not figure.alarm):
        cells.append((figure.short, figure.of, show(float(figure.value)), figure.alarm or "-"))
    alarms = sum(bool(figure.alarm) for figure in figures)
    return Comparison(title, f"{alarms} alarms", {"Figures": (heads, cells)}, charts).html()


def check_output(output: Any) -> LabelOutput | LinkOutput:
    """Raises a ConfigError for models whose answers are not monitored."""
    if not isinstance(output, LabelOutput | LinkOutput):
        raise ConfigError(
            "the model is invalid: only links, and labels of nodes and edges, are monitored. "
            "Compare other models with `raygnn report`. [monitor-output]"
        )
    return output
