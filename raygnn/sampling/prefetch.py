"""Batches ahead of training: made in threads, copied to a device during its computation."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor

from raygnn.sampling.tensor_record import TensorRecord

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
            moved, arena = copied_together(batch, self._device)
            return moved, arena, self._stream.record_event()

    def finish(self, copy: tuple[Record, Tensor, torch.cuda.Event]) -> Record:
        """The batch of `begin`, for the caller's current stream, which waits on the device.

        Its memory stays until that stream is done with it. `StoredRows` are not computed yet.
        """
        batch, arena, copied = copy
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(copied)
        arena.record_stream(stream)
        return batch


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

    def part_of(buffer: Tensor, tensor: Tensor) -> Tensor:
        start = starts[id(tensor)]
        return buffer[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)

    for tensor in tensors:
        part_of(arena, tensor).copy_(tensor)
    there = arena.to(device, non_blocking=True)
    return record.apply(lambda tensor: part_of(there, tensor)), there
