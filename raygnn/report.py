"""Command line and Python entry of comparisons: `python -m raygnn.report RUN RUN ...`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from os import PathLike, fspath

from raygnn.command_line import command_parser, exit_process, exit_status_of
from raygnn.console import say

_DESCRIPTION = """\
Compares runs on one self-contained page: test metrics with intervals, config keys that differ,
curves and cost. For a sweep, also parallel coordinates and the importance of each key.
"""
_EXAMPLES = """
raygnn report runs/sage runs/gat --out compared.html
raygnn report runs/sweep
"""


def write_report(
    runs: Sequence[str | PathLike[str]], out: str | PathLike[str] = "report.html"
) -> str:
    """Writes a page that compares runs, and returns its path.

    Args:
        runs: folders of runs, finished or not, or of one sweep; any fsspec URI.
        out: file to write or replace; any fsspec URI.
    Raises:
        RunError: a folder has no run.
    """
    from raygnn.data.filesystem import write_text
    from raygnn.outputs.comparison import compare

    page = compare([fspath(run) for run in runs]).html()
    write_text(fspath(out), page)
    return fspath(out)


def main(argv: Sequence[str] | None = None) -> int:
    options = build_parser().parse_args(argv)
    return exit_status_of(lambda: _run(options), interrupted="nothing was written")


def _run(options: argparse.Namespace) -> None:
    say(f"report {write_report(options.runs, options.out)}")


def build_parser() -> argparse.ArgumentParser:
    parser = command_parser("raygnn report", _EXAMPLES, description=_DESCRIPTION)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run, or of a sweep")
    parser.add_argument("--out", default="report.html", metavar="FILE", help="default: report.html")
    return parser


if __name__ == "__main__":
    exit_process(main)
