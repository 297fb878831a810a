"""A step of learned rows on two ranks: whole tables on each, or sharded over them.

    python benchmarks/learned_rows.py --scale reference

A rank reads 20,000 rows of 64 numbers, drawn anew for each step, takes the sum of their squares as
loss, and changes them by SparseAdam or, with dense gradients, by Adam; each rank on one thread,
over gloo on this machine. Peers: torch's DistributedDataParallel around `nn.Embedding` with sparse
and dense gradients. Every kind takes its turn in each round. Beside the time, what a rank holds of
rows, gradients and the optimizer's state.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from harness import Case, Row, chosen_scale, medians, parser, publish
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from two_ranks import seconds_on_ranks

from raygnn.models.node_inputs import NodeInputs, RowShare, rows_shared
from raygnn.parallel import collectives
from raygnn.parallel.all_reduce import GradientReducer, LocalTotals
from raygnn.parallel.sharded_tables import ShardedTables

_MILLIONS = {"smoke": (0.05,), "reference": (0.2, 1, 2)}
_CHANNELS, _ROWS_READ = 64, 20_000
_KINDS = ("sparse, whole", "sparse, shared", "sparse, torch's DDP", "dense, whole", "dense, shared")


def _steps_of(num_millions: float) -> dict[str, Case]:
    return {kind: _step_of(kind, int(num_millions * 1e6)) for kind in _KINDS}


def _drawn(num_rows: int, step: int) -> Tensor:
    seed = 2 * step + collectives.rank()
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(num_rows, (min(_ROWS_READ, num_rows),), generator=generator)


def _optimizer(kind: str, module: nn.Module) -> torch.optim.Optimizer:
    make = torch.optim.SparseAdam if kind.startswith("sparse") else torch.optim.Adam
    return make(list(module.parameters()))


def _step_of(kind: str, num_rows: int) -> Case:
    sparse, number = kind.startswith("sparse"), iter(range(10**9))
    if kind.endswith("DDP"):
        peer = DistributedDataParallel(nn.Embedding(num_rows, _CHANNELS, sparse=sparse))
        of_peer = _optimizer(kind, peer)

        def of_torch() -> None:
            of_peer.zero_grad()
            peer(_drawn(num_rows, next(number))).square().sum().backward()
            of_peer.step()

        return of_torch
    share = None
    if kind.endswith("shared"):
        share = RowShare(collectives.rank(), collectives.world_size())
    with rows_shared(share):
        module = NodeInputs({}, {"user": num_rows}, _CHANNELS, sparse=sparse)
    tables, optimizer = ShardedTables(module), _optimizer(kind, module)
    reducer = GradientReducer(module, (), torch.device("cpu"), tables=tables)

    def step() -> None:
        optimizer.zero_grad()
        ids = {"user": _drawn(num_rows, next(number))}
        tables.fetch([ids])
        module(ids)["user"].square().sum().backward()
        reducer.reduce(LocalTotals(weight=1.0))
        optimizer.step()

    return step


def held_bytes(kind: str, num_rows: int) -> float:
    """Of a rank, between steps: rows and Adam's two, and with dense gradients these."""
    copies = 3 if kind.startswith("sparse") else 4
    held = RowShare(0, 2).num_held(num_rows) if kind.endswith("shared") else num_rows
    return 4.0 * copies * held * _CHANNELS


def rows_of(seconds: dict[str, float], sizes: Sequence[float]) -> list[Row]:
    """A row for each kind and size, from the median of each case."""
    rows = []
    for size in sizes:
        for kind in _KINDS:
            whole = seconds[f"{size} M, {kind.split(',')[0]}, whole"]
            value = seconds[f"{size} M, {kind}"]
            name = f"{size} M rows, {kind}"
            rows.append(Row(name, 1e3 * value, "ms", value / whole, "whole"))
            held = held_bytes(kind, int(size * 1e6)) / 1e6
            rows.append(Row(f"{name}: held by a rank", held, "MB"))
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    options = parser(__doc__, in_rounds=True).parse_args(argv)
    scale = chosen_scale(options)
    sizes = _MILLIONS[scale.name]
    seconds = seconds_on_ranks(_steps_of, sizes, scale.rounds)
    publish("learned_rows", options, rows_of(medians(seconds), sizes), seconds=seconds)


if __name__ == "__main__":
    main()
