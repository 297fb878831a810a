"""Test accuracy of the examples on real graphs, beside plain PyG and beside published figures.

    python benchmarks/accuracy.py --data DIR

Each row trains `examples/<name>.yaml` with `raygnn.train.fit`, once per seed, on a local Ray. The
plain run (`plain_pyg.py`) is the same model on the whole graph in one process: same
hyperparameters, splits, number of steps and early stopping. DIR holds the graphs as published;
benchmarks/README.md says where they come from.

With `--tuned` it trains tuned models on whole graphs (`tuned_gnns.py`).

Exit status: 0 if every data set reaches its aim (with at least one model, where it has two) and
every row is within half a point of the plain run; else 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import tuned_gnns
from harness import markdown
from plain_pyg import FullGraph, train_full_graph
from real_graphs import EXAMPLES, make_tables, mean_and_spread, parser, start_ray

import raygnn.train
from raygnn.config import Config, load_config
from raygnn.data.ingest.build_bundle import ingest

TOLERANCE = 0.005  # half a point below the plain run is still as good
SLOW_RUN_S = 60.0  # a plain run that takes longer is not repeated for other seeds


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
        name: of the example config.
        tables: folder of the graph tables, in the work folder.
        prepare: arguments of `raygnn.prepare` but `--out`; `{data}` is the folder of the sources.
        published: accuracy in per cent, and whose.
        aim: least mean accuracy; None where only the plain run counts.
    """

    name: str
    dataset: str
    tables: str
    prepare: tuple[str, ...]
    published: str
    aim: float | None = None
    config: Path | None = None

    @property
    def config_path(self) -> Path:
        return self.config or EXAMPLES / f"{self.name}.yaml"


# Shchur et al. take the largest component: all of Coauthor CS, 13,381 nodes of Amazon Computers.
SHCHUR = ("--normalize-features", "row", "--largest-component")
CORA = ("npz", "{data}/cora_planetoid.npz", "--normalize-features", "row")
CASES = (
    Case("cora", "Cora", "cora", CORA, "81.5 (Kipf & Welling 2017)", 0.813),
    Case("cora_gat", "Cora", "cora", CORA, "83.0 ± 0.7 (Veličković et al. 2018)", 0.813),
    Case(
        "amazon_computers",
        "Amazon Computers",
        "amazon_computers",
        ("npz", "{data}/amazon_computers.npz", *SHCHUR),
        "82.4 ± 1.8 (Shchur et al. 2018)",
        0.81,
    ),
    Case(
        "coauthor_cs",
        "Coauthor CS",
        "coauthor_cs",
        ("npz", "{data}/coauthor_cs.npz", *SHCHUR),
        "91.3 ± 2.8 (Shchur et al. 2018)",
        0.91,
    ),
    Case(
        "facebook_pages",
        "Facebook pages",
        "facebook_pages",
        (str(EXAMPLES / "facebook/prepare.py"), "{data}/facebook_pages"),
        "none",
    ),
)


@dataclass
class Runs:
    """Test accuracies by seed, and the seconds of each run."""

    accuracy: dict[int, float] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)

    def add(self, seed: int, run: Callable[[], float]) -> float:
        """Times a run; returns its seconds."""
        started = time.perf_counter()
        self.accuracy[seed] = run()
        self.seconds.append(time.perf_counter() - started)
        return self.seconds[-1]

    @property
    def mean(self) -> float:
        return statistics.mean(self.accuracy.values())

    def text(self, num_seeds: int) -> str:
        """Mean ± sample standard deviation in per cent; says so where seeds are missing."""
        values = [100 * value for value in self.accuracy.values()]
        count = "" if len(values) == num_seeds else f" ({len(values)} of {num_seeds} seeds)"
        return f"{mean_and_spread(values, 1)}{count}"


