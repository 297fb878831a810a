"""Batches sampled on a device beside those of a sampler thread: equality, and milliseconds a batch.

    python benchmarks/device_sampler.py --scale reference --device cuda

Uniform neighborhoods over an R-MAT graph whose features the device holds, padded as in training.
Every batch of the device is first compared with that of the host. On CUDA, its kernels are a
recorded CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch
from harness import CLOCKS, Case, Row, chosen_scale, interleaved, medians, parser, publish
from rmat_graph import RmatGraph
from torch import Tensor
from training import endless, make_loader

from raygnn.sampling import NodeBatch
from raygnn.sampling.prefetch import copied_batch

_BATCHES = 16
_COMPARED = 50  # at most


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    options = parser(__doc__, in_rounds=True).parse_args(argv)
    scale, work, device = chosen_scale(options), Path(options.work), torch.device(options.device)
    size = scale.num_nodes, scale.num_edges, scale.num_features, scale.num_classes
    bundle = RmatGraph(*size).bundle(work)
    loader = make_loader(scale, bundle, options.device, 1, holds_features=True, pads=True)
    reason = loader.sample_on_device()
    assert reason is None, reason
    compared = list(islice(loader.iterate(0), _COMPARED))
    num_equal = sum(_is_equal(batch, loader.make(0, batch.index)) for batch in compared)
    assert num_equal == len(compared), f"{num_equal} of {len(compared)} batches are equal"
    on_device = endless(loader)

    def sampled() -> None:
        for _ in islice(on_device, _BATCHES):
            pass
        _wait_for(device)

    def made() -> None:
        for number in range(_BATCHES):
            copied_batch(
                loader.ready_for_device(loader.make(1, number % loader.num_batches)), device
            )
        _wait_for(device)

    cases: dict[str, Case] = {"host, one thread": made, "device": sampled}
    seconds = interleaved(cases, scale.rounds, CLOCKS[options.clock])
    rows = [
        Row(name, 1e3 * value / _BATCHES, "ms a batch") for name, value in medians(seconds).items()
    ]
    rows.append(Row("batches equal to the host's", num_equal, ""))
    publish("device_sampler", options, rows, seconds=seconds)


def _is_equal(batch: NodeBatch, expected: NodeBatch) -> bool:
    tensors: list[list[Tensor]] = [[], []]
    for record, found in zip((batch, expected), tensors, strict=True):
        record.apply(lambda tensor, found=found: found.append(tensor) or tensor)
    return all(torch.equal(x.cpu(), y) for x, y in zip(*tensors, strict=True))


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
