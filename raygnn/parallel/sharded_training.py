"""`scaling.shard` in training: an optimizer, or all weights, of which each rank holds a part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

from raygnn.parallel.sharding import part_of


class ShardedOptimizer(ZeroRedundancyOptimizer):
    """Changes the weights that are this rank's by an optimizer, and sends them to the others.

    Weights are dealt out whole, the largest first. Each is changed as the optimizer alone would, by
    gradients that all ranks have: results are the same bits.

    Args:
        optimizer: of all weights; it keeps those of this rank.
    Source: ZeRO, stage 1, arXiv:1910.02054, section 5.1.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        def of_this_rank(groups: list[dict[str, Any]], **_: Any) -> Optimizer:
            own = {parameter for group in groups for parameter in group["params"]}
            state = {p: values for p, values in optimizer.state.items() if p in own}
            optimizer.state = defaultdict(dict, state)
            optimizer.param_groups = groups
            return optimizer

        groups = [dict(group) for group in optimizer.param_groups]
        make: Any = of_this_rank  # torch means a class, and calls it once
        super().__init__(groups, make, **optimizer.defaults)

    def whole_state_dict(self) -> dict[str, Any] | None:
        """The state of all ranks, as the optimizer alone has it: on rank 0, None on the others.

        Collective: all ranks must call.
        """
        self.consolidate_state_dict(to=0)
        state = self.state_dict() if self.rank == 0 else None
        self._all_state_dicts: list[dict[str, Any]] = []  # or all of it would stay in memory
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes this rank's share of the state of all ranks."""
        # The base class empties what it is given, and keeps a second copy of what it takes.
        super().load_state_dict({**state_dict, "state": dict(state_dict["state"])})
        self.state.clear()


class _Holder(nn.Module):
    """Has a module, and never runs it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


class ShardedWeights:
    """Shares out the weights of a module by FSDP2, and gathers them for a step or an evaluation.

    FSDP gathers in the hooks of the modules that it is given, where all ranks must meet. Ranks here
    run different numbers of forward passes, or none, and one that fails must not leave the others
    in a collective. So FSDP wraps a holder, whose hooks never run, and gathers when it is called.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self._module = module
        group = dist.group.WORLD
        assert group is not None
        mesh = DeviceMesh.from_group(group, device.type)
        self._fsdp = fully_shard(_Holder(module), mesh=mesh)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """While it lasts, weights and gradients are whole; then both are sharded again.

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
