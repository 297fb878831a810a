"""Drift of inputs and predictions of recorded answers against training."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from raygnn.data.arrays import thinned
from raygnn.data.edge_types import edge_type_name, type_name
from raygnn.data.manifest import DenseFeature, Manifest, manifest_folder
from raygnn.data.splits import SPLIT_NAMES
from raygnn.data.tables.files import list_files
from raygnn.data.tables.read_ids import read_columns
from raygnn.inference.open_graph import OpenGraph
from raygnn.inference.result_tables import Table
from raygnn.inference.seed_times import seed_edges
from raygnn.loops.tasks.edge_prediction.target import EdgeOutput
from raygnn.loops.tasks.label_target import LabelOutput
from raygnn.loops.tasks.node_classification.target import NodeOutput
from raygnn.serving.monitoring import AnsweredRow, Figure, Limits, scores_of

_NUM_BINS = 10
_MAX_CATEGORIES = 50
_MAX_REFERENCE = 2_000  # rows that are predicted to compare predictions with
_LEAST_SHARE = 1e-3  # of a bin, so that an empty one does not count without bound


def prediction_drift(
    graph: OpenGraph, answers: Sequence[AnsweredRow], limits: Limits
) -> Iterator[Figure]:
    """Drift of recorded predictions against those of rows of the graph."""
    output = graph.saved.spec.output
    if not isinstance(output, LabelOutput):
        return
    reference = _reference(graph, output).arrow.to_pylist()
    given = [answer.row for answer in answers]
    columns = zip(_compared(output, reference), _compared(output, given), strict=True)
    for number, (before, now) in enumerate(columns, 1):
        is_alone = output.problem == "multi_class" or output.num_outputs == 1
        name = "prediction" if is_alone else f"prediction.{number}"
        yield _psi_figure(name, "answers", before, now, limits)


def _reference(graph: OpenGraph, output: LabelOutput) -> Table:
    """Predictions of test rows of a training table, which are its newest, of edges, or of nodes."""
    bundle = graph.bundle
    if isinstance(output, EdgeOutput):
        edges = seed_edges(graph.saved.spec, bundle, output.edge_type)
        ends = edges.ends(thinned(edges.positions_of_rows(), _MAX_REFERENCE))
        pairs = [bundle.take_ids(*end) for end in zip(output.ends, ends, strict=True)]
        return graph.predict(pa.table(pairs, names=["source_id", "target_id"]))
    assert isinstance(output, NodeOutput)
    if output.table is not None and output.table in bundle.training_tables:
        rows = bundle.training_tables[output.table]
        is_test = np.zeros(0) if rows.split is None else rows.split == 1 + SPLIT_NAMES.index("test")
        chosen = np.flatnonzero(is_test) if is_test.any() else np.arange(rows.num_rows)
        chosen = thinned(chosen, _MAX_REFERENCE)
        ids = bundle.take_ids(output.node_type, rows.node_ids(chosen))
        columns: dict[str, Any] = {"id": ids}
        if rows.time is not None:
            times = rows.time[chosen]
            columns["time"] = times if rows.time_unit is None else times.astype("datetime64[us]")
        return graph.predict(rows=columns)
    ids = bundle.ids(output.node_type)
    return graph.predict(ids.take(thinned(np.arange(len(ids)), _MAX_REFERENCE)))


def _compared(output: LabelOutput, rows: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Columns of predictions: the class with a coarse probability, labels, or numbers."""
    scores = scores_of(output, rows)
    if output.problem == "multi_class":
        steps = np.floor(np.exp(scores.max(axis=1)).clip(max=0.999) * 5) / 5
        return [[f"{c} {step:.1f}" for c, step in zip(scores.argmax(axis=1), steps, strict=True)]]
    columns = scores > 0 if output.problem == "multi_label" else scores
    return [column.astype(np.float64).tolist() for column in columns.T]


def input_drift(
    graph: OpenGraph,
    uri: str,
    answers: Sequence[AnsweredRow],
    logged: Mapping[str, Sequence[tuple[Mapping[str, Any], int]]],
    limits: Limits,
) -> Iterator[Figure]:
    """Drift of columns: those of answered nodes, or of both ends of edges, and of the rows of an
    event log, against the tables; and the share of answered nodes without edges.
    """
    manifest = graph.manifest()
    output = graph.saved.spec.output
    assert manifest is not None
    answered: dict[str, set[Any]] = {}
    for answer in answers:
        ends = answer.id if isinstance(answer.id, tuple) else (answer.id,)
        for node_type, id in zip(output.ends, ends, strict=False):
            answered.setdefault(node_type, set()).add(id)
    for node_type, ids in answered.items():
        known = _columns(manifest, uri, node_type)
        is_answered = [id in ids for id in known.pop(manifest.node_types[node_type].id)]
        for name, values in known.items():
            chosen = [value for value, is_one in zip(values, is_answered, strict=True) if is_one]
            yield from _column_figures(f"{node_type}.{name}", "answers", values, chosen, limits)
        yield from _cold_share(graph, node_type, ids, limits)
    for type_, rows in logged.items():
        known = _columns(manifest, uri, type_) if type_ in map(type_name, manifest.tables) else {}
        for name, values in known.items():
            if name not in _keys(manifest, type_):
                now = [row.get(name) for row, _ in rows]
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
