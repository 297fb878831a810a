"""Command line and Python entry of inference: `python -m raygnn.infer MODEL --out URI`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

import numpy as np

from raygnn.command_line import (
    add_allow_module,
    add_as_of,
    add_output_options,
    check_model_argument,
    command_parser,
    exit_process,
    run_command,
)
from raygnn.console import count, say, show
from raygnn.data.filesystem import redact
from raygnn.data.tables.read_ids import read_ids
from raygnn.errors import ConfigError
from raygnn.inference.job import (
    WHAT,
    OutputOptions,
    TableRequest,
    TopKOptions,
    TopKRequest,
    check_no_new_nodes,
)
from raygnn.inference.seed_times import find_seed_times
from raygnn.outputs.saved_model import SavedModel

if TYPE_CHECKING:
    from raygnn.data.bundle import Bundle
    from raygnn.data.extended_bundle import Addition
    from raygnn.runtime.launch_inference import Asked

_USAGE = """\
raygnn infer MODEL --out URI [options] [--section.key value ...]

Writes embeddings or predictions of every node or edge, or the top-k neighbors of some nodes, to
Parquet under the original ids. MODEL is the folder of a finished run or of an exported model, --out
a new folder; both may be any fsspec URI. --data.uri, or another key of data, names the graph. The
keys of data, sampling, loader, training and scaling are set as in raygnn.train:
--scaling.num_workers 2, --loader.eval_batch_size 4096, --training.eval exact. --metrics evaluates
the model on a labelled graph instead, --probe its embeddings. See docs/inference.md.
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
        out: folder to write, with a table per node type.
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
            return request, times, None
        if not request.node_types:
            check_no_new_nodes(new_nodes)
        request, addition = _with_new_nodes(request, saved, bundle, fspath(new_nodes))
        return request, times, addition

    options = {"rows_per_file": rows_per_file, "chunk_size": chunk_size, "overwrite": overwrite}
    saved = SavedModel.open(fspath(model), overrides, allow_modules, task=task)
    if new_nodes is not None and (data is not None or saved.loaded.config.data.uri is None):
        raise ConfigError(
            "--new-nodes is invalid without --data.uri: rows are added to graph tables. Name the "
            "folder or URI of the graph.",
            id="append-no-tables",
        )
    return _infer(saved, out, data, options, ask)


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

    from raygnn.runtime.data_source import tables_source

    chosen = TopKOptions.of(options)

    def ask(saved: SavedModel, bundle: Bundle) -> Asked:
        ids: Any = anchors
        if isinstance(ids, str | PathLike):
            kind = bundle.id_map(chosen.ends(saved.spec)[0]).kind
            ids = read_ids(fspath(ids), anchors_column, kind, "--anchors")
        times = find_seed_times(saved, bundle, as_of)
        known = None if data is not None else tables_source(saved.loaded, saved.spec.transforms)
        read = None if known is None else known.columns
        return TopKRequest.of(saved.spec, bundle, k, ids, chosen, read), times, None

    how = {"rows_per_file": rows_per_file, "chunk_size": chunk_size, "overwrite": overwrite}
    saved = SavedModel.open(fspath(model), overrides, allow_modules, task=task)
    return _infer(saved, out, data, how, ask)


def _with_new_nodes(
    request: TableRequest, saved: SavedModel, bundle: Bundle, uri: str
) -> tuple[TableRequest, Addition]:
    from raygnn.inference.new_rows import check_takes_new, row_reader
    from raygnn.runtime.data_source import tables_source

    source = tables_source(saved.loaded, saved.spec.transforms)
    addition = row_reader(saved, bundle, source).read_tables(uri)
    new = [name for name, num_new in addition.num_new.items() if num_new]
    check_takes_new(saved, new)
    wanted = tuple(name for name in request.node_types if name in new)
    if not wanted:
        raise ConfigError(
            f"--new-nodes is invalid: its tables have no nodes of type "
            f"{' or '.join(request.node_types)}. Set --node-type to one of: {', '.join(new)}.",
            id="append-no-nodes",
        )
    first = {name: bundle.num_nodes(name) for name in wanted}
    nodes = {name: first[name] + np.arange(addition.num_new[name]) for name in wanted}
    return replace(request, node_types=wanted, nodes=nodes), addition


