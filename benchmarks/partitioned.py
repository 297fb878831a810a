"""Batches and training steps over a partitioned graph, beside the same graph in memory.

    python benchmarks/partitioned.py --scale reference [--parts 2]

The same batches in turns, of the graph opened whole, of its parts mapped by this process, and of
parts that an actor each serves, as if on other nodes, without a cache of rows and with it. A batch
is made without threads, so it shows what is waited for; steps train a GraphSAGE on one thread while
two more make batches, as in a run. `--here H` maps the first H parts where actors serve the others,
as a worker does that has H parts on its node.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import ray
import torch
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
from rmat_graph import NODE, RmatGraph
from torch.nn import functional

from raygnn.config import load_config
from raygnn.data.partition.build import Partitioning, partition
from raygnn.data.partition.part import Outline
from raygnn.data.partition.record import RECORD_NAME
from raygnn.data.partition.whole import open_partitioned
from raygnn.loops.process import keep_freed_memory
from raygnn.models.sage import GraphSAGE
from raygnn.runtime.part_actors import part_actors
from raygnn.sampling import (
    LocalFeatureStore,
    LocalGraphStore,
    NeighborLoader,
    NeighborSampler,
    blocks_of,
)
from raygnn.sampling.hot_rows import Traffic
from raygnn.sampling.partitioned_stores import PartitionedFeatureStore, PartitionedGraphStore
from raygnn.sampling.parts import PartitionedGraph, map_parts
from raygnn.sampling.protocols import FeatureStore, GraphStore

_BATCHES = 8  # a round
Stores = tuple[GraphStore, FeatureStore]


@dataclass
class Training:
    """A model and its batches."""

    stores: Stores
    scale: Scale

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        scale = self.scale
        widths = (scale.num_features, scale.num_classes, scale.hidden_channels)
        self._model = GraphSAGE(*widths, len(scale.fanouts))
        self._optimizer = torch.optim.Adam(self._model.parameters())
        self._loader, self._ahead = self.loader(0), self.loader(2)

    def loader(self, num_threads: int) -> NeighborLoader:
        graph, features = self.stores
        return NeighborLoader(
            graph,
            features,
            np.random.default_rng(0).permutation(graph.num_nodes(NODE)),
            NODE,
            sampler=NeighborSampler(graph, list(self.scale.fanouts)),
            columns={"x": "x", "y": "y"},
            batch_size=self.scale.batch_size,
            split="train",
            seed=0,
            shuffle=False,
            num_threads=num_threads,
        )

    def make(self) -> None:
        """Makes the batches of a round."""
        for number in range(_BATCHES):
            self._loader.make(0, number)

    def train(self) -> None:
        """Trains on them while they are made ahead."""
        for batch in self._ahead.iterate(0, stop=_BATCHES):
            self._optimizer.zero_grad(set_to_none=True)
            scores = self._model(batch.nodes[NODE].columns["x"], blocks_of(batch))
            functional.cross_entropy(scores, batch.y).backward()
            self._optimizer.step()


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    options = _options(argv)
    scale, work = chosen_scale(options), Path(options.work).absolute()
    keep_freed_memory()
    torch.set_num_threads(1)
    graph = RmatGraph(scale.num_nodes, scale.num_edges, scale.num_features, scale.num_classes)
    folder = work / "parts" / f"{graph.name}-{options.parts}"
    if not (folder / RECORD_NAME).exists():
        partition(graph.tables(work), folder, Partitioning(options.parts), progress=print)
    outline = Outline.build(folder, work / "cache")
    whole = open_partitioned(folder, work / "cache", print)
    given = {"data": {"mode": "partitioned", "uri": str(folder)}, "scaling": {"num_workers": 1}}
    config = load_config(given).config
    mapped = map_parts(folder, outline)

    def parted(parts: PartitionedGraph) -> Stores:
        return PartitionedGraphStore(outline, parts), PartitionedFeatureStore(outline, parts)

    ray.init(address="local", log_to_driver=False, include_dashboard=False)
    with part_actors(outline, config) as served:
        of: dict[str, Stores] = {
            "in memory": (LocalGraphStore(whole), LocalFeatureStore(whole)),
            "parts mapped here": parted(mapped),
        }
        traffic: dict[str, Traffic] = {}
        for name, cache_bytes in (("without", 0), ("with", config.data.cache_bytes)):
            services = (*mapped.services[: options.here], *served.services[options.here :])
            graph_of = replace(
                served, services=services, cache_bytes=cache_bytes, traffic=Traffic()
            )
            of[f"actors, {name} cache"] = parted(graph_of)
            traffic[f"{name} cache"] = graph_of.traffic
        cases: dict[str, Case] = {}
        for name, stores in of.items():
            training = Training(stores, scale)
            cases[f"batch, {name}"], cases[f"step, {name}"] = training.make, training.train
        counted = {}
        for name, counts in traffic.items():
            cases[f"batch, actors, {name}"]()  # fills the cache
            before = counts.counts()
            cases[f"batch, actors, {name}"]()
            counted[name] = [
                (b - a) / _BATCHES for a, b in zip(before, counts.counts(), strict=True)
            ]
        seconds = interleaved(cases, scale.rounds, CLOCKS["wall"])
    took = {name: 1e3 * value / _BATCHES for name, value in medians(seconds).items()}
    publish("partitioned", options, _rows(took, counted), seconds=seconds)


def _rows(ms: Mapping[str, float], counted: Mapping[str, Sequence[float]]) -> list[Row]:
    aims = {"step, parts mapped here": "<= 1.3 x", "step, actors, with cache": "<= 3 x"}
    rows = []
    for what, value in ms.items():
        base = ms[f"{what.split(',')[0]}, in memory"]
        ratio = None if what.endswith("in memory") else value / base
        rows.append(Row(what, value, "ms", ratio, "in memory", aims.get(what, "")))
    for name, (requests, num_bytes, cached) in counted.items():
        rows += [
            Row(f"requests a batch, {name}", requests, ""),
            Row(f"bytes a batch, {name}", num_bytes / 1e6, "MB"),
            Row(f"rows from the cache a batch, {name}", cached, ""),
        ]
    return rows


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__, in_rounds=True, scales=SCALES)
    options.add_argument("--parts", type=int, default=2, metavar="P", help="default: 2")
    options.add_argument("--here", type=int, default=0, metavar="H", help="default: 0")
    return options.parse_args(argv)


if __name__ == "__main__":
    main()
