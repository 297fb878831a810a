"""Command line and Python entry of inference: `python -m raygnn.infer MODEL --out URI`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

from raygnn import command_line
from raygnn.console import give_result, show
from raygnn.data.bundle import Bundle
from raygnn.data.extended_bundle import Addition, ExtendedBundle
from raygnn.data.tables.read_ids import read_ids
from raygnn.errors import ConfigError
from raygnn.inference import row_tables
from raygnn.inference.database_table import is_table
from raygnn.inference.job import (
    WHAT,
    OutputOptions,
    TableRequest,
    TopKOptions,
    TopKRequest,
    check_no_new_nodes,
)
from raygnn.inference.new_rows import read_new, row_reader
from raygnn.inference.seed_times import find_seed_times
from raygnn.outputs.saved_model import SavedModel
from raygnn.runtime.data_source import tables_source
from raygnn.runtime.launch_inference import Asked, launch_inference

_USAGE = """\
raygnn infer MODEL --out URI [options] [--section.key value ...]

Writes embeddings or predictions of every node or edge, or the top-k neighbors of some nodes, to
Parquet under the original ids. MODEL is the folder of a finished run or of an exported model, --out
a new folder; both may be any fsspec URI. --data.uri, or another key of data, names the graph. The
keys of data, sampling, loader, training and scaling are set as in raygnn.train:
--scaling.num_workers 2, --loader.eval_batch_size 4096, --training.eval exact. --metrics evaluates
the model on a labelled graph instead. See docs/inference.md.
"""
_EXAMPLES = """
raygnn infer runs/papers --data.uri graph --out out/predictions
raygnn infer runs/papers --data.uri graph --metrics test
raygnn infer runs/shop --data.uri graph --top-k 10 --anchors users.csv --out out/top
raygnn infer runs/shop --data.uri graph --new-nodes today --out out/new
"""


@dataclass(frozen=True)
class Written:
    """The output of an inference.

    Attributes:
        uri: the folder.
        manifest: content of its `_manifest.json`.
    """

    uri: str
    manifest: dict[str, Any]

    def table_uri(self, name: str) -> str:
        return f"{self.uri.rstrip('/')}/{name}"


def predict(
    model: str | PathLike[str],
    out: str | PathLike[str],
    overrides: Sequence[str] = (),
    *,
    data: Any = None,
    task: str | None = None,
    what: str | None = None,
    node_types: Sequence[str] = (),
    new_nodes: str | PathLike[str] | None = None,
    as_of: str | int | float | None = None,
    rows_per_file: int = 65_536,
    chunk_size: int = OutputOptions.chunk_size,
    overwrite: bool = False,
    allow_modules: Sequence[str] = (),
) -> Written:
    """Writes a row for each node: its id, and its embedding or prediction.

    For models of edges, predictions are one row per edge, with the ids of its ends.

    Args:
        model: folder of a finished run or of an exported model.
        out: folder to write, with a table per node type; or a table of a database or lake, as
            `sqlite:///shop.sqlite#predictions` or `delta+s3://lake/predictions`.
        overrides: of the config, as on the command line: `["--data.uri", "graph"]`.
        data: `GraphTables`, or a PyG `Data` or `HeteroData`, instead of a graph in `overrides`.
        task: which task of a model of several tasks.
        what: embeddings, predictions or probabilities. Default: predictions for node tasks, else
            embeddings.
        node_types: default: the predicted type, or both ends of the links.
        new_nodes: tables of nodes and edges to add to the graph of `data.uri`. Only the new nodes
            are encoded, from their own neighborhoods.
        as_of: for a model with `sampling.temporal`, the time as of which all nodes or edges are
            encoded: a date (UTC without a zone), a number in the unit of the graph's times, or
            `latest`. None encodes rows with times as of their own, others as of the latest time.
        rows_per_file: rows per Parquet file.
        chunk_size: rows on the device at a time, with `training.eval: exact`.
        overwrite: replaces the output of an earlier call.
        allow_modules: modules whose classes the config may name, besides raygnn's and torch's.
    Raises:
        ConfigError: an argument or override is invalid, or the model has no such output.
        DataError: the graph is invalid or does not fit the model.
        RunError: there is no trained model, or the folder is not writable.
        CheckpointError: the model's files are damaged or do not belong together.
        ResourceError: the cluster has no room for the workers.
        TrainingError: a worker failed.
    """

    def ask(saved: SavedModel, bundle: Bundle) -> Asked:
        times = find_seed_times(saved, bundle, as_of)
        request = TableRequest.of(saved.spec, what, tuple(node_types))
        if new_nodes is None:
            return Asked(request, times)
        if not request.node_types:
            check_no_new_nodes(new_nodes)
        addition = _read_new(saved, bundle, new_nodes)
        return Asked(request.of_new(addition, bundle), times, addition)

    saved = SavedModel.open(fspath(model), overrides, allow_modules, task=task)
    if new_nodes is not None and (data is not None or saved.loaded.config.data.uri is None):
        raise ConfigError(
            "--new-nodes is invalid without --data.uri: rows are added to graph tables. Name the "
            "folder or URI of the graph. [append-no-tables]"
        )
    output = _options(out, overwrite, rows_per_file, chunk_size)
    return Written(output.uri, launch_inference(saved, output, ask, data))


def top_k(
    model: str | PathLike[str],
    out: str | PathLike[str],
    k: int,
    anchors: str | PathLike[str] | Sequence[int] | Sequence[str],
    overrides: Sequence[str] = (),
    *,
    anchors_column: str | None = None,
    task: str | None = None,
    as_of: str | int | float | None = None,
    data: Any = None,
    rows_per_file: int = 65_536,
    chunk_size: int = OutputOptions.chunk_size,
    overwrite: bool = False,
    allow_modules: Sequence[str] = (),
    **options: Any,
) -> Written:
    """Writes the k best-scored neighbors of each anchor, among all nodes, to table `neighbors`.

    Columns: anchor_id, neighbor_id, score, rank (from 1). Equal scores are ordered by id. A node is
    never its own neighbor. Other arguments and errors: see `predict`.

    Args:
        anchors: original ids, or a Parquet or CSV file of them.
        anchors_column: column of the file. Default: the only one, or `id`.
        options: fields of `TopKOptions`: `edge_type` (`src__rel__dst`, a relation of the model),
            `anchor_type`, `target_type`, `filter_known` (leaves out known links of the anchor, so
            that fewer than k neighbors may remain), `score`, and `columns` of the neighbors' table,
            such as a title.
    """

    chosen = TopKOptions.of(options)

    def ask(saved: SavedModel, bundle: Bundle) -> Asked:
        ids: Any = anchors
        if isinstance(ids, str | PathLike):
            kind = bundle.id_map(chosen.ends(saved.spec)[0]).kind
            ids = read_ids(fspath(ids), anchors_column, kind, "--anchors")
        source = None if data is not None else tables_source(saved)
        read = None if source is None else source.columns
        request = TopKRequest.of(saved.spec, bundle, k, ids, chosen, read)
        return Asked(request, find_seed_times(saved, bundle, as_of))

    saved = SavedModel.open(fspath(model), overrides, allow_modules, task=task)
    output = _options(out, overwrite, rows_per_file, chunk_size)
    return Written(output.uri, launch_inference(saved, output, ask, data))


def _read_new(saved: SavedModel, bundle: Bundle, uri: str | PathLike[str]) -> Addition:
    return read_new(saved, row_reader(saved, bundle, tables_source(saved)), fspath(uri))


def _options(out: str | PathLike[str], *how: Any) -> OutputOptions:
    uri = fspath(out)
    return OutputOptions(uri, is_table(uri), *how)


def _run(options: argparse.Namespace, remaining: Sequence[str]) -> None:
    command_line.check_model_argument(remaining, _USAGE)
    model, overrides = remaining[0], remaining[1:]
    _check_together(options)

    def chosen(*names: str) -> dict[str, Any]:
        return {name: getattr(options, name) for name in names}

    shared = chosen("task", "as_of", "rows_per_file", "chunk_size", "overwrite", "allow_modules")
    if options.metrics is not None:
        from raygnn.trained_model import load

        trained = load(model, overrides, **chosen("task", "allow_modules"))
        scores = trained.evaluate(split=None if options.metrics == "all" else options.metrics)
        show(json.dumps(scores) + "\n")
        give_result(scores=scores)
        return
    if options.table is not None or options.rows is not None:
        _write_rows(options, model, overrides)
    elif options.top_k is None:
        request = chosen("what", "node_types", "new_nodes")
        predict(model, options.out, overrides, **request, **shared)
    else:
        neighbors = chosen("anchors_column", *TopKOptions.model_fields)
        top_k(model, options.out, options.top_k, options.anchors, overrides, **neighbors, **shared)
    give_result(out=options.out)


def _write_rows(options: argparse.Namespace, model: str, overrides: Sequence[str]) -> None:
    if not str(options.out).endswith((".parquet", ".csv")) and not is_table(str(options.out)):
        raise ConfigError(
            f"--out={options.out!r} is invalid: rows are written to one file. Name a .parquet or "
            ".csv file, or a table: sqlite:///shop.sqlite#predictions. [infer-rows-out]"
        )

    def ask(saved: SavedModel, bundle: Bundle) -> Asked:
        output, config, source = saved.spec.output, saved.loaded.config, tables_source(saved)
        times, addition = find_seed_times(saved, bundle, None), None
        if options.new_nodes is not None:
            if output.links:
                check_no_new_nodes(options.new_nodes)
            addition = _read_new(saved, bundle, options.new_nodes)
        elif options.follow is not None:
            from raygnn.data.compactions import start_of
            from raygnn.data.event_log import EventLog
            from raygnn.inference.logged_rows import LoggedRows

            reader = row_reader(saved, bundle, source)
            start = (0, "") if source is None else start_of(source.uri)
            logged = LoggedRows(saved, bundle, reader, times, start[0])
            logged.follow(EventLog(options.follow, *start), options.position)
            addition = logged.picklable
        if addition is not None:
            bundle = ExtendedBundle(bundle, addition)
            times = None if times is None else times.extended(addition)
        manifest = None if source is None else source.manifest()
        declared = row_tables.declared_table(manifest, output)
        rows: Any = options.table
        if options.rows is not None:
            rows = row_tables.read_rows(options.rows, bundle, output.ends[0], declared)
        k = row_tables.DEFAULT_K if output.links and options.top_k is None else options.top_k
        moment = None if times is None else times.moment
        named = row_tables.RowRequest(rows, options.split, moment, declared)
        request = row_tables.request_rows(saved.spec, config, bundle, named, what=options.what, k=k)
        return Asked(request, times, addition)

    saved = SavedModel.open(model, overrides, options.allow_modules, task=options.task)
    how = (options.overwrite, options.rows_per_file, options.chunk_size)
    launch_inference(saved, OutputOptions(options.out, True, *how), ask)


#: Options of predictions, and of neighbors.
_OF_NODES = ("what", "node_types", "new_nodes", "table", "rows", "split")
_OF_NEIGHBORS = ("anchors", "anchors_column", *TopKOptions.model_fields)
_OF_FILES = ("top_k", "out", "as_of")
#: By option, others that it does not go with, in the order in which they are checked.
_NOT_WITH = {
    "metrics": {*_OF_NODES, *_OF_NEIGHBORS, *_OF_FILES},
    "top_k": {"what", "node_types", "new_nodes"},
    "table": {"rows", "as_of", "node_types", *_OF_NEIGHBORS},
    "rows": {"as_of", "node_types", *_OF_NEIGHBORS},
    "follow": {"new_nodes", "top_k"},
}
#: By option, another one that it needs.
_ONLY_WITH = {
    "follow": "rows",
    "position": "follow",
    **dict.fromkeys(_OF_NEIGHBORS, "top_k"),
}


def _check_together(options: argparse.Namespace) -> None:
    chosen = [
        name
        for name, value in vars(options).items()
        if value not in (None, [], ()) and value is not False
    ]
    for option, others in _NOT_WITH.items():
        for other in chosen:
            if option in chosen and other in others:
                raise ConfigError(
                    f"{_flag(other)} excludes {_flag(option)}. Leave out one. [infer-options-clash]"
                )
    for option, needed in _ONLY_WITH.items():
        if option in chosen and needed not in chosen:
            raise ConfigError(
                f"{_flag(option)} needs {_flag(needed)}. Set both. [infer-options-clash]"
            )
    if options.out is None and "metrics" not in chosen:
        raise ConfigError("--out is missing. Name a folder or URI to write. [infer-out-missing]")
    is_folder = options.table is None and options.rows is None and not is_table(str(options.out))
    if is_folder and str(options.out).endswith((".parquet", ".csv")):
        raise ConfigError(
            f"--out={options.out!r} is invalid: tables of nodes and neighbors are written to a "
            "folder, as Parquet files. Name a folder. [infer-out-folder]"
        )
    if "top_k" in chosen and not {"anchors", "table", "rows"} & {*chosen}:
        raise ConfigError("--top-k needs --anchors. Name a file of ids. [infer-anchors-missing]")


def _flag(name: str) -> str:
    special = {"target_type": "--targets", "node_types": "--node-type"}
    return special.get(name, f"--{name.replace('_', '-')}")


def build_parser() -> argparse.ArgumentParser:
    parser = command_line.command_parser("raygnn infer", _EXAMPLES, usage=_USAGE)
    add = parser.add_argument_group("what to write").add_argument
    add("--out", metavar="URI", help="folder to write, any fsspec URI, or a table: URL#TABLE")
    add("--task", metavar="NAME", help="task of a model with several tasks")
    add("--what", help=f"{', '.join(WHAT)} (default: by the task)")
    one_more: dict[str, Any] = {"action": "append", "default": [], "help": "repeatable"}
    add("--node-type", dest="node_types", metavar="TYPE", **one_more)
    add("--table", metavar="NAME", help="predict the rows of a training table, each at its time")
    splits = ("train", "val", "test")
    add("--split", choices=splits, help="split of --table (default: all rows)")
    add("--rows", metavar="FILE", help="predict the rows (id, time) of a Parquet or CSV file")
    add("--follow", metavar="LOG", help="with --rows: event log whose rows are part of the graph")
    add("--position", type=int, metavar="N", help="with --follow: rows of the log (default: all)")
    add("--new-nodes", metavar="URI", help="tables of new nodes: predict these nodes only")
    add(
        "--metrics",
        metavar="SPLIT",
        help="print metrics of all labelled nodes (all), train, val or test as JSON instead",
    )
    add = parser.add_argument_group("neighbors").add_argument
    add("--top-k", type=int, metavar="K", help="write the K best targets of each anchor instead")
    add("--anchors", metavar="FILE", help="Parquet or CSV file of ids, any fsspec URI")
    add("--anchors-column", metavar="NAME", help="default: the only column, or id")
    for name, field in TopKOptions.model_fields.items():
        value: Any = {"action": "store_true"}
        if name == "columns":
            value = {"metavar": "NAME", "nargs": "+", "default": ()}
        elif field.annotation is not bool:
            value = {"metavar": "SCORE" if name == "score" else "TYPE"}
        add(_flag(name), dest=name, help=field.description, **value)
    add = parser.add_argument_group("how").add_argument
    command_line.add_as_of(add)
    add("--rows-per-file", type=int, default=65_536, metavar="N", help="default: 65536")
    text = "rows per step of exact encoding (default: 30000)"
    add("--chunk-size", type=int, default=OutputOptions.chunk_size, metavar="N", help=text)
    add("--overwrite", action="store_true", help="replace existing output")
    command_line.add_allow_module(parser)
    command_line.add_output_options(parser)
    return parser


main = command_line.command(_run, build_parser, interrupted="nothing was written")

if __name__ == "__main__":
    command_line.exit_process(main)
