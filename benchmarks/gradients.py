"""Sums of gradients over two ranks: one all-reduce after the backward pass, or buckets during it.

    python benchmarks/gradients.py --scale reference

Steps without an optimizer on a stack of dense layers, each rank on one thread, over gloo on this
machine; every size takes its turns in each round: alone (no ranks to sum over), flat
(`scaling.gradients: flat`), ddp, and torch's DistributedDataParallel as the peer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from harness import Case, Row, chosen_scale, medians, parser, publish
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from two_ranks import seconds_on_ranks

from raygnn.parallel.all_reduce import GradientReducer, LocalTotals, OverlappingReducer

_NUM_LAYERS = 8
_MILLIONS = {"smoke": (0.1,), "reference": (1, 5, 20, 50)}
_NUM_ROWS = 512
_CPU = torch.device("cpu")


def _stack(num_millions: float) -> nn.Sequential:
    width = int((num_millions * 1e6 / _NUM_LAYERS) ** 0.5)
    layers: list[nn.Module] = []
    for _ in range(_NUM_LAYERS):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers)


def _steps_of(num_millions: float) -> dict[str, Case]:
    """A step of each kind."""
    plain, flat, overlapped = (_stack(num_millions) for _ in range(3))
    peer = DistributedDataParallel(_stack(num_millions), gradient_as_bucket_view=True)
    x = torch.randn(_NUM_ROWS, plain[0].in_features)
    reducers = {"flat": (flat, GradientReducer(flat, (), _CPU))}
    reducers["ddp"] = (overlapped, OverlappingReducer(overlapped, (), _CPU))

    def backward(module: Callable[[Tensor], Tensor]) -> None:
        module(x).square().sum().backward()

    def step(kind: str) -> None:
        module, reducer = reducers[kind]
        module.zero_grad()
        reducer.begin_last_backward()
        backward(module)
        reducer.reduce(LocalTotals(weight=1.0))

    def alone() -> None:
        plain.zero_grad()
        backward(plain)

    def of_torch() -> None:
        peer.zero_grad()
        backward(peer)

    return {
        "alone": alone,
        "flat": lambda: step("flat"),
        "ddp": lambda: step("ddp"),
        "torch's DDP": of_torch,
    }


def rows_of(seconds: dict[str, float], sizes: Sequence[float]) -> list[Row]:
    """A row for each kind and size, from the median of each case."""
    rows = []
    for size in sizes:
        flat = seconds[f"{size} M, flat"]
        for name in ("alone", "flat", "ddp", "torch's DDP"):
            value = seconds[f"{size} M, {name}"]
            rows.append(
                Row(f"{size} M parameters, {name}", 1e3 * value, "ms", value / flat, "flat")
            )
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    options = parser(__doc__, in_rounds=True).parse_args(argv)
    scale = chosen_scale(options)
    sizes = _MILLIONS[scale.name]
    seconds = seconds_on_ranks(_steps_of, sizes, scale.rounds)
    publish("gradients", options, rows_of(medians(seconds), sizes), seconds=seconds)


if __name__ == "__main__":
    main()
