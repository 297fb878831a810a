"""Command line and Python entry of monitoring: `raygnn monitor MODEL ANSWERS --graph G`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from datetime import date, datetime
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from raygnn.command_line import (
    add_allow_module,
    check_arguments,
    command_parser,
    exit_process,
    exit_status_of,
)
from raygnn.console import say, warn
from raygnn.errors import DataError

if TYPE_CHECKING:
    from raygnn.serving.monitoring import Figure

#: Exit status if a figure is beyond its limit.
ALARM = 3
_USAGE = """\
raygnn monitor MODEL ANSWERS --graph URI [options] [--section.key value ...]

Computes how recorded answers of a server differ from training: with --labels, their metrics over
time beside those of the test; drift of columns and predictions; missing values, unknown texts, and
nodes without edges. ANSWERS is what `raygnn serve --record` wrote. The figures are written to
ANSWERS.prom, which the server adds to /metrics. Exit status 3: an alarm. See docs/monitoring.md.
"""
_EXAMPLES = """
raygnn monitor orders@champion answers.jsonl --graph store --follow log
raygnn monitor orders@champion answers.jsonl --graph store --labels labels.csv --every 7d
"""


def monitor(
    model: str | PathLike[str],
    answers: str | PathLike[str],
    graph: str | PathLike[str],
    overrides: Sequence[str] = (),
    *,
    follow: str | PathLike[str] | None = None,
    labels: str | PathLike[str] | None = None,
    every: str = "1d",
    allow_modules: Sequence[str] = (),
    **limits: Any,
) -> list[Figure]:
    """Compares recorded answers to `/predict` with labels and with training.

    Args:
        model: folder or URI of a run, or an alias.
        answers: file that `raygnn serve --record` wrote. Answers of all models count.
        graph: folder or URI of the tables that the model was trained on.
        follow: event log, whose rows are compared with the tables.
        labels: table with the columns `id`, perhaps `time`, and the label, by one of these or both.
        every: width of a window of time, such as 12h.
        limits: see `raygnn.serving.monitoring.Limits`.
    Returns:
        The figures. They are also written to the file of the answers with the suffix `.prom`.
    Raises:
        ConfigError: an argument is invalid, or the model predicts no class or number of nodes.
        DataError: a file is invalid.
    """
    from raygnn.data.filesystem import absolute, exists, join, read_text, write_text
    from raygnn.outputs.model_registry import resolved
    from raygnn.serving import monitoring
    from raygnn.serving.records import FIGURES_SUFFIX, read_records
    from raygnn.trained_model import load

    uri, tables = resolved(fspath(model)), absolute(fspath(graph))
    loaded = load(uri, [*overrides, "--data.uri", tables], allow_modules=allow_modules)
    output = monitoring.check_output(loaded.spec.output)
    chosen, opened = monitoring.Limits(**limits), loaded.open()
    rows = monitoring.answered_rows(list(read_records(fspath(answers))))
    if not rows:
        raise DataError(
            f"ANSWERS={fspath(answers)!r} is invalid: it has no answers to /predict. Record some "
            "with raygnn serve --record.",
            id="monitor-no-answers",
        )
    log = None if follow is None else fspath(follow)
    figures = [monitoring.Figure("raygnn_answered_rows", len(rows))]
    figures += monitoring.prediction_drift(opened, rows, chosen)
    figures += monitoring.input_drift(opened, tables, rows, log, chosen)
    if labels is not None:
        path = join(uri, "metrics.json")
        test = json.loads(read_text(path)) if exists(path) else {}
        known = _read_labels(fspath(labels))
        figures += monitoring.served_metrics(output, rows, known, test, every, chosen)
    alarms = sum(bool(figure.alarm) for figure in figures)
    figures.append(monitoring.Figure("raygnn_drift_alarms", alarms))
    write_text(f"{fspath(answers)}{FIGURES_SUFFIX}", monitoring.prometheus_text(figures))
    return figures


def _read_labels(file: str) -> dict[tuple[Any, Any], Any]:
    from raygnn.data.tables.files import list_files
    from raygnn.data.tables.read_ids import read_columns

    folder, slash, name = file.rpartition("/")
    table = read_columns(list_files(folder or slash or ".", [name], "--labels"), None, "--labels")
    columns = [name for name in table.column_names if name not in ("id", "time")]
    if "id" not in table.column_names or len(columns) != 1:
        raise DataError(
            f"--labels={file!r} is invalid: its columns are {table.column_names}. Write id, "
            "perhaps time, and one column with the label.",
            id="monitor-labels",
        )
    ids, labels = table["id"].to_pylist(), table[columns[0]].to_pylist()
    times = table["time"].to_pylist() if "time" in table.column_names else [None] * len(ids)
    keys = zip(ids, map(_as_answered, times), strict=True)
    return dict(zip(keys, labels, strict=True))


def _as_answered(time: Any) -> Any:
    """A time as answers have it: ISO 8601 of dates."""
    if isinstance(time, str):
        time = datetime.fromisoformat(time)
    if isinstance(time, date) and not isinstance(time, datetime):
        time = datetime(time.year, time.month, time.day)
    return time.isoformat() if isinstance(time, datetime) else time


def main(argv: Sequence[str] | None = None) -> int:
    options, remaining = build_parser().parse_known_args(argv)
    return exit_status_of(lambda: _run(options, remaining), interrupted="nothing was written")


def _run(options: argparse.Namespace, remaining: Sequence[str]) -> int:
    chosen = vars(options)
    graph = chosen.pop("graph")
    needed, rule = [graph, *remaining[:2]], "it needs MODEL, ANSWERS and --graph"
    check_arguments(needed, 3, rule, _USAGE, id="monitor-arguments")
    figures = monitor(remaining[0], remaining[1], graph, remaining[2:], **chosen)
    for figure in figures:
        labels = " ".join(value for _, value in figure.labels if value)
        text = f"{figure.name.removeprefix('raygnn_')} {labels}".strip()
        say(f"{text}: {figure.value:.4g}", "figure", figure=figure.name, value=figure.value)
    for figure in figures:
        if figure.alarm:
            labels = " ".join(value for _, value in figure.labels if value)
            warn(f"{figure.name.removeprefix('raygnn_')} {labels}: {figure.alarm}")
    return ALARM if any(figure.alarm for figure in figures) else 0


def build_parser() -> argparse.ArgumentParser:
    parser = command_parser("raygnn monitor", _EXAMPLES, usage=_USAGE)
    add = parser.add_argument
    add("--graph", metavar="URI", help="tables that the model was trained on")
    add("--follow", metavar="LOG", help="event log, whose rows are compared with the tables")
    add("--labels", metavar="FILE", help="table of id, perhaps time, and the label")
    add("--every", default="1d", metavar="D", help="width of a window of answers (default: 1d)")
    numbers = {
        "psi": "stability index of columns and predictions (default: 0.25)",
        "share": "growth of missing, unknown or cold shares (default: 0.1)",
        "num-errors": "standard errors below the test's metric (default: 3)",
    }
    for name, text in numbers.items():
        default = argparse.SUPPRESS
        add(f"--{name}", type=float, metavar="X", default=default, help=f"alarm beyond this {text}")
    add_allow_module(parser)
    return parser


if __name__ == "__main__":
    exit_process(main)
