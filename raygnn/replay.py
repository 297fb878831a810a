"""Command line and Python entry of answers that are computed again: `raygnn replay MODEL FILE`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from os import PathLike, fspath

from raygnn.command_line import (
    add_allow_module,
    add_as_of,
    check_arguments,
    command,
    command_parser,
    exit_process,
)
from raygnn.console import give_result, say
from raygnn.errors import RaygnnError

_USAGE = """\
raygnn replay MODEL FILE --graph URI [--follow LOG] [options] [--section.key value ...]

Computes recorded answers of a server again, and compares them bit for bit. FILE is what
`raygnn serve --record FILE` wrote; model, graph, log, and the options of the server are given as
there. Exit status 1: an answer differs. See docs/serving.md.
"""
_EXAMPLES = """
raygnn replay runs/shop answers.jsonl --graph shop --follow log
"""
_MAX_SHOWN = 5


def replay(
    model: str | PathLike[str],
    answers: str | PathLike[str],
    graph: str | PathLike[str],
    overrides: Sequence[str] = (),
    *,
    follow: str | PathLike[str] | None = None,
    task: str | None = None,
    as_of: str | int | float | None = None,
    allow_modules: Sequence[str] = (),
) -> int:
    """Computes recorded answers again, in the order of their positions.

    The other arguments are those of `raygnn.serve.start`.

    Args:
        answers: file that `raygnn serve --record` wrote.
        follow: event log that the server followed.
    Returns:
        The number of answers, which are equal in every bit.
    Raises:
        ConfigError, DataError: an argument or a file is invalid.
        RaygnnError: an answer differs, or is of another model, graph or log.
    """
    from raygnn.data.compactions import start_of
    from raygnn.data.filesystem import absolute
    from raygnn.serving.answers import Answers
    from raygnn.serving.messages import AnsweredRows
    from raygnn.serving.records import read_records
    from raygnn.trained_model import load

    records = sorted(read_records(fspath(answers)), key=lambda each: each.version.position or 0)
    keys = [*overrides, "--data.uri", absolute(fspath(graph))]
    loaded = load(fspath(model), keys, task=task, allow_modules=allow_modules)
    log = None if follow is None else fspath(follow)
    start = start_of(fspath(graph))
    again = Answers(loaded, as_of=as_of, follow=log, start=start, until=start[0], is_alone=True)
    different: list[str] = []
    for record in records:
        if record.version.position is not None:
            again.catch_up(record.version.position)
        (found,) = again.answer([record.question])
        if not isinstance(found, AnsweredRows):
            different.append(f"line {record.line}: {found.message}")
        elif found.version != record.version:
            different.append(f"line {record.line}: the version differs")
        elif list(found) != record.rows:
            different.append(f"line {record.line}: the rows differ")
    if different:
        shown = "; ".join(different[:_MAX_SHOWN])
        raise RaygnnError(
            f"{len(different):,} of {len(records):,} answers differ: {shown}. Give the model, "
            "graph, log and options of the server, and the same number of threads. [replay-differs]"
        )
    return len(records)


def _run(options: argparse.Namespace, remaining: Sequence[str]) -> None:
    chosen = vars(options)
    graph = chosen.pop("graph")
    needed, rule = [graph, *remaining[:2]], "it needs MODEL, FILE and --graph"
    check_arguments(needed, 3, rule, _USAGE, id="replay-arguments-missing")
    num = replay(remaining[0], remaining[1], graph, remaining[2:], **chosen)
    say(f"{num:,} answers are equal")
    give_result(answers=num)


def build_parser() -> argparse.ArgumentParser:
    parser = command_parser("raygnn replay", _EXAMPLES, usage=_USAGE)
    parser.add_argument("--graph", metavar="URI", help="graph of the server")
    parser.add_argument("--follow", metavar="LOG", help="event log of the server")
    parser.add_argument("--task", metavar="NAME", help="task of a model with several tasks")
    add_as_of(parser.add_argument)
    add_allow_module(parser)
    return parser


main = command(_run, build_parser, interrupted="nothing was compared")

if __name__ == "__main__":
    exit_process(main)
