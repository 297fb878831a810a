from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

from raygnn.errors import ResourceError
from raygnn.loops.signals import signals_as_notices
from raygnn.parallel import collectives


class WorkerContext(Protocol):
    """Rank, device and notices of one worker: a plain process, or one of Ray Train (`runtime`)."""

    rank: int
    world_size: int
    device: torch.device

    def report(self, metrics: Mapping[str, float], checkpoint_path: str | None) -> None:
        """Reports a validation and, if one was written, its checkpoint to the launcher.

        Collective: all ranks must call, equally often.

        Args:
            metrics: the validation's row of the history, and its number; empty for a checkpoint
                without a validation.
            checkpoint_path: the complete checkpoint, relative to the run folder.
        """

    def interruptible(self) -> AbstractContextManager[None]:
        """While active, requests to stop this process are noted for `interruption`."""

    def interruption(self) -> str | None:
        """The reason for this rank to stop, if any. Cheap enough for every step."""

    def host_interruption(self) -> str | None:
        """A request of the cluster's operator. Collective: all ranks must call."""


class ProcessContext:
    """A worker in a plain process, alone or started by torchrun.

    Uses the caller's process group, or makes one from torchrun's environment (`RANK`, `WORLD_SIZE`,
    `MASTER_ADDR`, `MASTER_PORT`) if set.
    """

    def __init__(self, *, use_gpu: bool | str = "auto", timeout_s: float = 600.0) -> None:
        self.device = local_device(use_gpu)
        self._owns_group = False
        if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            backend = "gloo"
            if self.device.type == "cuda":
                backend = collectives.CUDA_BACKEND
                os.environ.update(collectives.NCCL_ENVIRONMENT)
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
            self._owns_group = True
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world_size = dist.get_world_size() if dist.is_initialized() else 1
        self._interruption: str | None = None

    def report(self, metrics: Mapping[str, float], checkpoint_path: str | None) -> None:
        """Does nothing: the run folder has history and checkpoints."""

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        with signals_as_notices(self._interrupt):
            yield

    def interruption(self) -> str | None:
        return self._interruption

    def host_interruption(self) -> str | None:
        return None

    def _interrupt(self, cause: str) -> None:
        self._interruption = cause

    def close(self) -> None:
        """Frees the memory of the run, and leaves the process group if this context made it.

        Engine, task and callbacks refer to each other, so their tensors would otherwise stay until
        Python's garbage collection, next to those of a notebook's next run. Also, a user's
        `DistributedDataParallel` that is last to hold a gloo group would end its threads while
        holding the GIL, which they may wait for.
        """
        gc.collect()
        if self._owns_group:
            dist.destroy_process_group()
            self._owns_group = False


def local_device(use_gpu: bool | str) -> torch.device:
    """This process's device: the CUDA device of `LOCAL_RANK`, or the CPU.

    Raises a ResourceError if a GPU is requested and there is none.
    """
    available = torch.cuda.is_available()
    if use_gpu is True and not available:
        raise ResourceError(
            "scaling.use_gpu=True is invalid: no CUDA device is visible to this process. Set "
            "scaling.use_gpu to auto or false, or run on a machine with a GPU. [scaling-no-gpu]"
        )
    if use_gpu is False or not available:
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device
