"""LABOR and personalised PageRank beside uniform sampling.

    python benchmarks/neighborhoods.py --scale reference [--data DIR]

Nodes of a batch and the time of a step, forward, backward and Adam of a 3-layer GraphSAGE, "live"
where it samples while it trains; and the time that the PageRank of all nodes takes. With `--data`,
GraphSAGE is trained on Amazon Computers and Tolokers with each, once per seed: two layers of
fanouts [10, 10], or one over the 32 nodes of the most PageRank. DIR holds the graphs as published
(benchmarks/README.md).
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import CLOCKS, Case, Row, Scale, chosen_scale, interleaved, medians, parser, publish
from real_graphs import make_tables, mean_and_spread
from rmat_graph import EDGE, NODE, RmatGraph
from training import STEPS_A_ROUND, Trainer, endless, make_loader, raygnn_model, train_steps

import raygnn.train
from raygnn.config.loader_section import PprSampling
from raygnn.data.pagerank_graph import pagerank_graph
from raygnn.sampling import NeighborLoader

SAMPLERS: dict[str, dict[str, Any]] = {
    "uniform": {"fanouts": [10, 10]},
    "labor": {"type": "labor", "fanouts": [10, 10]},
    "ppr": {"ppr": {}},
}
_NUM_BATCHES = 8


@dataclass(frozen=True)
class Graph:
    """A real graph; see `real_graphs.DataSet`."""

    dataset: str
    tables: str
    prepare: tuple[str, ...]
    metric: str


GRAPHS = (
    Graph(
        "Amazon Computers",
        "labor_computers",
        ("npz", "{data}/amazon_computers.npz", "--largest-component"),
        "accuracy",
    ),
    Graph("Tolokers", "labor_tolokers", ("npz", "{data}/tolokers.npz"), "auroc"),
)


def _sampled(loader: NeighborLoader) -> tuple[float, float, float]:
    """Mean nodes, edges and distinct neighbors of the first hop of a batch."""
    batches = [loader.make(0, number) for number in range(_NUM_BATCHES)]
    nodes = [len(batch.nodes[NODE].n_id) for batch in batches]
    firsts = [batch.nodes[NODE].num_sampled[1] for batch in batches]
    return (
        statistics.mean(nodes),
        statistics.mean(batch.num_edges for batch in batches),
        statistics.mean(firsts),
    )


def step_rows(scale: Scale, options: argparse.Namespace, work: Path) -> list[Row]:
    """Nodes of a batch, and what a batch and a step take."""
    size = (scale.num_nodes, scale.num_edges, scale.num_features, scale.num_classes)
    bundle = RmatGraph(*size).bundle(work)
    cases: dict[str, Case] = {}
    sampled = {}
    for name in ("uniform", "labor"):
        loader = make_loader(scale, bundle, options.device, None, labor=name == "labor")
        sampled[name] = _sampled(loader)
        trainer = Trainer(raygnn_model(scale), options.device, "blocks")
        numbers = iter(range(1_000_000))
        cases[f"batch, {name}"] = partial(_load, loader, numbers)
        cases[f"step, {name}"] = partial(train_steps, trainer, endless(loader))
    seconds = medians(interleaved(cases, scale.rounds, CLOCKS[options.clock]))
    ms = {name: 1e3 * value / STEPS_A_ROUND for name, value in seconds.items()}
    few, many = sampled["labor"], sampled["uniform"]
    rows = [
        Row("nodes of a batch, uniform", many[0], ""),
        Row("nodes of a batch, labor", few[0], "", few[0] / many[0], "uniform", "<= 0.6"),
        Row("edges of a batch, uniform", many[1], ""),
        Row("edges of a batch, labor", few[1], "", few[1] / many[1], "uniform"),
    ]
    for what in ("batch", "step"):
        one, other = ms[f"{what}, uniform"], ms[f"{what}, labor"]
        note = "sampling, gather, assembly" if what == "batch" else "live"
        rows += [
            Row(f"{what}, uniform", one, "ms", note=note),
            Row(f"{what}, labor", other, "ms", other / one, "uniform"),
        ]
    rate = {name: 1e3 * scale.batch_size / ms[f"step, {name}"] for name in sampled}
    return [
        *rows,
        Row("seeds trained, uniform", rate["uniform"], "/s"),
        Row(
            "seeds trained, labor", rate["labor"], "/s", rate["labor"] / rate["uniform"], "uniform"
        ),
    ]


def _load(loader: NeighborLoader, numbers: Sequence[int]) -> None:
    for _ in range(STEPS_A_ROUND):
        loader.make(1, next(numbers) % loader.num_batches)


def pagerank_row(scale: Scale, work: Path) -> Row:
    """Seconds for the PageRank neighborhoods of all nodes, by the default settings."""
    bundle = RmatGraph(scale.num_nodes, scale.num_edges).bundle(work)
    shutil.rmtree(bundle.path / "ppr", ignore_errors=True)
    started = time.perf_counter()
    made = pagerank_graph(bundle, PprSampling())
    seconds = time.perf_counter() - started
    note = f"{made.num_edges(EDGE):,} edges from {scale.num_nodes:,} nodes"
    return Row("personalised PageRank", seconds, "s", aim="minutes", note=note)


def accuracy_rows(graph: Graph, options: argparse.Namespace, work: Path) -> list[Row]:
    """A test metric by sampler, mean and spread over seeds."""
    tables = make_tables(graph, Path(options.data), work)
    found = {
        name: [_trained(graph, tables, sampling, seed, work) for seed in options.seeds]
        for name, sampling in SAMPLERS.items()
    }
    rows = []
    for name, values in found.items():
        percent = [100 * value for value in values]
        note = mean_and_spread(percent, 2)
        if name != "uniform":
            gains = 100 * np.subtract(values, found["uniform"])
            note += f"; gain {mean_and_spread(gains.tolist(), 2)}"
        what = f"{graph.dataset}, test {graph.metric}, {name}"
        rows.append(Row(what, statistics.mean(percent), "%", note=note))
    return rows


def _trained(graph: Graph, tables: Path, sampling: dict[str, Any], seed: int, work: Path) -> float:
    config = {
        "seed": seed,
        "data": {
            "uri": str(tables),
            "cache_dir": str(work / "cache"),
            "splits": {"type": "hash", "fractions": [0.6, 0.2, 0.2]},
        },
        "sampling": sampling,
        "loader": {"batch_size": 512},
        "model": {"type": "GraphSAGE", "args": {"hidden_channels": 64, "dropout": 0.3}},
        "metrics": [{"type": graph.metric}],
        "training": {"max_epochs": 20, "eval": "exact"},
        "loggers": [],
        "scaling": {"num_workers": 0},
        "run": {"name": graph.tables, "storage_path": str(work / "runs"), "overwrite": True},
    }
    return float(raygnn.train.fit(config).metrics[f"test/{graph.metric}"])


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    options = parser(__doc__, in_rounds=True)
    options.add_argument("--data", metavar="DIR", help="folder of the graphs as published")
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], metavar="S")
    given = options.parse_args(argv)
    work = Path(given.work)
    rows = [*step_rows(chosen_scale(given), given, work), pagerank_row(chosen_scale(given), work)]
    if given.data is not None:
        for graph in GRAPHS:
            rows += accuracy_rows(graph, given, work)
    publish("neighborhoods", given, rows)


if __name__ == "__main__":
    main()
