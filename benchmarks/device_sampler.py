"""Batches sampled on a device beside those of a sampler thread: equality, and milliseconds a batch.

    python benchmarks/device_sampler.py --scale reference --device cuda

Uniform neighborhoods over an R-MAT graph whose features the device holds, padded as in training.
Batches of the device are first compared with those of the host. On CUDA, their kernels are recorded
CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from harness import CLOCKS, Case, Row, chosen_scale, interleaved, medians, parser, publish
from rmat_graph import RmatGraph
from torch import Tensor
from training import endless, make_loader

from raygnn.sampling import NeighborLoader, NodeBatch
from raygnn.sampling.device_batches import has_triton
from raygnn.sampling.prefetch import copied_batch

_BATCHES = 16
_COMPARED = 50  # at most


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    options = parser(__doc__, in_rounds=True).parse_args(argv)
    scale, work, device = chosen_scale(options), Path(options.work), torch.device(options.device)
    size = scale.num_nodes, scale.num_edges, scale.num_features, scale.num_classes
    bundle = RmatGraph(*size).bundle(work)
    make = partial(make_loader, scale, bundle, options.device, 1, holds_features=True, pads=True)
    loaders = {"device, operators": _sampled_on_device(make(), has_triton=False)}
    if has_triton(device):
        loaders["device, Triton"] = _sampled_on_device(make())
        far = loaders["device, Triton, edges in pinned host memory"] = _sampled_on_device(make())
        sampler = far._device_batches._sampler
        for edge_type, (indptr, indices, e_id) in sampler.adjacency.items():
            sampler.adjacency[edge_type] = indptr, indices.cpu().pin_memory(), e_id
    host = make()
    num_equal = 0
    for name, loader in loaders.items():
        compared = list(islice(loader.iterate(0), _COMPARED))
        num_equal = sum(_is_equal(batch, host.make(0, batch.index)) for batch in compared)
        assert num_equal == len(compared), f"{name}: {num_equal} of {len(compared)} are equal"

    def sampled(batches: Iterator[NodeBatch]) -> None:
        for _ in islice(batches, _BATCHES):
            pass
        _wait_for(device)

    def made() -> None:
        for number in range(_BATCHES):
            batch = host.make(1, number % host.num_batches)
            copied_batch(host.ready_for_device(batch), device)
        _wait_for(device)

    cases: dict[str, Case] = {"host, one thread": made}
    cases |= {name: partial(sampled, endless(loader)) for name, loader in loaders.items()}
    seconds = interleaved(cases, scale.rounds, CLOCKS[options.clock])
    rows = [
        Row(name, 1e3 * value / _BATCHES, "ms a batch") for name, value in medians(seconds).items()
    ]
    rows.append(Row("batches equal to the host's", num_equal, ""))
    publish("device_sampler", options, rows, seconds=seconds)


def _sampled_on_device(loader: NeighborLoader, **changes: bool) -> Any:
    replaced = {name: lambda _, value=value: value for name, value in changes.items()}
    with (
        patch.multiple("raygnn.sampling.device_batches", **replaced) if replaced else nullcontext()
    ):
        reason = loader.sample_on_device()
    assert reason is None, reason
    return loader


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
