from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from raygnn.errors import ConfigError


class RowWiseAdagrad(Optimizer):
    """Adagrad with one number per row, for weights with sparse gradients.

    The number is the sum over steps of the mean square of the row's gradient, so the optimizer
    state of an embedding table is one column instead of another table. Rows without a gradient do
    not change. Weights with dense gradients are trained by plain Adagrad.

    Args:
        initial_accumulator_value: initial value of the sums.
        eps: added to their roots.

    Source: Adagrad with a moment per row, arXiv:2104.05158.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 0.01,
        *,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
    ) -> None:
        defaults = {"lr": lr, "initial_accumulator_value": initial_accumulator_value, "eps": eps}
        for name, value in defaults.items():
            if value < 0:
                key, remedy = f"optimizer.args.{name}", "Set 0 or more"
                raise ConfigError.invalid(
                    key, value, "it is negative", remedy, id="optimizer-negative"
                )
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                if weight.grad.is_sparse:
                    self._change_rows(weight, weight.grad.coalesce(), group)
                else:
                    self._change_all(weight, weight.grad, group)
        return loss

    def _change_rows(self, weight: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state["sum"] = weight.new_full(weight.shape[:1], group["initial_accumulator_value"])
        rows, values = grad.indices()[0], grad.values()
        sums = state["sum"][rows] + values.square().flatten(1).mean(1)
        state["sum"][rows] = sums
        scale = -group["lr"] / (sums.sqrt() + group["eps"])
        weight.index_add_(0, rows, values * scale.view(-1, *[1] * (values.dim() - 1)))

    def _change_all(self, weight: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state["sum"] = torch.full_like(weight, group["initial_accumulator_value"])
        state["sum"].addcmul_(grad, grad)
        weight.addcdiv_(grad, state["sum"].sqrt().add_(group["eps"]), value=-group["lr"])
