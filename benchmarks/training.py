"""Time of a training step, beside PyG's layers on the same batches, and of two workers.

    python benchmarks/training.py --scale reference

A step is batch, forward, backward and Adam of a 3-layer GraphSAGE. "live" samples while it trains;
"cached" takes the same batches from a list, made beforehand. The PyG rows train PyG's own layers
on the same cached batches: trimmed to the rows that the next layer reads, and over the whole
sampled subgraph as PyG's examples do. The engine rows run `raygnn.train` in processes of their own,
with all that it does around a step; beside them PyG's `NeighborLoader` and DDP, where this Python
finds pyg-lib (benchmarks/README.md says how to build it). `--scale products` has the shape of
ogbn-products, steps only.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import yaml
from harness import (
    CLOCKS,
    SCALES,
    Case,
    Row,
    Scale,
    chosen_scale,
    interleaved,
    medians,
    parser,
    publish,
)
from rmat_graph import EDGE, NODE, RmatGraph
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn.models import GraphSAGE as PygGraphSAGE
from torch_geometric.typing import WITH_PYG_LIB

from raygnn.data.bundle import Bundle
from raygnn.data.standardization import ColumnScale
from raygnn.loops.process import keep_freed_memory
from raygnn.models.convolutions import GraphSAGE
from raygnn.sampling import (
    LocalFeatureStore,
    LocalGraphStore,
    NeighborLoader,
    NeighborSampler,
    NodeBatch,
    blocks_of,
)
from raygnn.sampling.stores import find_device_columns

STEPS_A_ROUND = 4
_ENGINE_STEPS = {"smoke": 10, "reference": 120}
_GPU_FACTOR = 25  # more steps, the first of which takes longest
_PEER_STEPS = {"smoke": 10, "reference": 12}
_ENGINE_RUNS = {"smoke": 1, "reference": 2}


class Trainer:
    """A model and its optimizer, and what they do to a batch.

    Args:
        over: what the model takes: blocks, one a layer, or the subgraph, trimmed or whole.
    """

    def __init__(
        self, model: nn.Module, device: str, over: Literal["blocks", "trimmed", "whole"]
    ) -> None:
        self._model = model.to(device)
        self._device = device
        self._over = over
        self._optimizer = torch.optim.Adam(model.parameters(), lr=0.005)

    def step(self, batch: NodeBatch) -> None:
        """Trains on one batch."""
        batch = batch.to(self._device, non_blocking=True)
        self._optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(self._scores(batch), batch.y).backward()
        self._optimizer.step()
        if self._device == "cuda":
            torch.cuda.synchronize()

    def _scores(self, batch: NodeBatch) -> Tensor:
        nodes, edges = batch.nodes[NODE], batch.edges[EDGE]
        x = nodes.columns["x"]
        if self._over == "blocks":
            scores: Tensor = self._model(x, blocks_of(batch))
            return scores
        hops = {
            "num_sampled_nodes_per_hop": nodes.num_sampled,
            "num_sampled_edges_per_hop": edges.num_sampled,
        }
        scores = self._model(x, edges.edge_index, **(hops if self._over == "trimmed" else {}))
        return scores[: nodes.num_seeds]


def make_loader(
    scale: Scale,
    bundle: Bundle,
    device: str,
    num_threads: int | None,
    *,
    labor: bool = False,
    holds_features: bool = False,
    pads: bool = False,
) -> NeighborLoader:
    """Batches of training nodes."""
    declared = bundle.declared_split(NODE)
    assert declared is not None
    graph = LocalGraphStore(bundle)
    scale_of_x = ColumnScale.of(bundle.columns(NODE)["x"])
    assert scale_of_x is not None
    scales, on_device = {NODE: {"x": scale_of_x}}, {}  # as a run does by default
    if device == "cuda" or holds_features:
        holds = holds_features or "auto"
        on_device = find_device_columns(bundle, scales, ["x"], torch.device(device), holds=holds)
    return NeighborLoader(
        graph,
        LocalFeatureStore(bundle, scales, device_columns=on_device),
        np.flatnonzero(declared == 1),
        NODE,
        sampler=NeighborSampler(graph, list(scale.fanouts), labor=labor),
        columns={"x": "x", "y": "y"},
        batch_size=scale.batch_size,
        split="train",
        seed=0,
        shuffle=True,
        num_threads=num_threads,
        device=torch.device(device),
        pads=pads,
    )


def step_cases(
    scale: Scale, loader: NeighborLoader, loader_of_ids: NeighborLoader, device: str
) -> tuple[dict[str, Case], float]:
    """What is timed, `STEPS_A_ROUND` steps each, and the mean number of edges of a batch.

    Args:
        loader_of_ids: gives batches for a device that holds the features.
    """
    cached = [loader.make(0, number) for number in range(STEPS_A_ROUND)]
    ours = Trainer(raygnn_model(scale), device, "blocks")
    trimmed = Trainer(pyg_model(scale), device, "trimmed")
    plain = Trainer(pyg_model(scale), device, "whole")
    live = endless(loader)

    cases: dict[str, Case] = {
        "live": partial(train_steps, ours, live),
        "cached": lambda: train_steps(ours, iter(cached)),
        "PyG trimmed, cached": lambda: train_steps(trimmed, iter(cached)),
        "PyG, cached": lambda: train_steps(plain, iter(cached)),
        "load": lambda: _load(loader),
        "load, ids": lambda: _load(loader_of_ids),
    }
    return cases, float(np.mean([batch.num_edges for batch in cached]))


def train_steps(trainer: Trainer, batches: Iterator[NodeBatch]) -> None:
    """Trains on the next `STEPS_A_ROUND` batches."""
    for batch in itertools.islice(batches, STEPS_A_ROUND):
        trainer.step(batch)


def _load(loader: NeighborLoader) -> None:
    for number in range(STEPS_A_ROUND):
        loader.make(1, number)


def endless(loader: NeighborLoader) -> Iterator[Any]:
    """Batches of one epoch after another."""
    for epoch in itertools.count():
        yield from loader.iterate(epoch)


def raygnn_model(scale: Scale) -> nn.Module:
    """raygnn's GraphSAGE, over blocks."""
    return GraphSAGE(
        scale.num_features, scale.num_classes, scale.hidden_channels, len(scale.fanouts)
    )


