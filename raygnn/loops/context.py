"""The loop's view of the world: rank, device, and where to report."""

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


class WorkerContext(Protocol):
    """One worker of a run. Implemented for a plain process here, over Ray Train in the runtime."""

    rank: int
    world_size: int
    device: torch.device

    def report(self, metrics: Mapping[str, float], checkpoint_path: str | None) -> None:
        """Tells the launcher of a validation and, if one was written, of its checkpoint.

        Collective: all ranks must call, equally often.

        Args:
            metrics: the validation's row of the history, and its number; empty where a
                checkpoint was written without validating.
            checkpoint_path: path of the finished checkpoint inside the run folder.
        """

    def interruptible(self) -> AbstractContextManager[None]:
        """While it lasts, whoever asks this process to stop is heard by `interruption`."""

    def interruption(self) -> str | None:
        """The reason to stop that this rank knows. Cheap enough for every step."""

    def host_interruption(self) -> str | None:
        """Requests of the cluster's operator, such as to leave a machine.

        Collective: all ranks must call.
        """


class ProcessContext:
    """A worker that is a plain process: alone, or one of those that torchrun started.

    The process group is the caller's where one exists; else it is made from torchrun's
    environment (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`), else there is none.
    """

    def __init__(self, *, use_gpu: bool | str = "auto", timeout_s: float = 600.0) -> None:
        self.device = local_device(use_gpu)
        self._owns_group = False
        if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
            self._owns_group = True
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world_size = dist.get_world_size() if dist.is_initialized() else 1
        self._interruption: str | None = None

    def report(self, metrics: Mapping[str, float], checkpoint_path: str | None) -> None:
        """Nobody listens: the run folder holds history and checkpoints."""

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """SIGTERM and SIGINT become interruptions."""
        with signals_as_notices(self._interrupt):
            yield

    def interruption(self) -> str | None:
        """The name of the signal that this process was given."""
        return self._interruption

    def host_interruption(self) -> str | None:
        """Nobody but signals speaks to a plain process."""
        return None

    def _interrupt(self, cause: str) -> None:
        self._interruption = cause

    def close(self) -> None:
        """Frees what the run leaves behind, then leaves the process group if this context made it.

        Engine, task and callbacks refer to each other, so their tensors, which may be gigabytes,
        would stay until Python happens to look, in a notebook beside those of the next run. And a
        `DistributedDataParallel` of the user's that is last to hold a gloo group would end its
        threads without letting go of the interpreter, which they may wait for.
        """
        gc.collect()
        if self._owns_group:
            dist.destroy_process_group()
            self._owns_group = False


def local_device(use_gpu: bool | str) -> torch.device:
    """Picks this process's device: the CUDA device of `LOCAL_RANK`, or the CPU.

    Raises:
        ResourceError: a GPU is asked for and there is none.
    """
    available = torch.cuda.is_available()
    if use_gpu is True and not available:
        raise ResourceError(
            "scaling.use_gpu=True is invalid: no CUDA device is visible to this process. "
            "Set scaling.use_gpu to auto or false, or run where a GPU is.",
            id="scaling-no-gpu",
        )
    if use_gpu is False or not available:
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device
