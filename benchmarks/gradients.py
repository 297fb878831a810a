"""Sums of gradients over two ranks: one all-reduce after the backward pass, or buckets during it.

    python benchmarks/gradients.py --scale reference

Steps without an optimizer on a stack of dense layers, each rank on one thread, over gloo on this
machine; every size takes its turns in each round: alone (no ranks to sum over), flat
(`scaling.gradients: flat`), ddp, and torch's DistributedDataParallel as the peer.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from harness import Case, Row, chosen_scale, interleaved, medians, parser, publish
from torch import Tensor, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from raygnn.parallel.all_reduce import GradientReducer, LocalTotals
from raygnn.parallel.overlap import OverlappingReducer

_NUM_RANKS, _NUM_LAYERS = 2, 8
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
    """A step of each kind; every rank calls the same ones in the same order."""
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


def _in_step(case: Case) -> Case:
    """The case, begun by all ranks at a time."""

    def run() -> float | None:
        dist.barrier()
        return case()

    return run


def _run_rank(rank: int, store: str, sizes: Sequence[float], rounds: int, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, _NUM_RANKS),
        rank=rank,
        world_size=_NUM_RANKS,
        timeout=timedelta(minutes=5),
    )
    seconds: dict[str, list[float]] = {}
    for size in sizes:
        cases = {name: _in_step(case) for name, case in _steps_of(size).items()}
        found = interleaved(cases, rounds)
        seconds |= {f"{size} M, {name}": values for name, values in found.items()}
        del cases
        gc.collect()  # DDP holds the group in a cycle
    if rank == 0:
        torch.save(seconds, out)
    dist.barrier()
    dist.destroy_process_group()


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
    with tempfile.TemporaryDirectory() as folder:
        store, out = (str(Path(folder) / name) for name in ("store", "seconds"))
        multiprocessing.spawn(_run_rank, (store, sizes, scale.rounds, out), nprocs=_NUM_RANKS)
        seconds = torch.load(out)
    publish("gradients", options, rows_of(medians(seconds), sizes), seconds=seconds)


if __name__ == "__main__":
    main()
