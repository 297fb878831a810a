"""Speed of neighbor sampling and of feature gathering, on one and on two threads.

    python benchmarks/sampling.py --scale reference

Every row takes the same batches of random seeds, in turns. Peers: the sampler of pyg-lib where this
Python finds it (benchmarks/README.md says how to build it); a torch gather and a memcpy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from harness import (
    CLOCKS,
    Case,
    Clock,
    Row,
    Scale,
    chosen_scale,
    interleaved,
    medians,
    parser,
    publish,
    timed,
)
from rmat_graph import EDGE, HETERO_EDGES, NODE, RmatGraph
from torch_geometric.typing import WITH_PYG_LIB

from raygnn.data.bundle import Bundle
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.standardization import ColumnScale
from raygnn.sampling import LocalFeatureStore, LocalGraphStore, NeighborSampler
from raygnn.sampling.prefetch import map_ahead
from raygnn.sampling.rng import batch_key
from raygnn.sampling.temporal import Temporal

_BATCHES_ON_THREADS = 64


class PygLib:
    """pyg-lib's sampler on one thread, over the same graph."""

    def __init__(self, bundle: Bundle, fanouts: Sequence[int]) -> None:
        csc = bundle.csc(EDGE)
        self._colptr = torch.from_numpy(np.asarray(csc.indptr, np.int64))
        self._row = torch.from_numpy(np.asarray(csc.indices, np.int64))  # it takes int64 only
        self._fanouts = list(fanouts)

    def sample(self, seeds: np.ndarray) -> None:
        """Samples the neighborhood of seeds, as PyG's `NeighborLoader` does."""
        torch.ops.pyg.neighbor_sample(
            self._colptr, self._row, torch.from_numpy(seeds), self._fanouts, csc=True
        )