@dataclass
class Row:
    """What was measured for a case."""

    case: Case
    model: str
    ours: Runs = field(default_factory=Runs)
    plain: Runs = field(default_factory=Runs)

    @property
    def reaches_aim(self) -> bool:
        return self.case.aim is None or self.ours.mean >= self.case.aim

    @property
    def gain(self) -> float:
        """Mean gain over the plain run, over the seeds, so the splits, that both have."""
        plain = self.plain.accuracy
        return statistics.mean(self.ours.accuracy[seed] - plain[seed] for seed in plain)

    @property
    def matches_plain(self) -> bool:
        return self.gain >= -TOLERANCE


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit status."""
    args = _parser().parse_args(argv)
    if args.tuned:
        return tuned_gnns.run(args)
    cases = [case for case in CASES if args.only is None or case.name in args.only]
    if not cases:
        _parser().error(f"--only {' '.join(args.only)}: these are configs of --tuned")
    if args.num_workers > 0:
        start_ray()
    started = time.perf_counter()
    rows, failed = [], []
    for case in cases:
        try:
            rows.append(measure(case, args))
        except Exception:  # noqa: BLE001 - one data set must not cost the others' results
            traceback.print_exc()
            failed.append(case.name)
    _say(f"{len(rows)} rows in {(time.perf_counter() - started) / 60:.1f} minutes\n")
    if rows:
        print(table(rows))
    if args.json is not None:
        Path(args.json).write_text(json.dumps([_record(row) for row in rows], indent=1) + "\n")
    for name in failed:
        print(f"failed: {name}, see the traceback above", file=sys.stderr)
    return 1 if failed or not passes(rows) else 0


def measure(case: Case, args: argparse.Namespace) -> Row:
    """Trains a case with raygnn for every seed, and plainly for every seed or for one.

    Raises:
        RuntimeError: the tables cannot be made.
    """
    work = Path(args.work)
    tables = make_tables(case, Path(args.data), work)

    def overrides(seed: int) -> list[str]:
        return [
            *("--data.uri", str(tables), "--seed", str(seed)),
            *("--scaling.num_workers", str(args.num_workers)),
            *("--run.storage_path", str(work / "runs"), "--run.name", f"{case.name}-{seed}"),
            *("--run.overwrite", "true"),
        ]

    def plan(seed: int) -> Config:
        return load_config(case.config_path, overrides(seed)).config

    def train(seed: int) -> float:
        result = raygnn.train.fit(case.config_path, overrides(seed))
        return float(result.metrics["test/accuracy"])

    row = Row(case, plan(args.seeds[0]).model.type)
    for seed in args.seeds:
        seconds = row.ours.add(seed, partial(train, seed))
        _report(row, "raygnn", seed, row.ours.accuracy[seed], seconds)
    bundle = ingest(tables)
    limit = len(args.seeds) if args.full_graph_seeds is None else args.full_graph_seeds
    for seed in args.seeds[:limit]:
        graph = FullGraph.of_bundle(bundle, plan(seed))
        seconds = row.plain.add(seed, partial(train_full_graph, graph, plan(seed)))
        _report(row, "plain PyG", seed, row.plain.accuracy[seed], seconds)
        if seed == args.seeds[0] and seconds > SLOW_RUN_S and args.full_graph_seeds is None:
            break
    return row


def table(rows: Sequence[Row]) -> str:
    """The results as a Markdown table: test accuracy in per cent, mean ± standard deviation."""
    titles = ("data set", "model", "raygnn", "plain PyG", "published", "aim", "verdict", "s / run")
    lines = [titles, *(_cells(row) for row in rows)]
    return markdown(lines)


def passes(rows: Sequence[Row]) -> bool:
    """Whether every data set reaches its aim with a model, and every row its plain run."""
    reached = {row.case.dataset for row in rows if row.reaches_aim}
    return all(row.matches_plain and row.case.dataset in reached for row in rows)


def _cells(row: Row) -> tuple[str, ...]:
    aim = "as plain" if row.case.aim is None else f"{100 * row.case.aim:.1f}"
    is_good = row.reaches_aim and row.matches_plain
    seconds = f"{statistics.mean(row.ours.seconds):.0f} / {statistics.mean(row.plain.seconds):.0f}"
    verdict = f"{'pass' if is_good else 'FAIL'} ({100 * row.gain:+.1f} to plain)"
    return (
        row.case.dataset,
        row.model,
        row.ours.text(len(row.ours.accuracy)),
        row.plain.text(len(row.ours.accuracy)),
        row.case.published,
        aim,
        verdict,
        seconds,
    )


def _record(row: Row) -> dict[str, object]:
    measured = {"raygnn": asdict(row.ours), "plain_pyg": asdict(row.plain)}
    return {"name": row.case.name, "model": row.model, "aim": row.case.aim, **measured}


def _report(row: Row, which: str, seed: int, accuracy: float, seconds: float) -> None:
    _say(f"{row.case.dataset} {row.model} seed {seed}: {which} {accuracy:.4f} in {seconds:.1f} s")


def _say(text: str) -> None:
    print(f"[accuracy] {text}", flush=True)


def _parser() -> argparse.ArgumentParser:
    names = [case.name for case in CASES]
    names += tuned_gnns.NAMES
    options = parser("accuracy", "Test accuracy of the examples.", names, num_seeds=5)
    options.add_argument(
        "--tuned",
        action="store_true",
        help="train benchmarks/tuned on whole graphs instead, beside published figures",
    )
    options.add_argument(
        "--epochs", type=_at_least_one, metavar="N", help="epochs with --tuned (default: as tuned)"
    )
    options.add_argument(
        "--full-graph-seeds",
        type=_at_least_one,
        metavar="N",
        help="seeds of the plain run (default: all, or one if it takes over "
        f"{SLOW_RUN_S:.0f} s; none with --tuned)",
    )
    options.add_argument("--json", metavar="FILE", help="write the results of each seed here too")
    return options


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number that counts from 1. Give 1 or more"
        )
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
