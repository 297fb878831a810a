"""`scaling.shard`: `DTensor`s, sharded over the ranks, and their complete form in
checkpoints.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from raygnn.errors import ConfigError
from raygnn.parallel import collectives
from raygnn.parallel.all_reduce import SparseGradients


def own_part(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, or all of it, without a copy."""
    if not isinstance(tensor, DTensor):
        return tensor
    part: Tensor = tensor.detach().to_local()  # type: ignore[attr-defined]
    return part


def full(tensor: Tensor) -> Tensor:
    """The complete tensor, on every rank. Collective: all ranks must call."""
    if not isinstance(tensor, DTensor):
        return tensor
    together: Tensor = tensor.detach().full_tensor()  # type: ignore[attr-defined]
    return together


def whole(tensor: Tensor) -> Tensor | None:
    """The complete tensor in host memory on rank 0, and None on other ranks.

    A tensor that is not sharded is returned unchanged. Collective: all ranks must call.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    together = full(tensor)
    return together.cpu() if collectives.rank() == 0 else None


def whole_tensors(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {name: whole(tensor) for name, tensor in tensors.items()}


def part_of(tensor: Tensor, like: Tensor) -> Tensor:
    """A sharded copy of a complete tensor that is on all ranks, laid out like another one."""
    if not isinstance(like, DTensor):
        return tensor
    mesh, placements = like.device_mesh, like.placements
    # Without a source rank nothing is sent: each rank keeps its part of its copy.
    return distribute_tensor(tensor.contiguous(), mesh, placements, src_data_rank=None)


def with_part(like: Tensor, part: Tensor) -> Tensor:
    if not isinstance(like, DTensor):
        return part
    mesh, placements = like.device_mesh, like.placements
    shape, stride = like.shape, like.stride()
    part = part.to(like.device)
    return DTensor.from_local(part, mesh, placements, shape=shape, stride=stride)


def whole_state(optimizer: Optimizer) -> dict[str, Any]:
    """The complete state dict; sharded tensors are None on ranks other than 0.

    Collective: all ranks must call.
    """
    state = optimizer.state_dict()
    together = {
        index: {k: whole(v) if isinstance(v, Tensor) else v for k, v in values.items()}
        for index, values in state["state"].items()
    }
    return {**state, "state": together}


def load_whole_state(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Restores a complete state dict; of sharded weights, this rank's part."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    local = {
        index: {k: _part(v, weights[index]) for k, v in values.items()}
        for index, values in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": local})


def _part(value: Any, weight: Tensor) -> Any:
    if isinstance(value, Tensor) and value.shape == weight.shape:
        return part_of(value, weight)
    return value


def check_shardable(module: nn.Module, shard: str) -> None:
    """Raises a ConfigError if the module's weights cannot be sharded this way."""
    if shard in ("none", "embeddings"):
        return
    named = dict(module.named_parameters())
    trainable = {name: p for name, p in named.items() if p.requires_grad}
    dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in trainable.values()})
    scalars = [name for name, p in named.items() if p.dim() == 0]
    if SparseGradients(module).parameters:
        problem, remedy = "the model has an embedding with sparse gradients", "none"
    elif len(dtypes) > 1:
        problem = f"weights are in {' and '.join(dtypes)}"
        remedy = "none, or the weights to one format"
    elif shard == "full" and scalars:
        problem = f"the weight {scalars[0]} is a number, which has no rows to shard"
        remedy = "optimizer, or give the weight the shape [1]"
    else:
        return
    raise ConfigError(
        f"scaling.shard={shard!r} is invalid: {problem}. Set it to {remedy}. [shard-weights]"
    )


class ShardedOptimizer(ZeroRedundancyOptimizer):
    """An optimizer that updates this rank's weights and sends them to the others.

    Weights are distributed whole, the largest first. Each is updated as without sharding, from
    gradients that all ranks have, so results have the same bits.

    Args:
        optimizer: an optimizer of all weights; it keeps those of this rank.

    Source: ZeRO, stage 1, arXiv:1910.02054, section 5.1.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        def of_this_rank(groups: list[dict[str, Any]], **_: Any) -> Optimizer:
            local = {parameter for group in groups for parameter in group["params"]}
            state = {p: values for p, values in optimizer.state.items() if p in local}
            optimizer.state = defaultdict(dict, state)
            optimizer.param_groups = groups
            return optimizer

        groups = [dict(group) for group in optimizer.param_groups]
        make: Any = of_this_rank  # torch means a class, and calls it once
        super().__init__(groups, make, **optimizer.defaults)

    def whole_state_dict(self) -> dict[str, Any] | None:
        """The complete state, as without sharding, on rank 0; None on others.

        Collective: all ranks must call.
        """
        self.consolidate_state_dict(to=0)
        state = self.state_dict() if self.rank == 0 else None
        self._all_state_dicts: list[dict[str, Any]] = []  # or all of it would stay in memory
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores this rank's share of the complete state."""
        # The base class empties its argument, and keeps a second copy of the state.
        super().load_state_dict({**state_dict, "state": dict(state_dict["state"])})
        self.state.clear()


class _Holder(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


class ShardedWeights:
    """Shards a module's weights with FSDP2, and gathers them for a step or an evaluation.

    FSDP gathers in hooks of its modules, where all ranks must meet. Here ranks run different
    numbers of forward passes, or none, and a failed rank must not leave others in a collective. So
    FSDP wraps a holder whose hooks never run, and gathers when called.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self._module = module
        group = dist.group.WORLD
        assert group is not None
        mesh = DeviceMesh.from_group(group, device.type)
        self._fsdp = fully_shard(_Holder(module), mesh=mesh)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Context with complete weights and gradients; both are sharded again at its end.

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
