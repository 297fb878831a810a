"""Warnings about the rows and columns that a task of nodes or rows learns from."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from raygnn.config import Config
from raygnn.data.arrays import extremes, row_blocks, thinned
from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import REVERSE_PREFIX, EdgeType, edge_type_name, type_name
from raygnn.data.raw_columns import RawColumn, raw_columns_of
from raygnn.data.time_units import TIME, TIME_UNIT, is_clock, time_unit, window_as_time
from raygnn.loops.tasks.label_task import MAX_GATHERED
from raygnn.loops.tasks.node_classification.target import NodeTarget

_MAX_ROWS = 1 << 15  # that columns are compared on
_LATER = 0.05  # share of rows with an earlier time than a date
_BY_CHANCE = 1e-6  # of entities with a value to be all of one class
_ROUNDING = 1e-6


def audit(bundle: Bundle, config: Config, target: NodeTarget) -> Iterator[str]:
    """Warnings about the graph and the training rows of a task."""
    is_table, temporal = target.output.table is not None, config.sampling.temporal
    has_times = is_table and target.seeds.time is not None
    if has_times and temporal is None:
        yield (
            "sampling.temporal is null, so rows see events after their own time and results "
            "may be too good. Set it to {}."
        )
    if is_table:
        yield from _empty_splits(target)
    if has_times:
        if temporal is not None and temporal.strategy == "last":
            yield from _events_at_random(bundle, temporal.column)
        if temporal is not None:
            yield from _untimed_links(bundle, temporal.column)
        yield from _clocks(bundle, target)
    yield from _overlaps(target)
    yield from _leaks(bundle, target)
    if is_table:
        yield from _known_later(bundle, target)


def _empty_splits(target: NodeTarget) -> Iterator[str]:
    for rows, what, lost in (
        (target.splits.val, "validation", "nothing shows when to stop"),
        (target.splits.test, "test", "the model is not tested"),
    ):
        if not len(rows):
            yield (
                f"training table {target.output.table!r} has no {what} rows, so {lost}. Name "
                "some in its split column, or set data.splits."
            )


def _events_at_random(bundle: Bundle, column: str) -> Iterator[str]:
    """Names edges without times to events with times, of which a row sees any earlier ones."""
    random = []
    for edge_type in bundle.edge_types:
        events, _, node_type = edge_type
        has_time = [column in bundle.columns(type_) for type_ in (events, edge_type)]
        may_choose = bundle.num_edges(edge_type) > bundle.num_nodes(node_type)
        if has_time == [True, False] and may_choose:
            random.append(edge_type_name(edge_type))
    if random:
        yield (
            f"edges {', '.join(random)} have no time, so rows see a random sample of earlier "
            "events instead of the latest. Give these edges the time of the events in graph.yaml."
        )


def _untimed_links(bundle: Bundle, column: str) -> Iterator[str]:
    """Names tables of links without times, if others have times.

    Columns of a table of nodes, such as the category of a product, have at most one edge per
    node. A table of nodes links two others if it refers to both.
    """
    is_timed = {type_: column in bundle.columns(type_) for type_ in bundle.types}
    names, of_events = list[str](), set[str]()
    refers: dict[str, list[str]] = {}
    for edge_type in bundle.edge_types:
        ends = (edge_type[0], edge_type[2])
        if edge_type[1].startswith(REVERSE_PREFIX):
            continue
        if is_timed[edge_type] or is_timed[ends[0]]:
            of_events.add(ends[1])
        elif not is_timed[ends[1]]:
            if bundle.num_edges(edge_type) > max(bundle.num_nodes(end) for end in ends):
                names.append(f"edges {edge_type_name(edge_type)}")
            elif bundle.num_edges(edge_type) <= bundle.num_nodes(ends[0]):
                refers.setdefault(ends[0], []).append(ends[1])
    names += [
        f"nodes {name}"
        for name, ends in refers.items()
        if len(ends) > 1 and of_events & {*ends} and name not in of_events
    ]
    if names and any(is_timed[edge_type] for edge_type in bundle.edge_types):
        yield (
            f"{', '.join(names)} have no time, unlike others, so every row sees all of them, also "
            "those of its future. Give them a time in graph.yaml, or set their fanout to 0."
        )


def _clocks(bundle: Bundle, target: NodeTarget) -> Iterator[str]:
    """Names columns of numbers that grow with time."""
    train = target.counted_rows
    if bundle.is_of_parts or not len(train):
        return
    until = float(np.asarray(target.seeds.time)[train].max())
    if names := [*columns_that_follow_time(bundle, target.arguments.feature, until)]:
        yield (
            "later rows lie beyond all that the model learns from, in columns that grow with "
            f"time: {', '.join(names)}. LightGBM does not read them; leave them out of the "
            "features in graph.yaml, so that the GNN does not either."
        )


def _overlaps(target: NodeTarget) -> Iterator[str]:
    """Counts training rows whose labels cover the time of held-out rows, if these are later."""
    seeds, splits = target.seeds, target.splits
    window = window_as_time(seeds.window, seeds.time_unit)
    held_out = [rows for rows in (splits.val, splits.test) if len(rows)]
    if window is None or seeds.time is None or not held_out:
        return
    first = min(extremes(seeds.time, rows)[0] for rows in held_out)
    if extremes(seeds.time, splits.train)[1] >= first:
        return
    blocks = (splits.train[some] for some in row_blocks(len(splits.train)))
    if num_rows := sum(int((seeds.time[rows] + window > first).sum()) for rows in blocks):
        yield (
            f"{num_rows:,} training rows of {seeds.place} have labels that reach past the first "
            f"validation or test row (window {seeds.window}), so results may be too good. Leave "
            "these rows out, or let validation begin later."
        )


def _leaks(bundle: Bundle, target: NodeTarget) -> Iterator[str]:
    """Names columns of the node, or of a row's entity, that reveal the label: they are a linear
    function of it, such as a copy.
    """
    output = target.output
    info = bundle.columns(output.node_type).get(target.arguments.feature)
    if (
        bundle.is_of_parts
        or info is None
        or info.sparse
        or not (output.is_number or output.is_binary)
    ):
        return
    train = thinned(target.splits.train, max(1, MAX_GATHERED // max(info.width, 1)))
    values = bundle.dense(output.node_type, info.name)
    x = values[target.seeds.node_ids(train)].astype(np.float64).reshape(len(train), info.width)
    x -= x.mean(axis=0)
    y = target.labels[train].reshape(-1).astype(np.float64)
    y -= y.mean()
    scale = np.sqrt((x**2).sum(axis=0) * (y**2).sum())
    leaks = np.flatnonzero((scale > 0) & (np.abs(y @ x) > (1 - _ROUNDING) * scale))
    parts = () if info.transforms is None else info.transforms.parts
    names = [part.column for part in parts for _ in range(part.width)]
    names = names or [f"{info.name}[{i}]" for i in range(info.width)]
    moment = "when the label is not" if output.table is None else "at the time of each row"
    for name in dict.fromkeys(names[i] for i in leaks):
        yield (
            f"column {name!r} of {output.node_type!r} gives label {output.label!r} away: one "
            "follows from the other in all training rows. Leave it out of the features, unless it "
            f"is known {moment}."
        )


def _known_later(bundle: Bundle, target: NodeTarget) -> Iterator[str]:
    """Names columns of a row's entity that may be known only after the row's time."""
    train, seeds, output = target.counted_rows, target.seeds, target.output
    if bundle.is_of_parts or not len(train):
        return
    times = None if seeds.time is None else np.asarray(seeds.time)[train]
    classes = target.labels[train].reshape(-1) if output.problem == "multi_class" else None
    nodes, feature = seeds.node_ids(train), target.arguments.feature
    for found in columns_known_later(bundle, output.node_type, feature, nodes, times, classes):
        yield (
            f"{found}, so it may be known too late. Leave it out of the features in graph.yaml, "
            "unless it is known at the time of each row, such as the end of a contract."
        )


def columns_known_later(
    bundle: Bundle,
    node_type: str,
    feature: str,
    nodes: np.ndarray,
    times: np.ndarray | None,
    classes: np.ndarray | None,
) -> Iterator[str]:
    """Evidence against columns of the training rows' entities: `column 'closed_on' of 'accounts' is
    later than the time of 31% of the training rows`.

    Args:
        nodes: int64 [num_rows].
        times: [num_rows], or null.
        classes: int64 [num_rows], the labels, unless they are numbers.
    """
    nodes, of = thinned(nodes, _MAX_ROWS), f"of {node_type!r}"
    times = None if times is None else thinned(times, _MAX_ROWS)
    dated = times if time_unit(bundle, TIME) == TIME_UNIT else None
    entities, rows_of = np.unique(nodes, return_inverse=True)
    classes = None if classes is None else thinned(classes, _MAX_ROWS)
    for column in _columns(bundle, node_type, feature, nodes):
        known = ~np.isnan(column.values)
        if column.kind == "date" and dated is not None and known.any():
            later = float(np.mean(column.values[known] > dated[known]))
            if later > _LATER:
                yield (
                    f"column {column.name!r} {of} is later than the time of {later:.0%} of the "
                    "training rows with a value"
                )
                continue
        if classes is None:
            continue
        for what, rows in (("filled", known), ("empty", ~known)):
            found = np.unique(classes[rows])
            if len(found) != 1:
                continue
            has_other = np.bincount(rows_of, classes != found[0], len(entities)) > 0
            if (1 - has_other.mean()) ** len(np.unique(nodes[rows])) < _BY_CHANCE:
                yield f"column {column.name!r} {of} is {what} only in training rows of one class"


def columns_that_follow_time(bundle: Bundle, feature: str, until: float | None) -> Iterator[str]:
    """Names of columns that grow with the time of their row, such as a week, with the table.

    Args:
        until: the end of training; later nodes are not compared.
    """
    for node_type in bundle.node_types:
        if TIME not in bundle.columns(node_type):
            continue
        times = np.asarray(bundle.column(node_type, TIME))
        rows = np.arange(len(times)) if until is None else np.flatnonzero(times <= until)
        rows = thinned(rows, _MAX_ROWS)
        for column in _columns(bundle, node_type, feature, rows):
            known = ~np.isnan(column.values)
            is_number = column.kind in ("number", "vector")
            if is_number and is_clock(column.values[known], times[rows[known]]):
                yield f"{column.name!r} of {type_name(node_type)!r}"


def _columns(
    bundle: Bundle, type_: str | EdgeType, feature: str, rows: np.ndarray
) -> list[RawColumn]:
    info = bundle.columns(type_).get(feature)
    if info is None or info.sparse or not len(rows):
        return []
    return raw_columns_of(info, bundle.dense(type_, feature)[rows])
