"""Free memory of devices, and copies to and from them with few waits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def unused_bytes(device: torch.device) -> int:
    """Memory of a CUDA device for what stays there: not what torch keeps for the next step."""
    return torch.cuda.mem_get_info(device)[0]


def free_bytes(device: torch.device) -> int:
    """Memory of a CUDA device that new tensors may take for a while."""
    return (
        unused_bytes(device)
        + torch.cuda.memory_reserved(device)
        - torch.cuda.memory_allocated(device)
    )


def copied(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device, copied from page-locked memory so that the host does not wait."""
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def read_together(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors on the host, copied with one wait for the device."""
    # Larger elements first, so that each tensor begins at a multiple of its element.
    order = sorted(range(len(tensors)), key=lambda i: -tensors[i].itemsize)
    order = [i for i in order if tensors[i].is_cuda]
    read = list(tensors)
    if order:
        parts = [tensors[i].detach().contiguous().view(-1).view(torch.uint8) for i in order]
        on_host = torch.cat(parts).cpu().split([len(part) for part in parts])
        for i, part in zip(order, on_host, strict=True):
            read[i] = part.view(tensors[i].dtype).view(tensors[i].shape)
    return read
