"""Command line that writes graph tables: `python -m raygnn.prepare`."""

from __future__ import annotations

import argparse
import inspect
import re
import shlex
import sys
import typing
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from raygnn.command_line import command_parser, exit_process
from raygnn.config.arguments import section_of
from raygnn.console import count, give_result
from raygnn.data.edge_types import edge_type_name
from raygnn.data.filesystem import exists, join, read_text, reading_input, redact
from raygnn.data.manifest import Manifest
from raygnn.data.tables.graph_tables import (
    GraphTables,
    check_folder,
    summarize_tables,
    write_tables,
)
from raygnn.data.tables.pyg import load_pyg, tables_from_pyg
from raygnn.data.tables.source import is_database
from raygnn.errors import ConfigError, DataError, RaygnnError
from raygnn.json_output import with_json
from raygnn.prepare.draft import repair_tables, write_draft
from raygnn.prepare.drafts.roles import GUESS
from raygnn.prepare.label_query import LabelQuery, links_have_no_weights, parse_questions
from raygnn.prepare.labels import LabelTimes, query_tables
from raygnn.prepare.npz import npz_tables
from raygnn.prepare.pql import translate
from raygnn.prepare.question import parse_duration
from raygnn.prepare.relbench import write_relbench
from raygnn.prepare.synthetic import GENERATORS, synthetic_tables
from raygnn.prepare.train_config import CONFIG_NAME, drops_rows, write_config
from raygnn.prepare.write_labels import write_labels
from raygnn.runtime.sources import with_snapshots

_EXAMPLES = """
raygnn prepare draft my_tables
raygnn prepare npz cora.npz --out graphs/cora
raygnn prepare synthetic shop --out graphs/shop
raygnn prepare labels shop --predict "count(purchases) over 30d > 0" --for users --every 30d \\
    --val 2024-01-01 --test 2024-04-01 --name churn
"""


@with_json
def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    try:
        return args.run(args) or 0
    except RaygnnError as error:
        print(f"error: {redact(_in_flags(str(error)))}", file=sys.stderr)
        return error.exit_status
    except OSError as error:
        print(f"error: {redact(str(error))}", file=sys.stderr)
        return DataError.exit_status


def _write_tables(args: argparse.Namespace) -> None:
    check_folder(args.out, args.overwrite)
    tables = args.convert(args)
    progress = partial(print, file=sys.stderr, flush=True)
    write_tables(tables, args.out, args.shards, args.overwrite, progress=progress)
    print(f"wrote {redact(args.out)}")
    for line in summarize_tables(tables):
        print(f"  {line}")
    config = redact(_write_config(args, tables))
    print(f"next: raygnn train {shlex.quote(config)}")
    give_result(out=redact(args.out), config=config)


def _write_draft(args: argparse.Namespace) -> int:
    names = ("task", "encoding", "schema")
    options = {"refs": args.ref, **{name: getattr(args, name) for name in names}}
    if is_database(args.folder) != (args.out is not None):
        raise ConfigError(
            "--out is for databases, and required for these. A folder gets its graph.yaml and "
            "train.yaml itself. [prepare-options-clash]"
        )
    folder = args.folder if args.out is None else args.out
    if args.out is not None:
        options["database"] = args.folder
    if args.repair:
        written, notes = repair_tables(folder, **options)
        print(f"wrote {count(len(written), 'repaired table')}: {', '.join(map(redact, written))}")
        for note in notes:
            print(f"  ? {note}")
        give_result(out=redact(folder), written=[*map(redact, written)], notes=notes)
        return 0
    draft = write_draft(folder, args.overwrite, **options)
    give_result(
        out=redact(folder),
        config=draft.config and redact(draft.config),
        written=[*map(redact, draft.written)],
        question=draft.task.question,
        notes=draft.notes,
    )
    for line in draft.picture:
        print(line)
    print(f"wrote {' and '.join(map(redact, draft.written))}; review them")
    for note in draft.notes:
        print(f"  ? {note}")
    if draft.task.question is not None and draft.task.sureness == GUESS:
        print(f"next: {draft.task.question}")
    elif draft.config is not None:
        print(f"next: raygnn train {shlex.quote(redact(draft.config))}")
    if draft.num_references:
        return 0
    print("error: no column refers to a table. Name one with --ref.", file=sys.stderr)
    return 3


