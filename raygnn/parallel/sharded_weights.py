"""`scaling.shard: full`: between steps each rank holds a part of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from raygnn.parallel.parts import part_of


class _Holder(nn.Module):
    """Has a module, and never runs it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


class ShardedWeights:
    """Shares out the weights of a module by FSDP2, and gathers them for a step or an evaluation.

    FSDP gathers in the hooks of the modules that it is given, where all ranks must meet. Ranks here
    run different numbers of forward passes, or none, and one that fails must not leave the others
    in a collective. So FSDP is given a holder, whose hooks never run, and is told when to gather.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self._module = module
        group = dist.group.WORLD
        assert group is not None
        mesh = DeviceMesh.from_group(group, device.type)
        self._fsdp = fully_shard(_Holder(module), mesh=mesh)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """While it lasts, weights and gradients are whole; then both are shared out again.

        Collective: all ranks must call.
        """
        self._fsdp.unshard()
        weights = list(self._module.parameters())
        try:
            yield
        finally:
            self._fsdp.reshard()
            for part, weight in zip(self._module.parameters(), weights, strict=True):
                if weight.grad is not None:
                    part.grad = part_of(weight.grad, part)
                    weight.grad = None