def pyg_model(scale: Scale) -> nn.Module:
    """PyG's GraphSAGE, over a whole subgraph."""
    model: nn.Module = PygGraphSAGE(
        scale.num_features, scale.hidden_channels, len(scale.fanouts), scale.num_classes
    )
    return model


def engine_config(
    scale: Scale,
    tables: Path,
    work: Path,
    name: str,
    steps: int,
    *,
    use_gpu: bool,
    sampler_threads: int | None = None,
    device_features: bool | str = "auto",
    cuda_graphs: bool = True,
) -> dict[str, Any]:
    """A run of GraphSAGE that trains for some steps and hardly evaluates."""
    threads = {} if sampler_threads is None else {"num_threads": sampler_threads}
    return {
        "data": {
            "uri": str(tables),
            "cache_dir": str(work / "cache"),
            "device_features": device_features,
        },
        "sampling": {"fanouts": list(scale.fanouts)},
        "loader": {"batch_size": scale.batch_size, **threads},
        "model": {"type": "GraphSAGE", "args": {"hidden_channels": scale.hidden_channels}},
        "training": {
            "max_steps": steps,
            "num_val_batches": 1,
            "num_test_batches": 1,
            "cuda_graphs": cuda_graphs,
        },
        "early_stopping": None,
        "checkpoint": {"policy": "none"},
        "loggers": [],
        "scaling": {"num_workers": 0, "use_gpu": use_gpu},
        "run": {"name": name, "storage_path": str((work / "runs").absolute()), "overwrite": True},
    }


