"""How a run went: charts of all that it logged, losses and monitored metric first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raygnn.outputs.charts import NUM_COLORS, Chart, Series

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
_ACRONYMS = {"auroc", "auc", "ap", "mrr", "ndcg", "mae", "rmse"}
_LAST = ("grad_norm", "lr")


def run_charts(
    history: Sequence[Row], logged: Sequence[Row], monitor: str, best: tuple[int, str] | None
) -> list[Chart]:
    """Charts of everything in the history of validations and in the logged rows.

    Args:
        best: the step to mark in the charts of losses and metrics, and what to say there.
    """
    groups: dict[str, list[Series]] = {}
    for name in _names([*history, *logged]):
        # Both may have it, such as the training loss: the finer of the two is drawn.
        points = max(_points(history, name), _points(logged, name), key=len)
        lines = groups.setdefault(_group(name), [])
        lines.append(Series(name, points, _color(name, len(lines))))
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
    """The charts that show something; and of those whose lines have one value, name and value.

    Of losses and metrics a chart stays, however flat.
    """
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
    """train/loss and val/loss share a chart, and so do val/hits@1 and val/hits@10."""
    if name.startswith("perf/"):
        return name
    return name.partition("/")[2].partition("@")[0] or name


def _color(name: str, index: int) -> int:
    """A validation is never drawn in the first color, which is that of training."""
    return (index or int(name.startswith("val/"))) % NUM_COLORS


def _title(group: str) -> str:
    if group in _ACRONYMS:
        return group.upper()
    return _TITLES.get(group, group[:1].upper() + group[1:].replace("_", " "))


def _is_metric(group: str) -> bool:
    return not group.startswith("perf/") and group not in _LAST


def _place(group: str, monitored: str) -> tuple[int, int]:
    """Losses, the monitored metric, other metrics, then how training went."""
    if _is_metric(group):
        return 0, 0 if group == "loss" else 1 if group == monitored else 2
    return 1, _LAST.index(group) if group in _LAST else len(_LAST)
