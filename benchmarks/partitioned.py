"""Batches and training steps over a partitioned graph, beside the same graph in memory.

    python benchmarks/partitioned.py --scale reference [--parts 2]

The same batches in turns, of the graph opened whole, of its parts mapped by this process, and of
parts that an actor each serves, as if on other nodes, without a cache of rows and with it. A batch
is made without threads, so it shows what is waited for; steps train a GraphSAGE on one thread while
two more make batches, as in a run. `--here H` maps the first H parts where actors serve the others,
as a worker does that has H parts on its node. `--raylets N` starts a node of Ray N times on this
machine, each with an object store and a cache folder of its own: actors are spread over them, and
this process maps the parts of its own node alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from ray.cluster_utils import Cluster
from rmat_graph import NODE, RmatGraph
from torch.nn import functional

from raygnn.config import load_config
from raygnn.data.cache import CACHE_VARIABLE
from raygnn.data.partition.build import Partitioning, partition
from raygnn.data.partition.part import Outline, open_partitioned
from raygnn.data.partition.record import RECORD_NAME, part_folder
from raygnn.loops.process import keep_freed_memory
from raygnn.models.convolutions import GraphSAGE
from raygnn.runtime.part_actors import part_actors
from raygnn.sampling import (
    LocalFeatureStore,
    LocalGraphStore,
    NeighborLoader,
    NeighborSampler,
    blocks_of,
)
from raygnn.sampling.partitioned_stores import PartitionedFeatureStore, PartitionedGraphStore
from raygnn.sampling.parts import MappedPart, PartitionedGraph, Traffic, map_parts
from raygnn.sampling.protocols import FeatureStore, GraphStore

_BATCHES = 8  # a round
_STORE_BYTES = 1 << 30  # Ray's objects, of each node
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

    def parted(parts: PartitionedGraph) -> Stores:
        return PartitionedGraphStore(outline, parts), PartitionedFeatureStore(outline, parts)

    with _nodes(options.raylets, work), part_actors(outline, config) as served:
        of: dict[str, Stores] = {"in memory": (LocalGraphStore(whole), LocalFeatureStore(whole))}
        if options.raylets == 1:
            of["parts mapped here"] = parted(map_parts(folder, outline))
            here = list(range(options.here))
        else:
            here = _parts_of_this_node(served)
        services = tuple(
            MappedPart(folder, part, outline.path) if part in here else service
            for part, service in enumerate(served.services)
        )
        traffic: dict[str, Traffic] = {}
        for name, cache_bytes in (("without", 0), ("with", config.data.cache_bytes)):
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
        if options.raylets > 1:
            _check_mapped(folder, here, options.parts)
    took = {name: 1e3 * value / _BATCHES for name, value in medians(seconds).items()}
    publish("partitioned", options, _rows(took, counted), seconds=seconds)


@contextmanager
def _nodes(num_raylets: int, work: Path) -> Iterator[None]:
    """Ray on this machine, as one node or as several that share no cache folder."""
    if num_raylets == 1:
        ray.init(address="local", log_to_driver=False, include_dashboard=False)
        yield
        return
    cluster = Cluster()
    try:
        for number in range(num_raylets):
            cluster.add_node(
                num_cpus=1,
                include_dashboard=False,
                object_store_memory=_STORE_BYTES,
                env_vars={CACHE_VARIABLE: str(work / f"cache-{number}")},
            )
        ray.init(address=cluster.address, log_to_driver=False)
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def _parts_of_this_node(served: PartitionedGraph) -> list[int]:
    node = ray.get_runtime_context().get_node_id()
    nodes = [getattr(service, "node_id", None) for service in served.services]
    return [part for part, its in enumerate(nodes) if its == node]


def _check_mapped(folder: Path, here: Sequence[int], num_parts: int) -> None:
    """Checks that this process maps the parts of its node, and no other."""
    maps = Path("/proc/self/maps").read_text()
    mapped = [part for part in range(num_parts) if f"{part_folder(folder, part)}/" in maps]
    print(f"parts that this process maps: {mapped} of {num_parts}")
    assert mapped == list(here)


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
    options.add_argument("--raylets", type=int, default=1, metavar="N", help="default: 1")
    return options.parse_args(argv)


if __name__ == "__main__":
    main()