def _take_snapshot(args: argparse.Namespace) -> None:
    if with_snapshots(args.graph, args.cache_dir, refresh=True, allow_outside=None) == args.graph:
        print("nothing to read: all tables of graph.yaml are files")
    give_result(out=redact(args.graph))


def _write_relbench(args: argparse.Namespace) -> None:
    if not args.overwrite:
        check_folder(args.out)
    is_frozen = args.protocol == "frozen"
    lines = write_relbench(args.folder, args.out, args.task, is_frozen=is_frozen)
    print(f"wrote {redact(args.out)}")
    for line in lines:
        print(f"  {line}")
    give_result(out=redact(args.out))
    if exists(config := join(args.out, CONFIG_NAME)):
        print(f"next: raygnn train {shlex.quote(redact(config))}")
        give_result(config=redact(config))


def _write_labels(args: argparse.Namespace) -> None:
    if sum(each is not None for each in (args.sql, args.predict, args.pql)) != 1:
        raise ConfigError(
            "Exactly one of --sql, --predict and --pql is needed. Write such as --predict "
            '"count(purchases) over 30d > 0" --for users. [prepare-options-clash]'
        )
    if args.pql is not None:
        _translate(args)
    query = _label_query(args)
    times = _label_times(args) if query.window else None
    print(query.sql.strip().replace("{window}", query.window), flush=True)
    on_error = args.on_error or ("drop" if drops_rows(args.graph) else "fail")
    more = (args.name, on_error == "drop", args.overwrite, args.allow_outside)
    labels = write_labels(args.graph, query, times, *more)
    print(f"wrote {labels.kind} {args.name} into {redact(args.graph)}")
    asked = args.predict if query.joined else []
    for i, question in enumerate(asked):
        outputs = query.joined[i * args.horizons : (i + 1) * args.horizons]
        print(f"  {' to '.join(dict.fromkeys((outputs[0], outputs[-1])))}: {question}")
    for line in labels.lines:
        print(f"  {line}")
    for line in labels.warnings:
        print(f"warning: {line}", file=sys.stderr)
    print(f"next: raygnn train {shlex.quote(redact(labels.config))}")
    give_result(
        out=redact(args.graph), config=redact(labels.config), table=args.name, sql=query.sql
    )


def _label_times(args: argparse.Namespace) -> LabelTimes:
    needed = {"--every": args.every, "--val": args.val, "--test": args.test}
    if missing := [option for option, value in needed.items() if value is None]:
        raise ConfigError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} needed, as in --every "
            '30d --val 2024-01-01 --test 2024-04-01. Only --predict "users.plan", a column, has no '
            "times. [prepare-options-clash]"
        )
    return LabelTimes(
        _parse_time(args.val, "--val"),
        _parse_time(args.test, "--test"),
        parse_duration(args.every, "--every"),
        args.eval_times,
    )


def _translate(args: argparse.Namespace) -> None:
    if any((args.node_type, args.active, args.assuming)) or args.horizons != 1:
        raise ConfigError(
            "--pql is invalid with --for, --active, --assuming or --horizons. Write them into the "
            "query, as FOR EACH, WHERE, ASSUMING and FORECAST. [prepare-options-clash]"
        )
    types = Manifest.load(args.graph).node_types
    found = translate(args.pql, {name: table.id for name, table in types.items()})
    args.predict, args.node_type, args.active = [found.predict], found.entities, found.active
    args.assuming, args.horizons = found.assuming, found.horizons
    options = {"--predict": found.predict, "--for": found.entities, "--active": found.active}
    options["--assuming"] = found.assuming
    options["--horizons"] = str(found.horizons) if found.horizons > 1 else None
    shown = [f"{option} {shlex.quote(text)}" for option, text in options.items() if text]
    print(f"as raygnn asks it: {' '.join(shown)}")
    for note in found.notes:
        print(f"  {note}")


