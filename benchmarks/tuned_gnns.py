"""Tuned classic GNNs, trained on the whole graph, beside their published figures.

    python benchmarks/accuracy.py --tuned --data DIR

The configs are `benchmarks/tuned/<graph>_<model>.yaml`: settings of Luo, Shi and Wu 2024, "Classic
GNNs are Strong Baselines" (arXiv:2406.08993, github.com/LUOyk1999/tunedGNN); of Tolokers, whose
figures are of Platonov et al. 2023 (arXiv:2302.11640), the first that were tried. With
`--full-graph-seeds N` the script's own models are trained too (`published_gnns.py`).
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from harness import markdown
from plain_pyg import FullGraph
from published_gnns import train_published
from real_graphs import mean_and_spread

import raygnn.train
from raygnn.config import load_config
from raygnn.data.ingest.build_bundle import ingest
from raygnn.prepare import __main__ as prepare

CONFIGS = Path(__file__).parent / "tuned"
_SPLIT_SEED = 123  # of the published script


@dataclass(frozen=True)
class TunedGraph:
    """A graph, its split, and what was published on it.

    Attributes:
        name: of the configs and the tables.
        prepare: arguments of `raygnn.prepare` but `--out`; `{data}` is the folder of the sources,
            `{work}` the work folder, `{seed}` the seed.
        published: by model, mean and standard deviation in per cent.
        metric: of the test.
        has_masks: whether each seed has a split of its own, so tables of its own.
    """

    name: str
    dataset: str
    prepare: tuple[str, ...]
    published: dict[str, tuple[float, float]]
    metric: str = "accuracy"
    has_masks: bool = False


def _masks(name: str) -> tuple[str, ...]:
    return ("npz", f"{{data}}/{name}.npz", "--split-index", "{seed}")


def _shares(name: str) -> tuple[str, ...]:
    split = f"{{data}}/{name}_split.npz"
    return ("npz", f"{{data}}/{name}.npz", "--normalize-features", "row", "--split-file", split)


GRAPHS = (
    TunedGraph(
        "cora",
        "Cora, 20 a class at random",
        ("npz", "{data}/cora_planetoid.npz", "--split-file", "{work}/cora_split.npz"),
        {"gcn": (85.10, 0.67), "sage": (83.88, 0.65), "gat": (84.46, 0.55)},
    ),
    TunedGraph(
        "computers",
        "Amazon Computers, 60/20/20",
        _shares("amazon_computers"),
        {"gcn": (93.99, 0.12), "sage": (93.25, 0.14), "gat": (94.09, 0.37)},
    ),
    TunedGraph(
        "cs",
        "Coauthor CS, 60/20/20",
        _shares("coauthor_cs"),
        {"gcn": (96.17, 0.06), "sage": (96.38, 0.11), "gat": (96.21, 0.14)},
    ),
    TunedGraph(
        "minesweeper",
        "Minesweeper, AUC",
        _masks("minesweeper"),
        {"gcn": (97.86, 0.24), "sage": (97.77, 0.62), "gat": (97.73, 0.73)},
        "auroc",
        has_masks=True,
    ),
    TunedGraph(
        "tolokers",
        "Tolokers, AUC",
        _masks("tolokers"),
        {"gcn": (83.64, 0.67), "sage": (82.43, 0.44), "gat": (83.70, 0.47)},
        "auroc",
        has_masks=True,
    ),
)
NAMES = tuple(f"{graph.name}_{model}" for graph in GRAPHS for model in graph.published)


@dataclass(frozen=True)
class TunedRow:
    """The test figures of a config in per cent, a value for each seed.

    Attributes:
        plain: those of the published script's model.
    """

    graph: TunedGraph
    model: str
    values: tuple[float, ...]
    num_epochs: int
    seconds: float
    plain: tuple[float, ...] = ()

    @property
    def reaches_published(self) -> bool:
        """Whether the mean is within one published standard deviation, or above."""
        mean, spread = self.graph.published[self.model]
        return statistics.mean(self.values) >= mean - spread


def run(args: argparse.Namespace) -> int:
    """Trains the configs that are asked for; returns the exit status."""
    rows = []
    for graph in GRAPHS:
        for model in graph.published:
            if args.only is None or f"{graph.name}_{model}" in args.only:
                rows.append(measure(graph, model, args))
                print(table(rows), flush=True)
    if args.json is not None:
        records = [
            {
                "name": f"{row.graph.name}_{row.model}",
                "values": row.values,
                "plain_pyg": row.plain,
                "epochs": row.num_epochs,
            }
            for row in rows
        ]
        Path(args.json).write_text(json.dumps(records, indent=1) + "\n")
    return 0 if all(row.reaches_published for row in rows) else 1


def measure(graph: TunedGraph, model: str, args: argparse.Namespace) -> TunedRow:
    """Trains a config with every seed.

    Raises:
        RuntimeError: the tables cannot be made.
    """
    work, name = Path(args.work), f"{graph.name}_{model}"
    values, plain, epochs, seconds = [], [], 0, 0.0
    for number, seed in enumerate(args.seeds):
        tables = make_tables(graph, seed, Path(args.data), work)
        overrides = [
            *("--data.uri", str(tables), "--seed", str(seed)),
            *("--scaling.num_workers", str(args.num_workers)),
            *("--run.storage_path", str(work / "runs"), "--run.name", f"{name}-{seed}"),
            *("--run.overwrite", "true"),
        ]
        if args.epochs is not None:
            overrides += ["--training.max_epochs", str(args.epochs)]
        metrics = raygnn.train.fit(CONFIGS / f"{name}.yaml", overrides).metrics
        values.append(100 * float(metrics[f"test/{graph.metric}"]))
        epochs = int(metrics["epoch"])
        seconds += float(metrics["training_time_s"]) / len(args.seeds)
        if number < (args.full_graph_seeds or 0):
            config = load_config(CONFIGS / f"{name}.yaml", overrides).config
            whole = FullGraph.of_bundle(ingest(tables), config)
            plain.append(100 * train_published(whole, config, graph.metric))
    return TunedRow(graph, model, tuple(values), epochs, seconds, tuple(plain))


def make_tables(graph: TunedGraph, seed: int, data: Path, work: Path) -> Path:
    """Writes the graph tables of a seed, if they are not there; returns their folder.

    Raises:
        RuntimeError: the preparer refused.
    """
    folder = work / (f"{graph.name}_tuned_{seed}" if graph.has_masks else f"{graph.name}_tuned")
    if (folder / "graph.yaml").exists():
        return folder
    work.mkdir(parents=True, exist_ok=True)
    if graph.name == "cora":
        with np.load(data / "cora_planetoid.npz") as arrays:
            np.savez(work / "cora_split.npz", **random_split(arrays["labels"]))
    filled = [part.format(data=data, work=work, seed=seed) for part in graph.prepare]
    if prepare.main([*filled, "--out", str(folder), "--overwrite"]) != 0:
        raise RuntimeError(f"The tables of {graph.dataset} cannot be made, see above.")
    return folder


def random_split(labels: np.ndarray) -> dict[str, np.ndarray]:
    """The split of the published script: 20 nodes a class, 500 for validation, 1,000 for test.

    It is drawn by the same draws: torch's, in the order of the classes.
    """
    generator = torch.Generator().manual_seed(_SPLIT_SEED)
    train, rest = [], []
    for label in np.unique(labels):
        nodes = np.flatnonzero(labels == label)
        nodes = nodes[torch.randperm(len(nodes), generator=generator).numpy()]
        train.append(nodes[:20])
        rest.append(nodes[20:])
    others = np.concatenate(rest)
    others = others[torch.randperm(len(others), generator=generator).numpy()]
    return {"train": np.concatenate(train), "valid": others[:500], "test": others[500:1500]}


def table(rows: Sequence[TunedRow]) -> str:
    """The results as a Markdown table: test figures in per cent, mean ± standard deviation."""
    lines = [
        (
            "data set",
            "model",
            "raygnn",
            "plain PyG",
            "published",
            "verdict",
            "seeds",
            "epochs",
            "s / run",
        )
    ]
    for row in rows:
        mean, spread = row.graph.published[row.model]
        lines.append(
            (
                row.graph.dataset,
                row.model.upper(),
                mean_and_spread(row.values, 2),
                mean_and_spread(row.plain, 2) if row.plain else "-",
                f"{mean:.2f} ± {spread:.2f}",
                "pass" if row.reaches_published else "FAIL",
                str(len(row.values)),
                f"{row.num_epochs:,}",
                f"{row.seconds:.0f}",
            )
        )
    return markdown(lines)
