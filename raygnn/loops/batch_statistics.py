"""Running statistics of batch norms, equal for any number of workers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class BatchStatistics:
    """Running statistics of batch norms that move once per step, equal for any number of workers.

    torch moves them in each forward pass, so they depend on the order of micro-batches on a rank.
    Here, a forward pass in training mode adds its statistics, times its rows, to `sums` instead.
    Summed over ranks, these move the running statistics once per step, by the mean over its
    micro-batches weighted by rows. With one micro-batch this equals torch. A norm that has seen no
    rows in a step does not change.

    Attributes:
        sums: [total], of all norms; to be summed over ranks before `move`.
    """

    def __init__(self, module: nn.Module) -> None:
        norms: list[Any] = [
            norm
            for norm in module.modules()
            if isinstance(norm, _BatchNorm) and isinstance(norm.running_mean, Tensor)
        ]
        wide = any(b.dtype == torch.float64 for norm in norms for b in norm.buffers())
        device = norms[0].running_mean.device if norms else None
        sizes = [2 * norm.num_features + 1 for norm in norms]
        dtype = torch.float64 if wide else torch.float32
        self.sums = torch.zeros(sum(sizes), dtype=dtype, device=device)
        self._norms = [
            _NormStatistics(norm, part)
            for norm, part in zip(norms, self.sums.split(sizes), strict=True)
        ]

    def clear(self) -> None:
        """Discards the collected sums. Forward passes between steps do not count."""
        if self._norms:
            self.sums.zero_()

    def move(self) -> None:
        for norm in self._norms:
            norm.move()

    def owns(self, buffer: Tensor) -> bool:
        """Whether a buffer belongs to one of these norms, and is therefore equal on all ranks."""
        return any(buffer is mine for norm in self._norms for mine in norm.module.buffers())


class _NormStatistics:
    def __init__(self, module: Any, sums: Tensor) -> None:
        self.module = module
        self._sums = sums
        # With a momentum of 1 torch leaves the statistics of a forward pass here.
        self._mean = torch.zeros_like(module.running_mean)
        self._variance = torch.zeros_like(module.running_var)
        self._kept: tuple[Any, ...] | None = None
        module.register_forward_pre_hook(self._before)
        module.register_forward_hook(self._after, always_call=True)

    def _before(self, module: Any, inputs: tuple[Any, ...]) -> None:
        if not module.training:
            return
        self._kept = (
            module.running_mean,
            module.running_var,
            module.num_batches_tracked,
            module.momentum,
        )
        module.running_mean, module.running_var = self._mean, self._variance
        module.num_batches_tracked, module.momentum = None, 1.0

    def _after(self, module: Any, inputs: tuple[Any, ...], output: Tensor | None) -> None:
        if self._kept is None:
            return
        module.running_mean, module.running_var, *others = self._kept
        module.num_batches_tracked, module.momentum = others
        self._kept = None
        if output is None:  # the forward pass has failed
            return
        num_rows = output.numel() // module.num_features
        mean, variance, rows = self._parts()
        mean.add_(self._mean, alpha=num_rows)
        variance.add_(self._variance, alpha=num_rows)
        rows.add_(num_rows)

    @torch.no_grad()
    def move(self) -> None:
        norm = self.module
        *sums, rows = self._parts()
        has_rows = rows > 0
        norm.num_batches_tracked.add_(has_rows.squeeze())
        momentum = norm.momentum
        if momentum is None:  # the mean over all steps
            momentum = 1.0 / norm.num_batches_tracked.clamp(min=1)
        factor = has_rows * momentum
        for running, total in zip((norm.running_mean, norm.running_var), sums, strict=True):
            mean = total / rows.clamp(min=1)
            running.copy_(running.to(mean.dtype) * (1 - factor) + mean * factor)

    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        width = self.module.num_features
        mean, variance, rows = self._sums.split([width, width, 1])
        return mean, variance, rows