def engine_rate(
    scale: Scale,
    tables: Path,
    work: Path,
    device: str,
    *,
    workers: int,
    threads: int,
    sampler_threads: int | None = None,
    device_features: bool | str = "auto",
    cuda_graphs: bool = True,
) -> float:
    """Seeds a second of `raygnn.train` in processes that torchrun starts."""
    name = f"engine-{scale.name}-{workers}x{threads}"
    steps = _ENGINE_STEPS[scale.name] * (_GPU_FACTOR if device == "cuda" else 1)
    config = engine_config(
        scale,
        tables,
        work,
        name,
        steps,
        use_gpu=device == "cuda",
        sampler_threads=sampler_threads,
        device_features=device_features,
        cuda_graphs=cuda_graphs,
    )
    path = work / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    command = [sys.executable, *launcher, "-m", "raygnn.train", str(path)]
    _output(command, {"OMP_NUM_THREADS": str(threads)})
    metrics = json.loads((work / "runs" / name / "metrics.json").read_text())
    return float(metrics["perf/seeds_per_s"])


class PygPeer:
    """PyG's `NeighborLoader` over pyg-lib, `GraphSAGE` and DDP on the same graph.

    Args:
        folder: for the arrays of the graph.
    """

    def __init__(self, scale: Scale, bundle: Bundle, folder: Path, device: str) -> None:
        self._folder, self._device = folder, device
        steps = _PEER_STEPS[scale.name] * (_GPU_FACTOR if device == "cuda" else 1)
        self._scale = json.dumps({**vars(scale), "steps": steps})
        csc, declared = bundle.csc(EDGE), bundle.declared_split(NODE)
        assert declared is not None
        arrays = {
            "indptr": csc.indptr,
            "indices": csc.indices,
            "train": np.flatnonzero(declared == 1),
        }
        arrays |= {name: np.asarray(bundle.column(NODE, name)) for name in ("x", "y")}
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array)

    def rate(
        self,
        how: Literal["trimmed", "whole"],
        *,
        workers: int,
        threads: int,
        samplers: int = 1,
        holds_features: bool = False,
    ) -> float:
        """Seeds a second of all workers.

        Args:
            samplers: processes that sample, for each worker.
            holds_features: keep the features on the device, and gather there.
        """
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
        script = str(Path(__file__).with_name("pyg_ddp_peer.py"))
        options = json.dumps(
            {
                "device": self._device,
                "trim": how == "trimmed",
                "samplers": samplers,
                "holds_features": holds_features,
            }
        )
        command = [sys.executable, *launcher, script, str(self._folder), self._scale, options]
        printed = _output(command, {"OMP_NUM_THREADS": str(threads)})
        return float(json.loads(printed.splitlines()[-1])["seeds_per_s"])


