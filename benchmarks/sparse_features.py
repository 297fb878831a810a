"""Batches and training steps of sparse features, beside the same features as dense rows.

    python benchmarks/sparse_features.py --scale reference
    python benchmarks/sparse_features.py --scale reference --data DIR

50 seeds with 10 neighbors of each node in two hops; 8,400 columns, of which a node has 33; Adam and
a GraphSAGE of width 64. The dense rows are what a model without `takes_sparse_input` is given. With
`--data`, also an epoch of Coauthor CS (`coauthor_cs.npz` of benchmarks/README.md), with the batches
of examples/coauthor_cs.yaml. One thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from harness import CLOCKS, Case, Row, chosen_scale, interleaved, medians, parser, publish
from real_graphs import make_tables
from torch.nn import functional

from raygnn.data.bundle import Bundle
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.tables.columns import SparseRows
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
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

_NODES_AND_EDGES = {"smoke": (2000, 40_000), "reference": (100_000, 2_000_000)}
_WIDTH, _ENTRIES, _NUM_CLASSES = 8400, 33, 5
_HIDDEN, _BATCH_SIZE = 64, 50
_BATCHES = 4  # a round of the drawn graph


@dataclass(frozen=True)
class CoauthorCs:
    """The tables of the graph as `benchmarks/accuracy.py` makes them."""

    dataset: str = "Coauthor CS"
    tables: str = "coauthor_cs"
    prepare: tuple[str, ...] = (
        *("npz", "{data}/coauthor_cs.npz"),
        *("--normalize-features", "row", "--largest-component"),
    )


class Training:
    """A model and its batches.

    Args:
        num_batches: of a round.
    """

    def __init__(
        self, bundle: Bundle, fanouts: Sequence[int], num_batches: int, *, keeps_sparse: bool
    ) -> None:
        self._num_batches = num_batches
        (self._node,), (self._edge,) = bundle.node_types, bundle.edge_types
        graph = LocalGraphStore(bundle)
        self._loader = NeighborLoader(
            graph,
            LocalFeatureStore(bundle, keeps_sparse=keeps_sparse),
            np.random.default_rng(0).permutation(bundle.num_nodes(self._node)),
            self._node,
            sampler=NeighborSampler(graph, list(fanouts)),
            columns={"x": "x", "y": "y"},
            batch_size=_BATCH_SIZE,
            split="train",
            seed=0,
            shuffle=False,
            num_threads=0,
        )
        width = bundle.feature_widths("x")[self._node]
        num_classes = int(np.max(bundle.column(self._node, "y"))) + 1
        self._model = GraphSAGE(width, num_classes, _HIDDEN, len(fanouts), dropout=0.5)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=0.01)
        self.made: list[NodeBatch] = []

    def make(self) -> None:
        """Makes the batches of a round."""
        self.made = [self._loader.make(0, number) for number in range(self._num_batches)]

    def train(self) -> None:
        """Trains on the batches that were made."""
        for batch in self.made:
            self._optimizer.zero_grad(set_to_none=True)
            scores = self._model(batch.nodes[self._node].columns["x"], blocks_of(batch))
            functional.cross_entropy(scores, batch.y).backward()
            self._optimizer.step()

    def rows(self) -> float:
        """Mean number of rows of a batch."""
        return float(np.mean([len(batch.nodes[self._node].n_id) for batch in self.made]))


def drawn_graph(scale: str, work: Path) -> Bundle:
    """Nodes with words drawn at random, and edges between nodes drawn at random."""
    num_nodes, num_edges = _NODES_AND_EDGES[scale]
    rng = np.random.default_rng(0)
    words = np.sort(rng.integers(0, _WIDTH, (num_nodes, _ENTRIES)), axis=1)
    x = SparseRows(np.arange(num_nodes + 1) * _ENTRIES, words.reshape(-1), None, _WIDTH)
    ids, ends = np.arange(num_nodes), rng.integers(0, num_nodes, (2, num_edges))
    labels = {"y": rng.integers(0, _NUM_CLASSES, num_nodes)}
    edges = {("node", "to", "node"): edge_rows(*ends)}
    tables = GraphTables({"node": node_rows(ids, {"x": x}, labels)}, edges)
    uri = write_tables(tables, str(work / f"sparse-{num_nodes}"), overwrite=True)
    return ingest(uri, IngestOptions(), str(work / "cache"))


def cases_of(bundle: Bundle, fanouts: Sequence[int], num_batches: int) -> dict[str, Training]:
    """Sparse and dense."""
    build = partial(Training, bundle, fanouts, num_batches)
    return {"sparse": build(keeps_sparse=True), "dense": build(keeps_sparse=False)}


def timed_cases(of: Mapping[str, Training]) -> dict[str, Case]:
    """What is timed: batches of each, then training on them."""
    cases: dict[str, Case] = {}
    for name, training in of.items():
        cases[f"batch, {name}"], cases[f"step, {name}"] = training.make, training.train
    return cases


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    options = _options(argv)
    scale, work = chosen_scale(options), Path(options.work)
    keep_freed_memory()
    torch.set_num_threads(1)
    drawn = cases_of(drawn_graph(options.scale, work), (10, 10), _BATCHES)
    seconds = interleaved(timed_cases(drawn), scale.rounds, CLOCKS[options.clock])
    rows = step_rows(medians(seconds), drawn["sparse"].rows())
    if options.data is not None:
        tables = make_tables(CoauthorCs(), Path(options.data), work)
        bundle = ingest(tables, IngestOptions(), str(work / "cache"))
        epoch = timed_cases(cases_of(bundle, (25, 25), 6))
        took = medians(interleaved(epoch, min(scale.rounds, 5), CLOCKS[options.clock]))
        rows.append(epoch_row(took))
    publish("sparse_features", options, rows, seconds=seconds)


def step_rows(seconds: Mapping[str, float], num_rows: float) -> list[Row]:
    """The rows about a batch of the drawn graph, from the medians of `_BATCHES` of them."""
    ms = {name: 1e3 * value / _BATCHES for name, value in seconds.items()}
    rows = [
        Row(f"{what}, sparse", ms[f"{what}, sparse"], "ms", _gain(ms, what), "less than dense")
        for what in ("batch", "step")
    ]
    both = {kind: ms[f"batch, {kind}"] + ms[f"step, {kind}"] for kind in ("sparse", "dense")}
    note = f"{num_rows:,.0f} rows of {_WIDTH:,} columns"
    gain = both["dense"] / both["sparse"]
    total = Row("both, sparse", both["sparse"], "ms", gain, "less than dense", "<= 40 ms", note)
    return [*rows, total]


def epoch_row(seconds: Mapping[str, float]) -> Row:
    """Batches and training of 300 seeds of Coauthor CS."""
    both = {k: seconds[f"batch, {k}"] + seconds[f"step, {k}"] for k in ("sparse", "dense")}
    gain = both["dense"] / both["sparse"]
    return Row(
        "epoch of Coauthor CS", 1e3 * both["sparse"], "ms", gain, "less than dense", ">= 10 x"
    )


def _gain(ms: Mapping[str, float], what: str) -> float:
    return ms[f"{what}, dense"] / ms[f"{what}, sparse"]


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__, in_rounds=True)
    options.add_argument("--data", metavar="DIR", help="folder of coauthor_cs.npz")
    return options.parse_args(argv)


if __name__ == "__main__":
    main()