def _label_query(args: argparse.Namespace) -> LabelQuery:
    window = None if args.window is None else parse_duration(args.window, "--window")
    if args.predict is not None:
        if args.node_type is None or args.target_type is not None:
            raise ConfigError(
                "--predict is invalid without --for, or with --to. Name the node type of the "
                "entities with --for, and leave out --to. [prepare-options-clash]"
            )
        tables = query_tables(args.graph, args.allow_outside)
        more = (args.active, args.weight, args.horizons, args.assuming)
        query = parse_questions(args.predict, args.node_type, tables, *more)
        of_times = (args.every, args.val, args.test, window, args.active, args.assuming)
        if not query.window and (any(of_times) or args.horizons != 1):
            raise ConfigError(
                "--every, --val, --test, --window, --active, --assuming and --horizons are invalid "
                "for a question about a column, whose rows have no times. Leave them out, or ask "
                "about events over a window. [prepare-options-clash]"
            )
        if query.window and window not in {None, query.window}:
            raise ConfigError(
                f"--window={args.window!r} is invalid: the question is over {query.window}. Leave "
                "it out. [prepare-options-clash]"
            )
        return query
    if window is None or args.active or args.assuming or args.horizons != 1:
        raise ConfigError(
            "--sql is invalid without --window, or with --active, --assuming or --horizons. Set a "
            "window such as 30d. [prepare-options-clash]"
        )
    with reading_input(args.sql):
        sql = read_text(args.sql)
    for option, name in (("--for", args.node_type), ("--to", args.target_type)):
        types = Manifest.load(args.graph).node_types
        if name is not None and name not in types:
            raise ConfigError(
                f"{option}={name!r} is invalid: the graph has the node types {', '.join(types)}. "
                "Name one of these. [labels-node-type]"
            )
    if args.weight is not None and args.target_type is not None:
        raise links_have_no_weights(args.weight)
    return LabelQuery(sql, window, args.node_type, args.target_type, weight=args.weight)


def _parse_time(text: str, option: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{option}={text!r} is not a date. Set one such as 2024-01-01. [labels-time-option]"
        ) from None
    return time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time


def _convert_npz(args: argparse.Namespace) -> GraphTables:
    names = inspect.signature(npz_tables).parameters
    return npz_tables(**{name: getattr(args, name) for name in names})


def _convert_pyg(args: argparse.Namespace) -> GraphTables:
    return tables_from_pyg(load_pyg(args.file), args.normalize)


def _convert_synthetic(args: argparse.Namespace) -> GraphTables:
    names = section_of(GENERATORS[args.generator]).model_fields
    return synthetic_tables(args.generator, **{name: getattr(args, name) for name in names})


def _in_flags(message: str) -> str:
    return re.sub(
        r"\bdata\.synthetic\.(\w+)", lambda match: "--" + match[1].replace("_", "-"), message
    )


def _write_config(args: argparse.Namespace, tables: GraphTables) -> str:
    """Writes a config that learns the labels of the tables, or their links. Returns its URI."""
    links = next(iter(tables.label_edges), (next(iter(tables.edges), None),))[0]
    task, chosen = "link_prediction", dict[str, Any]()
    if links is not None:
        chosen["edge_type"] = edge_type_name(links)
    splits: list[Any] = [rows.split for rows in tables.edges.values()]
    if tables.label_edges:
        chosen["labels"] = True
        splits = [rows.split for rows in tables.label_edges.values()]
    for edge_type, edge_table in tables.edges.items():
        if edge_table.labels:
            task, chosen = "edge_prediction", {"edge_type": edge_type_name(edge_type)}
            splits = [edge_table.split]
    for name, node_table in tables.nodes.items():
        if node_table.labels:
            task, splits = "node_classification", [node_table.split]
            chosen = {"target": name, "label": next(iter(node_table.labels))}
    given = {"splits": None if any(splits) else {"type": "hash"}, "overwrite": args.overwrite}
    uri, _ = write_config(args.out, task, chosen, **given)
    return uri


