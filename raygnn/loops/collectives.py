"""The few collectives that the loops use; each is the identity in a world of one."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def communication_device() -> torch.device:
    """The device whose tensors the process group can carry."""
    if dist.is_initialized() and dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Sums a tensor over all ranks, in place where it can.

    Collective: all ranks must call with equal shapes and dtypes.
    """
    if world_size() == 1:
        return tensor
    carried = tensor.to(communication_device())
    dist.all_reduce(carried)
    return carried.to(tensor.device)


def broadcast_object(value: Any) -> Any:
    """Rank 0's picklable value, on every rank. Collective: all ranks must call."""
    if world_size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0, device=communication_device())
    return box[0]


def gather_objects(value: Any) -> list[Any]:
    """Every rank's picklable value, by rank. Collective: all ranks must call."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def gather_rows(rows: Tensor) -> Tensor:
    """Concatenates rows that differ in number between ranks, in rank order, on every rank.

    Collective: all ranks must call with equal dtypes and trailing shapes.

    Args:
        rows: [num_rows, ...].
    Returns:
        [sum of num_rows, ...] on the device of `rows`.
    """
    if world_size() == 1:
        return rows
    device = communication_device()
    counts = torch.zeros(world_size(), dtype=torch.int64, device=device)
    counts[rank()] = rows.shape[0]
    dist.all_reduce(counts)
    longest = int(counts.max())
    padded = torch.zeros((longest, *rows.shape[1:]), dtype=rows.dtype, device=device)
    padded[: rows.shape[0]] = rows.to(device)
    parts = [torch.empty_like(padded) for _ in range(world_size())]
    dist.all_gather(parts, padded)
    kept = [part[: int(count)] for part, count in zip(parts, counts, strict=True)]
    return torch.cat(kept).to(rows.device)


def barrier() -> None:
    """Waits for all ranks. Collective: all ranks must call."""
    if world_size() > 1:
        dist.barrier()
