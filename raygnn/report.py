"""Command line and Python entry of comparisons: `python -m raygnn.report RUN RUN ...`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from raygnn.command_line import command_parser, exit_process, exit_status_of
from raygnn.console import say
from raygnn.errors import RunError

if TYPE_CHECKING:
    from raygnn.outputs.comparison import StoredRun

_DESCRIPTION = """\
Compares runs on one self-contained page: test metrics with intervals, config keys that differ,
curves and cost. For a sweep, also parallel coordinates and the importance of each key.
"""
_EXAMPLES = """
raygnn report runs/sage runs/gat --out compared.html
raygnn report runs/sweep
"""


def write_report(
    runs: Sequence[str | PathLike[str]],
    out: str | PathLike[str] = "report.html",
    *,
    graph: str | PathLike[str] | None = None,
) -> str:
    """Writes a page that compares runs, and returns its path.

    If runs were tested on different rows, the models of the older ones predict those of the newest.

    Args:
        runs: folders of runs, finished or not, or of one sweep; any fsspec URI.
        out: file to write or replace; any fsspec URI.
        graph: graph of the newest run; any fsspec URI. Default: as in its config, if it is local.
    Raises:
        RunError: a folder has no run.
    """
    from raygnn.data.filesystem import write_text
    from raygnn.outputs.comparison import compare

    given = None if graph is None else fspath(graph)
    found = compare([fspath(run) for run in runs], partial(_judge, graph=given))
    if found.remark:
        say(found.remark)
    write_text(fspath(out), found.html())
    return fspath(out)


def _judge(run: StoredRun, newest: StoredRun, graph: str | None) -> dict[str, Any]:
    """Metrics of a run's model on the test rows of the newest run. Raises a RaygnnError if the
    model, the graph or the rows are not there.
    """
    from raygnn.data.filesystem import exists, is_remote
    from raygnn.trained_model import load

    uri = graph or newest.data.get("uri")
    if not uri or (graph is None and (is_remote(uri) or not exists(uri))):
        raise RunError(
            f"the graph of {newest.name} is not here. Name it with --graph.", id="report-no-graph"
        )
    say(f"{run.name}: predicting the test rows of {newest.name}")
    splits = json.dumps(newest.data.get("splits"))
    judged = load(run.uri, ["--data.splits", splits]).judge(uri, split="test")
    rows = judged.rows
    if rows is None or rows.digest != newest.metrics["test_rows"]:
        raise RunError(
            f"{uri} no longer has the test rows of {newest.name}. Name its graph with --graph.",
            id="report-other-rows",
        )
    if any(rows.overlaps(sketch) for sketch in run.metrics["learned_rows"]):
        raise RunError(
            f"{run.name} learned from some of the test rows of {newest.name}. Train both with the "
            "same splits.",
            id="report-learned-rows",
        )
    return {
        **{f"test/{name}": value for name, value in judged.metrics.items()},
        "intervals": {f"test/{name}": ends for name, ends in judged.intervals.items()},
        "standard_errors": {f"test/{name}": e for name, e in judged.standard_errors.items()},
        "test_rows": rows.digest,
    }


def main(argv: Sequence[str] | None = None) -> int:
    options = build_parser().parse_args(argv)
    return exit_status_of(lambda: _run(options), interrupted="nothing was written")


def _run(options: argparse.Namespace) -> None:
    say(f"report {write_report(options.runs, options.out, graph=options.graph)}")


def build_parser() -> argparse.ArgumentParser:
    parser = command_parser("raygnn report", _EXAMPLES, description=_DESCRIPTION)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run, or of a sweep")
    parser.add_argument(
        "--graph",
        metavar="URI",
        help="graph of the newest run, if the runs were tested on different rows and it has moved",
    )
    parser.add_argument("--out", default="report.html", metavar="FILE", help="default: report.html")
    return parser


if __name__ == "__main__":
    exit_process(main)
