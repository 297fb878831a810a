"""Cases that two processes run together, over gloo on this machine, one thread each."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from harness import Case, interleaved
from torch import multiprocessing

_NUM_RANKS = 2

#: The cases of a size; every rank calls the same ones in the same order.
CasesOf = Callable[[float], dict[str, Case]]


def seconds_on_ranks(
    cases_of: CasesOf, sizes: Sequence[float], rounds: int
) -> dict[str, list[float]]:
    """Seconds of each case on rank 0, which all ranks begin together, by `<size> M, <case>`."""
    with tempfile.TemporaryDirectory() as folder:
        store, out = (str(Path(folder) / name) for name in ("store", "seconds"))
        args = (store, cases_of, sizes, rounds, out)
        multiprocessing.spawn(_run_rank, args, nprocs=_NUM_RANKS)
        seconds: dict[str, list[float]] = torch.load(out)
    return seconds


def _run_rank(
    rank: int, store: str, cases_of: CasesOf, sizes: Sequence[float], rounds: int, out: str
) -> None:
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
        cases = {name: _in_step(case) for name, case in cases_of(size).items()}
        found = interleaved(cases, rounds)
        seconds |= {f"{size} M, {name}": values for name, values in found.items()}
        del cases
        gc.collect()  # DDP holds the group in a cycle
    if rank == 0:
        torch.save(seconds, out)
    dist.barrier()
    dist.destroy_process_group()


def _in_step(case: Case) -> Case:
    """The case, begun by all ranks at a time."""

    def run() -> float | None:
        dist.barrier()
        return case()

    return run
