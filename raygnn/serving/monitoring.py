"""Has a model grown old? Metrics of recorded answers, and drift of inputs and predictions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

from raygnn.data.edge_types import edge_type_name, type_name
from raygnn.data.event_log import EventLog, added_rows
from raygnn.data.manifest import DenseFeature, Manifest, manifest_folder
from raygnn.data.tables.files import list_files
from raygnn.data.tables.read_ids import read_columns
from raygnn.data.time_units import date_as_time, window_as_time
from raygnn.errors import ConfigError, DataError
from raygnn.inference.open_graph import OpenGraph
from raygnn.loops.baselines import is_error, precision_of
from raygnn.loops.tasks.node_classification.target import NodeOutput
from raygnn.metrics import AUROC, R2, Accuracy, MeanAbsoluteError, RootMeanSquaredError, metrics_of
from raygnn.serving.messages import Predict
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
_NUM_BINS = 10
_MAX_CATEGORIES = 50
_MAX_REFERENCE = 2_000  # rows that are predicted to compare predictions with
_LEAST_SHARE = 1e-3  # of a bin, so that an empty one does not count without bound
_METRICS: dict[str, tuple[Any, ...]] = {
    "multi_class": (Accuracy, AUROC),
    "regression": (MeanAbsoluteError, RootMeanSquaredError, R2),
}


@dataclass(frozen=True)
class Figure:
    """A number. `labels`: of Prometheus; `alarm`: why it is beyond its limit, or empty."""

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()
    alarm: str = ""


@dataclass(frozen=True)
class AnsweredRow:
    """A predicted row. `at`: when it was answered, in microseconds since 1970."""

    id: Any
    time: Any
    row: Mapping[str, Any]
    at: int | None


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
    """The rows of answers to `/predict`."""
    found = []
    for record in records:
        if isinstance(record.question, Predict):
            at = date_as_time(record.at) if record.at else None
            found += [AnsweredRow(row["id"], row.get("time"), row, at) for row in record.rows]
    return found


def served_metrics(
    output: NodeOutput,
    answers: Sequence[AnsweredRow],
    labels: Mapping[tuple[Any, Any], Any],
    test: Mapping[str, Any],
    every: str,
    limits: Limits,
) -> Iterator[Figure]:
    """Metrics of answers whose labels are known, by window of the time of the answer.

    Args:
        labels: by id and time, or by id and None.
        test: `metrics.json` of the run.
    """
    classes = output.shown_classes if output.class_names else range(output.num_outputs)
    codes = {label: code for code, label in enumerate(classes)}
    windows: dict[str, list[tuple[AnsweredRow, Any]]] = {}
    width = window_as_time(every, "us", "--every")
    assert isinstance(width, int)
    for answer in answers:
        label = labels.get((answer.id, answer.time), labels.get((answer.id, None)))
        if label is not None:
            begin = "" if answer.at is None else _date(answer.at // width * width)
            windows.setdefault(begin, []).append((answer, label))
    for begin, rows in sorted(windows.items()):
        is_number = output.problem == "regression"
        given = np.array([label if is_number else codes.get(label, -1) for _, label in rows])
        if not is_number and given.min() < 0:
            raise DataError(
                f"--labels has classes that the model does not predict, such as "
                f"{rows[int(given.argmin())][1]!r}. Write them as in training.",
                id="monitor-labels",
            )
        scores = np.array([_scores(output, codes, answer.row) for answer, _ in rows])
        kinds = [kind(output.num_outputs, output.problem) for kind in _METRICS[output.problem]]
        for kind in kinds:
            if isinstance(kind, AUROC):
                kind.positive = output.positive_class
        target = torch.from_numpy(given)
        precision = precision_of(output.problem, output.num_outputs, given, output.positive_class)
        yield Figure("raygnn_answered_rows", len(rows), (("window", begin),))
        for name, value in metrics_of(kinds, torch.from_numpy(scores), target).items():
            error = precision.standard_error(name, value) or math.nan
            own = test.get("standard_errors", {}).get(f"test/{name}", 0.0)
            of_test = test.get(f"test/{name}")
            alarm = ""
            if of_test is not None and len(rows) >= limits.least_rows:
                loss = (value - of_test) * (1 if is_error(name) else -1)
                if loss > limits.num_errors * math.hypot(error, own):
                    alarm = f"{value:.4f} ± {error:.4f}, and {of_test:.4f} on the test rows"
            yield Figure(
                "raygnn_served_metric", value, (("metric", name), ("window", begin)), alarm
            )
            if of_test is not None:
                yield Figure("raygnn_test_metric", of_test, (("metric", name),))


def _scores(output: NodeOutput, codes: Mapping[Any, int], row: Mapping[str, Any]) -> list[float]:
    """Logarithms of probabilities, or a number."""
    if output.problem == "regression":
        return [float(row["prediction"])]
    given = row["probability"]
    if not isinstance(given, list):
        others = (1 - given) / max(output.num_outputs - 1, 1)
        chosen = codes[row["prediction"]]
        given = [given if code == chosen else others for code in range(output.num_outputs)]
    return [math.log(max(each, 1e-12)) for each in given]


def prediction_drift(
    graph: OpenGraph, answers: Sequence[AnsweredRow], limits: Limits
) -> Iterator[Figure]:
    """Drift of recorded predictions against those of rows of the graph."""
    output = graph.saved.spec.output
    assert isinstance(output, NodeOutput)
    if output.table is not None and output.table in graph.bundle.training_tables:
        rows = graph.bundle.training_tables[output.table]
        chosen = _thinned(rows.num_rows)
        ids = graph.bundle.take_ids(output.node_type, rows.node_ids(chosen))
        times = {} if rows.time is None else {"time": _as_given(rows.time[chosen], rows.time_unit)}
        reference = graph.predict(rows={"id": ids, **times}).arrow.to_pylist()
    else:
        ids = graph.bundle.ids(output.node_type)
        reference = graph.predict(ids.take(_thinned(len(ids)))).arrow.to_pylist()
    before, now = ([_score(row) for row in rows] for rows in (reference, [a.row for a in answers]))
    yield _psi_figure("prediction", "answers", before, now, limits)


def _score(row: Mapping[str, Any]) -> Any:
    """The compared value of a prediction: the number, or the class with a coarse probability."""
    probability, prediction = row.get("probability"), row.get("prediction")
    if isinstance(probability, list):
        prediction, probability = int(np.argmax(probability)), max(probability)
    if probability is None or isinstance(prediction, list):
        return prediction
    return f"{prediction} {math.floor(min(probability, 0.999) * 5) / 5:.1f}"


def input_drift(
    graph: OpenGraph, uri: str, answers: Sequence[AnsweredRow], log: str | None, limits: Limits
) -> Iterator[Figure]:
    """Drift of columns: those of answered nodes, and of the rows of an event log, against the
    tables; and the share of answered nodes without edges.
    """
    manifest = graph.manifest()
    output = graph.saved.spec.output
    assert manifest is not None
    assert isinstance(output, NodeOutput)
    answered = {answer.id for answer in answers}
    table = manifest.node_types[output.node_type]
    known = _columns(manifest, uri, output.node_type)
    ids = known.pop(table.id)
    is_answered = [id in answered for id in ids]
    for name, values in known.items():
        chosen = [value for value, is_one in zip(values, is_answered, strict=True) if is_one]
        place = f"{output.node_type}.{name}"
        yield from _column_figures(place, "answers", values, chosen, limits)
    yield from _cold_share(graph, output.node_type, answered, limits)
    if log is None:
        return
    for type_, rows in _logged(log).items():
        known = _columns(manifest, uri, type_) if type_ in map(type_name, manifest.tables) else {}
        for name, values in known.items():
            if name not in _keys(manifest, type_):
                now = [row.get(name) for row in rows]
                yield from _column_figures(f"{type_}.{name}", "log", values, now, limits)


def _cold_share(
    graph: OpenGraph, node_type: str, answered: set[Any], limits: Limits
) -> Iterator[Figure]:
    bundle = graph.bundle
    degree = np.zeros(bundle.num_nodes(node_type), np.int64)
    for edge_type in bundle.edge_types:
        if edge_type[2] == node_type:
            degree += np.diff(bundle.csc(edge_type).indptr)
        if edge_type[0] == node_type:
            degree += np.diff(bundle.csr(edge_type).indptr)
    ids = bundle.ids(node_type).to_pylist()
    number = {id: i for i, id in enumerate(ids)}
    cold = [id not in number or degree[number[id]] == 0 for id in answered]
    share, before = float(np.mean(cold or [False])), float(np.mean(degree == 0))
    alarm = _share_alarm(share, before, len(cold), limits)
    yield Figure("raygnn_cold_share", share, (("node_type", node_type),), alarm)


def _columns(manifest: Manifest, uri: str, type_: str) -> dict[str, list[Any]]:
    """Values of the columns of features of a type, and of its ids."""
    spec = next(spec for name, spec in manifest.tables.items() if type_name(name) == type_)
    features = [f for f in spec.features.values() if isinstance(f, DenseFeature)]
    names = [*_keys(manifest, type_)[:1], *(name for f in features for name in f.column_names)]
    folder = manifest_folder(uri)
    files = list_files(folder, spec.files, type_, None, spec.csv)
    table = read_columns(files, names, type_, names[:1])
    return {name: table[name].to_pylist() for name in dict.fromkeys(names)}


def _keys(manifest: Manifest, type_: str) -> list[str]:
    if type_ in manifest.node_types:
        return [manifest.node_types[type_].id]
    (edges,) = (e for e in manifest.edge_types if edge_type_name(e.type) == type_)
    return [edges.source, edges.target]


def _logged(uri: str) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for segment in EventLog(uri).read():
        rows = added_rows(segment.rows)
        for tables in (rows.nodes, rows.edges):
            for name, of_type in tables.items():
                found.setdefault(name, []).extend(of_type)
    return found


def _column_figures(
    place: str, of: str, before: Sequence[Any], now: Sequence[Any], limits: Limits
) -> Iterator[Figure]:
    flat = [value for value in now if not isinstance(value, list)]
    if not flat or any(isinstance(value, list) for value in before[:_MAX_CATEGORIES]):
        return  # vectors have no distribution of one number
    labels = (("column", place), ("of", of))
    known = {value for value in before if isinstance(value, str)}
    texts = [value for value in flat if isinstance(value, str)]
    shares = {
        "raygnn_missing_share": (_missing(flat), _missing(before)),
        "raygnn_unknown_share": (float(np.mean([t not in known for t in texts] or [False])), 0.0),
    }
    yield _psi_figure(place, of, before, flat, limits)
    for name, (share, usual) in shares.items():
        yield Figure(name, share, labels, _share_alarm(share, usual, len(flat), limits))


def _share_alarm(share: float, usual: float, num_rows: int, limits: Limits) -> str:
    is_much = num_rows >= limits.least_rows and share > usual + limits.share
    return f"{share:.3f}, and {usual:.3f} in training" if is_much else ""


def _psi_figure(
    place: str, of: str, before: Sequence[Any], now: Sequence[Any], limits: Limits
) -> Figure:
    value = stability_index(before, now)
    is_much = min(len(now), len(before)) >= limits.least_rows and value > limits.psi
    alarm = f"a stability index of {value:.3f}" if is_much else ""
    return Figure("raygnn_drift_psi", value, (("column", place), ("of", of)), alarm)


def stability_index(before: Sequence[Any], now: Sequence[Any]) -> float:
    """Population stability index: the sum of (q - p) log(q / p) over bins, 0 for equal shares.

    Numbers are cut at deciles of `before`, other values are categories, and missing values have a
    bin of their own.
    """
    old, new = ([value for value in values if not _is_missing(value)] for values in (before, now))
    if all(isinstance(value, int | float) for value in (*old, *new)):
        inner = np.linspace(0, 1, _NUM_BINS + 1)[1:-1]
        edges = np.unique(np.quantile(old, inner)) if old else np.empty(0)
        bins: list[Any] = [
            np.searchsorted(edges, values, side="left").tolist() for values in (old, new)
        ]
    else:
        names, counts = np.unique([str(value) for value in old], return_counts=True)
        frequent = set(names[np.argsort(-counts, kind="stable")[:_MAX_CATEGORIES]].tolist())
        bins = [[str(v) if str(v) in frequent else "" for v in values] for values in (old, new)]
    counts_of = [Counter(map(str, of_bins)) for of_bins in bins]
    keys, shares = sorted({*counts_of[0], *counts_of[1]}), []
    for counted, of_bins, values in zip(counts_of, bins, (before, now), strict=True):
        sizes = np.array([*(counted[key] for key in keys), len(values) - len(of_bins)])
        shares.append(np.maximum(sizes / max(len(values), 1), _LEAST_SHARE))
    p, q = shares
    return float(((q - p) * np.log(q / p)).sum())


def _is_missing(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _missing(values: Sequence[Any]) -> float:
    return float(np.mean([_is_missing(value) for value in values] or [False]))


def _thinned(num_rows: int) -> np.ndarray:
    return np.unique(
        np.linspace(0, max(num_rows - 1, 0), min(num_rows, _MAX_REFERENCE)).astype(int)
    )


def _as_given(times: np.ndarray, unit: str | None) -> np.ndarray:
    return times if unit is None else times.astype("datetime64[us]")


def _date(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds / 1e6, UTC).strftime("%Y-%m-%dT%H:%M")


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


def check_output(output: Any) -> NodeOutput:
    """Raises a ConfigError for models whose answers are not monitored."""
    if not isinstance(output, NodeOutput) or output.problem not in _METRICS:
        raise ConfigError(
            "the model is invalid: only predictions of a class or a number of nodes are "
            "monitored. Compare other models with `raygnn report`.",
            id="monitor-output",
        )
    return output
