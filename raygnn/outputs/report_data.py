"""The data of a run in its report: types, degrees and splits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from raygnn.data.edge_types import edge_type_name
from raygnn.data.partition.part import Outline
from raygnn.outputs.html_page import NUM_COLORS, Chart, Series
from raygnn.outputs.report_errors import SPLITS, PageTable

if TYPE_CHECKING:
    from raygnn.data.bundle import Bundle
    from raygnn.loops.engine import Engine
    from raygnn.loops.task import Task

_MAX_DEGREE_CHARTS = 4


def data_tables(engine: Engine) -> dict[str, PageTable]:
    bundle = engine.task.env.bundle
    nodes = [(t, bundle.num_nodes(t), _columns(bundle, t)) for t in bundle.node_types]
    edges = [
        (
            " → ".join(t),
            bundle.num_edges(t),
            bundle.num_edges(t) / max(bundle.num_nodes(t[2]), 1),
            _columns(bundle, t),
        )
        for t in bundle.edge_types
    ]
    return {
        "Node types": (("type", "nodes", "columns"), nodes),
        "Edge types": (("type", "edges", "per destination", "columns"), edges),
        **_label_edges(bundle),
        "Splits": (("split", "seeds", "batches", "share"), _splits(engine)),
    }


def degree_charts(bundle: Bundle) -> list[Chart]:
    """In-degree histograms of the largest edge types; none of a partitioned graph."""
    if isinstance(bundle, Outline):
        return []
    types = sorted(bundle.edge_types, key=bundle.num_edges, reverse=True)[:_MAX_DEGREE_CHARTS]
    charts = []
    for number, edge_type in enumerate(types):
        degrees = np.diff(bundle.csc(edge_type).indptr)
        # 0, 1, 2 to 3, 4 to 7, ...
        counts = np.bincount(np.frexp(degrees.astype(np.float64))[1] * (degrees > 0))
        names = [_bin_name(number) for number in range(len(counts))]
        line = Series("nodes", list(enumerate(counts.tolist())), number % NUM_COLORS)
        title = f"Incoming edges of {edge_type[2]}, {edge_type_name(edge_type)}"
        label = "edges of a node"
        charts.append(Chart(title, [line], x_label=label, x_names=names, bars=True, from_zero=True))
    return charts


def split_chart(engine: Engine) -> Chart:
    rows = _splits(engine)
    line = Series("seeds", [(place, row[1]) for place, row in enumerate(rows)], 2)
    names = [row[0] for row in rows]
    return Chart("Splits", [line], x_label="split", x_names=names, bars=True, from_zero=True)


def _bin_name(number: int) -> str:
    low, high = 2**number // 2, 2**number - 1
    return f"{low:,}" if low >= high else f"{low:,}-{high:,}"


def _label_edges(bundle: Bundle) -> dict[str, PageTable]:
    rows = [(edge_type_name(e.edge_type), e.sign, len(e.targets)) for e in bundle.label_edges]
    return {"Label edges": (("type", "sign", "edges"), rows)} if rows else {}


def _columns(bundle: Bundle, type_: Any) -> str:
    texts = []
    for column in bundle.columns(type_).values():
        if column.role == "row":
            continue
        shape = f" [{', '.join(map(str, column.shape))}]" if column.shape else ""
        kind = f"{column.dtype}{shape}{', sparse' if column.sparse else ''}"
        classes = f", {column.num_classes} classes" if column.num_classes else ""
        texts.append(f"{column.name} ({column.role}, {kind}{classes})")
    return "; ".join(texts) or "-"


def _splits(engine: Engine) -> list[tuple[Any, ...]]:
    parts = engine.task.parts
    if parts:
        return [
            (f"{part}: {name}", *others)
            for part, task in parts.items()
            for name, *others in _splits_of(task)
        ]
    return _splits_of(engine.task)


def _splits_of(task: Task) -> list[tuple[Any, ...]]:
    loaders = {name: task.loader(split) for split, name in SPLITS.items()}
    splits = {name: loader for name, loader in loaders.items() if loader is not None}
    total = sum(loader.num_examples for loader in splits.values())
    return [
        (name, loader.num_examples, loader.num_batches, f"{loader.num_examples / total:.0%}")
        for name, loader in splits.items()
    ]
