"""Command line and Python entry of comparisons: `python -m raygnn.report RUN RUN ...`."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from os import PathLike, fspath

from raygnn.command_line import command, command_parser, exit_process
from raygnn.console import give_result, say
from raygnn.errors import RunError

_DESCRIPTION = """\
Compares runs on one self-contained page: test metrics with intervals, config keys that differ,
curves and cost. For a sweep, also a table of its trials.
"""
_EXAMPLES = """
raygnn report runs/sage runs/gat --out compared.html
raygnn report runs/sweep
raygnn report runs/churn --top 5%
raygnn report runs/churn --cost 1:20
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
    from raygnn.judging import judge_run
    from raygnn.outputs.comparison import compare

    given = None if graph is None else fspath(graph)
    found = compare([fspath(run) for run in runs], partial(judge_run, graph=given))
    if found.remark:
        say(found.remark)
    write_text(fspath(out), found.html())
    return fspath(out)


def decide(run: str | PathLike[str], *, top: float | None = None, cost: float | None = None) -> str:
    """A decision by the probabilities of two classes in words, as the test rows had it.

    Args:
        run: folder of a finished run; any fsspec URI.
        top: act on this share of the rows, those with the highest probabilities.
        cost: act where it is worth it: acting in vain costs 1, not acting on a row of the class
            costs this. By calibrated probabilities, that is from 1 / (1 + cost) on.
    Raises:
        RunError: the folder has no run, or its model does not predict two classes.
    """
    from raygnn.outputs.report_errors import top_row
    from raygnn.outputs.stored_run import StoredRun

    by_split = StoredRun.open(fspath(run)).metrics.get("top_rows")
    if not by_split:
        raise RunError(
            f"{fspath(run)} has no rows by probability: it predicts no two classes, or has not "
            "ended. Name the run of a model of two classes. [report-no-decisions]"
        )
    ((split, figures),) = by_split.items()
    rows, positive = figures["num_rows"], figures["num_positive"]
    share, lines = top, list[str]()
    if cost is not None:
        least = 1 / (1 + cost)
        places = [i for i, p in enumerate(figures["least_probability"]) if p >= least]
        share = figures["share"][places[-1]] if places else 0.0
        lines = [
            f"act on rows of {figures['class']!r} with a probability of at least {least:.4g}: "
            f"acting in vain costs 1, not acting {cost:g}"
        ]
    assert share is not None
    missed = positive
    if share:
        best = top_row(figures, share)
        share, missed = best.share, positive * (1 - best.found)
        lines.append(
            f"{split}: the best {100 * share:.4g}% of {rows:,} rows, {best.rows:,} with a "
            f"probability from {best.least_probability:.4g}: {best.precision:.1%} are "
            f"{figures['class']!r} ({best.lift:.2f} times as many as of all), which are "
            f"{best.found:.1%} of them all"
        )
    if cost is not None:
        in_vain = best.rows * (1 - best.precision) if share else 0.0
        paid = (in_vain + cost * missed) / rows
        lines.append(
            f"cost a row {paid:.4g}; acting on all rows {(rows - positive) / rows:.4g}, on none "
            f"{cost * positive / rows:.4g}"
        )
    return "\n".join(lines)


def _run(options: argparse.Namespace) -> None:
    if options.top is not None or options.cost is not None:
        decisions = [decide(run, top=options.top, cost=options.cost) for run in options.runs]
        for decision in decisions:
            say(decision)
        give_result(decisions=decisions)
        return
    page = write_report(options.runs, options.out, graph=options.graph)
    say(f"report {page}")
    give_result(report=page)


def build_parser() -> argparse.ArgumentParser:
    parser = command_parser("raygnn report", _EXAMPLES, description=_DESCRIPTION)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run, or of a sweep")
    parser.add_argument(
        "--graph",
        metavar="URI",
        help="graph of the newest run, if the runs were tested on different rows and it has moved",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--top",
        type=_share,
        metavar="SHARE",
        help="print precision and lift of this share of the test rows, as 5%% or 0.05",
    )
    what.add_argument(
        "--cost",
        type=_cost,
        metavar="A:B",
        help="print the best threshold where acting in vain costs A, and not acting B",
    )
    parser.add_argument("--out", default="report.html", metavar="FILE", help="default: report.html")
    return parser


def _share(text: str) -> float:
    number, value = text.removesuffix("%"), math.nan
    with suppress(ValueError):
        value = float(number) / (100 if number != text else 1)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share of the rows, such as 5% or 0.05")
    return value


def _cost(text: str) -> float:
    costs: list[float] = []
    with suppress(ValueError):
        costs = [float(each) for each in text.split(":")]
    if len(costs) != 2 or not (min(costs) > 0 and math.isfinite(max(costs))):
        raise argparse.ArgumentTypeError(f"{text!r} is not two costs, such as 1:20")
    return costs[1] / costs[0]


main = command(_run, build_parser, interrupted="nothing was written")

if __name__ == "__main__":
    exit_process(main)
