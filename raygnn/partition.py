"""Command line that partitions graph tables: `raygnn partition SOURCE --parts P --out DIR`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import get_args

from raygnn.command_line import add_allow_module, command, command_parser, exit_process
from raygnn.config import load_config
from raygnn.console import give_result
from raygnn.data.edge_types import edge_type_name
from raygnn.data.ingest.plan_bundle import FeatureDtype, IngestOptions
from raygnn.data.partition.build import Partitioning
from raygnn.data.partition.record import PartitionRecord
from raygnn.data.partition.steps import Method

_DESCRIPTION = """\
Splits a graph into parts. A part contains its nodes and their incoming edges.
Ray reads tables of 256 MB and more, on all nodes that see DIR. After an interruption, the same
command resumes. See docs/partitions.md.
"""


def _run(args: argparse.Namespace) -> None:
    from raygnn.runtime.ingest import partition_tables

    options = IngestOptions(
        on_error=args.on_error,
        undirected=args.undirected,
        reverse_edges=args.reverse_edges,
        allow_outside=tuple(args.allow_outside),
        feature_dtype=args.feature_dtype,
    )
    how = Partitioning(args.parts, args.method)
    rows = None
    if args.config is not None:
        from raygnn.runtime.data_checks import rows_to_fit

        loaded = load_config(args.config, allow_modules=args.allow_modules)
        rows = rows_to_fit(loaded, args.source)
    for line in report_lines(partition_tables(args.source, args.out, how, options, rows)):
        print(line)
    give_result(out=args.out)


def _reverse_edges(text: str) -> bool | tuple[str, ...]:
    return text == "true" if text in ("true", "false") else tuple(text.split(","))


def report_lines(record: PartitionRecord) -> list[str]:
    lines = [
        f"{record.num_parts} parts by {record.method}, {record.fingerprint}",
        f"  {'type':<40} {'rows':>15} {'balance':>8} {'cut':>7}",
    ]
    for name, counts in record.nodes.items():
        lines.append(f"  {name:<40} {sum(counts):>15,} {_balance(counts):>8}")
    for edge, parts in zip(record.whole.edges, record.edges, strict=True):
        num_edges = sum(parts.counts)
        cut = f"{sum(parts.cut) / num_edges:.1%}" if num_edges else "-"
        name = edge_type_name(edge.type)
        lines.append(f"  {name:<40} {num_edges:>15,} {_balance(parts.counts):>8} {cut:>7}")
    return lines


def _balance(counts: Sequence[int]) -> str:
    total = sum(counts)
    return f"{max(counts) * len(counts) / total:.2f}" if total else "-"


def build_parser() -> argparse.ArgumentParser:
    example = "raygnn partition graph --parts 8 --out parts"
    parser = command_parser("raygnn partition", example, description=_DESCRIPTION)
    add = parser.add_argument
    add("source", metavar="SOURCE", help="folder with graph.yaml, any fsspec URI")
    add("--parts", type=int, required=True, metavar="P", help="number of parts")
    add("--out", required=True, metavar="DIR", help="folder to write, any fsspec URI")
    add(
        "--method",
        choices=get_args(Method),
        default="hash",
        help="hash: by original id (default); range: consecutive rows of a node table; ldg: the "
        "part of most neighbors",
    )
    add(
        "--config",
        metavar="CONFIG",
        help="config of the training whose rows transforms and standardization are fitted on; "
        "default: the training rows of all training tables",
    )
    add_allow_module(parser, "user module that CONFIG may name")
    add("--on-error", choices=["fail", "drop"], default="fail", help="drop: leave out bad rows")
    add("--undirected", action="store_true", help="like data.undirected")
    add(
        "--reverse-edges",
        type=_reverse_edges,
        metavar="true|false|EDGE_TYPE,...",
        help="like data.reverse_edges",
    )
    add("--feature-dtype", choices=get_args(FeatureDtype), help="like data.feature_dtype")
    add(
        "--allow-outside",
        action="append",
        default=[],
        metavar="ROOT",
        help="like data.allow_outside (repeatable)",
    )
    return parser


_INTERRUPTED = "the same command resumes with the tasks that are left"
main = command(_run, build_parser, interrupted=_INTERRUPTED)

if __name__ == "__main__":
    exit_process(main)