def _output(command: Sequence[str], environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def step_rows(
    scale: Scale, seconds: Mapping[str, float], num_edges: float, num_threads: int
) -> list[Row]:
    """The rows about single steps, from the median of each case."""
    ms = {name: 1e3 * value / STEPS_A_ROUND for name, value in seconds.items()}
    aim = "<= 160 ms" if scale.name == "reference" else ""
    edges = f"{num_edges:,.0f} edges, {num_threads} threads"
    trimmed, pyg = ms["PyG trimmed, cached"], ms["PyG, cached"]
    return [
        Row("step, live", ms["live"], "ms", ms["live"] / ms["cached"], "cached", "<= 1.2", edges),
        Row("step, cached", ms["cached"], "ms", aim=aim),
        Row("PyG's layers, trimmed, cached", trimmed, "ms", trimmed / ms["cached"], "ours, cached"),
        Row("PyG's layers, cached", pyg, "ms", pyg / ms["cached"], "ours, cached"),
        Row("batch, 1 thread", ms["load"], "ms", note="sampling, gather, assembly"),
        Row("the same, the device holds features", ms["load, ids"], "ms", note="without gather"),
    ]


def cpu_rows(scale: Scale, engine: Callable[..., float], peer: PygPeer | None) -> list[Row]:
    """Runs the engine and its peer with one worker of two threads, and with two of one."""
    single, double = rates = _best_rates(engine, _ENGINE_RUNS[scale.name])
    note = _step_text(scale.batch_size, single)
    against = "of 1 x 2 threads"
    rows = [
        Row("engine, 1 worker x 2 threads", single, "seeds/s", note=note),
        Row("engine, 2 workers x 1 thread", double, "seeds/s", double / single, against, ">= 0.9"),
    ]
    if peer is None:
        return rows
    processes = ("1 process x 2 threads", "2 processes x 1 thread")
    for how in ("trimmed", "whole"):
        peer_rates = _best_rates(partial(peer.rate, how), 1)
        for workers, ours, theirs in zip(processes, rates, peer_rates, strict=True):
            note = _step_text(scale.batch_size, theirs)
            name = f"PyG's NeighborLoader and DDP, {how}, {workers}"
            rows.append(Row(name, theirs, "seeds/s", ours / theirs, "ours", note=note))
    return rows


def gpu_rows(
    batch_size: int, engine: Callable[..., float], peer: PygPeer | None, samplers: int
) -> list[Row]:
    """Runs the engine and its peer on one GPU, with features on the device and on the host."""
    rows = []
    for holds in (True, False):
        where = f"{samplers} samplers, features on the {'device' if holds else 'host'}"
        ours = engine(workers=1, threads=2, sampler_threads=samplers, device_features=holds)
        aim = ">= 300,000" if holds else ""
        note = _step_text(batch_size, ours)
        rows.append(Row(f"engine, {where}", ours, "seeds/s", aim=aim, note=note))
        plain = engine(
            workers=1, threads=2, sampler_threads=samplers, device_features=holds, cuda_graphs=False
        )
        note = _step_text(batch_size, plain)
        name = f"engine without CUDA graphs, {where}"
        rows.append(Row(name, plain, "seeds/s", ours / plain, "with", note=note))
        if peer is not None:
            theirs = peer.rate(
                "trimmed", workers=1, threads=2, samplers=samplers, holds_features=holds
            )
            note = _step_text(batch_size, theirs)
            name = f"PyG's NeighborLoader, trimmed, {where}"
            rows.append(Row(name, theirs, "seeds/s", ours / theirs, "ours", ">= 5", note))
    return rows


def _step_text(batch_size: int, rate: float) -> str:
    return f"{1e3 * batch_size / rate:.1f} ms a step"


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    options = _options(argv)
    scale, work = chosen_scale(options), Path(options.work)
    keep_freed_memory()
    torch.set_num_threads(options.threads)
    graph = RmatGraph(scale.num_nodes, scale.num_edges, scale.num_features, scale.num_classes)
    bundle = graph.bundle(work)
    loader = make_loader(scale, bundle, options.device, options.sampler_threads)
    with loader:
        of_ids = make_loader(scale, bundle, options.device, 0, holds_features=True)
        cases, num_edges = step_cases(scale, loader, of_ids, options.device)
        seconds = interleaved(cases, scale.rounds, CLOCKS[options.clock])
    rows = step_rows(scale, medians(seconds), num_edges, options.threads)
    if not options.steps_only and scale.name in _ENGINE_RUNS:
        engine = partial(engine_rate, scale, graph.tables(work), work, options.device)
        with tempfile.TemporaryDirectory(dir=work) as folder:
            peer = PygPeer(scale, bundle, Path(folder), options.device) if WITH_PYG_LIB else None
            if options.device == "cuda":
                rows += gpu_rows(scale.batch_size, engine, peer, options.sampler_threads or 12)
            else:
                rows += cpu_rows(scale, engine, peer)
    publish("training", options, rows, seconds=seconds)


def _best_rates(run: Callable[..., float], num_runs: int) -> tuple[float, float]:
    """Seeds a second of one worker of two threads, and of two of one."""
    rates = [(run(workers=1, threads=2), run(workers=2, threads=1)) for _ in range(num_runs)]
    single, double = zip(*rates, strict=True)
    return max(single), max(double)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__, in_rounds=True, scales=SCALES)
    options.add_argument("--threads", type=int, default=2, help="of torch")
    options.add_argument("--sampler-threads", type=int, help="default: as in training")
    options.add_argument("--steps-only", action="store_true", help="leaves the engine out")
    return options.parse_args(argv)


if __name__ == "__main__":
    main()
