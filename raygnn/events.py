"""Command line and Python entry of event logs: `raygnn events append LOG FILE`."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, islice
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from raygnn.command_line import command, command_parser, exit_process
from raygnn.console import give_result, say, show
from raygnn.data.filesystem import redact
from raygnn.errors import ConfigError, DataError

if TYPE_CHECKING:
    from raygnn.data.event_log import Entry, EventLog

_EXAMPLES = """
raygnn events append log orders.parquet --type user__buys__item
raygnn events append gs://bucket/log new.jsonl
raygnn events verify log
raygnn events compact log orders@champion --graph store
"""
_DESCRIPTION = """\
Appends rows of new nodes and edges to an event log, which `raygnn serve --follow LOG` reads. LOG is
a folder or URI. See docs/events.md.
"""
_ROWS_PER_ENTRY = 10_000
_ENTRIES_TOGETHER = 100  # of lines and messages, which may have a row each


def append(
    log: str | PathLike[str],
    nodes: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    edges: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    *,
    key: str | None = None,
) -> int:
    """Appends rows to an event log, and returns when they are durable.

    Rows are read by the graph that follows the log, which refuses those that do not fit it.

    Args:
        log: folder or URI, created if it is missing.
        nodes: rows by node type, with the columns of the graph's tables.
        edges: rows by edge type, `src__rel__dst`, between known or new nodes.
        key: name of the rows. Rows of a key that is in the log are not appended again.
    Returns:
        The position after the rows.
    Raises:
        DataError: a value cannot be stored, or the log is damaged.
        OSError: the log cannot be written. It is unchanged.
    """
    from raygnn.data.event_log import Entry, EventLog

    (position,) = EventLog.create(fspath(log)).append([Entry.of(nodes, edges, key)])
    return position


def append_all(log: str | PathLike[str], bodies: Iterable[Mapping[str, Any]]) -> int:
    """Appends the rows of several bodies of `POST /events`, such as messages of a queue.

    Args:
        bodies: with the keys `nodes`, `edges` and `key`. Bodies of a key that is in the log add
            nothing.
    Returns:
        The position after the rows, which are durable.
    Raises:
        DataError, OSError: as `append`; bodies before may have been appended.
    """
    from raygnn.data.event_log import Entry, EventLog

    opened = EventLog.create(fspath(log))
    entries = (Entry.of(b.get("nodes"), b.get("edges"), b.get("key")) for b in bodies)
    return _append(opened, entries, _ENTRIES_TOGETHER)


def _append(opened: EventLog, entries: Iterator[Entry], num_together: int) -> int:
    while group := list(islice(entries, num_together)):
        opened.append(group)
    return opened.position


def append_file(log: str | PathLike[str], file: str, type_name: str | None = None) -> int:
    """Appends the rows of a file; a file that was appended already adds nothing.

    Args:
        file: table of a type as Parquet or CSV, or JSON lines as `POST /events` takes them:
            `{"nodes": {TYPE: [ROW]}, "edges": {TYPE: [ROW]}, "key": "..."}`.
        type_name: node type, or edge type `src__rel__dst`, of a table.
    Returns:
        The position after the rows.
    Raises:
        ConfigError: `type_name` is missing, or needless.
        DataError, OSError: as `append`, or the file cannot be read.
    """
    from raygnn.data.event_log import EventLog

    is_table = not file.endswith((".jsonl", ".ndjson"))
    if is_table is (type_name is None):
        rule = "a table has rows of one type" if is_table else "each line names its types"
        remedy = "Give a node type, or an edge type src__rel__dst" if is_table else "Leave it out"
        raise ConfigError.invalid("--type", type_name, rule, remedy, id="events-type")
    opened = EventLog.create(fspath(log))
    if type_name:
        return _append(opened, _table_entries(file, type_name), 1)
    return _append(opened, _line_entries(file), _ENTRIES_TOGETHER)


def verify(log: str | PathLike[str]) -> int:
    """Reads all segments of a log, and returns its position.

    Raises a DataError if there is no log, or a segment is damaged or missing.
    """
    from raygnn.data.event_log import EventLog
    from raygnn.data.filesystem import files_below

    opened = EventLog(fspath(log))
    names = [n for n in files_below(opened.uri) if not n.startswith(".") and "/" not in n]
    num_segments = sum(1 for _ in opened.read())
    if not names or len(names) > num_segments:
        raise DataError(
            f"LOG={redact(opened.uri)!r} is invalid: {num_segments:,} of {len(names):,} files are "
            f"a log. Restore the segment of row {opened.position:,}, or name a log. "
            "[events-incomplete]"
        )
    return opened.position


def compact(
    log: str | PathLike[str],
    model: str | PathLike[str],
    graph: str | PathLike[str],
    overrides: Sequence[str] = (),
    *,
    task: str | None = None,
    allow_modules: Sequence[str] = (),
) -> str:
    """Writes the rows of a log as tables beside those of a graph, and returns their folder.

    Servers that follow the log switch to these tables, and read only later rows of the log.

    Args:
        model: whose servers follow the log; which rows fit depends on it.
        graph: the tables that the log began with.
        overrides: of the config, as for `raygnn.load`.
        task: which task of a model of several tasks.
        allow_modules: modules whose classes the model's config may name.
    Raises:
        DataError: a value cannot be written into the tables, or the log is damaged. Nothing has
            changed.
    """
    from raygnn.serving.compaction import compact as compact_log
    from raygnn.trained_model import load

    how: dict[str, Any] = {"task": task, "allow_modules": allow_modules}
    opened = partial(load, fspath(model), **how)
    return compact_log(opened, fspath(graph), fspath(log), overrides).uri


def _table_entries(file: str, type_name: str) -> Iterator[Entry]:
    from raygnn.data.edge_types import SEPARATOR
    from raygnn.data.event_log import Entry
    from raygnn.data.tables.files import named_files
    from raygnn.data.tables.read_ids import column_names, read_columns

    files = named_files(file, "FILE")
    names = column_names(files[0])
    table = read_columns(files, names, "FILE", names)  # any of them may be an id
    for first in range(0, table.num_rows, _ROWS_PER_ENTRY):
        rows = table.slice(first, _ROWS_PER_ENTRY).to_pylist()
        tables = {type_name: rows}
        entry = Entry.of({}, tables) if SEPARATOR in type_name else Entry.of(tables)
        yield Entry(entry.rows, _key(file, first, entry.rows))


def _line_entries(file: str) -> Iterator[Entry]:
    from raygnn.data.event_log import Entry
    from raygnn.data.filesystem import read_text
    from raygnn.data.plain_json import read_json

    for number, line in zip(count(1), read_text(file).splitlines(), strict=False):
        try:
            body = read_json(line, 1)
            if not isinstance(body, dict) or body.keys() - {"nodes", "edges", "key"}:
                raise DataError(
                    "it is not an object of nodes, edges and key, as POST /events takes. "
                    "[events-line]"
                )
            entry = Entry.of(body.get("nodes"), body.get("edges"), body.get("key"))
        except DataError as error:
            raise DataError(f"{redact(file)}:{number}: {error}") from error
        yield entry if "key" in body else Entry(entry.rows, _key(file, number, entry.rows))


def _key(file: str, number: int, rows: Sequence[tuple[str, str]]) -> str:
    """Names rows by their file and content, so that a repeated command appends nothing."""
    digest = hashlib.sha256(json.dumps([number, rows]).encode()).hexdigest()
    return f"{file.rpartition('/')[2][:100]}#{digest}"


def _run(options: argparse.Namespace) -> None:
    if options.action == "compact":
        tables = compact(options.log, options.model, options.graph)
        show(f"{tables}\n")
        give_result(tables=tables)
        return
    if options.action == "append":
        position = append_file(options.log, options.file, options.type)
    else:
        position = verify(options.log)
    say(f"{redact(options.log)}: position {position:,}")
    give_result(position=position)


def build_parser() -> argparse.ArgumentParser:
    parser = command_parser("raygnn events", _EXAMPLES, description=_DESCRIPTION)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add = actions.add_parser("append", help="append the rows of a file").add_argument
    add("log", metavar="LOG", help="folder or URI of the log, created if it is missing")
    add("file", metavar="FILE", help="Parquet, CSV, or JSON lines as for POST /events (.jsonl)")
    add("--type", metavar="TYPE", help="node type, or edge type src__rel__dst, of a table's rows")
    command = actions.add_parser("compact", help="write rows as tables, and print their folder")
    command.add_argument("log", metavar="LOG", help="folder or URI of the log")
    command.add_argument("model", metavar="MODEL", help="model of the servers that follow the log")
    command.add_argument("--graph", metavar="URI", required=True, help="tables without the log")
    actions.add_parser("verify", help="read and check all segments").add_argument(
        "log", metavar="LOG", help="folder or URI of the log"
    )
    return parser


main = command(_run, build_parser, interrupted="repeat the command to append the rest")

if __name__ == "__main__":
    exit_process(main)
