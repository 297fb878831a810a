"""Charts of what a run measured on its way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raygnn.outputs.html_page import NUM_COLORS, Chart, Series

Row = Mapping[str, float]
_NOT_METRICS = {"step", "epoch", "samples", "time_s"}
_TITLES = {
    "loss": "Loss",
    "lr": "Learning rate",
    "grad_norm": "Norm of the gradient",
    "perf/seeds_per_s": "Seeds per second",
    "perf/edges_per_s": "Edges per second",
    "perf/loader_wait_share": "Share of time waiting for batches",
    "perf/part_requests": "Requests to parts on other nodes, a step",
    "perf/part_bytes": "Bytes to and from parts on other nodes, a step",
    "perf/cached_rows": "Rows of other nodes from the cache, a step",
    "perf/memory_bytes": "Resident memory of rank 0 [bytes]",
    "perf/cuda_memory_bytes": "GPU memory of rank 0, at most [bytes]",
}
_ACRONYMS = {"auroc", "auc", "ap", "map", "mrr", "ndcg", "mae", "nmae", "rmse"}
_LAST = ("grad_norm", "lr")


def run_charts(
    history: Sequence[Row], logged: Sequence[Row], monitor: str, best: tuple[int, str] | None
) -> list[Chart]:
    """`best`: the step to mark in charts of losses and metrics, and its label."""
    groups: dict[str, list[Series]] = {}
    for name in _names([*history, *logged]):
        # Both may contain a metric, such as the training loss: the finer curve is drawn.
        points = max(_points(history, name), _points(logged, name), key=len)
        lines = groups.setdefault(_group(name), [])
        color = (len(lines) or int(name.startswith("val/"))) % NUM_COLORS
        lines.append(Series(name, points, color))
    order = sorted(groups, key=lambda group: _place(group, _group(monitor)))
    return [
        Chart(
            _title(group),
            groups[group],
            best[0] if best and _is_metric(group) else None,
            best[1] if best else "",
            from_zero=group.startswith("perf/"),
            wide=group == "loss",
        )
        for group in order
    ]


def without_flat(charts: Sequence[Chart]) -> tuple[list[Chart], list[tuple[str, float]]]:
    """Charts of losses and metrics, and others without flat lines; names and values of these."""
    drawn, flat = list[Chart](), list[tuple[str, float]]()
    for chart in charts:
        if chart.wide or chart.marked_x is not None or not all(s.is_flat for s in chart.series):
            drawn.append(chart)
        else:
            flat += [(line.name, line.points[-1][1]) for line in chart.series]
    return drawn, flat


def _names(rows: Sequence[Row]) -> list[str]:
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if name not in _NOT_METRICS]


def _points(rows: Sequence[Row], name: str) -> list[tuple[float, float]]:
    return [(row["step"], row[name]) for row in rows if name in row]


def _group(name: str) -> str:
    if name.startswith("perf/"):
        return name
    return name.partition("/")[2].partition("@")[0] or name


def _title(group: str) -> str:
    if group in _ACRONYMS:
        return group.upper()
    if group.startswith("full_"):
        return f"{_title(group.removeprefix('full_'))} among all targets"
    return _TITLES.get(group, group[:1].upper() + group[1:].replace("_", " "))


def _is_metric(group: str) -> bool:
    return not group.startswith("perf/") and group not in _LAST


def _place(group: str, monitored: str) -> tuple[int, int]:
    if _is_metric(group):
        return 0, 0 if group == "loss" else 1 if group == monitored else 2
    return 1, _LAST.index(group) if group in _LAST else len(_LAST)