def _infer(
    saved: SavedModel,
    out: str | PathLike[str],
    data: Any,
    options: dict[str, Any],
    ask: Callable[[SavedModel, Bundle], Asked],
) -> Written:
    from raygnn.runtime.launch_inference import launch_inference

    output = OutputOptions(fspath(out), **options)
    return Written(output.uri, launch_inference(saved, output, ask, data))


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(_run, build_parser(), argv, interrupted="nothing was written")


def _run(options: argparse.Namespace, remaining: Sequence[str]) -> None:
    check_model_argument(remaining, _USAGE)
    model, overrides = remaining[0], remaining[1:]
    _check_together(options)

    def chosen(*names: str) -> dict[str, Any]:
        return {name: getattr(options, name) for name in names}

    shared = chosen("task", "as_of", "rows_per_file", "chunk_size", "overwrite", "allow_modules")
    if options.metrics is not None or options.probe:
        from raygnn.trained_model import load

        trained = load(model, overrides, **chosen("task", "allow_modules"))
        if options.probe:
            node_type = next(iter(options.node_types), None)
            scores = trained.probe(label=options.label, node_type=node_type)
        else:
            scores = trained.evaluate(split=None if options.metrics == "all" else options.metrics)
        show(json.dumps(scores) + "\n")
    elif options.table is not None or options.rows is not None:
        _write_rows(options, model, overrides)
    elif options.top_k is None:
        request = chosen("what", "node_types", "new_nodes")
        predict(model, options.out, overrides, **request, **shared)
    else:
        neighbors = chosen("anchors_column", *TopKOptions.model_fields)
        top_k(model, options.out, options.top_k, options.anchors, overrides, **neighbors, **shared)


def _write_rows(options: argparse.Namespace, model: str, overrides: Sequence[str]) -> None:
    from raygnn.inference.extended_graph import ExtendedGraph
    from raygnn.inference.row_tables import read_rows, relbench_links, relbench_table, write_table
    from raygnn.loops.tasks.link_prediction.target import LinkOutput
    from raygnn.loops.tasks.node_classification.target import NodeOutput
    from raygnn.trained_model import load

    if not str(options.out).endswith((".parquet", ".csv")):
        raise ConfigError(
            f"--out={options.out!r} is invalid: rows are written to one file. Name one that ends "
            "with .parquet or .csv.",
            id="infer-rows-out",
        )
    trained = load(model, overrides, task=options.task, allow_modules=options.allow_modules)
    graph, output = trained.open(), trained.spec.output
    is_of_links = isinstance(output, LinkOutput)
    if is_of_links and options.new_nodes is not None:
        check_no_new_nodes(options.new_nodes)
    if options.new_nodes is not None:
        graph = ExtendedGraph(graph, options.new_nodes)
    rows: Any = options.table
    if options.rows is not None:
        rows = read_rows(options.rows, graph.bundle, output.ends[0], graph.training_table)
    arguments = {"what": options.what, "rows": rows, "split": options.split}
    manifest, is_for_relbench = graph.manifest(), options.format == "relbench"
    if is_of_links or options.top_k is not None:
        k = {} if options.top_k is None else {"k": options.top_k}
        table = graph.top_k_of_rows(rows, split=options.split, **k).arrow
        if is_for_relbench and manifest is not None:
            declared = {edges.type[1]: edges for edges in manifest.label_edges}
            table = relbench_links(table, declared[options.table])
    elif is_for_relbench:
        if manifest is None or not isinstance(output, NodeOutput):
            raise ConfigError(
                "--format='relbench' is invalid: the model does not predict rows of graph tables. "
                "Remove it.",
                id="infer-rows-model",
            )
        arguments["what"] = "predictions" if output.problem == "regression" else "probabilities"
        predicted = graph.predict(**arguments).arrow
        table = relbench_table(predicted, manifest.training_tables[options.table], output)
    else:
        table = graph.predict(**arguments).arrow
    write_table(table, options.out, getattr(trained.spec.output, "class_names", None) or ())
    say(f"wrote {count(len(table), 'row')} to {redact(options.out)}")


