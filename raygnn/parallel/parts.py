"""Tensors that are shared out: each rank holds some of their rows.

Such a tensor is torch's `DTensor`. Its import takes half a second, so that code which every run
goes through knows one by its attributes.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from raygnn.parallel import collectives


def is_shared_out(tensor: Tensor) -> bool:
    """Whether this rank may hold a part only."""
    return hasattr(tensor, "full_tensor")


def own_part(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor, in the same memory: a part, or all of it."""
    if not is_shared_out(tensor):
        return tensor
    part: Tensor = tensor.detach().to_local()  # type: ignore[attr-defined]
    return part


def full(tensor: Tensor) -> Tensor:
    """The parts of all ranks put together, on every rank. Collective: all ranks must call."""
    if not is_shared_out(tensor):
        return tensor
    together: Tensor = tensor.detach().full_tensor()  # type: ignore[attr-defined]
    return together


def whole(tensor: Tensor) -> Tensor | None:
    """The parts of all ranks put together: in host memory on rank 0, None on the others.

    A tensor that is not shared out is given back as it is, on every rank. Collective: all ranks
    must call.
    """
    if not is_shared_out(tensor):
        return tensor
    together = full(tensor)
    return together.cpu() if collectives.rank() == 0 else None


def whole_tensors(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """`whole` of each. Collective: all ranks must call."""
    return {name: whole(tensor) for name, tensor in tensors.items()}


def part_of(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor shared out as another one of its shape is; it is copied."""
    if not is_shared_out(like):
        return tensor
    mesh: Any = like.device_mesh  # type: ignore[attr-defined]
    rows = -(-like.shape[0] // mesh.size())
    first = rows * mesh.get_local_rank()
    return with_part(like, tensor[first : first + rows].to(like.device, copy=True))


def with_part(like: Tensor, part: Tensor) -> Tensor:
    """A tensor shared out as another one is, of which this rank holds `part`."""
    if not is_shared_out(like):
        return part
    from torch.distributed.tensor import DTensor

    mesh, placements = like.device_mesh, like.placements  # type: ignore[attr-defined]
    shape, stride = like.shape, like.stride()
    part = part.to(like.device)
    return DTensor.from_local(part, mesh, placements, shape=shape, stride=stride)
