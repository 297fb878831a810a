"""Command line of explanations: `python -m raygnn.explain MODEL --graph URI --nodes IDS`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from raygnn import command_line
from raygnn.console import give_result, say
from raygnn.errors import ConfigError

_USAGE = """\
raygnn explain MODEL --graph URI --nodes IDS --out URI [options] [--section.key value ...]

Explains predictions of nodes, or of pairs of nodes: writes the importance of edges, neighbors and
columns as Parquet tables. MODEL is the folder of a finished run or of an exported
model; it, the graph and --out may be any fsspec URI. The keys of data, sampling, loader and
training are set as in raygnn.infer. See docs/explanations.md.
"""
_EXAMPLES = """
raygnn explain runs/papers --graph graph --nodes 17,23 --out out/why
raygnn explain runs/papers --graph graph --nodes ids.csv --out out/why --edges 20
raygnn explain runs/shop --graph shop --pairs pairs.csv --out out/why-these
"""
_NUM_SHOWN = 5  # sentences
_REQUIRED = {"graph": "the folder or URI of a graph", "out": "a folder to write"}


def _run(options: argparse.Namespace, remaining: Sequence[str]) -> None:
    command_line.check_model_argument(remaining, _USAGE)
    for name, what in _REQUIRED.items():
        if getattr(options, name) is None:
            raise ConfigError(f"--{name} is missing. Name {what}. [explain-option-missing]")
    if options.nodes is None and options.rows is None and options.pairs is None:
        raise ConfigError("--nodes is missing. Name ids. [explain-option-missing]")
    from raygnn.data.tables.read_ids import read_ids, read_pairs
    from raygnn.inference.explain.options import ExplainOptions
    from raygnn.inference.output_folder import OutputFolder
    from raygnn.inference.row_tables import read_rows
    from raygnn.trained_model import load

    settings = ExplainOptions(options.edges, options.columns)
    OutputFolder.check(options.out, options.overwrite)  # before any work
    model = load(remaining[0], remaining[1:], allow_modules=options.allow_modules)
    graph = model.open(options.graph, as_of=options.as_of)
    kinds = [graph.bundle.id_map(name).kind for name in model.spec.output.ends]
    nodes, ids = options.nodes, None
    if nodes is not None:
        is_file = nodes.endswith((".csv", ".tsv", ".parquet"))
        ids = read_ids(nodes, None, kinds[0], "--nodes") if is_file else _listed(nodes, kinds[0])
    rows = options.rows
    if rows is not None:
        rows = read_rows(rows, graph.bundle, model.spec.output.ends[0], graph.training_table)
    pairs = None if options.pairs is None else read_pairs(options.pairs, kinds, "--pairs")
    explanations = graph.explain(ids, settings, rows=rows, pairs=pairs, edge_type=options.edge_type)
    explanations.write(options.out, overwrite=options.overwrite)
    for row in explanations.records[:_NUM_SHOWN]:
        ids = [str(row[key]) for key in ("id", "from_id", "to_id", "time") if key in row]
        say(f"{' '.join(ids)}: {row['sentence']}")
    num = len(explanations.predictions)
    say(f"explained {num} predictions in {options.out}")
    give_result(out=options.out, predictions=num)


def _listed(text: str, kind: str) -> list[int] | list[str]:
    names = [name.strip() for name in text.split(",")]
    if kind == "string":
        return names
    try:
        return [int(name) for name in names]
    except ValueError as error:
        raise ConfigError(
            f"--nodes={text!r} is invalid: the graph's ids are whole numbers. List them as in "
            "17,23, or name a file that ends with .csv, .tsv or .parquet. [explain-nodes]"
        ) from error


def build_parser() -> argparse.ArgumentParser:
    parser = command_line.command_parser("raygnn explain", _EXAMPLES, usage=_USAGE)
    add = parser.add_argument_group("what to explain").add_argument
    add("--graph", metavar="URI", help="graph of the nodes, any fsspec URI")
    add("--nodes", metavar="IDS", help="ids separated by commas, or a table of ids")
    add("--rows", metavar="FILE", help="for models of training tables: a table of rows (id, time)")
    add("--pairs", metavar="FILE", help="for models of edges or links: a table of id pairs")
    add("--edge-type", metavar="TYPE", help="src__rel__dst, if the model has several relations")
    add("--out", metavar="URI", help="folder to write, any fsspec URI")
    add("--overwrite", action="store_true", help="replace existing output")
    add = parser.add_argument_group("how").add_argument
    add("--edges", type=int, default=10, metavar="N", help="edges per explanation (default: 10)")
    add("--columns", type=int, default=3, metavar="N", help="columns per explanation (default: 3)")
    command_line.add_as_of(add)
    command_line.add_allow_module(parser)
    command_line.add_output_options(parser)
    return parser


main = command_line.command(_run, build_parser, interrupted="nothing was written")

if __name__ == "__main__":
    command_line.exit_process(main)