class Batches:
    """Seeds of numbered batches, and a sampler of each kind over them."""

    def __init__(self, scale: Scale, work: Path) -> None:
        self.scale = scale
        size = (scale.num_nodes, scale.num_edges)
        self.bundle = RmatGraph(
            *size, scale.num_features, scale.num_classes, columns=("weight",)
        ).bundle(work)
        self.timed = RmatGraph(*size, columns=("time",)).bundle(work)
        self.hetero = RmatGraph(*size, is_hetero=True).bundle(work)
        graph, hetero = LocalGraphStore(self.bundle), LocalGraphStore(self.hetero)
        fanouts = list(scale.fanouts)
        self.uniform = NeighborSampler(graph, fanouts)
        self.weighted = NeighborSampler(graph, fanouts, weight="weight")
        self.temporal = NeighborSampler(
            LocalGraphStore(self.timed), fanouts, temporal=Temporal("time")
        )
        # of each edge type fewer, so that a batch has about as many edges
        per_type = [-(-fanout // 2) for fanout in fanouts]
        self.typed = NeighborSampler(hetero, dict.fromkeys(HETERO_EDGES, per_type))

        self.stores = _feature_stores(RmatGraph(scale.num_nodes, 1, scale.num_features), work)
        self._seeds = [self._draw_seeds(number) for number in range(scale.rounds + 1)]
        self._links = [self._draw_links(number) for number in range(scale.rounds + 1)]

    def seeds(self, number: int) -> np.ndarray:
        """Distinct random nodes of a batch."""
        return self._seeds[number % len(self._seeds)]

    def links(self, number: int) -> np.ndarray:
        """Random edges, as many as make a batch with both of their ends."""
        return self._links[number % len(self._links)]

    def _draw_seeds(self, number: int) -> np.ndarray:
        rng = np.random.default_rng(number)
        return rng.choice(self.scale.num_nodes, self.scale.batch_size, replace=False)

    def _draw_links(self, number: int) -> np.ndarray:
        csc = self.bundle.csc(EDGE)
        rng = np.random.default_rng(number)
        e_id = rng.integers(0, len(csc.indices), self.scale.batch_size // 2)
        target = np.searchsorted(csc.indptr, e_id, side="right") - 1
        return np.stack([csc.indices[e_id].astype(np.int64), target])

    def sample(self, number: int) -> int:
        """One uniform batch; returns its number of edges."""
        found = self.uniform.sample({NODE: self.seeds(number)}, key(number))
        return len(found.edge[EDGE])


def _feature_stores(graph: RmatGraph, work: Path) -> dict[str, LocalFeatureStore]:
    """The same rows by storage, as they are and standardised; no storage twice in a row."""
    plain, standardised = {}, {}
    for dtype in ("float32", "float16"):
        bundle = ingest(graph.tables(work), IngestOptions(feature_dtype=dtype), work / "cache")
        scale = ColumnScale.of(bundle.columns(NODE)["x"])
        assert scale is not None
        plain[dtype] = LocalFeatureStore(bundle)
        standardised[f"{dtype} standardised"] = LocalFeatureStore(bundle, {NODE: {"x": scale}})
    return plain | standardised


def key(number: int) -> int:
    """The key of a numbered batch."""
    return batch_key(0, "benchmark", 0, number)


def sampling_cases(batches: Batches) -> dict[str, Case]:
    """A function for each way to sample; each call takes the next batch."""

    def numbered(run: Callable[[int], object]) -> Case:
        count = iter(range(1_000_000))

        def next_batch() -> None:
            run(next(count))

        return next_batch

    seeds = batches.seeds

    def temporal(number: int) -> object:
        given = {NODE: seeds(number)}
        # half of the edges are later than the seeds
        times = {NODE: np.full(batches.scale.batch_size, 1 << 29)}
        return batches.temporal.sample(given, key(number), times=times)

    def typed(number: int) -> object:
        return batches.typed.sample({"user": seeds(number) // 2}, key(number))

    def link(number: int, *, excludes: bool) -> object:
        ends = batches.links(number)
        exclude = {EDGE: ends} if excludes else None
        return batches.uniform.sample({NODE: ends.reshape(-1)}, key(number), exclude=exclude)

    cases: dict[str, Case] = {
        "uniform": numbered(batches.sample),
        "weighted": numbered(lambda n: batches.weighted.sample({NODE: seeds(n)}, key(n))),
        "temporal": numbered(temporal),
        "hetero": numbered(typed),
        "link": numbered(partial(link, excludes=False)),
        "link, links excluded": numbered(partial(link, excludes=True)),
    }
    if WITH_PYG_LIB:
        peer = PygLib(batches.bundle, batches.scale.fanouts)
        cases["pyg-lib"] = numbered(lambda n: peer.sample(seeds(n)))
    return cases


def _on_threads(batches: Batches, clock: Clock, num_threads: int) -> float:
    """Seconds per batch where threads make batches ahead."""

    def run() -> None:
        for _ in map_ahead(batches.sample, range(_BATCHES_ON_THREADS), num_threads, 4):
            pass

    return timed(run, clock) / _BATCHES_ON_THREADS


def gather_cases(batches: Batches, device: str) -> tuple[dict[str, Case], int]:
    """Feature rows of one batch by raygnn, by torch, and as one block; and how many bytes."""
    nodes = batches.uniform.sample({NODE: batches.seeds(0)}, key(0)).node[NODE]
    store, column = LocalFeatureStore(batches.bundle), batches.bundle.column(NODE, "x")
    assert isinstance(column, np.ndarray)
    ours, theirs = np.empty((2, len(nodes), column.shape[1]), column.dtype)
    rows, ids, out = (torch.from_numpy(array) for array in (column, nodes, theirs))
    torch.index_select(rows, 0, ids, out=out)
    store.gather(NODE, "x", nodes, ours)
    assert np.array_equal(ours, theirs)

    def copied() -> None:
        ours[...] = theirs

    def gathered(features: LocalFeatureStore) -> Case:
        return lambda: (features.gather(NODE, "x", nodes, ours), None)[1]

    cases: dict[str, Case] = {
        "gather": gathered(store),
        **{f"gather, {name}": gathered(features) for name, features in batches.stores.items()},
        "torch": lambda: (torch.index_select(rows, 0, ids, out=out), None)[1],
        "memcpy": copied,
    }
    if device == "cuda":
        cases["to device"] = lambda: (out.to(device), torch.cuda.synchronize())[1]
    return cases, ours.nbytes


def sampling_rows(scale: Scale, seconds: Mapping[str, float], num_edges: float) -> list[Row]:
    """The rows about sampling, from the median of each case."""
    ms = {name: 1e3 * value for name, value in seconds.items()}

    def against_uniform(name: str, aim: str = "") -> Row:
        return Row(f"sample, {name}", ms[name], "ms", ms[name] / ms["uniform"], "uniform", aim)

    edges = f"{num_edges:,.0f} edges a batch"
    uniform = ms["uniform"]
    aim = "<= 7 ms" if scale.name == "reference" else ""
    rows = [Row("sample, uniform, 1 thread", uniform, "ms", aim=aim, note=edges)]
    if "pyg-lib" in ms:
        rows.append(Row("pyg-lib", ms["pyg-lib"], "ms", ms["pyg-lib"] / uniform, "ours"))
    rows += [
        Row("sample, thread pool of 1", ms["threads 1"], "ms"),
        Row(
            "sample, thread pool of 2",
            ms["threads 2"],
            "ms",
            ms["threads 1"] / ms["threads 2"],
            "the rate of 1 thread",
            ">= 1.8",
        ),
        Row(
            "processor time of it",
            ms["threads 2, cpu"],
            "ms",
            ms["threads 2, cpu"] / ms["threads 1, cpu"],
            "that of 1 thread",
            note="1 where nothing is shared",
        ),
        against_uniform("weighted", "<= 2"),
        against_uniform("temporal"),
        against_uniform("hetero"),
    ]
    excluded, kept = ms["link, links excluded"], ms["link"]
    rows += [
        Row("sample, ends of links", kept, "ms", note=f"{scale.batch_size // 2} links"),
        Row("sample, ends of links, links excluded", excluded, "ms", excluded / kept, "with them"),
    ]
    return rows


def gather_rows(seconds: Mapping[str, float], num_bytes: int) -> list[Row]:
    """The rows about gathering, from the median of each case."""
    note = f"{num_bytes / 1e6:.0f} MB a batch"
    rows = []
    for name, value in seconds.items():
        ratio = value / seconds["memcpy"]
        label = {"torch": "torch.index_select"}.get(
            name, name.replace("gather", "gather of features")
        )
        rows.append(Row(label, 1e3 * value, "ms", ratio, "memcpy", note=note))
        note = ""
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    options = parser(__doc__, in_rounds=True).parse_args(argv)
    scale = chosen_scale(options)
    torch.set_num_threads(1)  # gathers too are per thread: batches are made side by side
    batches = Batches(scale, Path(options.work))
    clock = CLOCKS[options.clock]
    sampled = interleaved(sampling_cases(batches), scale.rounds, clock)
    pools: dict[str, Case] = {}
    for n in (1, 2):
        pools[f"threads {n}"] = partial(_on_threads, batches, CLOCKS["wall"], n)
        pools[f"threads {n}, cpu"] = partial(_on_threads, batches, CLOCKS["cpu"], n)
    sampled |= interleaved(pools, scale.rounds)
    gathers, num_bytes = gather_cases(batches, options.device)
    gathered = interleaved(gathers, scale.rounds, clock)
    num_edges = float(np.mean([batches.sample(number) for number in range(scale.rounds)]))
    rows = sampling_rows(scale, medians(sampled), num_edges)
    rows += gather_rows(medians(gathered), num_bytes)
    publish("sampling", options, rows, seconds={**sampled, **gathered})


if __name__ == "__main__":
    main()
