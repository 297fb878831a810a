"""Reading of stored neighborhoods, beside sampling them live and beside a training step.

    python benchmarks/presampled.py --scale reference

The first batches of an epoch are presampled into Parquet files, from a local folder. Then, in
turns: neighborhoods sampled and neighborhoods read, on one thread; steps of a GraphSAGE on one
thread while one more makes batches, as in a run; and steps on batches that are there already. With
--ray-data, also what Ray Data's `iter_batches` takes for the same files, without decoding.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import CLOCKS, Case, Row, Scale, chosen_scale, interleaved, medians, parser, publish
from rmat_graph import NODE, RmatGraph
from torch.nn import functional

from raygnn.data.bundle import Bundle
from raygnn.loops.process import keep_freed_memory
from raygnn.models.convolutions import GraphSAGE
from raygnn.sampling import (
    LocalFeatureStore,
    LocalGraphStore,
    NeighborLoader,
    NeighborSampler,
    blocks_of,
)
from raygnn.sampling.batch import NodeBatch
from raygnn.sampling.sample_record import RowLayout, SamplePlan, SampleRecord, SplitPlan, save_plan
from raygnn.sampling.stored_samples import StoredSamples, row_bytes, rows_per_file, write_file

_BATCHES = 8  # a round
_STORED = 64


def _loader(bundle: Bundle, scale: Scale, samples: Any = None, threads: int = 0) -> NeighborLoader:
    graph = LocalGraphStore(bundle)
    seeds = np.random.default_rng(0).permutation(graph.num_nodes(NODE))
    return NeighborLoader(
        graph,
        LocalFeatureStore(bundle),
        seeds[: _STORED * scale.batch_size],
        NODE,
        sampler=NeighborSampler(graph, list(scale.fanouts)),
        columns={"x": "x"},
        batch_size=scale.batch_size,
        split="train",
        seed=0,
        shuffle=False,
        num_threads=threads,
        samples=samples,
    )


def _presampled(folder: Path, loader: NeighborLoader) -> StoredSamples:
    """Samples the batches of an epoch into a folder."""
    sampler = loader.sampler
    assert isinstance(sampler, NeighborSampler)
    rows = rows_per_file(row_bytes(loader))
    split = SplitPlan(loader.num_batches, 1, rows, loader.sample_settings)
    plan, uri = SamplePlan(RowLayout.of_sampler(sampler), {"train": split}, {}), str(folder)
    save_plan(uri, plan)
    written = {f.name: write_file(uri, plan, {"train": loader}, f) for f in plan.files()}
    sizes = {name: size for name, (size, _) in written.items()}
    checksums = {name: checksum for name, (_, checksum) in written.items()}
    record = SampleRecord(**vars(plan), file_sizes=sizes, checksums=checksums)
    record.save(uri)
    return StoredSamples(uri, record)


class Cases:
    """What is measured, a round of batches each."""

    def __init__(self, bundle: Bundle, scale: Scale, samples: StoredSamples) -> None:
        self._samples = samples
        stored = samples.of_split("train", 0)
        self._live, self._read = _loader(bundle, scale), _loader(bundle, scale, stored)
        self._live_ahead = _loader(bundle, scale, threads=1)
        self._read_ahead = _loader(bundle, scale, stored, threads=1)
        torch.manual_seed(0)
        widths = (scale.num_features, scale.num_classes, scale.hidden_channels)
        self._num_classes = scale.num_classes
        self._model = GraphSAGE(*widths, len(scale.fanouts))
        self._optimizer = torch.optim.Adam(self._model.parameters())
        self._cached = list(self._live.iterate(0, stop=_BATCHES))

    def sample(self) -> None:
        """Draws neighborhoods."""
        for number in range(_BATCHES):
            request = self._live.request(0, number)
            self._live.sampled(0, number, request)

    def read(self) -> None:
        """Reads and decodes neighborhoods."""
        for number in range(_BATCHES):
            request = self._read.request(0, number)
            self._read.sampled(0, number, request)

    def train_live(self) -> None:
        """Trains while batches are sampled."""
        self._train(self._live_ahead.iterate(0, stop=_BATCHES))

    def train_read(self) -> None:
        """Trains while batches are read."""
        self._train(self._read_ahead.iterate(0, stop=_BATCHES))

    def train_cached(self) -> None:
        """Trains on batches of a list."""
        self._train(self._cached)

    def _train(self, batches: Iterable[NodeBatch]) -> None:
        for batch in batches:
            self._optimizer.zero_grad(set_to_none=True)
            scores = self._model(batch.nodes[NODE].columns["x"], blocks_of(batch))
            functional.cross_entropy(scores, batch.input_id % self._num_classes).backward()
            self._optimizer.step()


def _streamed(samples: StoredSamples) -> list[Row]:
    """What Ray Data takes for a row of the same files, and until the first."""
    import ray

    from raygnn.runtime.connection import quiet_ray_data

    ray.init(address="local", log_to_driver=False, include_dashboard=False)
    rows = ray.data.read_parquet(f"{samples.uri}/train")
    with quiet_ray_data():
        for _ in range(2):  # the first starts processes
            began = time.perf_counter()
            first_s = 0.0
            for number, _ in enumerate(rows.iter_batches(batch_size=1)):
                if number == 0:
                    first_s = time.perf_counter() - began
        took_s = time.perf_counter() - began
    ray.shutdown()
    num_rows = samples.record.splits["train"].num_batches
    return [
        Row("Ray Data: a row, not decoded", 1e3 * (took_s - first_s) / (num_rows - 1), "ms"),
        Row("Ray Data: until the first row of an epoch", first_s, "s"),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    options = _options(argv)
    scale, work = chosen_scale(options), Path(options.work).absolute()
    keep_freed_memory()
    torch.set_num_threads(1)
    graph = RmatGraph(scale.num_nodes, scale.num_edges, scale.num_features, scale.num_classes)
    bundle = graph.bundle(work)
    loader = _loader(bundle, scale)
    began = time.perf_counter()
    samples = _presampled(work / "presampled" / graph.name, loader)
    wrote_s = time.perf_counter() - began
    cases = Cases(bundle, scale, samples)
    of: dict[str, Case] = {
        "a neighborhood sampled": cases.sample,
        "a neighborhood read": cases.read,
        "a step, live": cases.train_live,
        "a step, presampled": cases.train_read,
        "a step, batches there": cases.train_cached,
    }
    seconds = interleaved(of, scale.rounds, CLOCKS[options.clock])
    ms = {name: 1e3 * value / _BATCHES for name, value in medians(seconds).items()}
    read, step = ms["a neighborhood read"], ms["a step, batches there"]
    live, stored = ms["a step, live"], ms["a step, presampled"]
    size = sum(samples.record.file_sizes.values()) / loader.num_batches / 1e6
    rows = [
        Row("a neighborhood sampled", ms["a neighborhood sampled"], "ms"),
        Row("a neighborhood read", read, "ms", read / step, "a step", "<= 1 x"),
        Row("a step, live", live, "ms"),
        Row("a step, presampled", stored, "ms", stored / live, "live"),
        Row("a step, batches there", step, "ms"),
        Row("written: a batch", 1e3 * wrote_s / loader.num_batches, "ms"),
        Row("stored: a batch", size, "MB"),
        *(_streamed(samples) if options.ray_data else []),
    ]
    publish("presampled", options, rows, seconds=seconds)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__, in_rounds=True)
    options.add_argument("--ray-data", action="store_true", help="also stream by Ray Data")
    return options.parse_args(argv)


if __name__ == "__main__":
    main()
