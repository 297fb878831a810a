"""A worker of Ray Train as the loops see it."""

from __future__ import annotations

from collections.abc import Mapping

import ray.train
import ray.train.torch
from ray.train import Checkpoint
from ray.train.v2.api.report_config import CheckpointUploadMode


class RayWorkerContext:
    """`WorkerContext` over Ray Train; built inside a Train worker."""

    def __init__(self) -> None:
        context = ray.train.get_context()
        self.rank: int = context.get_world_rank()
        self.world_size: int = context.get_world_size()
        self.device = ray.train.torch.get_device()
        self._storage = context.get_storage().storage_filesystem

    def report(self, metrics: Mapping[str, float], checkpoint_path: str | None) -> None:
        """Hands metrics, and the checkpoint as already stored, to Ray's controller.

        Collective: all ranks must call, equally often.
        """
        plain = {name: float(value) for name, value in metrics.items()}
        checkpoint = None
        if checkpoint_path is not None and self.rank == 0:
            checkpoint = Checkpoint(checkpoint_path, filesystem=self._storage)
        ray.train.report(
            plain,
            checkpoint=checkpoint,
            checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD,
        )
