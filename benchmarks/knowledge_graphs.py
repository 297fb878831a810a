"""Filtered MRR on FB15k-237 beside published figures.

    python benchmarks/knowledge_graphs.py --data DIR

Each case trains `examples/fb15k237/...yaml` with overrides. `full_mrr` is the mean over heads and
tails of 1 / filtered rank among all entities. Published: LibKGE's for the decoders, and R-GCN's.
With `--epochs N` runs end earlier than at their plateau.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import markdown
from real_graphs import EXAMPLES, make_tables, mean_and_spread, parser, start_ray

import raygnn.train


@dataclass(frozen=True)
class Case:
    """One model.

    Attributes:
        config: example, in `examples/fb15k237`.
        overrides: of it.
        published: filtered test MRR.
    """

    name: str
    config: str
    overrides: tuple[str, ...]
    published: float
    dataset: str = "FB15k-237"
    tables: str = "fb15k237"
    prepare: tuple[str, ...] = (str(EXAMPLES / "fb15k237/prepare.py"), "{data}/fb15k237")


CASES = (
    Case("complex", "complex.yaml", (), 0.348),
    Case("distmult", "complex.yaml", ("--task.args.decoder", "distmult"), 0.343),
    Case("rgcn", "ablp.yaml", (), 0.249),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns 0."""
    options = parser("knowledge_graphs", "FB15k-237.", [case.name for case in CASES], num_seeds=1)
    options.add_argument("--epochs", type=int, metavar="N", help="default: the examples' own")
    args = options.parse_args(argv)
    work = Path(args.work)
    if args.num_workers:
        start_ray()
    lines: list[Sequence[str]] = [("model", "test MRR", "published", "s / run")]
    for case in CASES:
        if args.only is not None and case.name not in args.only:
            continue
        tables = make_tables(case, Path(args.data), work)
        found, started = [], time.perf_counter()
        for seed in args.seeds:
            run = ("--run.name", f"{case.name}-{seed}", "--run.overwrite", "true")
            settings = (
                *("--data.uri", str(tables), "--run.storage_path", str(work / "runs")),
                *("--seed", str(seed), "--scaling.num_workers", str(args.num_workers), *run),
                *(() if args.epochs is None else ("--training.max_epochs", str(args.epochs))),
            )
            config = EXAMPLES / "fb15k237" / case.config
            found.append(raygnn.train.fit(config, [*case.overrides, *settings]).metrics)
        seconds = (time.perf_counter() - started) / len(found)
        mrr = mean_and_spread([metrics["test/full_mrr"] for metrics in found], 3)
        lines.append((case.name, mrr, f"{case.published:.3f}", f"{seconds:.0f}"))
        print(markdown(lines), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