def build_parser() -> argparse.ArgumentParser:
    summary = "Describes, converts or generates graph tables, and makes training tables."
    parser = command_parser("raygnn prepare", _EXAMPLES, description=summary)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_draft(commands)
    _add_npz(commands)
    _add_pyg(commands)
    _add_relbench(commands)
    _add_snapshot(commands)
    _add_labels(commands)
    _add_synthetic(commands)
    return parser


def _add_draft(commands: Any) -> None:
    summary = "draft graph.yaml and a config for a folder of tables or a database"
    text = (
        "Writes graph.yaml and train.yaml into a folder of Parquet, CSV or TSV tables, to edit, or "
        "for a database into --out."
    )
    add = _add_parser(commands, "draft", summary, text, run=_write_draft).add_argument
    add("folder", help="folder of the tables (path or URI), or URL of a database")
    add("--out", metavar="URI", help="folder for the files of a database")
    add("--overwrite", action="store_true", help="replace both files")
    add("--repair", action="store_true", help="only repair tables again that have changed")
    add(
        "--ref",
        action="append",
        default=[],
        metavar="TABLE.COLUMN=TABLE.COLUMN",
        help="a reference, or TABLE.COLUMN=none for no reference; can be repeated",
    )
    add("--schema", metavar="FILE", help="SQL with CREATE TABLE statements that declare keys")
    add("--task", metavar="TABLE.COLUMN", help="column to predict, or table of links to predict")
    add("--encoding", help="of text files that are not UTF-8 (default: detected)")


def _add_npz(commands: Any) -> None:
    command = _add_command(commands, "npz", "from the sparse npz layout", _convert_npz)
    add = command.add_argument
    add("uri", metavar="file", help="npz file (path or URI); its layouts are in docs/prepare.md")
    add(
        "--largest-component",
        dest="is_largest_component",
        action="store_true",
        help="keep only the largest connected component; its nodes keep their numbers",
    )
    add("--split-index", type=int, metavar="I", help="which of several splits (default: the first)")
    add("--split-file", metavar="FILE", help="npz of node numbers: arrays train, valid, test")
    add("--directed", action="store_true", help="write edges as they are, not in both directions")
    _add_normalization(command)


def _add_pyg(commands: Any) -> None:
    command = _add_command(commands, "pyg", "from a PyG Data or HeteroData", _convert_pyg)
    add = command.add_argument
    add("file", help="file (path or URI) written by torch.save")
    _add_normalization(command)


def _add_relbench(commands: Any) -> None:
    summary = "a database in the layout of RelBench 3, with its training tables"
    text = "Writes graph.yaml with a training table for each task, and train.yaml."
    add = _add_parser(commands, "relbench", summary, text, run=_write_relbench).add_argument
    add("folder", help="folder of manifest.yaml, db and tasks (path or URI)")
    add("--out", required=True, metavar="URI", help="folder to write")
    add("--task", action="append", default=[], metavar="NAME", help="repeatable (default: all)")
    live = "what test rows see: the database until its test time, or until their own time"
    add("--protocol", choices=("frozen", "live"), default="frozen", help=live)
    add("--overwrite", action="store_true", help="replace the graph in the folder")


def _add_snapshot(commands: Any) -> None:
    summary = "rows of the databases that a graph.yaml reads"
    text = (
        "Reads the sources of graph.yaml again. Trainings that start from now on read these rows."
    )
    add = _add_parser(commands, "snapshot", summary, text, run=_take_snapshot).add_argument
    add("graph", help="folder of graph.yaml (path or URI)")
    add("--cache-dir", metavar="DIR", help="like data.cache_dir")