#: Options of predictions, and of neighbors.
_OF_NODES = ("what", "node_types", "new_nodes", "table", "rows", "split", "format")
_OF_NEIGHBORS = ("anchors", "anchors_column", *TopKOptions.model_fields)
_OF_FILES = ("top_k", "out", "as_of")
#: By option, others that it does not go with, in the order in which they are checked.
_NOT_WITH = {
    "probe": ({*_OF_NODES} - {"node_types"}) | {*_OF_NEIGHBORS, *_OF_FILES, "metrics"},
    "metrics": {*_OF_NODES, *_OF_NEIGHBORS, *_OF_FILES},
    "top_k": {"what", "node_types", "new_nodes"},
    "table": {"rows", "as_of", "node_types"},
    "rows": {"as_of", "node_types"},
}
#: By option, another one that it needs.
_ONLY_WITH = {"label": "probe", "format": "table", **dict.fromkeys(_OF_NEIGHBORS, "top_k")}


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
                    f"{_flag(other)} is invalid with {_flag(option)}. Leave out one of them.",
                    id="infer-options-clash",
                )
    for option, needed in _ONLY_WITH.items():
        if option in chosen and needed not in chosen:
            raise ConfigError(
                f"{_flag(option)} is invalid without {_flag(needed)}. Set both, or leave it out.",
                id="infer-options-clash",
            )
    if options.out is None and not {"metrics", "probe"} & {*chosen}:
        raise ConfigError(
            "--out is missing. Name a folder or URI to write.", id="infer-out-missing"
        )
    is_folder = options.table is None and options.rows is None
    if is_folder and str(options.out).endswith((".parquet", ".csv")):
        raise ConfigError(
            f"--out={options.out!r} is invalid: tables of nodes and neighbors are written to a "
            "folder, as Parquet files. Name a folder.",
            id="infer-out-folder",
        )
    if "top_k" in chosen and not {"anchors", "table", "rows"} & {*chosen}:
        raise ConfigError(
            "--top-k is invalid without --anchors. Name a file of ids.", id="infer-anchors-missing"
        )


def _flag(name: str) -> str:
    special = {"target_type": "--targets", "node_types": "--node-type"}
    return special.get(name, f"--{name.replace('_', '-')}")


def build_parser() -> argparse.ArgumentParser:
    parser = command_parser("raygnn infer", _EXAMPLES, usage=_USAGE)
    add = parser.add_argument_group("what to write").add_argument
    add("--out", metavar="URI", help="folder to write, any fsspec URI")
    add("--task", metavar="NAME", help="task of a model with several tasks")
    add("--what", help=f"{', '.join(WHAT)} (default: by the task)")
    one_more: dict[str, Any] = {"action": "append", "default": [], "help": "repeatable"}
    add("--node-type", dest="node_types", metavar="TYPE", **one_more)
    add("--table", metavar="NAME", help="predict the rows of a training table, each at its time")
    splits = ("train", "val", "test")
    add("--split", choices=splits, help="split of --table (default: all rows)")
    add("--format", choices=("relbench",), help="with --table: write the format of relbench.submit")
    add("--rows", metavar="FILE", help="predict the rows (id, time) of a Parquet or CSV file")
    add("--new-nodes", metavar="URI", help="tables of new nodes: predict these nodes only")
    add(
        "--metrics",
        metavar="SPLIT",
        help="print metrics of all labelled nodes (all), train, val or test as JSON instead",
    )
    add(
        "--probe",
        action="store_true",
        help="print metrics of a linear probe of the embeddings as JSON instead",
    )
    add("--label", metavar="NAME", help="label column of --probe (default: the only one)")
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
    add_as_of(add)
    add("--rows-per-file", type=int, default=65_536, metavar="N", help="default: 65536")
    text = "rows per step of exact encoding (default: 30000)"
    add("--chunk-size", type=int, default=OutputOptions.chunk_size, metavar="N", help=text)
    add("--overwrite", action="store_true", help="replace existing output")
    add_allow_module(parser)
    add_output_options(parser)
    return parser


if __name__ == "__main__":
    exit_process(main)
