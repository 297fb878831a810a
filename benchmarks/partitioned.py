"""Batches and training steps over a partitioned graph, beside the same graph in memory.

    python benchmarks/partitioned.py --scale reference [--parts 2]

The same batches in turns, of the graph opened whole, of its parts mapped by this process, and of
parts that an actor each serves on this node. A batch is made without threads, so it shows what is
waited for; steps train a GraphSAGE on one thread while two more make batches, as in a run. Messages
and bytes are those of questions and answers of a batch.
"""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from harness import CLOCKS, Case, Row, Scale, chosen_scale, interleaved, medians, parser, publish
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
from raygnn.sampling.partitioned_stores import PartitionedFeatureStore, PartitionedGraphStore
from raygnn.sampling.parts import PartitionedGraph, PartService, map_parts
from raygnn.sampling.protocols import FeatureStore, GraphStore

_BATCHES = 8  # a round
Stores = tuple[GraphStore, FeatureStore]


class Counted:
    """A service that counts what it is asked, and answers at once."""

    def __init__(self, service: PartService) -> None:
        self._service = service
        self.num_messages = self.num_bytes = 0

    def ask(self, question: Any, *given: Any) -> Any:
        answer = self._service.ask(question, *given)
        self.num_messages += 1
        self.num_bytes += len(pickle.dumps(given)) + len(pickle.dumps(answer.result()))
        return answer


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

    counted = [Counted(service) for service in mapped.services]
    Training(parted(replace(mapped, services=tuple(counted))), scale).make()
    ray.init(address="local", log_to_driver=False, include_dashboard=False)
    with part_actors(outline, config) as served:
        of: dict[str, Stores] = {
            "in memory": (LocalGraphStore(whole), LocalFeatureStore(whole)),
            "parts mapped here": parted(mapped),
            "parts of actors": parted(served),
        }
        cases: dict[str, Case] = {}
        for name, stores in of.items():
            training = Training(stores, scale)
            cases[f"batch, {name}"], cases[f"step, {name}"] = training.make, training.train
        seconds = interleaved(cases, scale.rounds, CLOCKS["wall"])
    took = {name: 1e3 * value / _BATCHES for name, value in medians(seconds).items()}
    publish("partitioned", options, _rows(took, counted), seconds=seconds)


def _rows(ms: Mapping[str, float], counted: Sequence[Counted]) -> list[Row]:
    asked = sum(service.num_messages for service in counted) / _BATCHES
    moved = sum(service.num_bytes for service in counted) / _BATCHES / 1e6
    aims = {"step, parts of actors": "<= 1.3 x"}
    rows = []
    for what, value in ms.items():
        base = ms[f"{what.split(',')[0]}, in memory"]
        ratio = None if what.endswith("in memory") else value / base
        rows.append(Row(what, value, "ms", ratio, "in memory", aims.get(what, "")))
    return [*rows, Row("messages of a batch", asked, ""), Row("bytes of a batch", moved, "MB")]


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__, in_rounds=True)
    options.add_argument("--parts", type=int, default=2, metavar="P", help="default: 2")
    return options.parse_args(argv)


if __name__ == "__main__":
    main()