def _add_labels(commands: Any) -> None:
    summary = "a training table from SQL or a question"
    text = "Writes rows of (entity, time, label), and adds them to graph.yaml."
    add = _add_parser(commands, "labels", summary, text, run=_write_labels).add_argument
    add("graph", help="folder of graph.yaml (path or URI)")
    add("--sql", metavar="FILE", help="DuckDB query over timestamps(timestamp) and the tables")
    add(
        "--predict",
        action="append",
        metavar="QUESTION",
        help='such as "count(purchases) over 30d > 0"; repeated, the outputs of one model; '
        'or a column, such as "users.plan"',
    )
    add("--pql", metavar="QUERY", help="a query of Kumo: PREDICT ... FOR EACH ... WHERE ...")
    add("--for", dest="node_type", metavar="TYPE", help="node type of the entities")
    add("--to", dest="target_type", metavar="TYPE", help="with --sql: node type of listed items")
    add(
        "--active",
        metavar="D",
        help="with --predict: leave out entities without an event in D before a time",
    )
    add(
        "--assuming",
        metavar="QUESTION",
        help="with --predict: keep rows for which this will hold, such as an offer being made",
    )
    add(
        "--horizons",
        type=int,
        default=1,
        metavar="N",
        help="with --predict: an output for each of the next N windows",
    )
    add(
        "--weight",
        metavar="SQL",
        help="weight of a row, from columns of its entity; with --sql: a column of the result",
    )
    add("--every", metavar="D", help="interval between two times: 30d, 12h, 4w, 1mo")
    add("--window", metavar="D", help="length of the label window, {window} in SQL")
    add("--val", metavar="TIME", help="first time of the validation rows")
    add("--test", metavar="TIME", help="first time of the test rows")
    add(
        "--eval-times",
        type=int,
        metavar="N",
        help="at most N validation and N test times (default: all that fit)",
    )
    add("--name", required=True, help="name of the training table, or of the relation of the links")
    add(
        "--on-error",
        choices=["fail", "drop"],
        help="drop: leave out rows of unknown entities (default: as in train.yaml)",
    )
    add("--overwrite", action="store_true", help="replace labels of this name")
    text = "folder besides the graph's that its files may be in (repeatable)"
    add("--allow-outside", action="append", default=[], metavar="DIR", help=text)


def _add_synthetic(commands: Any) -> None:
    command = commands.add_parser(
        "synthetic", help="a generated graph", description="Writes a generated graph."
    )
    generators = command.add_subparsers(dest="generator_name", required=True, metavar="GENERATOR")
    for name, generator in GENERATORS.items():
        summary, _, details = inspect.cleandoc(generator.__doc__ or "").partition("\n\n")
        one = _add_command(generators, name.replace("_", "-"), summary, _convert_synthetic)
        generators.choices.setdefault(name, one)  # the spelling of configs; help lists it once
        one.description = f"{summary}\n\n{details}"
        one.formatter_class = argparse.RawDescriptionHelpFormatter
        one.set_defaults(generator=name)
        for argument, field in section_of(generator).model_fields.items():
            kind, *_ = typing.get_args(field.annotation) or (field.annotation,)
            options: dict[str, Any] = (
                {"action": argparse.BooleanOptionalAction}
                if kind is bool
                else {"type": kind, "metavar": kind.__name__.upper()}
            )
            shown = "" if field.default is None else f" (default: {field.default})"
            one.add_argument(
                f"--{argument.replace('_', '-')}",
                default=field.default,
                help=f"{field.description}{shown}",
                **options,
            )


def _add_parser(
    commands: Any, name: str, summary: str, description: str, **defaults: Any
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=description, allow_abbrev=False
    )
    command.set_defaults(**defaults)
    return command


def _add_command(
    commands: Any, name: str, summary: str, convert: Callable[[argparse.Namespace], GraphTables]
) -> argparse.ArgumentParser:
    text = f"Writes graph tables {summary}."
    command = _add_parser(commands, name, summary, text, run=_write_tables, convert=convert)
    add = command.add_argument
    add("--out", required=True, metavar="URI", help="folder to write, any fsspec URI")
    add("--shards", type=int, default=1, metavar="N", help="files per type (default: 1)")
    add("--overwrite", action="store_true", help="replace the graph in the folder")
    return command


def _add_normalization(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--normalize-features",
        dest="normalize",
        choices=["row"],
        default="",
        help="row: divide each feature row by its sum",
    )


if __name__ == "__main__":
    exit_process(main)
