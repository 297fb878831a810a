"""`scaling.shard`: tensors of which each rank holds a part, and how checkpoints hold them whole.

Such a tensor is torch's `DTensor`. Its import takes half a second, so that code which every run
goes through knows one by its attributes.
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
from torch.optim import Optimizer

from raygnn.errors import ConfigError
from raygnn.parallel import collectives
from raygnn.parallel.all_reduce import SparseGradients


def is_sharded(tensor: Tensor) -> bool:
    """Whether this rank may hold a part only."""
    return hasattr(tensor, "full_tensor")


def own_part(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, or all of it, in the same memory."""
    if not is_sharded(tensor):
        return tensor
    part: Tensor = tensor.detach().to_local()  # type: ignore[attr-defined]
    return part


def full(tensor: Tensor) -> Tensor:
    """The parts of all ranks put together, on every rank. Collective: all ranks must call."""
    if not is_sharded(tensor):
        return tensor
    together: Tensor = tensor.detach().full_tensor()  # type: ignore[attr-defined]
    return together


def whole(tensor: Tensor) -> Tensor | None:
    """The parts of all ranks put together: in host memory on rank 0, None on the others.

    A tensor that is not sharded is given back as it is, on every rank. Collective: all ranks
    must call.
    """
    if not is_sharded(tensor):
        return tensor
    together = full(tensor)
    return together.cpu() if collectives.rank() == 0 else None


def whole_tensors(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """`whole` of each. Collective: all ranks must call."""
    return {name: whole(tensor) for name, tensor in tensors.items()}


def part_of(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor that is on all ranks, sharded as another one of its shape is; it is copied."""
    if not is_sharded(like):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = like.device_mesh, like.placements  # type: ignore[attr-defined]
    # Without a source rank nothing is sent: each takes its part of its own copy.
    return distribute_tensor(tensor.contiguous(), mesh, placements, src_data_rank=None)


def with_part(like: Tensor, part: Tensor) -> Tensor:
    """A tensor sharded as another one is, of which this rank holds `part`."""
    if not is_sharded(like):
        return part
    from torch.distributed.tensor import DTensor

    mesh, placements = like.device_mesh, like.placements  # type: ignore[attr-defined]
    shape, stride = like.shape, like.stride()
    part = part.to(like.device)
    return DTensor.from_local(part, mesh, placements, shape=shape, stride=stride)


def whole_state(optimizer: Optimizer) -> dict[str, Any]:
    """The state dict with the parts of all ranks; of what is sharded, None on ranks but 0.

    Collective: all ranks must call.
    """
    own = optimizer.state_dict()
    together = {
        index: {k: whole(v) if isinstance(v, Tensor) else v for k, v in values.items()}
        for index, values in own["state"].items()
    }
    return {**own, "state": together}


def load_whole_state(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Takes back a state dict of all ranks; of weights that are sharded, this rank's part."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    own = {
        index: {k: _part(v, weights[index]) for k, v in values.items()}
        for index, values in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": own})


def _part(value: Any, weight: Tensor) -> Any:
    if isinstance(value, Tensor) and is_sharded(weight) and value.shape == weight.shape:
        return part_of(value, weight)
    return value


def check_shardable(module: nn.Module, shard: str) -> None:
    """Checks what a config does not tell of a model.
    Raises:
        ConfigError: the weights cannot be sharded so.
    """
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
        f"scaling.shard={shard!r} is invalid: {problem}. Set it to {remedy}.", id="shard-weights"
    )


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
