"""A training step and an evaluation on the whole graph, beside a plain PyG loop.

    python benchmarks/full_graph.py --data DIR --only cora_gcn tolokers_gat

The models are those of `benchmarks/tuned`. The plain loop has those of the published script
(`published_gnns.py`), on dense features. One thread;
processor time, medians over rounds in which both take turns.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tuned_gnns
from harness import CLOCKS, Case, interleaved, markdown, medians
from published_gnns import PublishedModel
from torch import nn
from torch.nn import functional

from raygnn.config import load_config
from raygnn.data.ingest.build_bundle import ingest
from raygnn.loops.process import prepare_process
from raygnn.loops.task import TaskEnvironment
from raygnn.loops.tasks.node_classification.task import NodeClassification


def cases(name: str, tables: Path) -> dict[str, Case]:
    """A step and an evaluation of both sides, of a config of `benchmarks/tuned`."""
    loaded = load_config(tuned_gnns.CONFIGS / f"{name}.yaml")
    prepare_process(loaded)
    bundle = ingest(tables)
    task = NodeClassification()
    task.setup(TaskEnvironment(loaded, bundle, 0, 1, torch.device("cpu")))
    ours = task.model = task.build_model()
    loader = task.loader("train")
    batch = next(loader.iterate(0))
    ((node_type, nodes),) = batch.nodes.items()
    (edges,) = batch.edges.values()
    x = torch.from_numpy(task.features.gather(node_type, "x", nodes.n_id.numpy()))
    component = loaded.config.model
    plain = PublishedModel(
        component.type, x.shape[1], task.output.num_outputs, dict(component.args)
    )
    optimizers = {model: torch.optim.Adam(model.parameters()) for model in (ours, plain)}

    def step_ours() -> None:
        optimizers[ours].zero_grad()
        output = task.training_step(batch)
        (output.loss_sum / output.weight).backward()
        optimizers[ours].step()

    def step_plain() -> None:
        optimizers[plain].zero_grad()
        scores = plain(x, edges.edge_index)[batch.seed_index]
        functional.cross_entropy(scores, batch.y.reshape(-1)).backward()
        optimizers[plain].step()

    def evaluated(model: nn.Module, *inputs: Any) -> Case:
        def evaluate() -> None:
            model.eval()
            with torch.no_grad():
                model(*inputs)
            model.train()

        return evaluate

    return {
        "step": step_ours,
        "step, PyG": step_plain,
        "evaluation": evaluated(ours, batch),
        "evaluation, PyG": evaluated(plain, x, edges.edge_index),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns 0 if no step takes longer than the plain one."""
    options = argparse.ArgumentParser(prog="python benchmarks/full_graph.py")
    options.add_argument("--data", required=True, metavar="DIR", help="see benchmarks/README.md")
    options.add_argument("--work", default="build/accuracy", metavar="DIR")
    options.add_argument("--only", nargs="+", choices=tuned_gnns.NAMES, default=tuned_gnns.NAMES)
    options.add_argument("--rounds", type=int, default=5, metavar="N")
    args = options.parse_args(argv)
    torch.set_num_threads(1)
    lines = [("config", "step, ms", "PyG, ms", "ratio", "evaluation, ms", "PyG, ms", "ratio")]
    ratios = []
    for name in args.only:
        graph = next(g for g in tuned_gnns.GRAPHS if name.startswith(f"{g.name}_"))
        tables = tuned_gnns.make_tables(graph, 0, Path(args.data), Path(args.work))
        found = medians(interleaved(cases(name, tables), args.rounds, CLOCKS["cpu"]))
        ours, plain, ours_eval, plain_eval = (1000 * value for value in found.values())
        ratios.append(plain / ours)
        shown = (ours, plain, plain / ours, ours_eval, plain_eval, plain_eval / ours_eval)
        lines.append((name, *(f"{np.round(value, 1):,}" for value in shown)))
        print(markdown(lines), flush=True)
    return 0 if min(ratios) >= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
