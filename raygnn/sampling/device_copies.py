"""Batches on their way to a CUDA device, beside what the device computes."""

from __future__ import annotations

from typing import Any

import torch


class DeviceCopies:
    """Copies batches on a CUDA stream of their own, from page-locked memory.

    A sampler thread begins a copy, and whoever computes finishes it: no thread of the host waits.

    Args:
        device: with an index where there are several; also threads use no other then.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def begin(self, batch: Any) -> tuple[Any, torch.cuda.Event]:
        """The batch on the device, to be read only once the event has happened.

        Args:
            batch: `Data` or `HeteroData`; is changed.
        """
        with torch.cuda.stream(self._stream):
            moved = batch.pin_memory().to(self._device, non_blocking=True)
            return moved, self._stream.record_event()

    def finish(self, copy: tuple[Any, torch.cuda.Event]) -> Any:
        """The batch of `begin`, for the current stream of the caller, which waits on the device.

        Its memory stays until that stream is done with it.
        """
        batch, copied = copy
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(copied)
        return batch.record_stream(stream)
