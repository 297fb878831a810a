"""Tables and charts of prediction errors, from the diagnostics in `metrics.json`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any, TypeVar

from raygnn.outputs.html_page import NUM_COLORS, Chart, Series

SPLITS = {"train": "training", "val": "validation", "test": "test"}
_MAX_CLASSES = 200  # in a table
_RANKS = {
    "ranks_by_degree": "known links of the target",
    "ranks_by_warmth": "known links of both ends",
}
_SHOWN_SHARES = (0.01, 0.05, 0.1, 0.2)  # of the best rows
_MAX_PAIRS = 10  # pairs of classes listed as most often confused

#: A table: its heads, and its rows.
PageTable = tuple[tuple[str, ...], list[tuple[Any, ...]]]


@dataclass(frozen=True)
class ConfusionTable:
    """Confusion matrix of a split: for each actual class its name, and for each predicted class the
    count and its share of the row in percent.
    """

    title: str
    classes: list[str]
    rows: list[tuple[str, list[tuple[int, int]]]]


Titled = TypeVar("Titled", ConfusionTable, Chart)


@dataclass(frozen=True)
class Errors:
    """Prediction errors of a run; confusions of each task with classes, unless there are many."""

    confusions: list[ConfusionTable] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    tables: dict[str, PageTable] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.confusions or self.charts or self.tables)


def find_errors(metrics: Mapping[str, Any]) -> Errors:
    """Reads prediction errors from `metrics.json`, under `<name>`, or `<task>/<name>` for several
    tasks, whose headings begin with the task.
    """
    charts, tables = list[Chart](), dict[str, PageTable]()
    confusions = list[ConfusionTable]()
    by_task: dict[str, dict[str, Any]] = {}
    for name, value in metrics.items():
        task, _, described_name = name.rpartition("/")
        if isinstance(value, Mapping):
            by_task.setdefault(task, {})[described_name] = value
    for task, described in by_task.items():
        errors = _errors_of(described)
        names = [task] if task else []
        confusions += [_behind(names, table) for table in errors.confusions]
        charts += [_behind(names, chart) for chart in errors.charts]
        tables |= {": ".join([*names, heading]): rows for heading, rows in errors.tables.items()}
    return Errors(confusions, charts, tables)


def _behind(names: list[str], titled: Titled) -> Titled:
    return replace(titled, title=": ".join([*names, titled.title]))


def _errors_of(metrics: Mapping[str, Any]) -> Errors:
    confusions, charts, tables = list[ConfusionTable](), list[Chart](), dict[str, PageTable]()
    for split, figures in metrics.get("confusion", {}).items():
        confusions.append(_confusion(f"Actual and predicted classes, {SPLITS[split]}", figures))
        tables |= _most_confused(f"Most often confused, {SPLITS[split]}", figures)
    for split, figures in metrics.get("calibration", {}).items():
        title = f"Calibration, {SPLITS[split]}: expected error {figures['error']:.3f}"
        if (by_chance := figures.get("by_chance")) is not None:
            title += f" ({by_chance:.3f} by chance)"
        curves = {"accuracy": _curve(figures)}
        if before := metrics.get("uncalibrated", {}).get(split):
            title += f", before scaling {before['error']:.3f}"
            curves["before scaling"] = _curve(before)
        charts.append(_against_identity(title, curves, "probability of the prediction"))
    for split, figures in metrics.get("errors_by_value", {}).items():
        points = list(zip(figures["actual"], figures["predicted"], strict=True))
        title = f"Predicted against actual values, {SPLITS[split]}"
        charts.append(_against_identity(title, {"mean prediction": points}, "actual value"))
        columns = (figures[name] for name in ("actual", "predicted", "mae", "rows"))
        rows = list(zip(*columns, strict=True))
        heads = ("mean actual value", "mean prediction", "mean absolute error", "rows")
        tables[f"Errors by value, {SPLITS[split]}"] = heads, rows
    for split, figures in metrics.get("coverage", {}).items():
        title = f"Ranges, {SPLITS[split]}: {figures['share']:.1%} of the values in ranges of 80 %"
        columns = (figures[name] for name in ("predicted", "contained", "width", "rows"))
        of_ranges = ("mean prediction", "share in the range", "mean width", "rows")
        tables[title] = of_ranges, list(zip(*columns, strict=True))
    for split, figures in metrics.get("top_rows", {}).items():
        best = [top_row(figures, share) for share in _SHOWN_SHARES]
        of_best = ("best", "rows", "least probability", "precision", "lift", "share found")
        title = f"Rows by probability of {figures['class']!r}, {SPLITS[split]}"
        tables[title] = of_best, [(f"{top.share:.0%}", *astuple(top)[1:]) for top in best]
    for split, figures in metrics.get("column_effects", {}).items():
        tables |= _effect_tables(figures, SPLITS[split])
    for name in ("over_time", "by_output"):
        for split, figures in metrics.get(name, {}).items():
            rows = list(zip(*figures.values(), strict=True))
            tables[f"Metrics {name.replace('_', ' ')}, {SPLITS[split]}"] = tuple(figures), rows
    for name, what in _RANKS.items():
        for split, figures in metrics.get(name, {}).items():
            heads = (what, *(key for key in figures if key != "groups"))
            rows = list(zip(*figures.values(), strict=True))  # the groups come first
            tables[f"Ranks by {what}, {SPLITS[split]}"] = heads, rows
    return Errors(confusions, charts, tables | _class_tables(metrics.get("per_class", {})))


def _confusion(title: str, entry: Mapping[str, Any]) -> ConfusionTable:
    rows = [
        (name, [(count, round(100 * count / max(sum(counts), 1))) for count in counts])
        for name, counts in zip(entry["classes"], entry["counts"], strict=True)
    ]
    return ConfusionTable(title, entry["classes"], rows)


def _most_confused(title: str, entry: Mapping[str, Any]) -> dict[str, PageTable]:
    classes, pairs = entry["classes"], list[tuple[str, str, int, str]]()
    for actual, counts in zip(classes, entry["counts"], strict=True):
        for predicted, count in zip(classes, counts, strict=True):
            if count and actual != predicted:
                pairs.append((actual, predicted, count, f"{count / sum(counts):.0%}"))
    if len(classes) < 3 or not pairs:
        return {}
    pairs.sort(key=lambda pair: -pair[2])
    return {title: (("actual", "predicted", "rows", "share of the class"), pairs[:_MAX_PAIRS])}


def _effect_tables(figures: Mapping[str, Any], split: str) -> dict[str, PageTable]:
    rows = f"{figures['rows']:,} rows of {split}"
    tables: dict[str, PageTable] = {}
    for what in ("table", "column"):
        heads = (what, "of", "mean effect", "share")
        cells = [(e[what], e["of"], e["effect"], e["share"]) for e in figures[f"{what}s"]]
        tables[f"{what.title()}s that LightGBM's predictions depend on, {rows}"] = heads, cells
    for cohort in figures["cohorts"]:
        columns = ("range", "rows", "label", "prediction")
        tables[f"Cohorts by {cohort['column']}, {rows}"] = (
            ("range", "rows", "mean label", "mean prediction"),
            [tuple(each[name] for name in columns) for each in cohort["ranges"]],
        )
    return tables


def _curve(figures: Mapping[str, Any]) -> list[tuple[float, float]]:
    return list(zip(figures["confidence"], figures["accuracy"], strict=True))


@dataclass(frozen=True)
class TopRow:
    """The rows with the highest probabilities of a class.

    Attributes:
        share: of all rows.
        least_probability: of these rows.
        precision: share of them with the class.
        lift: precision divided by that of all rows.
        found: share of all rows with the class that are among them.
    """

    share: float
    rows: int
    least_probability: float
    precision: float
    lift: float
    found: float


def top_row(figures: Mapping[str, Any], share: float) -> TopRow:
    """Reads the smallest stored cut with at least this share of the rows from `top_rows`."""
    place = min(bisect_left(figures["share"], share - 1e-9), len(figures["share"]) - 1)
    rows, positive = figures["rows"][place], figures["positive"][place]
    base = figures["num_positive"] / figures["num_rows"]
    return TopRow(
        figures["share"][place],
        rows,
        figures["least_probability"][place],
        positive / rows,
        positive / rows / base,
        positive / figures["num_positive"],
    )


def _against_identity(
    title: str, curves: Mapping[str, list[tuple[float, float]]], x_label: str
) -> Chart:
    every = [x for points in curves.values() for x, _ in points]
    lines = [Series(name, points, i) for i, (name, points) in enumerate(curves.items())]
    ends = [(x, x) for x in (min(every), max(every))]
    lines.append(Series("perfect", ends, NUM_COLORS - 1))
    return Chart(title, lines, x_label=x_label, x_from_zero=False)


def _class_tables(per_class: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, PageTable]:
    tables = {}
    for split, figures in per_class.items():
        by_support = sorted(figures.items(), key=lambda item: item[1]["support"])
        heading = f"Classes, {SPLITS[split]}"
        if len(figures) > _MAX_CLASSES:
            heading += f": the rarest {_MAX_CLASSES} of {len(figures):,}"
        heads = ("class", *by_support[0][1])
        tables[heading] = heads, [(name, *row.values()) for name, row in by_support[:_MAX_CLASSES]]
    return tables
