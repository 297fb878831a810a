"""The collectives of the loops; each is the identity for one rank.

Each raises LostRankError if another rank died or did not answer within `scaling.timeout_s`, or if
the process group was destroyed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from raygnn.errors import LostRankError

#: Backend of processes with a GPU: NCCL sums tensors on it; gloo carries other messages, for
#: which no host has to wait for its device.
CUDA_BACKEND = "cpu:gloo,cuda:nccl"
#: Makes a wait for NCCL end with an exception after the timeout. Else NCCL aborts the process.
NCCL_ENVIRONMENT = {"TORCH_NCCL_BLOCKING_WAIT": "1"}

#: The rank and the number of ranks that `group_held` found.
_held: tuple[int, int] | None = None


@contextmanager
def group_held() -> Iterator[None]:
    """Context in which rank and world size keep their initial values.

    Ray destroys the process group of workers from another thread, seconds before it ends them. A
    rank that asked torch would then find itself rank 0 of 1, and continue with its share of the
    data.
    """
    global _held
    before, _held = _held, (rank(), world_size())
    try:
        yield
    finally:
        _held = before


def world_size() -> int:
    if _held is not None:
        return _held[1]
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    if _held is not None:
        return _held[0]
    return dist.get_rank() if dist.is_initialized() else 0


def communication_device() -> torch.device:
    """The device from which the process group sends rows.

    Raises a LostRankError if the group was destroyed.
    """
    if "cuda" in _carried_types():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _carried_types() -> set[str]:
    """Types of devices whose tensors the process group carries from there."""
    if world_size() == 1:
        return {"cpu"}
    with _exchange():
        backends = dict(part.split(":") for part in dist.get_backend_config().split(","))
    uses_nccl = backends.get("cuda") == "nccl" and torch.cuda.is_available()
    return ({"cpu"} & backends.keys()) | ({"cuda"} if uses_nccl else set())


def _carried(tensor: Tensor) -> Tensor:
    is_carried = tensor.device.type in _carried_types()
    return tensor if is_carried else tensor.to(communication_device())


def _device_of_numbers() -> torch.device:
    return torch.device("cpu") if "cpu" in _carried_types() else communication_device()


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Sums a tensor over all ranks, in place if possible.

    Collective: all ranks must call with equal shapes and dtypes.
    """
    if world_size() == 1:
        return tensor
    carried = _carried(tensor)
    with _exchange():
        dist.all_reduce(carried)
    return carried.to(tensor.device)


def broadcast(tensor: Tensor) -> Tensor:
    """Copies rank 0's values to every rank, in place if possible.

    Collective: all ranks must call with equal shapes and dtypes.
    """
    if world_size() == 1:
        return tensor
    carried = _carried(tensor).contiguous()
    with _exchange():
        dist.broadcast(carried, src=0)
    return carried.to(tensor.device)


def broadcast_object(value: Any) -> Any:
    """Rank 0's picklable value, on every rank. Collective: all ranks must call."""
    if world_size() == 1:
        return value
    box = [value]
    with _exchange():
        dist.broadcast_object_list(box, src=0, device=_device_of_numbers())
    return box[0]


def gather_objects(value: Any) -> list[Any]:
    """Every rank's picklable value, by rank. Collective: all ranks must call."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    with _exchange():
        dist.all_gather_object(values, value)
    return values


def gather_numbers(numbers: Sequence[int]) -> list[list[int]]:
    """Whole numbers of every rank, by rank. Collective: all ranks must call with equally many."""
    if world_size() == 1:
        return [list(numbers)]
    table = torch.zeros(
        (world_size(), len(numbers)), dtype=torch.int64, device=_device_of_numbers()
    )
    table[rank()] = torch.tensor(numbers)
    with _exchange():
        dist.all_reduce(table)
    rows: list[list[int]] = table.tolist()
    return rows


def gather_rows(rows: Tensor) -> Tensor:
    """Concatenates rows of all ranks, in rank order; their numbers may differ.

    Collective: all ranks must call with equal dtypes and trailing shapes.
    """
    if world_size() == 1:
        return rows
    device = communication_device()
    counts = [count for (count,) in gather_numbers([len(rows)])]
    padded = torch.zeros((max(counts), *rows.shape[1:]), dtype=rows.dtype, device=device)
    padded[: rows.shape[0]] = rows.to(device)
    parts = [torch.empty_like(padded) for _ in range(world_size())]
    with _exchange():
        dist.all_gather(parts, padded)
    trimmed = [part[:count] for part, count in zip(parts, counts, strict=True)]
    return torch.cat(trimmed).to(rows.device)


def exchange_rows(rows: Tensor, counts: Sequence[int]) -> tuple[Tensor, list[int]]:
    """Sends rows to each rank, and returns the rows received.

    Collective: all ranks must call with equal dtypes and trailing shapes.

    Args:
        rows: [sum of counts, ...], those for rank 0 first.
        counts: number of rows for each rank.
    Returns:
        [num_received, ...] on the device of `rows`, in rank order, and the number from each rank.
    """
    if world_size() == 1:
        return rows, list(counts)
    sent = torch.tensor(counts, dtype=torch.int64, device=_device_of_numbers())
    received = torch.empty_like(sent)
    with _exchange():
        dist.all_to_all_single(received, sent)
    sizes = received.tolist()
    return send_rows(rows, counts, sizes), sizes


def send_rows(rows: Tensor, counts: Sequence[int], received: Sequence[int]) -> Tensor:
    """Like `exchange_rows`, if each rank already knows the numbers of rows."""
    if world_size() == 1:
        return rows
    device = communication_device()
    out = torch.empty((sum(received), *rows.shape[1:]), dtype=rows.dtype, device=device)
    carried = rows.detach().to(device).contiguous()
    with _exchange():
        dist.all_to_all_single(out, carried, list(received), list(counts))
    return out.to(rows.device)


def barrier() -> None:
    """Waits for all ranks. Collective: all ranks must call."""
    if world_size() > 1:
        with _exchange():
            dist.barrier()


@contextmanager
def _exchange() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if not dist.is_initialized():
            raise LostRankError(
                f"Rank {rank()} has lost the process group: Ray, or another launcher, has ended "
                "it. Start the run again to resume from its last checkpoint. [run-group-ended]"
            ) from error
        if isinstance(error, ValueError):
            raise
        first_line = str(error).strip().partition("\n")[0]
        raise LostRankError(
            f"Rank {rank()} lost another rank, which died or did not answer within "
            f"scaling.timeout_s; see its last output. ({first_line}) [run-rank-lost]"
        ) from error
