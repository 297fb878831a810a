"""Batches ahead of training: made in threads, copied to a device during its computation."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor

from raygnn.sampling.batch import Batch, DeviceCopy
from raygnn.sampling.tensor_record import TensorRecord, layout_of

Item = TypeVar("Item")
Result = TypeVar("Result")
Record = TypeVar("Record", bound=TensorRecord)

_ALIGNMENT = 256  # bytes, as of a device's own allocations


def map_ahead(
    make: Callable[[Item], Result],
    items: Iterable[Item],
    num_threads: int,
    num_ahead: int,
    *,
    in_turns: bool = False,
) -> Generator[Result, None, None]:
    """Yields `make(item)` of each item, in order.

    Up to `num_ahead` results, or `num_threads` if larger, are in progress or waiting. Closing the
    generator drops items that are not started and waits for the others, so that no thread outlives
    it. An exception of `make` is raised at its item.

    Args:
        num_threads: 0 makes each on demand, in the caller's thread.
        in_turns: threads work only while the caller waits. If no result is left, they make
            `num_ahead` results before the first is yielded.
    """
    if num_threads == 0:
        yield from map(make, items)
        return
    upcoming = iter(items)
    pending: deque[Future[Result]] = deque()

    def submit(count: int) -> None:
        pending.extend(pool.submit(make, item) for item in islice(upcoming, count))

    def take() -> Result:
        # A separate function, so that the generator does not keep yielded batches alive.
        result = pending.popleft().result()
        if not in_turns:
            submit(1)
        return result

    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="raygnn-sampler")
    try:
        size = max(num_ahead, num_threads)
        submit(size)
        while pending:
            if in_turns:
                wait(pending)
            yield take()
            if not pending:
                submit(size)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class DeviceCopies:
    """Copies batches on a separate CUDA stream, from page-locked memory.

    A sampler thread starts a copy, and the computing thread finishes it: no host thread waits.

    Args:
        device: with an index if there are several, because threads use only that one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def begin(self, batch: Record) -> tuple[Record, Tensor, torch.cuda.Event]:
        """The batch on the device, its memory there, and the event after which it may be read."""
        with torch.cuda.stream(self._stream):
            moved, arena = copied_batch(batch, self._device)
            copied = self._stream.record_event()
        return moved, arena, copied

    def finish(self, copy: tuple[Record, Tensor, torch.cuda.Event]) -> Record:
        """The batch of `begin`, for the caller's current stream, which waits on the device.

        Its memory stays until that stream is done with it. `StoredRows` are not computed yet.
        """
        batch, arena, copied = copy
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(copied)
        arena.record_stream(stream)
        return batch


def copied_batch(batch: Record, device: torch.device) -> tuple[Record, Tensor]:
    """`copied_together` of a batch; a padded one also holds its copy."""
    moved, arena = copied_together(batch, device)
    if isinstance(moved, Batch) and moved.num_added_edges is not None:
        moved = replace(moved, copy=DeviceCopy(arena, layout_of(moved)))
    return moved, arena


def copied_together(record: Record, device: torch.device) -> tuple[Record, Tensor]:
    """A record on a device, copied as one page-locked buffer.

    Returns the record with views of the device buffer, and that buffer, in bytes.
    """
    starts: dict[int, int] = {}
    tensors: list[Tensor] = []
    num_bytes = 0

    def place(tensor: Tensor) -> Tensor:
        nonlocal num_bytes
        starts[id(tensor)] = num_bytes
        tensors.append(tensor)
        num_bytes += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        return tensor

    record.apply(place)
    arena = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    # In NumPy: at each small call of torch, other threads take their turn.
    memory = arena.numpy()
    for tensor in tensors:
        array = (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
        part = memory[starts[id(tensor)] :][: array.nbytes]
        part.view(array.dtype).reshape(array.shape)[...] = array
    there = arena.to(device, non_blocking=True)
    typed: dict[torch.dtype, Tensor] = {}

    def part_of_copy(tensor: Tensor) -> Tensor:
        dtype = tensor.dtype
        if dtype not in typed:
            typed[dtype] = there.view(dtype)
        strides = [math.prod(tensor.shape[i + 1 :]) for i in range(tensor.dim())]
        return typed[dtype].as_strided(tensor.shape, strides, starts[id(tensor)] // tensor.itemsize)

    return record.apply(part_of_copy), there
