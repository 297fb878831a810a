"""Sampling on a device beside a sampler thread: equal batches, and milliseconds a batch.

    python benchmarks/device_sampler.py --scale reference --device cuda

Uniform neighborhoods over an R-MAT graph. Every batch of the device is first compared with that of
the host. On CUDA, its operators are also recorded as a CUDA graph and repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from harness import CLOCKS, Case, Row, chosen_scale, interleaved, medians, parser, publish
from rmat_graph import NODE, RmatGraph

from raygnn.sampling import LocalGraphStore, NeighborSampler
from raygnn.sampling.device_sampler import Capacities, DeviceSampler
from raygnn.sampling.protocols import SampleRequest
from raygnn.sampling.rng import batch_key

_BATCHES = 16


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    options = parser(__doc__, in_rounds=True).parse_args(argv)
    scale, work, device = chosen_scale(options), Path(options.work), torch.device(options.device)
    size = scale.num_nodes, scale.num_edges, scale.num_features, scale.num_classes
    bundle = RmatGraph(*size).bundle(work)
    sampler = NeighborSampler(LocalGraphStore(bundle), list(scale.fanouts))
    rng = np.random.default_rng(0)
    requests = [
        SampleRequest(
            {NODE: rng.choice(scale.num_nodes, scale.batch_size, replace=False)},
            batch_key(0, "train", 0, index),
        )
        for index in range(_BATCHES)
    ]
    samples = [sampler.sample(**request.arguments) for request in requests]
    on_device = DeviceSampler(sampler, Capacities.of(samples[0]), device)
    num_overflows = 0
    for request, sample in zip(requests, samples, strict=True):
        found = on_device.sample(request).on_host()
        num_overflows += found is None
        if found is not None:
            np.testing.assert_equal(vars(found), vars(sample))

    def on_host() -> None:
        for request in requests:
            sampler.sample(**request.arguments)

    def in_operators() -> None:
        for request in requests:
            on_device.sample(request)
        _wait_for(device)

    cases: dict[str, Case] = {"host, one thread": on_host, "device, operators": in_operators}
    if device.type == "cuda" and torch.version.cuda is not None:
        cases["device, recorded"] = _recorded(on_device, requests, device)
    seconds = interleaved(cases, scale.rounds, CLOCKS[options.clock])
    rows = [
        Row(name, 1e3 * value / _BATCHES, "ms a batch") for name, value in medians(seconds).items()
    ]
    rows.append(Row("batches beyond the capacity", num_overflows / _BATCHES, ""))
    publish("device_sampler", options, rows, seconds=seconds)


def _recorded(
    on_device: DeviceSampler, requests: Sequence[SampleRequest], device: torch.device
) -> Callable[[], None]:
    """Repeats a recorded sample for the seeds and keys of each request."""
    inputs = [
        (torch.from_numpy(request.seeds[NODE]).to(device), on_device.keys(request.key).to(device))
        for request in requests
    ]
    seeds, keys = (part.clone() for part in inputs[0])
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        on_device.sample_seeds({NODE: seeds}, keys)
    stream.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        sample = on_device.sample_seeds({NODE: seeds}, keys)

    def replay(both: tuple[torch.Tensor, torch.Tensor]) -> None:
        seeds.copy_(both[0])
        keys.copy_(both[1])
        graph.replay()

    for request, both in zip(requests, inputs, strict=True):
        replay(both)
        expected = on_device.sample(request)
        for name, nodes in sample.node.items():
            assert torch.equal(nodes, expected.node[name])

    def run() -> None:
        for both in inputs:
            replay(both)
        _wait_for(device)

    return run


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
