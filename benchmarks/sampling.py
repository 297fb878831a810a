"""Speed of neighbor sampling and of feature gathering, on one and on two threads.

    python benchmarks/sampling.py --scale reference [--peer-python PYTHON]

Every row takes the same batches of random seeds, in turns. Peers: PyG's sampler of torch-sparse
where PYTHON (default: this one) has it, else at reference scale the figure that was measured for it
on such a machine; a torch gather and a memcpy. pyg-lib, which is not on PyPI, is not measured:
docs/performance.md has its figure of another machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

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

from raygnn.data.bundle import Bundle
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.standardization import ColumnScale
from raygnn.sampling import LocalFeatureStore, LocalGraphStore, NeighborSampler
from raygnn.sampling.prefetch import map_ahead
from raygnn.sampling.rng import batch_key
from raygnn.sampling.temporal import Temporal

#: Milliseconds a batch of torch-sparse 0.6.18 at reference scale, one thread of a 2-core machine.
STATED_TORCH_SPARSE_MS = 490.0
_BATCHES_ON_THREADS = 64


class SparsePeer:
    """torch-sparse's sampler in another process, on the same seeds."""

    def __init__(self, python: str, clock: str, bundle: Bundle, fanouts: Sequence[int]) -> None:
        self._fanouts = list(fanouts)
        script = Path(__file__).with_name("torch_sparse_peer.py")
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([python, script], stdin=pipe, stdout=pipe, text=True)
        with tempfile.TemporaryDirectory() as folder:
            csc = bundle.csc(EDGE)
            paths = {n: f"{folder}/{n}.npy" for n in ("indptr", "indices")}
            np.save(paths["indptr"], csc.indptr)
            np.save(paths["indices"], csc.indices)
            opened = self._ask(kind="open", clock=clock, **paths)
        if not opened["opened"]:
            raise RuntimeError(f"{python} has no torch-sparse: {opened['why']}")

    def sample(self, seeds: np.ndarray) -> float:
        """Seconds for a batch."""
        answer = self._ask(kind="sample", seeds=seeds.tolist(), fanouts=self._fanouts)
        return float(answer["seconds"])

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.communicate()


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
    for dtype in ("float32", "float16", "int8"):
        bundle = ingest(graph.tables(work), IngestOptions(feature_dtype=dtype), work / "cache")
        scale = ColumnScale.of(bundle.columns(NODE)["x"])
        assert scale is not None
        plain[dtype] = LocalFeatureStore(bundle)
        standardised[f"{dtype} standardised"] = LocalFeatureStore(bundle, {NODE: {"x": scale}})
    return plain | standardised


def key(number: int) -> int:
    """The key of a numbered batch."""
    return batch_key(0, "benchmark", 0, number)


def sampling_cases(batches: Batches, peer: SparsePeer | None) -> dict[str, Case]:
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
        "weighted": numbered(
            lambda n: batches.weighted.sample({NODE: seeds(n)}, key(n)),
        ),
        "temporal": numbered(temporal),
        "hetero": numbered(typed),
        "link": numbered(partial(link, excludes=False)),
        "link, links excluded": numbered(partial(link, excludes=True)),
    }
    if peer is not None:
        cases["torch-sparse"] = _timed_by_itself(peer, seeds)
    return cases


def _timed_by_itself(peer: SparsePeer, seeds: Callable[[int], np.ndarray]) -> Case:
    count = iter(range(1_000_000))
    return lambda: peer.sample(seeds(next(count)))


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
    peer, source = None, ""
    if "torch-sparse" in seconds:
        peer, source = 1e3 * seconds["torch-sparse"], "measured in this run"
    elif scale.name == "reference":
        peer, source = STATED_TORCH_SPARSE_MS, "measured elsewhere: it is not installed here"

    def against_uniform(name: str, aim: str = "") -> Row:
        return Row(f"sample, {name}", ms[name], "ms", ms[name] / ms["uniform"], "uniform", aim)

    edges = f"{num_edges:,.0f} edges a batch"
    uniform = ms["uniform"]
    aim = "<= 7 ms" if scale.name == "reference" else ""
    rows = [Row("sample, uniform, 1 thread", uniform, "ms", aim=aim, note=edges)]
    if peer is not None:
        rows.append(Row("torch-sparse", peer, "ms", peer / uniform, "ours", note=source))
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
    options = _options(argv)
    scale = chosen_scale(options)
    torch.set_num_threads(1)  # gathers too are per thread: batches are made side by side
    batches = Batches(scale, Path(options.work))
    with ExitStack() as stack:
        peer = None
        if options.peer_python is not None:
            given = (options.clock, batches.bundle, scale.fanouts)
            peer = stack.enter_context(SparsePeer(options.peer_python, *given))
        clock = CLOCKS[options.clock]
        sampled = interleaved(sampling_cases(batches, peer), scale.rounds, clock)
        pools: dict[str, Case] = {}
        for n in (1, 2):
            pools[f"threads {n}"] = partial(_on_threads, batches, CLOCKS["wall"], n)
            pools[f"threads {n}, cpu"] = partial(_on_threads, batches, CLOCKS["cpu"], n)
        pooled = interleaved(pools, scale.rounds)
    sampled |= pooled
    gathers, num_bytes = gather_cases(batches, options.device)
    gathered = interleaved(gathers, scale.rounds, clock)
    num_edges = float(np.mean([batches.sample(number) for number in range(scale.rounds)]))
    rows = sampling_rows(scale, medians(sampled), num_edges)
    rows += gather_rows(medians(gathered), num_bytes)
    publish("sampling", options, rows, seconds={**sampled, **gathered})


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__, in_rounds=True)
    has_peer = importlib.util.find_spec("torch_sparse") is not None
    options.add_argument(
        "--peer-python",
        default=sys.executable if has_peer else None,
        metavar="PYTHON",
        help="a Python that has torch-sparse; default: this one, if it has",
    )
    return options.parse_args(argv)


if __name__ == "__main__":
    main()
