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
    command,
    command_parser,
    exit_process,
)
from raygnn.console import give_result, say, warn
from raygnn.errors import DataError

if TYPE_CHECKING:
    from raygnn.data.id_map import IdKind
    from raygnn.serving.monitoring import Figure

#: Exit status if a figure is beyond its limit.
ALARM = 3
_TARGET = "neighbor_id"  # column of links
#: Columns of ids in a table of labels.
_IDS = {"links": ("anchor_id",), "edges": ("source_id", "target_id"), "nodes": ("id",)}
_USAGE = """\
raygnn monitor MODEL ANSWERS --graph URI [options] [--section.key value ...]

Computes how recorded answers of a server differ from training: with --labels, their metrics over
time beside those of the test; drift of columns and predictions; missing values, unknown texts, and
nodes without edges. ANSWERS is what `raygnn serve --record` wrote. The figures are written to
ANSWERS.html, and to ANSWERS.prom, which the server adds to /metrics. Exit status 3: an alarm. See
docs/monitoring.md.
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
    task: str | None = None,
    allow_modules: Sequence[str] = (),
    **limits: Any,
) -> list[Figure]:
    """Compares recorded answers to `/predict` and `/top_k` with labels and with training.

    Args:
        model: folder or URI of a run, or an alias.
        answers: file that `raygnn serve --record` wrote. Answers of all models count.
        graph: folder or URI of the tables that the model was trained on.
        follow: event log, whose rows are compared with the tables.
        labels: table with the columns `id`, perhaps `time`, and the label, by one of these or both;
            of edges with `source_id` and `target_id` in place of `id`; of links `anchor_id`,
            `neighbor_id`, and perhaps `time`. Default: links of the log.
        every: width of a window of time, such as 12h.
        task: which task of a model of several tasks.
        limits: see `raygnn.serving.monitoring.Limits`.
    Returns:
        The figures. They are also written to the file of the answers with the suffixes `.prom` and
        `.html`.
    Raises:
        ConfigError: an argument is invalid, or the model predicts neither labels nor links.
        DataError: a file is invalid.
    """
    from raygnn.data.event_log import logged_rows
    from raygnn.data.filesystem import absolute, exists, join, read_text, write_text
    from raygnn.outputs.model_registry import resolved
    from raygnn.serving import drift, monitoring
    from raygnn.serving.messages import Predict, TopK
    from raygnn.serving.records import FIGURES_SUFFIX, read_records
    from raygnn.trained_model import load

    uri, graph = resolved(fspath(model)), absolute(fspath(graph))
    keys = [*overrides, "--data.uri", graph]
    loaded = load(uri, keys, task=task, allow_modules=allow_modules)
    output = monitoring.check_output(loaded.spec.output)
    chosen, opened = monitoring.Limits(**limits), loaded.open()
    is_link = output.key == "links"
    route = TopK if is_link else Predict
    records = [r for r in read_records(fspath(answers)) if isinstance(r.question, route)]
    rows = monitoring.answered_rows(records)
    if not rows:
        raise DataError(
            f"ANSWERS={fspath(answers)!r} is invalid: it has no answers to "
            f"/{'top_k' if is_link else 'predict'}. Record some. [monitor-no-answers]"
        )
    logged = {} if follow is None else logged_rows(fspath(follow))
    figures = [monitoring.Figure("raygnn_answered_rows", len(rows))]
    figures += drift.prediction_drift(opened, rows, chosen)
    figures += drift.input_drift(opened, graph, rows, logged, chosen)
    known: dict[Any, Any] = {}
    if labels is not None:
        kinds = [opened.bundle.id_map(end).kind for end in output.ends]
        manifest = opened.manifest()
        tables = [] if manifest is None else [opened.training_table, *manifest.all_tables.values()]
        known = _read_labels(fspath(labels), output.key, kinds, tables)
    elif is_link:
        known = monitoring.logged_links(opened, logged)
    if known:
        path = join(uri, "metrics.json")
        test = json.loads(read_text(path)) if exists(path) else {}
        measured = [*monitoring.served_metrics(output, rows, known, test, every, chosen, task)]
        figures += measured
        if not measured:
            warn("no answer has a label: their ids, or their times, are others")
    alarms = sum(bool(figure.alarm) for figure in figures)
    figures.append(monitoring.Figure("raygnn_drift_alarms", alarms))
    write_text(f"{fspath(answers)}{FIGURES_SUFFIX}", monitoring.prometheus_text(figures))
    write_text(f"{fspath(answers)}.html", monitoring.page(fspath(model), figures))
    return figures


def _read_labels(
    file: str, kind: str, kinds_of_ids: Sequence[IdKind], tables: Sequence[Any]
) -> dict[Any, Any]:
    """Labels by id and time, or `KnownLink`s by anchor.

    Args:
        kind: key of the model's output.
        tables: of the graph, or None; the first that declares the label has its columns in order.
    """
    from raygnn.data.tables.files import named_files
    from raygnn.data.tables.read_ids import read_columns, read_id_files
    from raygnn.serving.monitoring import KnownLink, as_number

    files = named_files(file, "--labels")
    table = read_columns(files, None, "--labels")
    own, is_link = _IDS[kind], kind == "links"
    columns = [name for name in table.column_names if name not in (*own, "time")]
    if len(columns) > 1:  # in the order of training
        every = (label.columns for t in tables for label in getattr(t, "labels", {}).values())
        columns = next((list(c) for c in every if set(c) == set(columns)), [])
    is_known = columns == [_TARGET] if is_link else bool(columns)
    if not is_known or not {*own} <= {*table.column_names}:
        wanted = _TARGET if is_link else "the column of the label, or its columns in training"
        raise DataError(
            f"--labels={file!r} is invalid: its columns are {table.column_names}. Write "
            f"{', '.join(own)}, perhaps time, and {wanted}. [monitor-labels]"
        )
    for column, of_ids in zip((*own, *columns) if is_link else own, kinds_of_ids, strict=False):
        if of_ids != "int":  # texts of a CSV file may be numbers
            at, texts = table.column_names.index(column), (files, column, of_ids, "--labels")
            table = table.set_column(at, column, read_id_files(*texts))
    ids = list(zip(*(table[name].to_pylist() for name in own), strict=True))
    times = table["time"].to_pylist() if "time" in table.column_names else [None] * len(ids)
    labels = list(zip(*(table[name].to_pylist() for name in columns), strict=True))
    if is_link:
        links: dict[Any, list[KnownLink]] = {}
        for (anchor,), (target,), time in zip(ids, labels, times, strict=True):
            links.setdefault(anchor, []).append(KnownLink(target, as_number(time)))
        return links
    known: dict[Any, Any] = {}
    for id, values, time in zip(ids, labels, times, strict=True):
        if None not in values:  # labelled
            key = id if id[1:] else id[0], _as_answered(time)
            known[key] = list(values) if values[1:] else values[0]
    return known


def _as_answered(time: Any) -> Any:
    """A time as answers have it: ISO 8601 of dates."""
    if isinstance(time, str):
        time = datetime.fromisoformat(time)
    if isinstance(time, date) and not isinstance(time, datetime):
        time = datetime(time.year, time.month, time.day)
    return time.isoformat() if isinstance(time, datetime) else time


def _run(options: argparse.Namespace, remaining: Sequence[str]) -> int:
    chosen = vars(options)
    graph = chosen.pop("graph")
    needed, rule = [graph, *remaining[:2]], "it needs MODEL, ANSWERS and --graph"
    check_arguments(needed, 3, rule, _USAGE, id="monitor-arguments")
    figures = monitor(remaining[0], remaining[1], graph, remaining[2:], **chosen)
    for figure in figures:
        say(f"{figure.short} {figure.of}".strip() + f": {figure.value:.4g}")
    give_result(figures=[figure.content for figure in figures])
    alarms = [figure for figure in figures if figure.alarm]
    for figure in alarms:
        warn(f"{figure.short} {figure.of}: {figure.alarm}")
    return ALARM if alarms else 0


def build_parser() -> argparse.ArgumentParser:
    parser = command_parser("raygnn monitor", _EXAMPLES, usage=_USAGE)
    add = parser.add_argument
    add("--graph", metavar="URI", help="tables that the model was trained on")
    add("--follow", metavar="LOG", help="event log, whose rows are compared with the tables")
    add("--labels", metavar="FILE", help="table of id, perhaps time, and the label; see the page")
    add("--task", metavar="NAME", help="task of a model with several tasks")
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


main = command(_run, build_parser, interrupted="nothing was written")

if __name__ == "__main__":
    exit_process(main)
